"""Training one run on one rank: ``parts`` builds it, ``engine`` is the loop, ``state`` what the loop changes, saves and
resumes; ``step`` is a step, ``graph`` replays it; ``optim``, ``chunked``, ``meter``, ``snr`` and ``recording`` are
called by them."""
