"""Shared code of the tests: toy models, small checkpoints, and independent computations to compare with."""
