"""File systems that fail for a moment, and temporary files of killed processes."""
