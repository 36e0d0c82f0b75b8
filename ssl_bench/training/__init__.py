"""Training of one run on one rank.

``build`` builds the parts of a run from its configuration and ``validate`` refuses parts that do not fit together.
``engine`` is the loop; ``state`` has everything that the loop changes, saves and resumes. ``step`` carries out a step,
``graph`` replays it as a CUDA graph, and ``optim``, ``chunked``, ``meter`` and ``snr`` are parts of a step.
"""
