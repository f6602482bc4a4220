"""From names and files to a decoder."""
