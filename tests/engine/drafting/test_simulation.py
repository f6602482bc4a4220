"""The controller in a scripted world: near the best constant choice that an exhaustive search finds.

A node is accepted by a chance that depends on its rank and on how sure the drafter is, which says so by its
log-probability, though not truly. Passes take what a curve says, with noise; the controller is given another curve.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, zip_longest

import pytest
import torch

from drafttree import DraftTree
from drafttree.core import Proposal
from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.core.tree import GrowingTree
from drafttree.drafters import Session
from drafttree.engine.drafting.controller import Controller
from drafttree.engine.drafting.prices import Prices
from drafttree.policies import Auto

CHILDREN = 4
SURE, UNSURE = (-0.1, -2.6, -3.8, -4.6), (-0.9, -1.6, -2.4, -3.0)
"""The drafter's log-probabilities of the children of a node of which it is sure, and of others."""
TRIALS = 1000
"""Trees by which a constant choice is judged."""
GREEDY = True, 0
POLICY = Auto(depth=8)


@dataclass(frozen=True)
class World:
    """What is true.

    Attributes:
        sure: chances of the children of a node of which the drafter is sure.
        unsure: of those of others.
        target: seconds of a target pass: of the pass as such, of a row, and of a row beyond 24.
        first: seconds of a first draft pass, of one text.
        later: of a later one, and of each node in it.
        rest: of all else in a round with drafts and in one without.
        noise: deviation of all times, as a share.
        outliers: the first times that are five times as long.
    """

    sure: tuple[float, ...] = (0.88, 0.05, 0.02, 0.01)
    unsure: tuple[float, ...] = (0.45, 0.15, 0.08, 0.04)
    target: tuple[float, float, float] = (1.0, 0.02, 0.06)
    first: float = 0.06
    later: tuple[float, float] = (0.05, 0.004)
    rest: tuple[float, float] = (0.06, 0.03)
    pace: float = 1.0
    noise: float = 0.05
    outliers: int = 0

    def seconds(self, rows: int, widths: tuple[int, ...]) -> tuple[float, float, float]:
        """Of the target pass, drafting and the rest, without noise."""
        base, row, more = self.target
        target = base + row * min(rows, 24) + more * max(rows - 24, 0)
        drafting = self.first + self.later[0] * (len(widths) - 1) + self.later[1] * sum(widths) if widths else 0.0
        return self.pace * target, self.pace * drafting, self.pace * self.rest[not widths]

    def curve(self) -> CostCurve:
        """As a measurement without noise would have it."""
        sizes, widths = (1, 2, 4, 8, 16, 24, 32, 64), (1, 8)
        return CostCurve(
            Costs.of({size: self.seconds(size, ())[0] for size in sizes}),
            (
                DraftCosts(
                    self.seconds(1, (1,))[1],
                    Costs.of({width: self.pace * (self.later[0] + self.later[1] * width) for width in widths}),
                ),
            ),
            *(self.pace * rest for rest in self.rest),
        )


class Text(GrowingTree):
    """A growing tree whose nodes have chances; every token stands for one node."""

    def __init__(self, world: World, rng: random.Random) -> None:
        super().__init__(0, POLICY.depth)
        self.world, self.rng, self.chances = world, rng, [1.0]

    def grow(self) -> None:
        """Add the children of the frontier."""
        frontier, begin = self.frontier, len(self.tokens)
        paths, chances = list[float](), list[float]()
        for node in frontier:
            seen, true = (SURE, self.world.sure) if self.rng.random() < 0.5 else (UNSURE, self.world.unsure)
            paths += [self.path_logprobs[node] + logprob for logprob in seen]
            chances += [self.chances[node] * chance for chance in true]
        parents = [node for node in frontier for _ in range(CHILDREN)]
        self.add([*range(begin, begin + len(paths))], parents, paths, paths)
        self.chances += chances
        self.frontier = [*range(begin, len(self.tokens))]

    def judge(self, tree: DraftTree) -> list[int]:
        """An accepted path of what a cut has left of the tree."""
        path = [0]
        while below := tree.children[path[-1]]:
            shares = [self.chances[tree.tokens[node]] / self.chances[tree.tokens[path[-1]]] for node in below]
            drawn = self.rng.random()
            taken = next((node for node, end in zip(below, accumulate(shares), strict=True) if drawn < end), None)
            if taken is None:
                break
            path.append(taken)
        return path


@lru_cache(maxsize=64)
def best_rate(world: World, batch: int) -> float:
    """Tokens a second of the best constant choice: levels, nodes expanded on each, and nodes kept, or no drafts."""
    rng, best = random.Random(0), batch / sum(world.seconds(batch, ()))
    for width in (1, 2, 3, 4):
        kept = [[0.0] * 41 for _ in range(POLICY.depth)]
        for _ in range(TRIALS):
            text = Text(world, rng)
            for level, tokens in enumerate(kept):
                text.frontier = sorted(text.frontier, key=lambda node: -text.chances[node])[:width]
                text.grow()
                likely = accumulate((0.0, *sorted(text.chances[1:], reverse=True), *[0.0] * 40))
                kept[level] = [total + own for total, own in zip(tokens, likely, strict=False)]
        for level, tokens in enumerate(kept):
            widths = tuple(min(width, CHILDREN**above) * batch for above in range(level + 1))
            for nodes, total in enumerate(tokens):
                best = max(best, batch * (1 + total / TRIALS) / sum(world.seconds(batch * (1 + nodes), widths)))
    return best


def run(controller: Controller, world: World, batch: int, rounds: int, seed: int = 0) -> float:
    """The expected tokens a second of some rounds."""
    rng, session, done, spent = random.Random(seed), Session(None, torch.device("cpu")), 0.0, 0.0
    for number in range(rounds):
        texts = [Text(world, rng) for _ in range(batch)]
        drafts = controller.reason(batch) is None and controller.choose(session, batch) is not None
        trees, expected, groups = [text.tree() for text in texts], float(batch), []
        if drafts:
            limits = controller.limits(POLICY, Proposal.TOP_K, [GREEDY] * batch, batch, batch)
            for depth in range(1, POLICY.depth + 1):
                for text in texts:
                    if text.frontier:
                        text.grow()
                frontiers = limits.choose_frontier(texts, depth)
                for text, frontier in zip(texts, frontiers, strict=True):
                    text.frontier = [*frontier]
                if not any(frontiers):
                    break
            grown = [text.tree() for text in texts]
            groups = [(0, tuple(map(sum, zip_longest(*(tree.widths for tree in grown), fillvalue=0))))]
            trees, expected = controller.cut(grown, [GREEDY] * batch, [64] * batch, batch, limits.chances)
        paths = [text.judge(tree) for text, tree in zip(texts, trees, strict=True)]
        for tree, path in zip(trees, paths, strict=True):
            controller.accept(GREEDY, tree, path)
        rows, widths = sum(tree.size for tree in trees), groups[0][1] if groups else ()
        true = world.seconds(rows, widths)
        factor = 5.0 if number < world.outliers else 1.0
        seen = [factor * each * max(rng.gauss(1, world.noise), 0.3) for each in true]
        controller.prices.observe(batch, rows, *seen, groups)
        controller.learn(batch, rows, sum(map(len, paths)), groups, expected)
        done += sum(text.chances[token] for text, tree in zip(texts, trees, strict=True) for token in tree.tokens)
        spent += sum(true)
    return done / spent


GOOD = World()
WEAK = World(sure=(0.5, 0.1, 0.05, 0.02), unsure=(0.2, 0.1, 0.05, 0.02))
BAD = World(sure=(0.05, 0.02, 0.01, 0.01), unsure=(0.03, 0.02, 0.01, 0.01))
DEAR = replace(GOOD, first=0.3, later=(0.25, 0.02), rest=(0.2, 0.05))
STEEP = replace(GOOD, target=(0.5, 0.5, 0.5))
WORLDS = {"good": GOOD, "weak": WEAK, "bad": BAD, "dear": DEAR, "steep": STEEP}
ROUNDS = {1: 1500, 4: 800, 16: 400}


def cheap_drafts(world: World) -> World:
    """What a calibration says that takes rows for thrice as dear and drafts for a third."""
    base, row, more = world.target
    later, rest = (tuple(each / 3 for each in pair) for pair in (world.later, world.rest))
    return replace(world, target=(base, 3 * row, 3 * more), first=world.first / 3, later=later, rest=rest)


def cheap_rows(world: World) -> World:
    """What one says that takes rows for a third as dear and drafts for thrice."""
    base, row, more = world.target
    later = (3 * world.later[0], 3 * world.later[1])
    return replace(world, target=(base, row / 3, more / 3), first=3 * world.first, later=later)


def same(world: World) -> World:
    return world


@pytest.mark.few(2)
@pytest.mark.parametrize("batch", ROUNDS)
@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("measured", [same, cheap_drafts, cheap_rows])
def test_it_is_within_two_percent_of_the_best_constant_choice(name, batch, measured: Callable[[World], World]):
    world = WORLDS[name]
    found = run(Controller(Prices(measured(world).curve())), world, batch, ROUNDS[batch])
    assert found > (0.975 if name == "steep" else 0.98) * best_rate(world, batch)


@pytest.mark.few(1)
@pytest.mark.parametrize("batch", ROUNDS)
@pytest.mark.parametrize("name", WORLDS)
def test_frozen_costs_that_are_right_do_as_well(name, batch):
    world = WORLDS[name]
    found = run(Controller(Prices(world.curve(), frozen=True)), world, batch, ROUNDS[batch])
    assert found > 0.975 * best_rate(world, batch)


@pytest.mark.few(1)
@pytest.mark.parametrize("batch", ROUNDS)
@pytest.mark.parametrize("name", WORLDS)
def test_first_values_that_are_outliers_do_not_decide(name, batch):
    world = replace(WORLDS[name], outliers=6)
    found = run(Controller(Prices(world.curve())), world, batch, ROUNDS[batch])
    assert found > 0.97 * best_rate(world, batch)


CHANGES = {
    "twice as slow": (GOOD, replace(GOOD, pace=2.0)),
    "thrice as slow": (GOOD, replace(GOOD, pace=3.0)),
    "twice as fast": (GOOD, replace(GOOD, pace=0.5)),
    "dear drafts": (GOOD, DEAR),
    "dear rows": (GOOD, replace(GOOD, target=(1.0, 0.1, 0.2))),
    "cheap rows": (STEEP, GOOD),
    "a weak drafter": (GOOD, WEAK),
    "a bad drafter": (GOOD, BAD),
    "a good drafter": (WEAK, GOOD),
    "a good drafter at last": (BAD, GOOD),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("batch", ROUNDS)
@pytest.mark.parametrize("change", CHANGES)
def test_it_is_within_five_percent_after_a_change_in_the_middle(change, batch):
    before, after = CHANGES[change]
    controller = Controller(Prices(before.curve()))
    run(controller, before, batch, ROUNDS[batch])
    assert run(controller, after, batch, ROUNDS[batch], seed=1) > 0.95 * best_rate(after, batch)
