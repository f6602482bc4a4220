"""Tries every policy with every verifier on random toy models, and says whether their texts keep the target's law."""

import functools
import itertools
import operator
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from typing import Any, NamedTuple

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
"""Verifiers that draw nothing themselves; their texts are those of plain decoding."""

SEEDS = 10
"""Seeds of the texts that are compared in each model, if draws are a function of the seed."""

MANY = 8
"""The fewest pairs for which other processes are started, which takes seconds."""

MODELS = 6
"""Random toy models of each pair by default."""


@dataclass(frozen=True)
class PairFinding:
    """The result for one policy with one verifier.

    Attributes:
        policy: the canonical specification of the policy.
        verifier: the name of the verifier.
        verdict: "exact" (by enumeration), "coupled" (every text is that of plain decoding with the same noise, so the
            law is exact), "refused", "lossy" (the verifier does not claim to be lossless), or "BIASED".
        trials: trials of toy models that ran; the first bias ends them.
        total_variation: the largest distance of the law from the target's in float64; None if nothing was enumerated.
        rounded: the largest such distance in float32.
        texts: texts compared with plain decoding; 0 if the law was enumerated.
        equal: how many of these texts are equal.
        expected_accepted: mean drafted tokens accepted in a round, over all trials.
        reason: why the pair is refused.
        reach: how far texts were tried; nothing is known beyond it.
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
    """Checks of two assumptions of the toy laws: random numbers are independent, and weights are current."""

    numbers: NumbersFinding
    edits: EditsFinding

    @property
    def passed(self) -> bool:
        """Whether both assumptions hold."""
        return self.numbers.passed and self.edits.passed


@dataclass(frozen=True)
class PairSweep:
    """The table of all pairs, policy by policy, under one sampling.

    Attributes:
        findings: the findings of all pairs.
        sampling: the sampling of all texts.
        serving: the checks of random numbers and weights; None if they were not made.
        interrupted: whether pairs are missing because of Ctrl-C or the time limit.
    """

    findings: list[PairFinding]
    sampling: Sampling
    serving: ServingChecks | None = None
    interrupted: bool = False

    @property
    def passed(self) -> bool:
        """True if all pairs were tried, none that claims to be lossless is biased, and the serving checks hold."""
        holds = self.serving is None or self.serving.passed
        return not self.interrupted and holds and all(finding.passed for finding in self.findings)

    @property
    def reach(self) -> Reach:
        """The farthest that texts of any pair were tried."""
        return functools.reduce(operator.or_, (finding.reach for finding in self.findings), Reach())

    def summary(self) -> dict[str, object]:
        """All findings, for JSON."""
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
    """Try every policy with every verifier on toy models.

    Args:
        policies: as for `parse_policies`; one of drafttree's with its default parameters is tried in several forms that
            grow small trees, one after the other.
        verifiers: verifiers as `parse_verifiers` takes them.
        models: random models of each pair, besides six for wide and deep trees, two and three rounds, and late ones.
        quick: whether `serving_trials` are left out.
        checks_serving: whether the random numbers of real texts, and texts after edits of weights, are checked.
        processes: processes that share the pairs, if there are many and all are drafttree's own; other processes cannot
            import others.
        progress: called after every pair with its policy.
        store: keeps finished runs; by default none.
        **sampling: options of `Sampling` except its seed; `greedy` always decodes at temperature 0.

    Raises:
        ConfigError: a pair has too many outcomes to enumerate.
    """
    serving = None
    store = store or RunStore()
    combinations = _combinations(policies, verifiers)
    shares_work = len(combinations) >= MANY and all(combination.is_own for combination in combinations)
    with store.interruptible(), _workers(processes if shares_work else 1) as begin:
        tasks = {}
        for combination in combinations:
            if store.find(combination.key, PairFinding) is None:
                tasks[combination.key] = begin(_sweep_pair, (*combination, models, sampling, quick))
        for combination in combinations:
            if task := tasks.get(combination.key):
                store.run(combination.key, PairFinding, task)
            progress(combination.spec)
        if checks_serving:
            serving = store.run(("serving",), ServingChecks, lambda: ServingChecks(check_numbers(), check_edits()))
    findings = _finished_findings(combinations, store)
    return PairSweep(findings, Sampling.from_options({"temperature": 1.0, **sampling}), serving, store.interrupted)


class _Combination(NamedTuple):
    """A policy and a verifier, with the specification of the one and the name of the other."""

    spec: str
    policy: TreePolicy
    name: str
    verifier: type[Verifier]

    @property
    def key(self) -> tuple[str, str]:
        """The key of its finding in a store."""
        return self.spec, self.name

    @property
    def is_own(self) -> bool:
        """Whether policy and verifier are drafttree's own."""
        components = (type(self.policy), self.verifier)
        return all(component.__module__.startswith("drafttree.") for component in components)


def _combinations(policies: Sequence[PolicyLike], verifiers: Sequence[VerifierLike]) -> list[_Combination]:
    """Every policy with every verifier, policy by policy."""
    named_items = itertools.product(parse_policies(policies).items(), parse_verifiers(verifiers).items())
    return [_Combination(*policy_item, *verifier_item) for policy_item, verifier_item in named_items]


def _finished_findings(combinations: Sequence[_Combination], store: RunStore) -> list[PairFinding]:
    stored_findings = (store.find(combination.key, PairFinding) for combination in combinations)
    return [finding for finding in stored_findings if finding is not None]


@contextmanager
def _workers(processes: int) -> Iterator[Callable[[Callable[..., Any], tuple[Any, ...]], Callable[[], Any]]]:
    """Yields a function that begins work and returns a function that waits for its result.

    With several processes, one of them does the work; with one, this process does it when the result is asked for.
    """
    if processes == 1:
        yield lambda work, arguments: functools.partial(work, *arguments)
        return
    with get_context("spawn").Pool(processes, _begin_worker) as pool:
        yield lambda work, arguments: pool.apply_async(work, arguments).get


def _begin_worker() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that began it ends it


def sweep_pair(policy: PolicyLike, verifier: VerifierLike, models: int = MODELS, **sampling) -> PairFinding:
    """Try one pair; arguments as for `sweep_pairs`."""
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
    """Try one pair on all its trials, with parameters of the policy that give small and large trees."""
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
    """Enumerate the laws of a pair; the first bias ends the trials."""
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
    """Compare texts with those of plain decoding with the same noise; the first difference ends the trials."""
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


def _summary(results: Sequence[TextLaw | CoupledText]) -> dict[str, Any]:
    """Fields of a `PairFinding`: mean acceptance in the trials, and how far they went."""
    return {
        "expected_accepted": sum(result.expected_accepted for result in results) / len(results),
        "reach": functools.reduce(operator.or_, (result.reach for result in results)),
    }
