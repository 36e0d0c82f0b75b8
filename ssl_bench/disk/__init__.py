"""What comes from a disk: its shape, file systems that fail for a moment, temporary files and whose they are."""
