"""The report of ``ssl-bench report``: ``collect`` makes plain data of the runs, with ``curves``, ``pictures``,
``verdicts`` and ``filled``; ``html`` makes one HTML file of it and of ``page/``."""
