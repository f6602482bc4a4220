"""How far a drafter's probabilities, and the calibrated ones of `auto`, are from the shares that are accepted."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean
from typing import Any

from pydantic import PrivateAttr

from drafttree.drafters import Drafter
from drafttree.engine.decoder import Decoder
from drafttree.evaluation.run_store import RunStore
from drafttree.policies import Auto
from drafttree.policies.base import RoundOutcome
from drafttree_lab.experiment.cells import Key, check_given, run_cells

BINS = 10


@dataclass(frozen=True)
class JudgedNode:
    """A drafted node whose parent was accepted.

    Attributes:
        drafted: its probability given its parent as the drafter had it.
        calibrated: the same as the policy had it when it grew the tree.
        accepted: whether it was.
    """

    drafted: float
    calibrated: float
    accepted: bool


@dataclass(frozen=True)
class ReliabilityBin:
    """The nodes of which the drafter's probability lies in a range.

    Attributes:
        low: lower end of the range.
        high: upper end.
        nodes: how many there were.
        accepted: their share that was accepted.
        drafted: their mean probability by the drafter.
        calibrated: the same by the policy.
    """

    low: float
    high: float
    nodes: int
    accepted: float
    drafted: float
    calibrated: float


@dataclass(frozen=True)
class ReliabilityCurve:
    """One drafter at one temperature.

    Attributes:
        drafter: its name.
        temperature: the temperature the target samples at.
        nodes: judged in all.
        bins: those that hold nodes, by the drafter's probability.
        error_before: expected calibration error of the drafter's probabilities: their distance from the share that was
            accepted, over bins of equal width.
        error_after: the same of the calibrated probabilities, in bins of their own.
    """

    drafter: str
    temperature: float
    nodes: int
    bins: list[ReliabilityBin]
    error_before: float
    error_after: float

    @classmethod
    def of(cls, drafter: str, temperature: float, judged: Sequence[JudgedNode]) -> "ReliabilityCurve":
        """The curve of judged nodes."""
        bins = [_bin(place, nodes) for place, nodes in _binned(judged, "drafted").items()]
        return cls(
            drafter=drafter,
            temperature=temperature,
            nodes=len(judged),
            bins=bins,
            error_before=calibration_error(judged, "drafted"),
            error_after=calibration_error(judged, "calibrated"),
        )


@dataclass(frozen=True)
class ReliabilityBench:
    """A curve for every drafter and temperature."""

    curves: list[ReliabilityCurve]

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON."""
        return asdict(self)


class RecordingAuto(Auto):
    """`auto`, noting what it thought of every node that was judged, before it learns from it."""

    _judged: list[JudgedNode] = PrivateAttr(default_factory=list)

    @property
    def judged(self) -> list[JudgedNode]:
        """All nodes so far."""
        return self._judged

    def observe(self, state: Any, outcome: RoundOutcome) -> Any:
        tree, path = outcome.tree, outcome.path
        children = tree.children
        parents = [(node, parent) for parent in path for node in children[parent]]
        if parents:
            nodes = [node for node, _ in parents]
            scores, logprobs = [0.0, *tree.scores[1:]], tree.node_logprobs
            chances = [(math.exp(logprobs[node]), math.exp(scores[node] - scores[parent])) for node, parent in parents]
            accepted = set(path)
            self._judged.extend(
                JudgedNode(*both, accepted=node in accepted) for node, both in zip(nodes, chances, strict=True)
            )
        return super().observe(state, outcome)


def bench_reliability(
    decoder: Decoder,
    drafters: Mapping[str, Drafter],
    prompts: Sequence[Sequence[int]],
    *,
    temperatures: Sequence[float] = (0.0, 1.0),
    seed: int = 0,
    max_new_tokens: int = 64,
    progress: Callable[[str], None] = lambda _: None,
    store: RunStore | None = None,
) -> ReliabilityBench:
    """Compare the drafter's and the calibrated probabilities with what was accepted, over texts written by `auto`.

    Only nodes that `auto` kept and whose parent was accepted count. It learns from text to text. Above temperature 0
    the drafter's probabilities are those the policy sees, with the noise of the coupling in them.

    Args:
        decoder: the decoder, for its target.
        drafters: the drafters, by name.
        prompts: token ids.
        temperatures: the temperatures the target samples at.
        seed: the random seed.
        max_new_tokens: per prompt.
        progress: called after every curve with its drafter.
        store: keeps finished runs; by default none.

    Raises:
        ConfigError: there is no drafter, prompt or temperature.
    """
    check_given(drafter=drafters, prompt=prompts, temperature=temperatures)
    options = {"seed": seed, "max_new_tokens": max_new_tokens}
    cells: dict[Key, Callable[[], ReliabilityCurve]] = {
        (name, warmth): partial(_curve, decoder.with_drafter(drafter), name, prompts, options | {"temperature": warmth})
        for name, drafter in drafters.items()
        for warmth in temperatures
    }
    return ReliabilityBench([*run_cells(cells, ReliabilityCurve, progress=progress, store=store).values()])


def calibration_error(judged: Sequence[JudgedNode], which: str) -> float:
    """The expected calibration error of one of the two probabilities."""
    binned = _binned(judged, which).values()
    wrong = (abs(sum(getattr(node, which) - node.accepted for node in nodes)) for nodes in binned)
    return sum(wrong) / max(len(judged), 1)


def _curve(
    decoder: Decoder, name: str, prompts: Sequence[Sequence[int]], options: Mapping[str, Any]
) -> ReliabilityCurve:
    policy = RecordingAuto()
    recording = decoder.with_costs(decoder.costs(greedy=not options["temperature"])).with_policy(policy)
    for prompt in prompts:
        recording.generate(list(prompt), **options)
    return ReliabilityCurve.of(name, options["temperature"], policy.judged)


def _binned(judged: Sequence[JudgedNode], which: str) -> dict[int, list[JudgedNode]]:
    """The nodes by the bin of one of their probabilities, in order."""
    binned: dict[int, list[JudgedNode]] = {}
    for node in judged:
        binned.setdefault(min(int(BINS * getattr(node, which)), BINS - 1), []).append(node)
    return dict(sorted(binned.items()))


def _bin(place: int, nodes: Sequence[JudgedNode]) -> ReliabilityBin:
    return ReliabilityBin(
        low=place / BINS,
        high=(place + 1) / BINS,
        nodes=len(nodes),
        accepted=fmean(node.accepted for node in nodes),
        drafted=fmean(node.drafted for node in nodes),
        calibrated=fmean(node.calibrated for node in nodes),
    )
