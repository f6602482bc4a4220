"""The command line, the terminal display and the function for transformers' `generate`."""
