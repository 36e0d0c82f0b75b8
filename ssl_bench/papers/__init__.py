"""The tables and figures of five papers as data: what produces each cell, what was reported, what was measured here.

One YAML file per paper. Reading them needs neither torch nor Hydra; Hydra is imported when a cell's run is looked for.

``tables.py`` reads and checks the files, ``runs.py`` finds the runs of a cell, ``cost.py`` says what they cost,
``reproduce.py`` trains what is missing, ``show.py`` and ``figure.py`` print and draw, ``smoke.py`` makes every cell
small enough to be tried, ``experiments.py`` writes ``conf/experiment/``.
"""
