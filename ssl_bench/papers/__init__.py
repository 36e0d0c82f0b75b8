"""The tables and figures of five papers as data, and the runs that fill them (README.md). Nothing here needs torch;
Hydra is imported only when the configuration of a cell is composed."""
