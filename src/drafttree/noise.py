"""Everything random about a text, as answers to a few questions that depend on its seed and on places in it."""

from typing import Protocol

import torch
from torch import Tensor

from drafttree.distributions import gumbel, stream
from drafttree.tree import Proposal

BLOCK = 2**18
SPAN = 64


class Noise(Protocol):
    """The questions verifiers and sampled trees may ask."""

    def begin(self, position: int) -> None:
        """A round's verification starts, whose root is at `position`."""
        ...

    def gumbel(self, position: int, count: int) -> Tensor:
        """Float32 `[count, vocab]`: Gumbel noise of `count` positions from `position` on."""
        ...

    def accept(self, probability: Tensor | float) -> bool:
        """True with this probability; a value of 1 or more is certain."""
        ...

    def draw(self, distribution: Tensor) -> int:
        """A token of this distribution `[vocab]`, which need not be normalised."""
        ...

    def children(
        self, logprobs: Tensor, counts: Tensor, proposal: Proposal, position: int, depth: int
    ) -> tuple[Tensor, Tensor]:
        """Draw children of every frontier node.

        Args:
            logprobs: `[batch, frontier, vocab]` of the draft, -inf where a token is impossible.
            counts: `[batch, frontier]` how many each node gets; of the tokens returned for it the first so many count.
            proposal: how they are drawn.
            position: of the root.
            depth: level of the children; draws of different rounds and levels are independent.

        Returns:
            `[batch, frontier, children]` token ids in draw order, and the distributions `[batch, frontier, vocab]`
            the first drawn child of each node came from.
        """
        ...


class SeededNoise:
    """Noise that is a pure function of a seed and of places in the text.

    Gumbel noise is made in blocks and kept while it is near. The streams `accept`, `bonus` and `draft` begin anew in
    every round, at a place that depends on seed and root position alone.

    Args:
        seed: of the sequence.
        vocab: numbers per position.
        device: where the numbers are used.
    """

    def __init__(self, seed: int, vocab: int, device: torch.device) -> None:
        self._seed, self._vocab, self._device = seed, vocab, device
        self._span = max(1, min(SPAN, BLOCK // vocab))
        self._first = 0
        self._rows = torch.zeros(0, vocab, device=device)

    def gumbel(self, position: int, count: int) -> Tensor:
        if position < self._first or position + count > self._first + len(self._rows):
            positions = torch.arange(position, position + max(count, self._span), device=self._device)
            self._first, self._rows = position, gumbel(self._seed, positions, self._vocab)
        return self._rows[position - self._first :][:count]

    def begin(self, position: int) -> None:
        self._accepts = stream(self._seed, "accept", position, self._device)
        self._bonus = stream(self._seed, "bonus", position, self._device)

    def accept(self, probability: Tensor | float) -> bool:
        return bool(torch.rand((), generator=self._accepts, device=self._device, dtype=torch.float64) < probability)

    def draw(self, distribution: Tensor) -> int:
        return int(torch.multinomial(distribution, 1, generator=self._bonus))

    def children(
        self, logprobs: Tensor, counts: Tensor, proposal: Proposal, position: int, depth: int
    ) -> tuple[Tensor, Tensor]:
        generator = stream(self._seed, f"draft/{depth}", position, self._device)
        most = max(int(counts.amax()), 1)
        if proposal is Proposal.INDEPENDENT:
            probs = logprobs.exp()
            drawn = torch.multinomial(probs.flatten(0, 1), most, replacement=True, generator=generator)
            return drawn.view(*counts.shape, most), probs
        perturbed = -torch.empty_like(logprobs).exponential_(generator=generator).log()
        if proposal is Proposal.SAMPLED:
            return (logprobs + perturbed).topk(most).indices, logprobs.exp()
        best = logprobs.topk(most).indices
        taken = torch.arange(most, device=best.device) < counts[..., None] - 1
        rest = logprobs.masked_fill(torch.zeros_like(logprobs, dtype=torch.bool).scatter(2, best, taken), -torch.inf)
        last = (rest + perturbed).argmax(-1, keepdim=True)
        return best.scatter(2, (counts[..., None] - 1).clamp_min(0), last), rest.softmax(-1)
