"""The tables and figures of five papers as data, the runs that fill them, and what those runs cost (README.md). Nothing
here needs torch; Hydra is imported only when the configuration of a cell is composed."""
