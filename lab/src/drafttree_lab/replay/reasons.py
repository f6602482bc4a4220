"""Why a claim is contradicted: which term of the speed-up law, or which share of drafted tokens, does it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Protocol

from drafttree_lab.replay.experiment import Block
from drafttree_lab.replay.paper import AUTOREGRESSIVE, Metric
from drafttree_lab.replay.pass_costs import PassCosts
from drafttree_lab.replay.text_cell import TextCounts, TextTimes

SPEEDS: frozenset[Metric] = frozenset({"speedup", "tokens_per_second", "tpot"})
FALLING: frozenset[Metric] = frozenset({"tpot", "rounds"})
"""Metrics that are lower for the method that is ahead."""
PROGRESS: frozenset[Metric] = frozenset({"tau", "path", "rounds", "drafted_share"})


class Cells(Protocol):
    """The finished cells of an experiment."""

    def counts(self, block: Block, name: str, number: int) -> TextCounts | None:
        """The counts of a way on a prompt."""
        ...

    def turns(self, block: Block, name: str, number: int) -> list[TextTimes]:
        """The times of a way in the turns of a prompt."""
        ...

    def pass_costs(self, block: Block, name: str) -> PassCosts | None:
        """What the passes of a way cost."""
        ...


@dataclass(frozen=True)
class Terms:
    """Means per round of a method over prompts and sets.

    Attributes:
        tau: committed tokens.
        levels: drafted levels.
        accepted: accepted drafted tokens.
        nodes: scored nodes, the root included.
        target: v, cost of the target pass in plain passes.
        draft: c delta, cost of the draft passes.
        overhead: h, cost of the rest.
    """

    tau: float
    levels: float
    accepted: float
    nodes: float
    target: float = 1.0
    draft: float = 0.0
    overhead: float = 0.0

    @property
    def cost(self) -> float:
        """v + c delta + h."""
        return self.target + self.draft + self.overhead


def find_reason(
    cells: Cells,
    metric: Metric,
    places: Mapping[str, Sequence[tuple[Block, str]]],
    shared: Mapping[str, Sequence[int]],
    *,
    by_counts: bool,
    ratio: float | None,
) -> str | None:
    """One line on the methods of a claim.

    Args:
        cells: the cells of its experiment.
        metric: the metric of the claim.
        places: by method of the claim, in its order, the blocks where it stands.
        shared: prompts by set.
        by_counts: whether a speed is counted at given costs.
        ratio: the judged ratio of the first method to the second.
    """
    found = {name: _terms(cells, own, shared, by_counts=by_counts) for name, own in places.items()}
    is_ahead = ((ratio or 1.0) > 1) != (metric in FALLING)
    if metric in SPEEDS:
        return _law(found, is_ahead=is_ahead)
    return _shares(found, is_ahead=is_ahead) if metric in PROGRESS else None


def _law(found: Mapping[str, Terms], *, is_ahead: bool) -> str:
    """The terms of R = tau / (v + c delta + h), and the one that puts the first of two methods ahead, or behind."""
    told = "; ".join(
        f"{name}: tau {own.tau:.2f}, v {own.target:.2f} over {own.nodes:.0f} nodes, c delta {own.draft:.2f}"
        + (f", h {own.overhead:.2f}" if own.overhead else "")
        for name, own in found.items()
    )
    first, *others = found.values()
    if len(others) != 1:
        return told
    (second,) = others
    cost = (first.cost + second.cost) / 2
    moved = {
        "tau": log(first.tau / second.tau),
        "v(n)": (second.target - first.target) / cost,
        "c delta": (second.draft - first.draft) / cost,
        "h": (second.overhead - first.overhead) / cost,
    }
    decisive = max(moved, key=lambda name: moved[name] if is_ahead else -moved[name])
    return f"{decisive} decides ({told})"


def _shares(found: Mapping[str, Terms], *, is_ahead: bool) -> str:
    """tau = 1 + levels * accepted share, and which of the two differs more between two methods."""
    told = "; ".join(
        f"{name}: {own.levels:.2f} levels a round, {own.accepted:.2f} accepted" for name, own in found.items()
    )
    first, *others = found.values()
    if len(others) != 1 or not all(own.levels and own.accepted for own in found.values()):
        return told
    (second,) = others
    levels = log(first.levels / second.levels)
    share = log(first.accepted / first.levels) - log(second.accepted / second.levels)
    decisive = "the number of levels" if (levels > share) == is_ahead else "the accepted share"
    return f"{decisive} decides ({told})"


def _terms(
    cells: Cells,
    places: Sequence[tuple[Block, str]],
    shared: Mapping[str, Sequence[int]],
    *,
    by_counts: bool,
) -> Terms:
    rounds = tokens = levels = accepted = nodes = 0
    target = draft = overhead = plain = 0.0
    for block, name in places:
        costs = cells.pass_costs(block, name) if by_counts else None
        for number in shared[block.setting.set]:
            if (counts := cells.counts(block, name, number)) is None:
                continue
            own = len(counts.committed)
            rounds, tokens = rounds + own, tokens + sum(counts.committed)
            levels, accepted, nodes = (
                levels + sum(counts.levels),
                accepted + sum(counts.accepted),
                nodes + sum(counts.nodes),
            )
            if costs:
                overhead += costs.round * own
                target += sum(map(costs.target.at, counts.nodes))
                draft += costs.draft * sum(counts.passes)
                plain += own
            for times, base in zip(
                cells.turns(block, name, number), cells.turns(block, AUTOREGRESSIVE, number), strict=True
            ):
                if not by_counts:
                    target += times.target_pass * own
                    draft += times.draft_pass * sum(counts.passes)
                    overhead += times.overhead * own
                    plain += base.target_pass * own
    unit = plain or 1.0
    return Terms(
        tokens / rounds,
        levels / rounds,
        accepted / rounds,
        nodes / rounds,
        target / unit,
        draft / unit,
        overhead / unit,
    )
