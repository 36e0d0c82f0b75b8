"""State of every run and grid: ``scan`` finds the ``entries``, ``follow`` and ``grids`` read files, ``labels`` names
the runs by their differences, ``view`` makes the table of ``ssl-bench status``."""
