"""Every policy with every verifier over random toy models: exact, exact by coupling, refused, or lossy by name."""

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from drafttree.core.sampling import Sampling
from drafttree.core.tree import Proposal
from drafttree.engine import compatibility
from drafttree.evaluation.exactness import OPTIONS, CoupledText, RoundLaw, coupled_text, law
from drafttree.evaluation.run_store import RunStore
from drafttree.evaluation.toy_models import TabularModel
from drafttree.loading import PolicyLike, VerifierLike, make_policy, parse_policies, parse_verifiers
from drafttree.policies import TreePolicy
from drafttree.verifiers import VERIFIERS, Coupled, Greedy, Verifier

EXACT = 1e-12
"""Total variation up to which a pair counts as lossless: what rounding in float64 can add up to."""

COUPLED: tuple[type[Verifier], ...] = (Greedy, Coupled)
"""Verifiers that draw nothing themselves: their text is plain decoding's."""

SEEDS = 10
"""Texts compared in each model where draws are a function of the seed."""

MODELS = 6
"""Toy models for each pair by default."""

MOST_OF_ROUNDS = 1000
"""Outcomes of several rounds beyond which the first of them are drawn instead."""

POSITIONS = (0, 1, 7, 70)
"""Positions of the first root, by turns."""

FORMS: dict[str, list[str]] = {
    "auto": ["auto:depth=3,children=2,budget=4", "auto:depth=2,children=3,budget=4"],
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


LARGE: dict[str, tuple[str, str]] = {
    "auto": ("auto:depth=1,children=4,budget=6", "auto:depth=5,children=1,budget=8"),
    "chain": ("chain:depth=1", "chain:depth=5"),
    "fixed": ("fixed:depth=1,breadth=4,threshold=0", "fixed:depth=5,breadth=1,threshold=0.01"),
    "template": ("template:paths=0+1+2+3", "template:paths=0+0.0+0.0.0+0.0.0.0+0.0.0.0.0"),
    "dynatree": (
        "dynatree:base_depth=1,max_depth=1,min_breadth=4,mid_breadth=4,max_breadth=4",
        "dynatree:base_depth=4,max_depth=5,mid_breadth=1,max_breadth=1,stop_below=0.01,deep_above=0.05",
    ),
    "talon": ("talon:width=4,depth=1", "talon:width=1,margin=1,depth=5"),
    "eagle": ("eagle:depth=1,top_k=5", "eagle:depth=5,top_k=2,budget=8"),
    "opt-tree": ("opt-tree:threshold=0,depth=1,budget=6", "opt-tree:threshold=0,depth=5,budget=8"),
    "dyspec": ("dyspec:depth=1,budget=6", "dyspec:depth=5,budget=8"),
}
"""Parameters of every policy whose trees are wide, or deep, and still small enough to enumerate."""


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


@dataclass(frozen=True)
class Trial:
    """Where a pair is tried: in which toy models, with trees of how many levels, and in which part of a text.

    Attributes:
        models: the target and the draft.
        policy: how the trees grow.
        levels: they are no deeper.
        rounds: as for `exactness.law`.
        earlier: likewise.
        position: likewise.
    """

    models: ToyPair
    policy: TreePolicy
    levels: int
    rounds: int = 1
    earlier: int = 0
    position: int = 0

    def law(self, verifier: type[Verifier], sampling: Mapping[str, Any]) -> RoundLaw:
        """The exact law of a verifier; where rounds have too many outcomes, the first of them are drawn instead."""
        rounds, earlier = self.rounds, self.earlier
        found = self._law(verifier, 1, earlier, sampling)
        while rounds > 1 and found.outcomes**rounds > MOST_OF_ROUNDS:
            rounds, earlier = rounds - 1, earlier + 1
        return self._law(verifier, rounds, earlier, sampling) if self.rounds > 1 else found

    def _law(self, verifier: type[Verifier], rounds: int, earlier: int, sampling: Mapping[str, Any]) -> RoundLaw:
        options = {"levels": self.levels, "rounds": rounds, "earlier": earlier, "position": self.position, **sampling}
        return law(self.models.target, self.models.draft, self.policy, verifier, **options)

    def text(self, verifier: type[Verifier], seed: int, sampling: Mapping[str, Any]) -> CoupledText:
        """A text of a verifier that draws nothing itself, beside plain decoding's."""
        options = {"seed": seed, "levels": self.levels, "position": self.position, **sampling}
        return coupled_text(self.models.target, self.models.draft, self.policy, verifier, **options)


@dataclass(frozen=True)
class PairFinding:
    """The result for one policy with one verifier.

    Attributes:
        policy: its canonical specification.
        verifier: its name.
        verdict: "exact" by enumeration, "coupled" (exact since every text is that of plain decoding with the same
            noise), "refused", "lossy" by name, or "BIASED".
        models: toy models tried.
        total_variation: the largest distance of the law from the target's; None where nothing was enumerated.
        texts: compared with plain decoding; 0 where the law was enumerated.
        equal: of them.
        expected_accepted: drafted tokens accepted in a round, mean over the models.
        reason: why the pair is refused.
        siblings: the most children of a node in the trees tried; nothing is said of wider ones.
        levels: the most levels of the trees tried; nothing is said of deeper ones.
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
    siblings: int = 0
    levels: int = 0

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
    models: int = MODELS,
    progress: Callable[[str], None] = lambda _: None,
    store: RunStore | None = None,
    **sampling,
) -> PairSweep:
    """Enumerate pairs of policies and verifiers.

    Args:
        policies: as for `parse_policies`; one of drafttree's with its default parameters stands for small trees of that
            policy, by turns.
        verifiers: as for `parse_verifiers`.
        models: random models for each pair, besides six for wide and deep trees, two and three rounds, and late ones.
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
            for name, verifier in judges.items():
                work = functools.partial(_sweep_pair, spec, policy, name, verifier, models, sampling)
                findings.append(store.run((spec, name), PairFinding, work))
                progress(spec)
    return PairSweep(findings, Sampling.from_options({"temperature": 1.0, **sampling}), store.interrupted)


def sweep_pair(policy: PolicyLike, verifier: VerifierLike, models: int = MODELS, **sampling) -> PairFinding:
    """Enumerate one pair; arguments as for `sweep_pairs`."""
    return sweep_pairs([policy], [verifier], models=models, **sampling).findings[0]


def _sweep_pair(
    spec: str, policy: TreePolicy, name: str, verifier: type[Verifier], models: int, sampling: Mapping[str, Any]
) -> PairFinding:
    """One pair, with smaller and larger trees that stand for the policy."""
    if reason := compatibility.incompatibility(policy, verifier):
        return PairFinding(spec, name, "refused", reason=reason)
    small = [make_policy(form) for form in FORMS.get(spec, [policy])]
    wide, deep = map(make_policy, LARGE.get(spec, (policy, policy)))
    trials = [*ordinary_trials(small, models), *large_trials(wide, deep, verifier)]
    try_pair = _compared if issubclass(verifier, COUPLED) else _enumerated
    return try_pair(spec, name, verifier, trials, sampling)


def ordinary_trials(policies: Sequence[TreePolicy], models: int) -> list[Trial]:
    """A round of each toy model, at any position and after another one or not, with one of the policies.

    The models have three tokens and trees of up to three levels, or four and two.
    """
    trials = []
    for index in range(models):
        vocab = 3 + index // len(policies) % 2
        place = {"earlier": index % 2, "position": POSITIONS[index % len(POSITIONS)]}
        trials.append(Trial(toy_pair(index, vocab), policies[index % len(policies)], 6 - vocab, **place))
    return trials


def large_trials(wide: TreePolicy, deep: TreePolicy, verifier: type[Verifier]) -> list[Trial]:
    """One level of a wide tree, five levels of a deep one, whole texts of some rounds, and rounds late in a text.

    The wide tree is over six tokens, more than a node has children, or over five where children are drawn; there tokens
    are cut, since there would be 3,125 trees with replacement.
    """
    many, peaked, flat = toy_pair(7, 6), toy_pair(3, 2), toy_pair(0, 2)
    if verifier.proposal is not Proposal.TOP_K:
        few = 3 if verifier.proposal is Proposal.WITH_REPLACEMENT else 5
        five = toy_pair(7, 5)
        many = ToyPair(cut(five.target, few), cut(five.draft, 4))
    return [
        Trial(many, wide, levels=1, position=5),
        Trial(peaked, deep, levels=5, position=1),
        Trial(flat, deep, levels=2, earlier=3, position=3),
        Trial(flat, deep, levels=2, earlier=6, position=4),
        Trial(flat, deep, levels=1, rounds=3, position=2),
        Trial(flat, deep, levels=2, rounds=2, position=3),
    ]


def _enumerated(
    spec: str, name: str, verifier: type[Verifier], trials: list[Trial], sampling: Mapping[str, Any]
) -> PairFinding:
    """The laws of a pair."""
    found = [trial.law(verifier, sampling) for trial in trials]
    distance = max(each.total_variation for each in found)
    verdict = "lossy" if not verifier.lossless else "exact" if distance < EXACT else "BIASED"
    return PairFinding(spec, name, verdict, len(found), distance, **_sizes(found))


def _compared(
    spec: str, name: str, verifier: type[Verifier], trials: list[Trial], sampling: Mapping[str, Any]
) -> PairFinding:
    """Compare texts with plain decoding's, in the same models and with the same noise."""
    greedy = issubclass(verifier, Greedy)
    sampling = {"temperature": 0.0} if greedy else sampling
    numbered = itertools.product(trials, range(1 if greedy else SEEDS))
    found = [trial.text(verifier, seed, sampling) for seed, (trial, _) in enumerate(numbered)]
    equal = sum(each.tokens == each.plain for each in found)
    verdict = "coupled" if equal == len(found) else "BIASED"
    return PairFinding(spec, name, verdict, len(trials), texts=len(found), equal=equal, **_sizes(found))


def _sizes(found: Sequence[RoundLaw | CoupledText]) -> dict[str, Any]:
    """How much was accepted in the trials, and how large the trees were."""
    return {
        "expected_accepted": sum(each.expected_accepted for each in found) / len(found),
        "siblings": max(each.siblings for each in found),
        "levels": max(each.levels for each in found),
    }
