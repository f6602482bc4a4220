"""The commands `drafttree bench`, `replay` and `support`."""
