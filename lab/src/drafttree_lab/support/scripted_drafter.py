"""A drafter that knows the text and mixes it with wrong tokens, so that accepted paths have every length."""

from collections.abc import Sequence

import torch
from torch import Tensor

from drafttree.drafters import HiddenStates, Session

LIFTS = (4.0, -0.5, 4.0, 4.0, -0.5, 4.0, -20.0)
"""The right token's logit minus the best wrong one's, in cycles: it is best, second best, or not drafted."""


class ScriptedDrafter:
    """Drafts a text that is known beforehand, on a CPU. See `drafttree.drafters.base.Drafter`.

    Args:
        prompt: token ids of the prompt.
        text: token ids of the text after it.
        vocab_size: vocabulary size of the target.
    """

    def __init__(self, prompt: Sequence[int], text: Sequence[int], vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.context: int | None = None
        self.levels: int | None = None
        self.hidden_layers = ()
        self.nbytes = 0
        self._prompt_length = len(prompt)
        tokens = [*prompt, *text]
        self._logits = torch.randn(len(tokens) + 1, vocab_size, generator=torch.Generator().manual_seed(len(tokens)))
        for position, token in enumerate(tokens):
            self._logits[position, token] = -torch.inf
            self._logits[position, token] = self._logits[position].max() + LIFTS[position % len(LIFTS)]

    def start(self, prompt: list[int], capacity: int) -> "ScriptedSession":
        """Begin a request. Its prompt must be the given one, of which images may be left out."""
        return ScriptedSession(self._logits, self._prompt_length)


class ScriptedSession(Session):
    """A position in the text; wrong branches continue like the right one."""

    def __init__(self, logits: Tensor, length: int) -> None:
        super().__init__(None, logits.device)
        self._logits = logits
        self._length = length
        self._level = 0

    def draft_root(self) -> Tensor:
        self._level = 0
        return self._logits[self._length][None, None]

    def draft_level(self, tokens: Tensor, origins: Tensor) -> Tensor:
        self._level += 1
        position = min(self._length + self._level, len(self._logits) - 1)
        return self._logits[position].expand(*tokens.shape, -1)

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        self._length += len(tokens)
