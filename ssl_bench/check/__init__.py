"""``ssl-bench check``: a small self-test of a machine. ``run.py`` lists its sections, each in a process of its own.

.. include:: README.md
"""
