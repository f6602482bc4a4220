"""Draft trees written out by hand, and what grows them without a decoder."""

import math
from collections.abc import Sequence

import torch

from drafttree import DraftTree, Sampling
from drafttree.core import SeededRandomness
from drafttree.drafters import Session
from drafttree.engine.drafting.tree_drafter import AdjustedDraft, LogitsAdjustment
from drafttree.verifiers import Greedy

CPU = torch.device("cpu")


def plain_draft(sessions: Sequence[Session]) -> AdjustedDraft:
    """The logits of some sessions for `grow`, as they are."""
    nothing = LogitsAdjustment(Greedy(Sampling()), SeededRandomness(0, 1, CPU).at(0))
    return AdjustedDraft(sessions, [nothing] * len(sessions), CPU)


def tree_of(parents: Sequence[int], probs: Sequence[float], widths: tuple[int, ...] = (1,)) -> DraftTree:
    """A tree from the parents of its drafted nodes and their probabilities given these."""
    paths, depths = [0.0], [0]
    for parent, prob in zip(parents, probs, strict=True):
        paths.append(paths[parent] + math.log(prob))
        depths.append(depths[parent] + 1)
    columns = [*range(len(paths))], [-1, *parents], paths, [math.inf, *paths[1:]]
    return DraftTree(*columns, levels=max(depths), widths=widths)
