"""Who wins where: the best policy by agreement of drafter and target, cost of a draft pass and cost of a tree.

Texts are counted, never timed, so any machine will do.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import chain, zip_longest
from random import Random
from typing import Any

from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.core.errors import ConfigError
from drafttree.drafters.language_model import LanguageModelDrafter
from drafttree.engine.decoder import Decoder
from drafttree.loading import make_policy
from drafttree.measure.run_store import RunStore
from drafttree_lab.graded import GradedAgreement, GradedDrafter, KnownText, find_grade
from drafttree_lab.replay.costs import PassCosts
from drafttree_lab.replay.inputs import PromptTexts, read_prompt_texts
from drafttree_lab.replay.intervals import Fraction
from drafttree_lab.replay.paper import paper_names, read_paper
from drafttree_lab.replay.plan import short_digest
from drafttree_lab.replay.text_cell import TextCounts
from drafttree_lab.winner_map.published import (
    AUTO,
    PLAIN,
    Answer,
    PlacedPair,
    answer,
    families,
    place,
    published_pairs,
    questions,
)

AGREEMENTS = (0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95)
"""Shares of positions at which the drafter's best token is the target's."""
DRAFT_COSTS = (0.01, 0.03, 0.1, 0.2, 0.4)
"""c: the cost of a draft pass in target passes over one node."""
SLOPES = {0.0: "free trees, as in the papers' law", 0.005: "a GPU", 0.02: "between", 0.07: "two CPU cores"}
"""s in v(n) = 1 + s (n - 1), with what it is like."""
GPU = 0.005
"""The slope that the tables of Traversal Verification imply."""
MOST_TOKENS = 256
"""Tokens of a prompt at most; longer ones are cut, so that books are texts among others."""
Ids = Sequence[int]


@dataclass(frozen=True)
class GridCosts:
    """What passes cost, in target passes over one node; all else costs nothing.

    Attributes:
        draft: c, of a draft pass of any width.
        slope: s, of a node of a target pass beyond the first.
    """

    draft: float
    slope: float

    def fraction(self, counts: TextCounts) -> Fraction:
        """Tokens of a text, and what its rounds cost; their ratio is R."""
        return PassCosts(self.draft, self.target).fraction("tokens_per_second", counts)

    def speedup(self, texts: Iterable[TextCounts]) -> float:
        """R over all texts: tokens by cost, where plain decoding commits one token by one."""
        tokens, costs = zip(*map(self.fraction, texts), strict=True)
        return sum(tokens) / sum(costs)

    @property
    def target(self) -> Costs:
        """v(n), the cost of a target pass by its nodes."""
        return Costs((1, 2), (1.0, 1 + self.slope))

    @property
    def curve(self) -> CostCurve:
        """The same costs as the policy `auto` takes them."""
        return CostCurve(self.target, (DraftCosts(self.draft, Costs((1,), (self.draft,))),), 0.0, 0.0)


@dataclass(frozen=True)
class Entrant:
    """A family of policies at a point of the map.

    Attributes:
        setting: its fastest policy.
        speedup: R of that policy.
    """

    setting: str
    speedup: float


@dataclass(frozen=True)
class MapPoint:
    """A point of the map.

    Attributes:
        agreement: of drafter and target.
        costs: of passes.
        entrants: families by name, plain decoding among them.
        auto: R of the policy `auto`; None where it is not counted.
    """

    agreement: float
    costs: GridCosts
    entrants: Mapping[str, Entrant]
    auto: float | None

    @property
    def winner(self) -> str:
        """The fastest family, `auto` left out; the earlier one of equals."""
        return max(self.entrants, key=lambda name: self.entrants[name].speedup)

    @property
    def best(self) -> float:
        """R of the winner."""
        return self.entrants[self.winner].speedup

    @property
    def share(self) -> float | None:
        """R of `auto` over that of the winner."""
        return None if self.auto is None else self.auto / self.best


@dataclass(frozen=True)
class WinnerMap:
    """What is counted so far.

    Attributes:
        grades: drafters, by the agreement that was looked for.
        points: points of the map whose families are all counted.
        pairs: the papers' pairs of models; empty before anything is counted.
        answers: what the papers leave open.
        prompts: number of prompts.
        looping: how many of their texts end in a loop.
        differing: texts that are not the target's own, which rounding may cause where two tokens are as likely.
        length: tokens of a text.
    """

    grades: list[GradedAgreement]
    points: list[MapPoint]
    pairs: list[PlacedPair]
    answers: list[Answer]
    prompts: int
    looping: int
    differing: int
    length: int

    def to_json(self) -> dict[str, object]:
        """Plain data, with the winner of every point."""
        found = asdict(self)
        for point, plain in zip(self.points, found["points"], strict=True):
            plain |= {"winner": point.winner, "best": point.best, "share": point.share}
        return found

    def of_slope(self, slope: float) -> list[MapPoint]:
        """The points of one curve v(n)."""
        return [point for point in self.points if point.costs.slope == slope]


@dataclass
class TextRuns:
    """The greedy texts after some prompts, by graded drafters and policies; their counts are kept.

    Args:
        decoder: target with a language model as its drafter.
        store: keeps finished texts.
        length: new tokens of a text.
        seed: seed of the drafters' noise.

    Attributes:
        prompts: token ids of the prompts; set before anything but `plain` is run.

    Raises:
        ConfigError: the drafter is no language model.
    """

    decoder: Decoder
    store: RunStore
    length: int
    seed: int
    prompts: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not isinstance(self.decoder.drafter, LanguageModelDrafter):
            raise ConfigError("the map grades a language model that drafts; the drafter is none, name one with --as")
        self._draft: LanguageModelDrafter = self.decoder.drafter
        self._plain = self.decoder.plain()

    def plain(self, prompt: Ids) -> TextCounts:
        """The target's own greedy text."""
        key = ("plain", short_digest(list(prompt)))
        return self.store.run(key, TextCounts, lambda: self._write(self._plain, prompt))

    def grade(self, wanted: float) -> GradedAgreement:
        """The grade of an agreement, found on the texts of the prompts."""
        key = ("grade", wanted, self._digests)
        return self.store.run(key, GradedAgreement, lambda: find_grade(wanted, self._known, self.seed))

    def counts(self, grade: GradedAgreement, policy: str, prompt: Ids) -> TextCounts:
        """The text of a prompt by a graded drafter and a policy."""
        key = ("counts", grade.wanted, policy, self._digests, short_digest(list(prompt)))
        return self.store.run(key, TextCounts, lambda: self._write(self._graded(grade, policy), prompt))

    def auto_counts(self, grade: GradedAgreement, costs: GridCosts) -> list[TextCounts]:
        """The texts of all prompts by `auto` at given costs, each of which goes on from what the last one learned."""

        def write() -> list[TextCounts]:
            decoder = self._graded(grade, AUTO).with_costs(costs.curve)
            return [self._write(decoder, prompt) for prompt in self.prompts]

        key = (AUTO, grade.wanted, costs.draft, costs.slope, self._digests)
        return self.store.run(key, list[TextCounts], write)

    @cached_property
    def _known(self) -> list[KnownText]:
        """Both models' logits along the target's own texts."""
        model, target = self._draft.model, self.decoder.target
        return [KnownText.read(model, target, prompt, self.plain(prompt).tokens) for prompt in self.prompts]

    def _graded(self, grade: GradedAgreement, policy: str) -> Decoder:
        drafter = GradedDrafter(self._draft, LanguageModelDrafter(self.decoder.target), grade.grade)
        return self.decoder.with_drafter(drafter).with_policy(make_policy(policy))

    def _write(self, decoder: Decoder, prompt: Ids) -> TextCounts:
        options: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "seed": 0}
        return TextCounts.of(decoder.generate(list(prompt), max_new_tokens=self.length, **options))

    @cached_property
    def _digests(self) -> str:
        return short_digest(self.prompts)


def read_map_prompts(limit: int) -> PromptTexts:
    """The prompts of all sets that ship, each file once: as many candidates of every set as are wanted in all.

    Args:
        limit: prompts wanted in all.
    """
    found = read_prompt_texts(paper_names(), None, limit)
    files = {key: read_paper(key[0]).sets[key[1]] for key in found.texts}
    whole = {each.file for each in files.values() if not each.category}
    own: dict[tuple[str, str | None], tuple[str, str]] = {}
    for key, each in files.items():
        if not (each.category and each.file in whole):
            own.setdefault((each.file, each.category), key)
    return PromptTexts({key: found.texts[key] for key in own.values()}, found.missing, found.notes)


def choose_prompts(
    sets: Mapping[tuple[str, str], Sequence[Ids]], limit: int, seed: int, is_looping: Callable[[Ids], bool]
) -> list[list[int]]:
    """Token ids of the prompts of the map, from every set in turn, those first whose texts do not end in a loop.

    Args:
        sets: token ids of the candidates by paper and set.
        limit: prompts wanted.
        seed: seed of the order in which a set's candidates are tried.
        is_looping: whether the target's text after a prompt ends in a loop. It is asked of as few as will do.
    """
    random = Random(seed)
    shuffled = (random.sample([*each], len(each)) for each in sets.values())
    tried = (list(ids[:MOST_TOKENS]) for ids in chain.from_iterable(zip_longest(*shuffled)) if ids)
    chosen, looping = list[list[int]](), list[list[int]]()
    for ids in tried:
        if ids in chosen or ids in looping:
            continue
        (looping if is_looping(ids) else chosen).append(ids)
        if len(chosen) == limit:
            break
    return (chosen + looping)[:limit]


def cost_grid() -> list[GridCosts]:
    """All costs of the map, curve after curve."""
    return [GridCosts(draft, slope) for slope in SLOPES for draft in DRAFT_COSTS]


def policies() -> list[str]:
    """Every policy that is counted: those of the families, then those that only questions are about."""
    asked = (side for question in questions() for side in (question.left, question.right))
    return list(dict.fromkeys([*(spec for each in families().values() for spec in each), *asked]))


def count_steps(prompts: int) -> int:
    """Calls of `progress` of a whole run."""
    return len(AGREEMENTS) * (len(policies()) * prompts + len(cost_grid()))


def run_map(runs: TextRuns, progress: Callable[[str], None] = lambda _: None) -> WinnerMap:
    """Count what is not kept yet, and tell who wins where; after an interruption, with what is finished.

    Args:
        runs: runs texts after the chosen prompts.
        progress: called after every text, and after the texts of `auto` at one point.
    """
    plain: list[TextCounts] = []
    grades: dict[float, GradedAgreement] = {}
    texts: dict[float, dict[str, list[TextCounts]]] = {}
    auto: dict[tuple[float, GridCosts], list[TextCounts]] = {}
    with runs.store.interruptible():
        plain = [runs.plain(prompt) for prompt in runs.prompts]
        for agreement in AGREEMENTS:
            grade = grades[agreement] = runs.grade(agreement)
            counted: dict[str, list[TextCounts]] = {policy: [] for policy in policies()}
            for policy, own in counted.items():
                for prompt in runs.prompts:
                    own.append(runs.counts(grade, policy, prompt))
                    progress(f"{agreement:g} {policy.partition(':')[0]}")
            texts[agreement] = counted
            for costs in cost_grid():
                auto[agreement, costs] = runs.auto_counts(grade, costs)
                progress(f"{agreement:g} auto")
    pairs = [  # by the agreement that was reached, which the wanted one may miss by a token
        place(pair, {grades[each].reached: tau(texts[each][pair.policy]) for each in texts})
        for pair in published_pairs()
        if texts
    ]
    drafted = (kept for by_policy in texts.values() for kept in by_policy.values())
    return WinnerMap(
        grades=list(grades.values()),
        points=[_point(each, costs, texts[each], auto.get((each, costs))) for costs in cost_grid() for each in texts],
        pairs=pairs,
        answers=[answer(question, texts) for question in questions()],
        prompts=len(runs.prompts),
        looping=sum(each.looping for each in plain),
        differing=sum(each.tokens != own.tokens for kept in drafted for each, own in zip(kept, plain, strict=True)),
        length=runs.length,
    )


def tau(texts: Iterable[TextCounts]) -> float:
    """Tokens per round over all texts."""
    tokens, rounds = zip(*(each.fraction("tau") for each in texts), strict=True)
    return sum(tokens) / sum(rounds)


def _point(
    agreement: float, costs: GridCosts, texts: Mapping[str, Sequence[TextCounts]], auto: Sequence[TextCounts] | None
) -> MapPoint:
    entrants = {PLAIN: Entrant(PLAIN, 1.0)}
    for name, settings in families().items():
        found = (Entrant(spec, costs.speedup(texts[spec])) for spec in settings)
        entrants[name] = max(found, key=lambda each: each.speedup)
    return MapPoint(agreement, costs, entrants, costs.speedup(auto) if auto else None)
