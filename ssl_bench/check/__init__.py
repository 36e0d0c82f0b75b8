"""Measurements of ``ssl-bench check``, one file a section: is this machine right, and how fast is it."""
