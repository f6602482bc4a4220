"""Children drawn at random: any policy's tree in sampled form, by predictable growth.

A policy's masks say how many children a node gets, from its distribution and from what was drawn before; only then are
they drawn, and every drawn node stays in the tree. A budget is kept by not drawing. So a verifier may rely on the
distribution it is told the children came from.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from drafttree.core.randomness import RoundRandomness
from drafttree.core.tree import DraftTree, Layer, Proposal

MIN_LOGPROB = -80.0
"""Log-probability below which a token is not drawn: its probability would be lost in float32."""
FEW = 8
"""Children that are drawn of every node without asking the device how many it gets at most."""


class Children(NamedTuple):
    """The candidates of a level.

    Attributes:
        layer: their probabilities, by rank or in draw order.
        tokens: `[batch, frontier, candidates]` token ids.
        keep: bool of the same shape, which of them join the tree.
        most: how many of a tree join it at most, None if that was not read from the device.
        room: nodes that may join the least filled tree after this level, likewise.
    """

    layer: Layer
    tokens: Tensor
    keep: Tensor
    most: int | None = None
    room: int | None = None


class ChildSampler:
    """Draws the children of a batch of trees and remembers from which distributions.

    Args:
        proposal: how siblings are drawn.
        randomness: of this round, one per sequence.
    """

    def __init__(self, proposal: Proposal, randomness: Sequence[RoundRandomness]) -> None:
        self._proposal, self._randomness = proposal, randomness
        self._probs: list[Tensor] = []
        self._nodes: list[Tensor] = []

    def children(self, layer: Layer, keep: Tensor, rows: Tensor, nodes: Tensor, room: Tensor, trim: bool) -> Children:
        """Draw as many children as the policy keeps candidates.

        Args:
            layer: the candidates by probability.
            keep: bool `[batch, frontier, candidates]` of the policy.
            rows: `[batch, frontier, vocab]` log-probabilities of the draft; what they leave over is never drafted.
            nodes: `[batch, frontier]` index of the frontier nodes in the tree.
            room: `[batch, 1]` nodes that may still join each tree.
            trim: draw no more children of a node than the largest count, which is read from the device together with
                the width of the level and the room that is left.
        """
        counts = (keep & (layer.logprobs >= MIN_LOGPROB)).sum(2)
        before = counts.cumsum(1) - counts
        counts = counts.minimum((room - before).clamp_min(0))
        most, width, left = keep.shape[2], None, None
        if trim:
            drawn = counts.sum(1)
            most, width, left = torch.stack(
                (counts.amax().clamp_min(1), drawn.amax(), (room[:, 0] - drawn).amax())
            ).tolist()
        probs = rows.masked_fill(counts[..., None] == 0, 0.0).softmax(-1)
        probs = torch.threshold_(probs, math.exp(MIN_LOGPROB), 0.0)
        drawn = [
            own.children(row, count, most, self._proposal, layer.depth)
            for own, row, count in zip(self._randomness, probs, counts, strict=True)
        ]
        tokens = torch.stack([drawn_tokens for drawn_tokens, _ in drawn])
        self._probs.append(drawn[0][1][None] if len(drawn) == 1 else torch.stack([row for _, row in drawn]))
        self._nodes.append(nodes)
        rank = torch.arange(most, device=tokens.device)
        return Children(replace(layer, logprobs=rows.gather(2, tokens)), tokens, rank < counts[..., None], width, left)

    def attach(self, tree: DraftTree) -> DraftTree:
        """The tree with the distributions its children were drawn from."""
        if not self._nodes:
            return replace(tree, proposal=self._proposal)
        nodes = torch.cat(self._nodes, 1)
        rows = torch.full_like(tree.parents, -1)
        rows.scatter_(1, nodes, torch.arange(nodes.shape[1], device=nodes.device).expand_as(nodes))
        return replace(tree, proposal=self._proposal, draft_probs=tuple(self._probs), draft_rows=rows)
