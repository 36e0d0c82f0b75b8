"""Training one run on one rank: ``parts`` builds it, ``engine`` is the loop, ``state`` what the loop changes, saves and
resumes; ``optim``, ``chunked``, ``meter``, ``snr``, ``graph`` and ``estimate`` are called by them."""
