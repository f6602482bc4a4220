"""The command line, the terminal display and the function for transformers' `generate`.

This door is empty on purpose: the command line starts without torch and transformers, which the rest imports.
"""
