"""transformers' stopping criteria, asked after every committed token of one text as its `generate` asks them."""

from collections.abc import Sequence

import torch
from transformers import StoppingCriteriaList


class StoppingText:
    """A growing text and the criteria that may end it.

    Args:
        criteria: functions of token ids `[1, length]` and scores, which are None here.
        prompt: token ids before the text, padding included.
        new_tokens: tokens that may follow them at most.
        device: the device of the token ids the criteria see.
    """

    def __init__(
        self, criteria: StoppingCriteriaList, prompt: Sequence[int], new_tokens: int, device: torch.device
    ) -> None:
        self._criteria = criteria
        self._length = len(prompt)
        self._ids = torch.tensor([[*prompt, *[0] * new_tokens] if criteria else []], device=device)

    def push(self, token: int) -> bool:
        """Add a token; whether a criterion ends the text after it."""
        if not self._criteria:
            return False
        self._ids[0, self._length] = token
        self._length += 1
        seen = self._ids[:, : self._length].clone()  # a criterion may write to it
        return bool(self._criteria(seen, None).all())  # pyright: ignore[reportArgumentType]
