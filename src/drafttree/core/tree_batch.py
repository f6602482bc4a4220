"""Taking a batch of draft trees apart."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

from drafttree.core.lazy import Tensor, torch
from drafttree.core.tree import DraftTree


def split(tree: DraftTree, levels: Tensor, widths: Sequence[Sequence[int]]) -> list[DraftTree]:
    """The trees of a batch, each alone and without padding; the device is read once.

    Args:
        tree: the batch.
        levels: `[batch]` the number of levels drafted of each tree.
        widths: per tree, how many nodes of it the drafter was asked about on each level; in the rows of a level,
            they stand before padding.
    """
    rows = _own_rows(tree, widths)
    valid, nodes = tree.valid, torch.arange(tree.size, device=tree.tokens.device)
    order = valid.logical_not().argsort(dim=1, stable=True)
    parents = torch.where(tree.parents < 0, -1, (valid.cumsum(1) - 1).gather(1, tree.parents.clamp_min(0)))
    whole = replace(
        tree,
        tokens=tree.tokens.gather(1, order),
        parents=parents.gather(1, order),
        path_logprobs=tree.path_logprobs.gather(1, order),
        scores=tree.scores.gather(1, order),
        draft_rows=None if rows is None else rows.gather(1, order),
    )
    sizes = valid.sum(1)
    is_chain = ((whole.parents == nodes - 1) | (nodes >= sizes[:, None])).all(1)
    read = torch.stack((sizes, levels, is_chain)).tolist()
    hosts = zip(*read, widths, strict=True)
    return [_part(whole, place, *host) for place, host in enumerate(hosts)]


def _part(tree: DraftTree, place: int, size: int, levels: int, is_chain: int, widths: Sequence[int]) -> DraftTree:
    """The tree at a place of a batch whose padding stands last."""
    row, columns = slice(place, place + 1), slice(size)
    return replace(
        tree,
        tokens=tree.tokens[row, columns],
        parents=tree.parents[row, columns],
        path_logprobs=tree.path_logprobs[row, columns],
        scores=tree.scores[row, columns],
        levels=levels,
        draft_probs=tree.draft_probs
        and tuple(probs[row, :width] for probs, width in zip(tree.draft_probs, widths, strict=False)),
        draft_rows=None if tree.draft_rows is None else tree.draft_rows[row, columns],
        widths=tuple(widths),
        is_chain=bool(is_chain),
    )


def _own_rows(tree: DraftTree, widths: Sequence[Sequence[int]]) -> Tensor | None:
    """`draft_rows` counted among each tree's own rows; -1 for a node that was padding in its frontier."""
    if tree.draft_rows is None:
        return None
    columns = [probs.shape[1] for probs in tree.draft_probs or ()]
    places = torch.tensor([_places(columns, own) for own in widths], device=tree.tokens.device)
    return places.gather(1, tree.draft_rows + 1)


def _places(columns: Sequence[int], widths: Sequence[int]) -> list[int]:
    """Per row of all levels, which of a tree's own it is, -1 for none; before them -1 for a node without a row."""
    places, count = [-1], 0
    for total, width in zip_longest(columns, widths[: len(columns)], fillvalue=0):
        places += [*range(count, count + width), *[-1] * (total - width)]
        count += width
    return places
