"""The shared language: trees, distributions, randomness, time and errors. It knows nothing of models."""
