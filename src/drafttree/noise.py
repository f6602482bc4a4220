"""Everything random about a text, as answers to a few questions that depend on its seed and on places in it."""

from typing import Protocol

import torch
from torch import Tensor

from drafttree.distributions import gumbel, stream
from drafttree.rows import draw
from drafttree.tree import Proposal

BLOCK = 2**18
SPAN = 64


def fresh_seed() -> int:
    """A seed from torch's global generator, which `torch.manual_seed` sets."""
    return int(torch.randint(2**63 - 1, ()))


class Noise(Protocol):
    """The questions verifiers and sampled trees may ask."""

    def begin(self, position: int) -> None:
        """A round's verification starts, whose root is at `position`."""
        ...

    def gumbel(self, position: int) -> Tensor:
        """Float32 `[vocab]`: the Gumbel noise of a position."""
        ...

    def accept(self, probability: Tensor | float) -> bool:
        """True with this probability; a value of 1 or more is certain."""
        ...

    def draw(self, distribution: Tensor) -> int:
        """A token of this distribution `[vocab]`, which need not be normalised."""
        ...

    def children(
        self, probs: Tensor, counts: Tensor, proposal: Proposal, position: int, depth: int
    ) -> tuple[Tensor, Tensor]:
        """Draw children of every frontier node.

        Args:
            probs: `[batch, frontier, vocab]` distributions of the draft.
            counts: `[batch, frontier]` how many each node gets; of the tokens returned for it the first so many count.
            proposal: how they are drawn.
            position: of the root.
            depth: level of the children; draws of different rounds and levels are independent.

        Returns:
            `[batch, frontier, children]` token ids in draw order, and the distributions `[batch, frontier, vocab]`
            the first drawn child of each node came from: `probs` itself, unless the best tokens are not drawn.
        """
        ...


class SeededNoise:
    """Noise that is a pure function of a seed and of places in the text.

    Gumbel noise is made once per position, many positions at a time where the vocabulary is small, and forgotten when
    the text has passed them. The streams `accept`, `bonus` and `draft` begin anew in every round, at a place that
    depends on seed and root position alone.

    Args:
        seed: of the sequence.
        vocab: numbers per position.
        device: where the numbers are used.
    """

    def __init__(self, seed: int, vocab: int, device: torch.device) -> None:
        self._seed, self._vocab, self._device = seed, vocab, device
        self._span = max(1, min(SPAN, BLOCK // vocab))
        self._rows: dict[int, Tensor] = {}

    def gumbel(self, position: int) -> Tensor:
        if position not in self._rows:
            first = position - position % self._span
            made = gumbel(self._seed, torch.arange(first, first + self._span, device=self._device), self._vocab)
            self._rows |= dict(enumerate(made, first))
        return self._rows[position]

    def begin(self, position: int) -> None:
        if self._rows and min(self._rows) <= position - self._span:
            self._rows = {ahead: row for ahead, row in self._rows.items() if ahead > position}
        self._accepts = stream(self._seed, "accept", position, self._device)
        self._bonus = stream(self._seed, "bonus", position, self._device)

    def accept(self, probability: Tensor | float) -> bool:
        return bool(torch.rand((), generator=self._accepts, device=self._device, dtype=torch.float64) < probability)

    def draw(self, distribution: Tensor) -> int:
        share = torch.rand((), generator=self._bonus, device=self._device, dtype=torch.float64)
        return int(draw(distribution, share))

    def children(
        self, probs: Tensor, counts: Tensor, proposal: Proposal, position: int, depth: int
    ) -> tuple[Tensor, Tensor]:
        generator = stream(self._seed, f"draft/{depth}", position, self._device)
        most = max(int(counts.amax()), 1)
        shares = torch.rand(*counts.shape, most, generator=generator, device=self._device, dtype=torch.float64)
        if proposal is Proposal.HUB:
            return _hub(probs, counts, shares[..., 0], most)
        if proposal is Proposal.SAMPLED:
            return _without_replacement(probs, shares), probs
        return torch.stack([draw(probs, share) for share in shares.unbind(-1)], -1), probs


def _without_replacement(probs: Tensor, shares: Tensor) -> Tensor:
    """One token `[..., children]` of each row for each share, none twice; the rows are as before in the end."""
    tokens = torch.zeros(shares.shape, dtype=torch.long, device=probs.device)
    taken = torch.zeros(shares.shape, dtype=probs.dtype, device=probs.device)
    for place, share in enumerate(shares.unbind(-1)):
        token = draw(probs, share)[..., None]
        tokens[..., place : place + 1], taken[..., place : place + 1] = token, probs.gather(-1, token)
        probs.scatter_(-1, token, 0.0)
    probs.scatter_add_(-1, tokens, taken)
    return tokens


def _hub(probs: Tensor, counts: Tensor, shares: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The best tokens of each row, and after them one drawn from the others, whose distribution comes second."""
    best = probs.topk(most).indices
    taken = torch.arange(most, device=best.device) < counts[..., None] - 1
    others = probs.masked_fill(torch.zeros_like(probs, dtype=torch.bool).scatter(-1, best, taken), 0.0)
    last = draw(others, shares)[..., None]
    others /= others.sum(-1, keepdim=True)
    return best.scatter(-1, (counts[..., None] - 1).clamp_min(0), last), others
