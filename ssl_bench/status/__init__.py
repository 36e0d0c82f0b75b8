"""State of every run and grid: ``runs``, ``grids`` and ``follow`` read them, ``cache`` keeps what they read, ``scan``
joins them; ``labels``, ``select`` and ``view`` make what ``ssl-bench status`` shows."""
