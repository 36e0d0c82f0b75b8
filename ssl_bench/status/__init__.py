"""What ``ssl-bench status`` prints."""
