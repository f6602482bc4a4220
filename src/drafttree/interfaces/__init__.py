"""The command line, the server, workers for Ray and Dynamo, and the function for transformers' `generate`.

This door is empty on purpose: the command line starts without torch and transformers, which the rest imports.
"""
