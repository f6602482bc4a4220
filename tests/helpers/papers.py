"""The papers' pseudocode in plain Python: which paths each method drafts, given the draft's log-probabilities.

A tree is a dict from a path of tokens to its log-probability, the root `()` included. `q(path)` lists the
log-probabilities of what follows a path; -inf is never drafted.
"""

import heapq
import math
from collections.abc import Callable, Iterable

Path = tuple[int, ...]
DraftSession = Callable[[Path], list[float]]
Tree = dict[Path, float]


def best(paths: Iterable[tuple[Path, float]], count: int) -> Tree:
    """The most probable of some paths, ties to the earlier one."""
    return dict(sorted(paths, key=lambda item: -item[1])[: max(count, 0)])


def ranked(q: DraftSession, tree: Tree, path: Path) -> list[tuple[Path, float]]:
    """The children a path could have, most probable first."""
    children = [((*path, token), tree[path] + logprob) for token, logprob in enumerate(q(path)) if logprob > -math.inf]
    return sorted(children, key=lambda item: -item[1])


def by_level(
    q: DraftSession, budget: int, levels: int, breadth: Callable, expands: Callable, first_come: bool = False
) -> Tree:
    """Give every node that expands its most probable children, a level at a time, until the budget is spent."""
    tree: Tree = {(): 0.0}
    frontier: list[Path] = [()]
    for level in range(1, levels + 1):
        layer = [child for path in frontier for child in ranked(q, tree, path)[: breadth(level, q(path))]]
        added = dict(layer[: budget - len(tree)]) if first_come else best(layer, budget - len(tree))
        tree |= added
        frontier = [path for path, logprob in layer if path in added and expands(level, math.exp(logprob))]
    return tree


def chain(q: DraftSession, *, depth: int, budget: int) -> Tree:
    return by_level(q, budget, depth, lambda level, row: 1, lambda level, p: True)


def fixed(
    q: DraftSession,
    *,
    depth: int,
    breadth: int,
    threshold: float,
    level1_top1: bool,
    budget: int,
    first_come: bool = False,
) -> Tree:
    """DynaTree v1: a leaf below tau is not expanded."""
    return by_level(
        q,
        budget,
        depth,
        lambda level, row: 1 if level1_top1 and level == 1 else breadth,
        lambda level, p: not p < threshold,
        first_come,
    )


def dynatree(q: DraftSession, **o) -> Tree:
    """DynaTree v2; without `breadth` every node gets B_mid, without `depth` all paths end at D0."""

    def breadth(level: int, row: list[float]) -> int:
        if o["level1_top1"] and level == 1:
            return 1
        confidence = math.exp(max(row))
        if not o["breadth"]:
            return o["mid_breadth"]
        if confidence >= o["high"]:
            return o["min_breadth"]
        return o["max_breadth"] if confidence < o["low"] else o["mid_breadth"]

    def expands(level: int, p: float) -> bool:
        if p < o["prune_below"]:
            return False
        if not o["depth"]:
            return level < round(o["base_depth"])
        return (
            level < o["max_depth"] and p >= o["stop_below"] and (level < round(o["base_depth"]) or p > o["deep_above"])
        )

    return by_level(q, o["budget"], o["max_depth"], breadth, expands, o["first_come"])


def creation_loop(q: DraftSession, *, depth: int, breadth: int, threshold: float, budget: int) -> Tree:
    """Algorithm 1 of DynaTree v1 as its loops stand: a queue of leaves, each given its children until N_max.

    `budget` counts the committed token, N_max does not; the drafted root has depth 0.
    """
    tree: Tree = {(): 0.0} | dict(ranked(q, {(): 0.0}, ())[: min(budget - 1, 1)])
    leaves = [path for path in tree if path]
    while leaves:
        leaf = leaves.pop(0)
        if len(leaf) - 1 == depth or math.exp(tree[leaf]) < threshold:
            continue
        for child, logprob in ranked(q, tree, leaf)[:breadth]:
            if len(tree) == budget:
                return tree
            tree[child] = logprob
            leaves.append(child)
    return tree


def talon(
    q: DraftSession, *, budget: int, width: int, margin: float, depth: int | None = None, robust: int = 1
) -> Tree:
    tree: Tree = {(): 0.0}
    frontier: list[Path] = [()]
    level = 0
    while len(tree) < budget and level != depth:
        candidates = [child for path in frontier for child in ranked(q, tree, path)]
        if not candidates:
            break
        if level < robust:
            kept = list(best(candidates, width).items())
        else:
            anchor = max(logprob for _, logprob in candidates)
            kept = [item for item in candidates if math.exp(item[1] - anchor) >= margin]
        added = best(kept, budget - len(tree))
        tree |= added
        frontier = sorted(added)
        level += 1
    return tree


def eagle(q: DraftSession, *, depth: int, top_k: int, budget: int) -> Tree:
    """The authors' loop: K first tokens, then K*K candidates a level, and the best of the whole pool."""
    root: Tree = {(): 0.0}
    pool = ranked(q, root, ())[:top_k]
    parents = dict(pool)
    for _ in range(depth - 1):
        layer = [child for path in parents for child in ranked(q, parents, path)[:top_k]]
        pool += layer
        parents = best(layer, top_k)
    return root | best(pool, budget - 1)


def eagle_by_talon(q: DraftSession, *, depth: int, top_k: int, budget: int) -> Tree:
    """TALON's Algorithm 1: the K chosen of every level make the tree, which is cut to its best N by a heap."""
    parents: Tree = {(): 0.0}
    tree: Tree = dict(parents)
    for _ in range(depth):
        candidates = [child for path in sorted(parents) for child in ranked(q, parents, path)[:top_k]]
        parents = best(candidates, top_k)
        tree |= parents
    heap = [(-logprob, len(path), path) for path, logprob in tree.items()]
    heapq.heapify(heap)
    return {path: -cost for cost, _, path in (heapq.heappop(heap) for _ in range(min(budget, len(heap))))}


def opt_tree(q: DraftSession, *, depth: int, threshold: float, budget: int) -> Tree:
    pool: Tree = {}
    layer: Tree = {(): 0.0}
    expected = 0.0
    for _ in range(depth):
        layer = best([child for path in layer for child in ranked(q, layer, path)], budget - 1)
        pool |= layer
        grown = sum(math.exp(logprob) for logprob in best(pool.items(), budget - 1).values())
        if grown - expected <= threshold:
            break
        expected = grown
    return {(): 0.0} | best(pool.items(), budget - 1)


def dyspec(q: DraftSession, *, depth: int, budget: int) -> Tree:
    """The heap of Algorithm 1, taking the most probable token of the residual where the paper draws one.

    What a row leaves over stays in every residual, as a token that is never taken.
    """
    tree: Tree = {(): 0.0}

    def slot(value: float, parent: Path, residual: list[float]) -> tuple:
        return (-value, parent, residual)

    heap = [slot(1.0, (), [math.exp(logprob) for logprob in q(())])]
    while heap and len(tree) < budget:
        negative, parent, residual = heapq.heappop(heap)
        mass, share = sum(residual) + max(1 - sum(map(math.exp, q(parent))), 0.0), max(residual)
        if not share:
            continue
        token = residual.index(share)
        child = (*parent, token)
        tree[child] = tree[parent] + q(parent)[token]
        value = -negative
        if len(child) < depth:
            heapq.heappush(heap, slot(value * share / mass, child, [math.exp(logprob) for logprob in q(child)]))
        rest = [0.0 if other == token else p for other, p in enumerate(residual)]
        heapq.heappush(heap, slot(value * (1 - share / mass), parent, rest))
    return tree


def template(q: DraftSession, *, paths: Iterable[Path], budget: int) -> Tree:
    """Paths of ranks into paths of tokens, a level at a time."""
    tree: Tree = {(): 0.0}
    named: dict[Path, Path] = {(): ()}
    for level in range(1, 1 + max(map(len, paths))):
        layer = []
        for ranks in sorted(path for path in paths if len(path) == level and path[:-1] in named):
            children = ranked(q, tree, named[ranks[:-1]])
            if ranks[-1] < len(children):
                layer.append((ranks, *children[ranks[-1]]))
        added = best([(tokens, logprob) for _, tokens, logprob in layer], budget - len(tree))
        tree |= added
        named |= {ranks: tokens for ranks, tokens, _ in layer if tokens in added}
    return tree


def from_counts(text: str) -> set[Path]:
    """Paths of a template from lines of `parent:count`, written as in the fact sheet, `root` for the empty path."""
    paths = set()
    for item in text.split():
        parent, _, count = item.partition(":")
        ranks = () if parent == "root" else tuple(map(int, parent.split(".")))
        paths |= {(*ranks, rank) for rank in range(int(count))}
    return paths
