"""Logits whose best tokens a recorded pass has ranked on the device, so that reading them starts no kernel."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy import ndarray as Array
from torch import Tensor

from drafttree.models.segment import Output, join

RANKED = 64
"""Best tokens of a node that are ranked: as many as any policy with a budget of up to 65 nodes looks at."""


class RankedLogits:
    """Logits on a device, and the best tokens of each row.

    Args:
        ranks: `[2, rows, count]` log-probabilities and ids of the best tokens, as of `drafttree.core.vocab_ops.ranked`.
        logits: makes the logits `[rows, vocab]` of all tokens.
        token_ids: `[draft vocabulary]` the target's id of each draft id, None if they are the same.
    """

    def __init__(self, ranks: Tensor, logits: Callable[[], Tensor], token_ids: Array | None = None) -> None:
        self._ranks = ranks
        self._logits = logits
        self._token_ids = token_ids

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self._ranks.shape[1]

    def logits(self) -> Tensor:
        """The logits `[rows, vocab]` of all tokens."""
        return self._logits()

    def read(self, width: int, allowed: int) -> tuple[Array, Array] | None:
        """Log-probabilities and ids `[rows, width]` of the best tokens, the best first, in one read from the device.

        None if these are not among the ranked tokens.

        Args:
            width: tokens of a row.
            allowed: only ids below this are returned; the others take part in the softmax.
        """
        if width > self._ranks.shape[2]:
            return None
        logprobs, ids = self._ranks[..., :width].cpu().numpy()
        tokens = ids.astype(np.int64)
        if self._token_ids is not None:
            tokens = self._token_ids[tokens]
        return None if (tokens >= allowed).any() else (logprobs, tokens)


DraftLogits = Tensor | RankedLogits


def logits_of(
    outputs: Sequence[Output], spread: Callable[[Tensor], Tensor] | None = None, token_ids: Array | None = None
) -> DraftLogits:
    """The logits `[rows, vocab]` of a draft pass, ranked if the pass has ranked those of all texts.

    Args:
        outputs: the output of each text.
        spread: makes logits of the target's vocabulary from those of the pass; None if they are the same.
        token_ids: as of `RankedLogits`.
    """

    def joined_logits() -> Tensor:
        logits = join([output.logits[0] for output in outputs], 0)
        return spread(logits) if spread else logits

    output_ranks = [output.ranks for output in outputs if output.ranks is not None]
    if len(output_ranks) < len(outputs):
        return joined_logits()
    return RankedLogits(join(output_ranks), joined_logits, token_ids)
