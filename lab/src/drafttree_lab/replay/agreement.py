"""Finds drafters that agree with the embedded target as often as a paper's drafter with its own target.

A reference is a row of a paper whose tokens per round are published. The draft model's logits are mixed with the
target's until the reference has the same tokens per round here. Its prompts are others than those of the claims, so the
other rows are predictions.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from scipy.optimize import brentq
from torch import Tensor

from drafttree_lab.graded import CONFIDENCES, KnownText, find_grade
from drafttree_lab.replay.intervals import Jackknife, total
from drafttree_lab.replay.paper import AUTOREGRESSIVE, Model, Paper, Reference
from drafttree_lab.replay.paper_files import read_paper
from drafttree_lab.replay.plan import Block, Experiment, Sizes, plan

GRADED = "graded:"
"""Prefix of the names of graded drafters, before their `Grade`."""
FARTHEST, START, NEAREST = 0.1, 0.85, 0.995
"""The lowest agreement of the search, its start, and the highest."""
TOLERANCE = 0.01
"""Tolerance of the logarithm of tokens per round, smaller than its spread over prompts."""
STEEP = 5.0
"""Approximate largest slope of that logarithm over the agreement."""


@dataclass(frozen=True)
class Fit:
    """Drafters with which a reference commits its published tokens per round.

    Attributes:
        method: the reference.
        wanted: its published tokens per round.
        prompts: number of prompts that it was run on.
        agreement: share of positions at which the drafter's best token is the target's; None if no drafter was found.
        error: the difference between this agreement and that of `moved`.
        freedom: degrees of freedom of the standard error behind `moved`.
        drafters: names of the drafters by confidence, without confidences at which none was found.
        moved: name of a drafter with which the reference commits one standard error more tokens per round; fewer if no
            drafter commits more.
        without: sets of the reference without prompts to fit on.
    """

    method: str
    wanted: float
    prompts: int
    agreement: float | None = None
    error: float = 0.0
    freedom: float = 1.0
    drafters: Mapping[float, str] = field(default_factory=dict)
    moved: str = ""
    without: Sequence[str] = ()

    def __str__(self) -> str:
        row = f"{self.method} commits {self.wanted:.2f} tokens a round on {self.prompts} prompts of its own"
        if self.without:
            row += f" (claims are judged on all prompts of {', '.join(self.without)}, so none of them)"
        if self.agreement is None:
            return f"no drafter is so near to the target that {row}"
        confidences = ", ".join(f"{confidence:g}" for confidence in self.drafters)
        return f"agreement {self.agreement:.3f} ± {self.error:.3f}, where {row}; confidences {confidences}"


def find_reference(paper: Paper, model: Model, *, sampled: bool) -> Reference | None:
    """The reference of a model for greedy or for sampled texts; None without one."""
    for reference in model.references:
        if (max(paper.results[reference.result].temperatures) > 0) == sampled:
            return reference
    return None


def plan_reference(name: str, reference: Reference, drafters: Mapping[str, str], sizes: Sizes) -> Experiment:
    """An experiment with the reference alone; arguments as for `plan`."""
    experiment = plan(name, reference.result, drafters, {}, sizes)
    names = (AUTOREGRESSIVE, reference.method)
    blocks = [replace(block, ways={way: block.ways[way] for way in names}) for block in experiment.blocks]
    return replace(experiment, blocks=blocks, is_timed=False)


def replace_drafter(block: Block, drafter: str) -> Block:
    """The same block with another drafter."""
    ways = {name: replace(way, drafter=drafter) if way.drafter else way for name, way in block.ways.items()}
    return replace(block, ways=ways)


def published_tau(experiment: Experiment, reference: Reference, sets: Sequence[str]) -> float:
    """The published tokens per round of a reference, as the mean over some sets."""
    if reference.tau is not None:
        return reference.tau
    printed_taus = experiment.result.printed_taus(experiment.model, reference.method)
    return fmean(printed_taus[name] for name in sets)


def replace_role(experiment: Experiment, role: str, drafter: str) -> Experiment:
    """The part of an experiment that counts can judge, with another drafter for a role.

    Methods with other roles are listed as missing.
    """
    paper = read_paper(experiment.paper)
    result = experiment.result
    missing_methods = dict(experiment.missing)
    for name in result.methods:
        method = paper.methods[name]
        if method.role not in (None, role):
            missing_methods[name] = f"a drafter that is fitted to the row of {role} says nothing about {method.role}"
        elif method.assisted or method.lossy_window:
            missing_methods[name] = "it is run with the drafter that ships alone"
    claims = [claim for claim in result.claims if result.is_judged(claim, timed=False)]
    method_names = {
        AUTOREGRESSIVE,
        *(name.partition("@")[0] for claim in claims for name in claim.names),
    } - missing_methods.keys()
    blocks = []
    for block in experiment.blocks:
        ways = {name: way for name, way in block.ways.items() if name.partition("@")[0] in method_names}
        if len(ways) > 1:
            blocks.append(replace_drafter(replace(block, ways=ways), drafter))
    result = result.model_copy(update={"claims": claims})
    return replace(experiment, result=result, blocks=blocks, missing=missing_methods, is_timed=False)


def fit(
    method: str,
    published_tau: float,
    tau: Callable[[str], tuple[Jackknife, Tensor]],
    texts: Sequence[KnownText],
    seed: int,
) -> Fit:
    """Find the drafters with which a reference commits its published tokens per round.

    Args:
        method: the reference.
        published_tau: its published tokens per round.
        tau: maps a drafter's name to the jackknife over the prompts, and the tokens per round as from
            `Jackknife.mean`.
        texts: the target's own texts after these prompts.
        seed: seed of the drafters' noise.
    """
    search = DrafterSearch(published_tau, tau, texts, seed)
    agreement = search.find(1.0, START)
    if agreement is None:
        return Fit(method, published_tau, len(texts))
    agreements = {1.0: agreement}
    for confidence in CONFIDENCES.values():
        root = search.find(confidence, agreement) if confidence != 1 else None
        if root is not None:
            agreements[confidence] = root
    jackknife, values = tau(search.name(agreement, 1.0))
    spread = total(jackknife.spreads(values))
    moved_agreement = search.move(agreement, math.sqrt(spread.variance))
    return Fit(
        method,
        published_tau,
        len(texts),
        agreement,
        error=abs(moved_agreement - agreement),
        freedom=spread.freedom,
        drafters={confidence: search.name(root, confidence) for confidence, root in sorted(agreements.items())},
        moved=search.name(moved_agreement, 1.0),
    )


class DrafterSearch:
    """Searches graded drafters by agreement, and tries each only once; arguments as for `fit`."""

    def __init__(
        self,
        published_tau: float,
        tau: Callable[[str], tuple[Jackknife, Tensor]],
        texts: Sequence[KnownText],
        seed: int,
    ) -> None:
        self._wanted = published_tau
        self._tau = tau
        self._texts = texts
        self._seed = seed
        self._names: dict[tuple[float, float], str] = {}
        self._distances: dict[tuple[float, float], float] = {}

    def name(self, agreement: float, confidence: float) -> str:
        """The name of the drafter of an agreement and a confidence."""
        if (agreement, confidence) not in self._names:
            grade = find_grade(agreement, self._texts, self._seed).grade
            grade = replace(grade, temperature=confidence * grade.temperature)
            self._names[agreement, confidence] = f"{GRADED}{grade}"
        return self._names[agreement, confidence]

    def distance(self, agreement: float, confidence: float) -> float:
        """The logarithm of a drafter's tokens per round over the published ones."""
        if (agreement, confidence) not in self._distances:
            _, values = self._tau(self.name(agreement, confidence))
            self._distances[agreement, confidence] = math.log(values[0].item() / self._wanted)
        return self._distances[agreement, confidence]

    def find(self, confidence: float, start: float) -> float | None:
        """The agreement at which a drafter of this confidence has the published tokens per round; None without one."""
        return find_root(lambda agreement: self.distance(agreement, confidence), start)

    def move(self, agreement: float, error: float) -> float:
        """The agreement at which the tokens per round are one standard error higher, or else lower."""
        residual = self.distance(agreement, 1.0)
        for step in (error, -error):
            root = find_root(
                lambda candidate, step=step: self.distance(candidate, 1.0) - residual - step, agreement, error / 20
            )
            if root is not None:
                return root
        return FARTHEST


def find_root(rising: Callable[[float], float], start: float, tolerance: float = TOLERANCE) -> float | None:
    """The agreement at which a rising function is nearly 0; None without one. The function is called seldom."""
    value = rising(start)
    if abs(value) <= tolerance:
        return start
    for step in (0.05, 0.2, 1.0):
        bracket_end = max(start - step, FARTHEST) if value > 0 else min(start + step, NEAREST)
        if (rising(bracket_end) > 0) != (value > 0):
            root: Any = brentq(rising, start, bracket_end, xtol=tolerance / STEEP)
            return root
    return None
