"""The tables of ``ssl-bench status``."""
