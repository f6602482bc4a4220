"""Experiments: prompts and methods by turns, and what is measured of them."""
