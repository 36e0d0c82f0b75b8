"""State of every run and grid: ``index`` finds them, ``entries``, ``grids``, ``follow`` and ``configs`` read them,
``scan`` joins runs and grids; ``labels``, ``groups``, ``select`` and ``view`` make what ``ssl-bench status`` shows."""
