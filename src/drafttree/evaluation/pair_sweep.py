"""Every policy with every verifier over random toy models: exact, exact by coupling, refused, or lossy by name."""

import functools
import itertools
import operator
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from typing import Any

import torch

from drafttree.core.sampling import Sampling
from drafttree.engine import compatibility
from drafttree.evaluation.coupled_text import CoupledText
from drafttree.evaluation.edit_checks import EditsFinding, check_edits
from drafttree.evaluation.number_tests import NumbersFinding, check_numbers
from drafttree.evaluation.pair_trials import (
    EXACT,
    FORMS,
    HUGE,
    LARGE,
    Trial,
    large_trials,
    ordinary_trials,
    precision_trials,
    serving_trials,
    text_trials,
)
from drafttree.evaluation.text_law import TextLaw
from drafttree.evaluation.toy_decoder import Reach
from drafttree.evaluation.toy_texts import OPTIONS
from drafttree.loading import PolicyLike, VerifierLike, make_policy, parse_policies, parse_verifiers
from drafttree.measure.run_store import RunStore
from drafttree.policies import TreePolicy
from drafttree.verifiers import VERIFIERS, Coupled, Greedy, Verifier

COUPLED: tuple[type[Verifier], ...] = (Greedy, Coupled)
"""Verifiers that draw nothing themselves: their text is plain decoding's."""

SEEDS = 10
"""Texts compared in each model where draws are a function of the seed."""

MANY = 8
"""Pairs from which on other processes, which take seconds to begin, are worth it."""

MODELS = 6
"""Toy models for each pair by default."""


@dataclass(frozen=True)
class PairFinding:
    """The result for one policy with one verifier.

    Attributes:
        policy: its canonical specification.
        verifier: the name of the verifier.
        verdict: "exact" by enumeration, "coupled" (exact since every text is that of plain decoding with the same
            noise), "refused", "lossy" by name, or "BIASED".
        trials: rounds and texts of toy models that were tried; a bias ends them.
        total_variation: the largest distance of the law from the target's in float64; None where nothing was
            enumerated.
        rounded: the largest such distance in float32.
        texts: the number of texts compared with plain decoding; 0 where the law was enumerated.
        equal: how many of them are equal.
        expected_accepted: drafted tokens accepted in a round, mean over the models.
        reason: why the pair is refused.
        reach: how far texts were tried; nothing is said of what lies beyond.
    """

    policy: str
    verifier: str
    verdict: str
    trials: int = 0
    total_variation: float | None = None
    rounded: float | None = None
    texts: int = 0
    equal: int = 0
    expected_accepted: float | None = None
    reason: str | None = None
    reach: Reach = field(default_factory=Reach)

    @property
    def passed(self) -> bool:
        """True unless the pair claims to be lossless and is biased."""
        return self.verdict != "BIASED"


@dataclass(frozen=True)
class ServingChecks:
    """What the laws of toy models take for given: independent numbers, and weights that are the model's own."""

    numbers: NumbersFinding
    edits: EditsFinding

    @property
    def passed(self) -> bool:
        """Whether it holds."""
        return self.numbers.passed and self.edits.passed


@dataclass(frozen=True)
class PairSweep:
    """The table of all pairs, policy by policy, under one sampling.

    Attributes:
        findings: what was found of each pair.
        sampling: how tokens were drawn.
        serving: what was found of numbers and weights; None where they were not looked at.
        interrupted: whether Ctrl-C or the time left pairs out.
    """

    findings: list[PairFinding]
    sampling: Sampling
    serving: ServingChecks | None = None
    interrupted: bool = False

    @property
    def passed(self) -> bool:
        """True if no pair that claims to be lossless is biased, and all were tried."""
        holds = self.serving is None or self.serving.passed
        return not self.interrupted and holds and all(finding.passed for finding in self.findings)

    @property
    def reach(self) -> Reach:
        """How far texts were tried, at most."""
        return functools.reduce(operator.or_, (finding.reach for finding in self.findings), Reach())

    def summary(self) -> dict[str, object]:
        """Everything found, for JSON."""
        options = {name: value for name, value in asdict(self.sampling).items() if name in OPTIONS}
        serving = asdict(self.serving) if self.serving else None
        results: dict[str, object] = {"findings": [asdict(finding) for finding in self.findings], "serving": serving}
        return results | options | {"passed": self.passed}


def sweep_pairs(
    policies: Sequence[PolicyLike] = tuple(FORMS),
    verifiers: Sequence[VerifierLike] = tuple(VERIFIERS),
    *,
    models: int = MODELS,
    quick: bool = False,
    checks_serving: bool = False,
    processes: int = 1,
    progress: Callable[[str], None] = lambda _: None,
    store: RunStore | None = None,
    **sampling,
) -> PairSweep:
    """Enumerate pairs of policies and verifiers.

    Args:
        policies: as for `parse_policies`; one of drafttree's with its default parameters stands for small trees of that
            policy, by turns.
        verifiers: verifiers as `parse_verifiers` takes them.
        models: random models for each pair, besides six for wide and deep trees, two and three rounds, and late ones.
        quick: leave out `serving_trials`.
        checks_serving: look at the random numbers that serve, and at texts behind edits of weights.
        processes: that share the pairs, if there are many and all are drafttree's own; others are not known elsewhere.
        progress: called after every pair with its policy.
        store: keeps finished runs; by default none.
        **sampling: options of `Sampling` but its seed; `greedy` decodes at temperature 0.

    Raises:
        ConfigError: a pair has too many outcomes to enumerate.
    """
    serving = None
    store = store or RunStore()
    combinations = [*itertools.product(parse_policies(policies).items(), parse_verifiers(verifiers).items())]
    types = [component for (_, policy), (_, verifier) in combinations for component in (type(policy), verifier)]
    is_own = all(component.__module__.startswith("drafttree.") for component in types)
    with store.interruptible(), _workers(processes if is_own and len(combinations) >= MANY else 1) as begin:
        tasks = {
            (spec, name): begin(_sweep_pair, (spec, policy, name, verifier, models, sampling, quick))
            for (spec, policy), (name, verifier) in combinations
            if store.find((spec, name), PairFinding) is None
        }
        for (spec, _), (name, _) in combinations:
            if task := tasks.get((spec, name)):
                store.run((spec, name), PairFinding, task)
            progress(spec)
        if checks_serving:
            serving = store.run(("serving",), ServingChecks, lambda: ServingChecks(check_numbers(), check_edits()))
    stored_findings = (store.find((spec, name), PairFinding) for (spec, _), (name, _) in combinations)
    findings = [finding for finding in stored_findings if finding is not None]
    return PairSweep(findings, Sampling.from_options({"temperature": 1.0, **sampling}), serving, store.interrupted)


@contextmanager
def _workers(processes: int) -> Iterator[Callable[[Callable[..., Any], tuple[Any, ...]], Callable[[], Any]]]:
    """Begins work in one of some processes, and gives what waits for its result; here and then, if there is one."""
    if processes == 1:
        yield lambda work, arguments: functools.partial(work, *arguments)
        return
    with get_context("spawn").Pool(processes, _begin_worker) as pool:
        yield lambda work, arguments: pool.apply_async(work, arguments).get


def _begin_worker() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that began it ends it


def sweep_pair(policy: PolicyLike, verifier: VerifierLike, models: int = MODELS, **sampling) -> PairFinding:
    """Enumerate one pair; arguments as for `sweep_pairs`."""
    return sweep_pairs([policy], [verifier], models=models, **sampling).findings[0]


def _sweep_pair(
    spec: str,
    policy: TreePolicy,
    name: str,
    verifier: type[Verifier],
    models: int,
    sampling: Mapping[str, Any],
    quick: bool,
) -> PairFinding:
    """One pair, with smaller and larger trees that stand for the policy."""
    if reason := compatibility.incompatibility(policy, verifier):
        return PairFinding(spec, name, "refused", reason=reason)
    small_policies = [make_policy(form) for form in FORMS.get(spec, [policy])]
    wide_policy, deep_policy = map(make_policy, LARGE.get(spec, (policy, policy)))
    trials: list[Trial] = [*ordinary_trials(small_policies, models), *large_trials(wide_policy, deep_policy, verifier)]
    trials += [*precision_trials(small_policies[0]), *text_trials(small_policies[0], verifier)]
    if not quick:
        trials += serving_trials(small_policies[0], make_policy(HUGE.get(spec, policy)), verifier)
    try_pair = _compared if issubclass(verifier, COUPLED) else _enumerated
    return try_pair(spec, name, verifier, trials, sampling)


def _enumerated(
    spec: str, name: str, verifier: type[Verifier], trials: list[Trial], sampling: Mapping[str, Any]
) -> PairFinding:
    """The laws of a pair, up to the first that shows a bias."""
    laws = []
    is_exact = True
    for trial in trials:
        laws.append((trial.models.tolerance, trial.law(verifier, sampling)))
        is_exact = laws[-1][1].total_variation < trial.models.tolerance
        if verifier.lossless and not is_exact:
            break
    verdict = "lossy" if not verifier.lossless else "exact" if is_exact else "BIASED"
    precise = max((law.total_variation for tolerance, law in laws if tolerance == EXACT), default=None)
    rounded = max((law.total_variation for tolerance, law in laws if tolerance != EXACT), default=None)
    summary = _summary([law for _, law in laws])
    return PairFinding(spec, name, verdict, len(laws), total_variation=precise, rounded=rounded, **summary)


def _compared(
    spec: str, name: str, verifier: type[Verifier], trials: list[Trial], sampling: Mapping[str, Any]
) -> PairFinding:
    """Compare texts with plain decoding's, in the same models and with the same noise, up to the first that differs."""
    greedy = issubclass(verifier, Greedy)
    sampling = {"temperature": 0.0} if greedy else sampling
    texts: list[CoupledText] = []
    trial_count = 0
    seeds = 1 if greedy else SEEDS
    for seed, (trial, _) in enumerate(itertools.product(trials, range(seeds))):
        trial_count = seed // seeds + 1
        texts += trial.texts(verifier, seed, sampling)
        if any(text.tokens != text.plain for text in texts):
            break
    equal_count = sum(text.tokens == text.plain for text in texts)
    verdict = "coupled" if equal_count == len(texts) else "BIASED"
    return PairFinding(spec, name, verdict, trial_count, texts=len(texts), equal=equal_count, **_summary(texts))


def _summary(found: Sequence[TextLaw | CoupledText]) -> dict[str, Any]:
    """How much was accepted in the trials, and how far they went."""
    return {
        "expected_accepted": sum(result.expected_accepted for result in found) / len(found),
        "reach": functools.reduce(operator.or_, (result.reach for result in found)),
    }
