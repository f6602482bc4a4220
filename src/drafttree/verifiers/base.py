"""What a verifier is: a pure function from a tree and the target's logits to a verdict.

All randomness arrives in `noise`, so a verifier can be replayed and proven. `guide` lets a verifier show its noise to
the drafter as well, which makes the drafter guess the token that will be drawn rather than the likeliest one.
"""

from typing import ClassVar

import torch
from torch import Tensor

from drafttree.distributions import Sampling
from drafttree.errors import ConfigError
from drafttree.noise import Noise
from drafttree.tree import DraftTree, Verdict


class Verifier:
    """Base of all verifiers.

    Args:
        sampling: the distribution the text must have.

    Attributes:
        source: the paper and the equation or algorithm number.

    Raises:
        ConfigError: this verifier does not serve that sampling.
    """

    source: ClassVar[str]

    def __init__(self, sampling: Sampling) -> None:
        if reason := self.refuses(sampling):
            raise ConfigError(f"verifier {type(self).__name__} {reason}")
        self.sampling = sampling

    @classmethod
    def refuses(cls, sampling: Sampling) -> str | None:
        """Why this verifier cannot serve a sampling, and what to do instead; None if it can."""
        return None

    def guide(self, logits: Tensor, position: int, noise: Noise) -> Tensor:
        """The drafter's logits `[batch, frontier, vocab]` for a position, as the policy should see them."""
        return logits

    def verify(self, tree: DraftTree, logits: Tensor, position: int, noise: Noise) -> Verdict:
        """Judge a batch of trees.

        Args:
            tree: the draft trees.
            logits: `[batch, nodes, vocab]` of the target at every node.
            position: absolute position of the root.
            noise: the only source of randomness.
        """
        raise NotImplementedError


def walk(tree: DraftTree, chosen: Tensor) -> Verdict:
    """Follow the tokens the target has chosen, from the root for as long as they are in the tree.

    Args:
        tree: the draft trees; siblings differ in their tokens.
        chosen: int64 `[batch, nodes]`, the token that follows each node.
    """
    agrees = (tree.tokens == chosen.gather(1, tree.parents.clamp_min(0))) & tree.valid
    agrees |= tree.parents < 0
    accepted = (agrees[:, None] | ~tree.ancestors).all(2)
    paths, bonus = [], []
    for on_path, tokens in torch.stack((accepted.long(), chosen), 1).tolist():
        paths.append([node for node, taken in enumerate(on_path) if taken])
        bonus.append(tokens[paths[-1][-1]])
    return Verdict(paths, bonus)
