"""Checkpoint files of trained heads: reading them, telling their kind, and what does not fit."""
