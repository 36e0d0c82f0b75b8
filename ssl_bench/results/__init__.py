"""Results as rows: ``runs`` and ``grids`` read the files of runs and grids, ``cache`` keeps what they read, ``scan``
joins them; ``keys`` and ``labels`` say what differs, ``statistics`` what a difference is worth."""
