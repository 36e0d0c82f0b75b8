"""State of every run and grid: ``runs``, ``grids`` and ``follow`` read them, ``cache`` keeps what they read, ``scan``
joins them; ``keys``, ``labels``, ``select`` and ``view`` make what ``ssl-bench status`` shows."""
