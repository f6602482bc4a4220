"""Modules of transformers: the backend that runs one, its fingerprint, and what keeps one from being served."""
