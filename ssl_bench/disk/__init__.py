"""Shapes of files, file systems that fail for a moment, temporary files and the processes that own them."""
