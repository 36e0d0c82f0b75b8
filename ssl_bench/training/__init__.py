"""Training one run on one rank: ``build`` builds it, ``validate`` refuses it before, ``engine`` is the loop, ``state``
what the loop changes, saves and resumes; ``step`` is a step, ``graph`` replays it; ``optim``, ``chunked``, ``meter``
and ``snr`` are called by them."""
