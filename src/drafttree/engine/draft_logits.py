"""The drafter's logits as a tree policy sees them: constrained, divided by a temperature, guided by the verifier."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from numpy import ndarray as Array
from torch import Tensor
from torch.nn.functional import pad

from drafttree.core.randomness import Randomness
from drafttree.drafters.base import Session
from drafttree.drafters.session import Frontier, draft_chain, draft_expand, draft_root
from drafttree.verifiers.base import Verifier

Path = tuple[int, ...]
Constrain = Callable[[list[Path], Tensor], Tensor]
"""Changes the logits `[frontier, vocab]` behind these paths of drafted tokens."""


@dataclass(eq=False)
class LogitsAdjustment:
    """What is done to a drafter's logits in one round of a text.

    Attributes:
        verifier: may show its randomness to the drafter.
        randomness: the randomness of this round.
        temperature: divides the drafter's logits.
        constrain: keeps drafted tokens to what the text may be; None for a text without constraints.
        take_first: is given the drafter's own logits `[1, vocab]` of the first level; None where nobody wants them.
    """

    verifier: Verifier
    randomness: Randomness
    temperature: float = 1.0
    constrain: Constrain | None = None
    take_first: Callable[[Tensor], None] | None = None

    @property
    def changes_nothing(self) -> bool:
        """Whether logits stay as they are at every depth."""
        return not (self.constrain or self.verifier.guides) and self.temperature == 1

    def apply(self, logits: Tensor, depth: int, paths: list[Path]) -> Tensor:
        """The adjusted logits `[frontier, vocab]`; the same tensor if there is nothing to adjust.

        Args:
            logits: the drafter's.
            depth: the depth of the tokens that they are about.
            paths: the drafted tokens behind which they are, if there are constraints.
        """
        if self.take_first and depth == 1:
            self.take_first(logits)
        if self.constrain:
            logits = self.constrain(paths, logits)
        if self.temperature != 1:
            logits = logits / self.temperature
        return self.verifier.guide(logits, depth, self.randomness)


class AdjustedDraft:
    """The drafter's logits for a round of some requests, each adjusted in its own way. See `tree_growth.DraftRows`.

    Args:
        sessions: sessions of the requests.
        adjustments: adjustments of each.
        device: the device where the drafter runs.
    """

    def __init__(
        self, sessions: Sequence[Session], adjustments: Sequence[LogitsAdjustment], device: torch.device
    ) -> None:
        self._sessions, self._adjustments, self._device = sessions, adjustments, device
        self._depth, self._paths = 0, list[list[Path]]()

    def root(self) -> Tensor:
        self._depth, self._paths = 1, [list[Path]([()]) for _ in self._adjustments]
        return self._adjust(draft_root(self._sessions), [1] * len(self._adjustments))

    def expand(self, frontiers: Sequence[Frontier]) -> Tensor:
        self._depth += 1
        for place, (adjustment, frontier) in enumerate(zip(self._adjustments, frontiers, strict=True)):
            if adjustment.constrain:
                paths, nodes = self._paths[place], zip(frontier.tokens, frontier.origins, strict=True)
                self._paths[place] = [(*paths[origin], token) for token, origin in nodes]
        widths = [len(frontier.tokens) for frontier in frontiers]  # a drafter may write to its frontiers
        return self._adjust(draft_expand(self._sessions, frontiers, self._device), widths)

    def chain(self, tokens: Sequence[int], count: int, allowed: int) -> tuple[Array, Array] | None:
        if not all(adjustment.changes_nothing for adjustment in self._adjustments):
            return None
        return draft_chain(self._sessions, tokens, count, allowed)

    def _adjust(self, logits: Tensor, widths: Sequence[int]) -> Tensor:
        """The logits with each request's nodes adjusted; requests that need no adjustment cost nothing."""
        if len(widths) == 1:
            return self._adjustments[0].apply(logits, self._depth, self._paths[0])
        parts = logits.split(list(widths))
        adjusted = [
            adjustment.apply(own, self._depth, paths) if len(own) else own
            for adjustment, own, paths in zip(self._adjustments, parts, self._paths, strict=True)
        ]
        if all(after is before for after, before in zip(adjusted, parts, strict=True)):
            return logits
        columns = max(own.shape[-1] for own in adjusted)
        return torch.cat([pad(own, (0, columns - own.shape[-1]), value=-torch.inf) for own in adjusted])
