"""The command line, the server, workers for Ray and Dynamo, and the function for transformers' `generate`.

This file imports nothing, so that the command line starts without loading torch and transformers.
"""
