"""Training one run on one rank: ``engine`` is the loop, ``state`` what it changes, saves and resumes; ``optim``,
``chunked``, ``meter``, ``snr``, ``estimate`` and ``interrupt`` are called by them."""
