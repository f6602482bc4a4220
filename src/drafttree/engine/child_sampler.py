"""Children drawn at random: any policy's tree in sampled form, by predictable growth.

A policy's masks say how many children a node gets, from its row and from what was drawn before; only then are they
drawn, and every drawn node stays in the tree. A budget is kept by not drawing. So a verifier may rely on the
distribution it is told the children came from.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from drafttree.core.randomness import Randomness
from drafttree.core.tree import DraftTree, Layer, Proposal

MIN_LOGPROB = -80.0
"""Log-probability below which a token is not drawn: its probability would be lost in float32."""


class ChildSampler:
    """Draws the children of one tree and remembers from which distributions.

    Args:
        proposal: how siblings are drawn.
        noise: of the sequence.
        position: absolute position of the root.
    """

    def __init__(self, proposal: Proposal, randomness: Randomness, position: int) -> None:
        self._proposal, self._randomness, self._position = proposal, randomness, position
        self._probs: list[Tensor] = []
        self._nodes: list[Tensor] = []

    def children(
        self, layer: Layer, keep: Tensor, rows: Tensor, nodes: Tensor, room: Tensor
    ) -> tuple[Layer, Tensor, Tensor]:
        """Draw as many children as the policy keeps candidates.

        Args:
            layer: the candidates by probability.
            keep: bool `[batch, frontier, candidates]` of the policy.
            rows: `[batch, frontier, vocab]` log-probabilities of the draft; what they leave over is never drafted.
            nodes: `[batch, frontier]` index of the frontier nodes in the tree.
            room: `[batch, 1]` nodes that may still join each tree.

        Returns:
            The layer of what was drawn, its token ids, and which of them are to join the tree.
        """
        counts = (keep & (layer.logprobs >= MIN_LOGPROB)).sum(2)
        before = counts.cumsum(1) - counts
        counts = counts.minimum((room - before).clamp_min(0))
        probs = rows.masked_fill(counts[..., None] == 0, 0.0).softmax(-1)
        probs = torch.threshold_(probs, math.exp(MIN_LOGPROB), 0.0)
        tokens, drawn_from = self._randomness.children(probs, counts, self._proposal, self._position, layer.depth)
        self._probs.append(drawn_from)
        self._nodes.append(nodes)
        rank = torch.arange(tokens.shape[2], device=tokens.device)
        return replace(layer, logprobs=rows.gather(2, tokens)), tokens, rank < counts[..., None]

    def sign(self, tree: DraftTree) -> DraftTree:
        """The tree with the distributions its children were drawn from."""
        if not self._nodes:
            return replace(tree, proposal=self._proposal)
        nodes = torch.cat(self._nodes, 1)
        rows = torch.full_like(tree.parents, -1)
        rows.scatter_(1, nodes, torch.arange(nodes.shape[1], device=nodes.device).expand_as(nodes))
        return replace(tree, proposal=self._proposal, draft_probs=tuple(self._probs), draft_rows=rows)
