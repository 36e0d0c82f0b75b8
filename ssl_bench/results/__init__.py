"""Results as rows: ``runs`` and ``grids`` read the files of runs and grids, ``scan`` joins them, ``status`` shows them,
``differing`` says in what they differ, ``arrange`` makes tables; ``comparison`` and ``statistics`` say what a
difference is worth."""
