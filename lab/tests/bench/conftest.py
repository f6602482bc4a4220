"""The embedded pair, loaded once, and prompts in a file."""

from testing.command_line_fixtures import embedded, prompts, quick

__all__ = ["embedded", "prompts", "quick"]
