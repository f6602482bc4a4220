"""Draft trees written out by hand."""

import math
from collections.abc import Sequence

import torch

from drafttree.core.tree import DraftTree


def tree_of(parents: Sequence[int], probs: Sequence[float], widths: tuple[int, ...] = (1,)) -> DraftTree:
    """A tree from the parents of its drafted nodes and their probabilities given these; NaN marks padding."""
    paths, depths = [0.0], [0]
    for parent, prob in zip(parents, probs, strict=True):
        paths.append(-math.inf if math.isnan(prob) else paths[parent] + math.log(prob))
        depths.append(depths[parent] + 1)
    nodes = torch.arange(len(paths))[None]
    scores = torch.tensor([[math.inf, *paths[1:]]])
    up = torch.tensor([[-1, *parents]])
    return DraftTree(nodes, up, torch.tensor([paths]), scores, levels=max(depths), widths=widths)
