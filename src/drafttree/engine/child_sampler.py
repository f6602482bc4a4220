"""Children drawn at random: any policy's tree in sampled form, by predictable growth.

A policy's masks say how many children a node gets, from its distribution and from what was drawn before; only then are
they drawn, and every drawn node stays in the tree. A budget is kept by not drawing. So a verifier may rely on the
distribution it is told the children came from.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from drafttree.core.randomness import RoundRandomness
from drafttree.core.tree import Proposal

MIN_LOGPROB = -80.0
"""Log-probability below which a token is not drawn: its probability would be lost in float32."""


class ChildSampler:
    """Draws the children of the trees of a batch, a level at a time.

    Args:
        proposal: how siblings are drawn.
        randomness: the randomness of this round, one per sequence.
    """

    def __init__(self, proposal: Proposal, randomness: Sequence[RoundRandomness]) -> None:
        self.proposal, self._randomness = proposal, randomness

    def draw(
        self, rows: Tensor, counts: Sequence[Sequence[int]], depth: int
    ) -> tuple[list[list[list[int]]], list[list[list[float]]], list[Tensor]]:
        """Draw as many children of each frontier node as were counted.

        Args:
            rows: `[nodes, vocab]` log-probabilities of the draft for the frontier nodes of all sequences, one sequence
                after the other; what they leave over is never drafted.
            counts: per sequence and frontier node, how many children it gets.
            depth: the depth of the children.

        Returns:
            Per sequence and frontier node, the token ids in draw order and their log-probabilities, of which those
            beyond a node's count mean nothing; and per frontier node of all, the distribution `[vocab]` its first child
            was drawn from.
        """
        flat = torch.tensor([count for own in counts for count in own], device=rows.device)
        probs = rows.masked_fill(flat[:, None] == 0, 0.0).softmax(-1)
        probs = torch.threshold_(probs, math.exp(MIN_LOGPROB), 0.0)
        drawn, told, begin = [], [], 0
        for own, randomness in zip(counts, self._randomness, strict=True):
            part, most = slice(begin, begin := begin + len(own)), max(own, default=0)
            if not most:
                drawn.append(rows.new_zeros(2, len(own), 0))
                told += [*probs[part]]
                continue
            tokens, first = randomness.children(probs[part], flat[part], most, self.proposal, depth)
            logprobs = rows[part].gather(1, tokens)
            drawn.append(torch.stack((tokens.to(torch.float64), logprobs.to(torch.float64))))
            told += [*first]
        read = _read(drawn)
        return [[[*map(int, node)] for node in tokens] for tokens, _ in read], [own for _, own in read], told


def _read(parts: Sequence[Tensor]) -> list[list[list[list[float]]]]:
    """Tensors on the host, in one copy from a device."""
    if parts[0].is_cpu:
        return [part.tolist() for part in parts]
    numbers = torch.cat([part.double().flatten() for part in parts]).cpu().split([part.numel() for part in parts])
    return [own.view(part.shape).tolist() for own, part in zip(numbers, parts, strict=True)]
