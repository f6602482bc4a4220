"""Every policy with every verifier over random toy models: exact, exact by coupling, refused, or lossy by name."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from drafttree.core.sampling import Sampling
from drafttree.engine import compatibility
from drafttree.evaluation.exactness import OPTIONS, TabularModel, coupled_round, law
from drafttree.evaluation.run_store import RunStore
from drafttree.loading import PolicyLike, VerifierLike, make_policy, parse_policies, parse_verifiers
from drafttree.policies import TreePolicy
from drafttree.verifiers import VERIFIERS, Coupled, Greedy, Verifier

EXACT = 1e-12
"""Total variation up to which a pair counts as lossless: what rounding in float64 can add up to."""

COUPLED: tuple[type[Verifier], ...] = (Greedy, Coupled)
"""Verifiers that draw nothing themselves: their text is plain decoding's."""

SEEDS = 20
"""Texts compared in each model where draws are a function of the seed."""

FORMS: dict[str, list[str]] = {
    "chain": ["chain:depth=1", "chain:depth=2", "chain:depth=3"],
    "fixed": [
        "fixed:depth=2,breadth=2,threshold=0.4,budget=5",
        "fixed:depth=2,breadth=2,threshold=0,budget=4",
    ],
    "template": [
        "template:tree=binary-1",
        "template:tree=binary-2,budget=5",
        "template:paths=0+1+0.0",
        "template:paths=0+0.0+0.1",
        "template:paths=0+1+1.0+1.0.0",
    ],
    "dynatree": [
        "dynatree:base_depth=1,max_depth=3,mid_breadth=2,max_breadth=2,high=0.6,low=0.4,stop_below=0.2,deep_above=0.4,"
        "prune_below=0,budget=5",
        "dynatree:base_depth=2,max_depth=2,mid_breadth=1,max_breadth=3,high=0.7,low=0.5,stop_below=0.3,budget=4",
    ],
    "talon": ["talon:width=2,margin=0.5,budget=5", "talon:width=1,margin=0.6,depth=3,budget=5"],
    "eagle": ["eagle:depth=2,top_k=2,budget=5", "eagle:depth=3,top_k=3,budget=7"],
    "opt-tree": ["opt-tree:threshold=0.2,depth=3,budget=6", "opt-tree:threshold=0,depth=2,budget=4"],
    "dyspec": ["dyspec:depth=3,budget=6", "dyspec:depth=2,budget=4"],
}
"""Parameters of every policy whose trees are small enough to enumerate: chains, binary, ragged, adaptive."""


@dataclass(frozen=True)
class ToyPair:
    """A target and a draft of the same vocabulary."""

    target: TabularModel
    draft: TabularModel


def toy_pair(seed: int, vocab: int = 3) -> ToyPair:
    """Make the toy target and draft of a seed: flat, ordinary or peaked, and more or less alike."""
    spread = (0.3, 1.0, 1.0, 2.5)[seed % 4]
    target = TabularModel(vocab, 2, seed, spread)
    draft = TabularModel(vocab, 2, seed + 10_000, (0.5, 1.0, 2.0)[seed % 3], near=target)
    match seed % 7:
        case 1:
            draft = TabularModel(vocab, 2, seed + 20_000, spread)
        case 2:
            return ToyPair(target, target)
        case 3:
            draft = cut(draft, 2)
        case 4:
            target = cut(target, vocab - 1)
        case 5:
            target, draft = cut(target, 2), cut(draft, vocab - 1)
    return ToyPair(target, draft)


def cut(table: TabularModel, keep: int) -> TabularModel:
    """The table with all but the best tokens of every row impossible."""
    copy = TabularModel(table.vocab, table.depth, 0)
    copy.rows = {
        context: row.masked_fill(row < row.topk(keep).values[-1], -math.inf) for context, row in table.rows.items()
    }
    return copy


Try = tuple[ToyPair, TreePolicy, int]


@dataclass(frozen=True)
class PairFinding:
    """The result for one policy with one verifier.

    Attributes:
        policy: its canonical specification.
        verifier: its name.
        verdict: "exact" by enumeration, "coupled" (exact since every text is that of plain decoding with the same
            noise), "refused", "lossy" by name, or "BIASED".
        models: random models tried.
        total_variation: the largest distance of the law from the target's; None where nothing was enumerated.
        texts: compared with plain decoding; 0 where the law was enumerated.
        equal: of them.
        expected_accepted: drafted tokens accepted in a round, mean over the models.
        reason: why the pair is refused.
        sizes: vocabularies and depths of the trees tried; nothing is said of deeper ones.
    """

    policy: str
    verifier: str
    verdict: str
    models: int = 0
    total_variation: float | None = None
    texts: int = 0
    equal: int = 0
    expected_accepted: float | None = None
    reason: str | None = None
    sizes: tuple[tuple[int, int], ...] = ()

    @property
    def passed(self) -> bool:
        """True unless the pair claims to be lossless and is biased."""
        return self.verdict != "BIASED"


@dataclass(frozen=True)
class PairSweep:
    """The table of all pairs, policy by policy, under one sampling."""

    findings: list[PairFinding]
    sampling: Sampling
    interrupted: bool = False

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Vocabularies and depths of the trees tried for any pair."""
        return sorted({size for finding in self.findings for size in finding.sizes})

    @property
    def passed(self) -> bool:
        """True if no pair that claims to be lossless is biased, and all were tried."""
        return not self.interrupted and all(finding.passed for finding in self.findings)

    def summary(self) -> dict[str, object]:
        """Everything found, for JSON."""
        options = {name: value for name, value in asdict(self.sampling).items() if name in OPTIONS}
        return {"findings": [asdict(finding) for finding in self.findings], **options, "passed": self.passed}


def sweep_pairs(
    policies: Sequence[PolicyLike] = tuple(FORMS),
    verifiers: Sequence[VerifierLike] = tuple(VERIFIERS),
    *,
    models: int = 50,
    progress: Callable[[str], None] = lambda _: None,
    store: RunStore | None = None,
    **sampling,
) -> PairSweep:
    """Enumerate pairs of policies and verifiers.

    Args:
        policies: as for `parse_policies`; one of drafttree's with its default parameters stands for small trees of that
            policy, by turns.
        verifiers: as for `parse_verifiers`.
        models: random models for each pair.
        progress: called after every pair with its policy.
        store: keeps finished runs; by default none.
        **sampling: as for `exactness.law`; `greedy` decodes at temperature 0.

    Raises:
        ConfigError: a pair has too many outcomes to enumerate.
    """
    findings, judges = [], parse_verifiers(verifiers)
    store = store or RunStore()
    with store.interruptible():
        for spec, policy in parse_policies(policies).items():
            small = [make_policy(form) for form in FORMS.get(spec, [policy])]
            for name, verifier in judges.items():
                work = functools.partial(_sweep_pair, spec, small, name, verifier, models, sampling)
                findings.append(store.run((spec, name), PairFinding, work))
                progress(spec)
    return PairSweep(findings, Sampling.from_options({"temperature": 1.0, **sampling}), store.interrupted)


def sweep_pair(policy: PolicyLike, verifier: VerifierLike, models: int = 50, **sampling) -> PairFinding:
    """Enumerate one pair; arguments as for `sweep_pairs`."""
    return sweep_pairs([policy], [verifier], models=models, **sampling).findings[0]


def _sweep_pair(
    spec: str, policies: list[TreePolicy], name: str, verifier: type[Verifier], models: int, sampling: dict[str, Any]
) -> PairFinding:
    """Enumerate a verifier with policies that all stand for one specification, by turns."""
    if reason := compatibility.incompatibility(policies[0], verifier):
        return PairFinding(spec, name, "refused", reason=reason)
    tries = _tries(policies, models)
    if issubclass(verifier, COUPLED):
        return _compared(spec, name, verifier, tries, sampling)
    found = [
        law(pair.target, pair.draft, policy, verifier, levels=levels, **sampling) for pair, policy, levels in tries
    ]
    distance = max(each.total_variation for each in found)
    verdict = "lossy" if not verifier.lossless else "exact" if distance < EXACT else "BIASED"
    accepted = sum(each.expected_accepted for each in found) / models
    return PairFinding(spec, name, verdict, models, distance, expected_accepted=accepted, sizes=_sizes(tries))


def _tries(policies: list[TreePolicy], models: int) -> list[Try]:
    """The toy models to try, each with one of the policies: of three tokens and three levels, or of four and two."""
    vocabs = [3 + index // len(policies) % 2 for index in range(models)]
    return [(toy_pair(index, vocab), policies[index % len(policies)], 6 - vocab) for index, vocab in enumerate(vocabs)]


def _sizes(tries: list[Try]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted({(pair.target.vocab, levels) for pair, _, levels in tries}))


def _compared(
    spec: str, name: str, verifier: type[Verifier], tries: list[Try], sampling: Mapping[str, Any]
) -> PairFinding:
    """Compare committed tokens with plain decoding's, in the same models and with the same noise."""
    greedy, pairs = issubclass(verifier, Greedy), []
    sampling = {"temperature": 0.0} if greedy else sampling
    for model, (pair, policy, levels) in enumerate(tries, start=1):
        for seed in range(1 if greedy else SEEDS):
            options = {"seed": seed + SEEDS * model, "levels": levels, **sampling}
            pairs.append(coupled_round(pair.target, pair.draft, policy, verifier, **options))
    equal = sum(committed == plain for committed, plain in pairs)
    accepted = sum(len(committed) - 1 for committed, _ in pairs) / len(pairs)
    verdict = "coupled" if equal == len(pairs) else "BIASED"
    found = {"texts": len(pairs), "equal": equal, "expected_accepted": accepted, "sizes": _sizes(tries)}
    return PairFinding(spec, name, verdict, len(tries), **found)
