"""Runs are one table: ``table`` reads it and chooses rows by words, ``any_table`` makes it of other tables, ``status``
prints it, ``pivot`` and ``curves`` make means over seeds; ``comparison``, ``matters`` and ``statistics`` say what a
difference is worth."""
