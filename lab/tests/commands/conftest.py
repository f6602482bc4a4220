"""The embedded pair, loaded once, and prompts in a file."""

from helpers.command_line_fixtures import embedded, prompts, quick

__all__ = ["embedded", "prompts", "quick"]
