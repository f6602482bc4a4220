"""Prompts x ways of generating x repeats, by turns in one process."""
