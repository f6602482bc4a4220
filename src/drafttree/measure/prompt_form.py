from dataclasses import dataclass
from typing import Any

from drafttree.measure.prompts import EXCERPT


@dataclass(frozen=True)
class PromptForm:
    """Which prompts of a file are asked, and in which form.

    Attributes:
        chat: whether they are rendered by the tokenizer's chat template.
        category: take those alone whose category begins with this.
        turns: turns of a conversation at most, each a prompt of its own; None for the first, with `chat` for all.
        tokens: tokens of a turn at most, the others are cut off at its end; None for all.
    """

    chat: bool = False
    category: str | None = None
    turns: int | None = None
    tokens: int | None = None

    @property
    def most_turns(self) -> int | None:
        """Turns of a conversation at most; None for all."""
        return self.turns or (None if self.chat else 1)

    @property
    def selection(self) -> dict[str, Any]:
        """The arguments of `read_examples`: where tokens are counted, long texts are not cut by their characters."""
        return {"category": self.category, "excerpt": None if self.tokens else EXCERPT}


AS_TEXT = PromptForm()
"""The first turn of every prompt as it stands."""
