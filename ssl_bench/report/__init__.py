"""The report of ``ssl-bench report``: ``collect`` makes plain data of the runs, with ``curves``, ``pictures`` and
``verdicts``; ``html`` makes one HTML file of it and of ``page/``."""
