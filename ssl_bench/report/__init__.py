"""The report of ``ssl-bench report``: ``collect`` makes plain data of the runs, with ``curves``, ``pictures`` and
``filled``; ``html`` makes one HTML file of it and of the sources in ``page/``; ``serve`` shows it live."""
