"""What ``ssl-bench check`` measures, one file a section: is this machine right, and how fast is it."""
