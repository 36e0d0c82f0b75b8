"""State of every run and grid: ``runs``, ``grids`` and ``follow`` find and read them, ``cache`` keeps what they read,
``entries`` and ``scan`` join runs and grids; ``labels``, ``groups``, ``select`` and ``view`` make what ``ssl-bench
status`` shows."""
