"""File systems that fail for a moment, temporary files, and which of the processes that made them still run."""
