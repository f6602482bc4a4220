"""The form in which prompts of a file are asked."""

from dataclasses import dataclass
from typing import Any

from drafttree.measure.prompts import EXCERPT


@dataclass(frozen=True)
class PromptForm:
    """Which prompts of a file are asked, and how.

    Attributes:
        chat: whether the tokenizer's chat template renders prompts.
        category: take only prompts whose category begins with this; None for all.
        turns: maximum number of turns of a conversation, each a prompt of its own. None: all with `chat`, else one.
        tokens: maximum number of tokens of a turn, whose end is cut off; None for all.
    """

    chat: bool = False
    category: str | None = None
    turns: int | None = None
    tokens: int | None = None

    @property
    def most_turns(self) -> int | None:
        """Maximum number of turns of a conversation; None for all."""
        return self.turns or (None if self.chat else 1)

    @property
    def selection(self) -> dict[str, Any]:
        """The arguments of `read_examples`. If turns are cut by tokens, long texts are not cut by characters."""
        return {"category": self.category, "excerpt": None if self.tokens else EXCERPT}


AS_TEXT = PromptForm()
"""The first turn of every prompt, as plain text."""
