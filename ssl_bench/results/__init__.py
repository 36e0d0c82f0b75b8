"""Runs are one table: ``table`` reads it, ``select`` chooses rows by words, ``status`` prints them, ``pivot`` and
``curves`` make means over seeds, ``any_table`` takes other tables; ``comparison``, ``matters`` and ``statistics`` say what a difference is worth."""
