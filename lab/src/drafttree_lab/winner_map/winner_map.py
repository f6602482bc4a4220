"""The map of winners: the fastest policy by the drafter's agreement and confidence, and the costs of passes.

Texts are counted, never timed, so the map does not depend on the machine.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, product, zip_longest
from operator import attrgetter
from random import Random
from typing import Any

import torch

from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.core.errors import ConfigError
from drafttree.drafters.language_model import LanguageModelDrafter
from drafttree.engine.decoder import Decoder
from drafttree.loading import make_policy
from drafttree.measure.run_store import RunStore
from drafttree_lab.graded import (
    CALIBRATED,
    CONFIDENCES,
    Grade,
    GradedAgreement,
    GradedDrafter,
    KnownText,
    confidence,
    find_grade,
)
from drafttree_lab.replay.costs import PassCosts
from drafttree_lab.replay.inputs import PromptTexts, read_prompt_texts
from drafttree_lab.replay.intervals import Estimate
from drafttree_lab.replay.paper_files import paper_names, read_paper
from drafttree_lab.replay.plan import short_digest
from drafttree_lab.replay.text_cell import TextCounts
from drafttree_lab.winner_map.published import (
    AUTO,
    FREE,
    PLAIN,
    TWO_CORES,
    Pair,
    Question,
    answer,
    estimate,
    families,
    linear_costs,
    place,
    published_pairs,
    questions,
    side,
    speedups,
)

AGREEMENTS = (0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95)
"""Shares of positions at which the drafter's best token is the target's."""
DRAFT_COSTS = (0.01, 0.03, 0.1, 0.2, 0.4)
"""c: the cost of a draft pass in target passes over one node."""
SLOPES = {0.0: "free trees, as in the papers' law", 0.005: "a GPU", 0.02: "between", TWO_CORES: "two CPU cores"}
"""s in v(n) = 1 + s (n - 1), with hardware of this slope."""
GPU = 0.005
"""The slope that the tables of Traversal Verification imply."""
MAX_PROMPT_TOKENS = 256
"""Longer prompts are cut to this length, so that those from books weigh no more than others."""
Ids = Sequence[int]


@dataclass(frozen=True)
class MapPoint:
    """A point of the map: the speed-ups at one agreement, confidence and pair of costs.

    Attributes:
        agreement: agreement of the drafter with the target.
        confidence: one of `CONFIDENCES`.
        draft_cost: c.
        slope: s, the cost of each further node of a target pass.
        winner: the fastest family; plain decoding counts as one, `auto` does not.
        best: R of the winner.
        tied_with: the second family if the interval of `lead` includes 1 or does not exist; otherwise None.
        lead: R of the winner over R of the second family, with its interval over prompts.
        speedups: R by family, the fastest first.
        settings: the fastest policy of each family.
        auto: R of the policy `auto`; None if it was not counted.
        share: R of `auto` over R of the winner.
    """

    agreement: float
    confidence: str
    draft_cost: float
    slope: float
    winner: str
    best: float
    tied_with: str | None
    lead: Estimate
    speedups: Mapping[str, float]
    settings: Mapping[str, str]
    auto: float | None = None
    share: float | None = None


@dataclass(frozen=True)
class WinnerMap:
    """The map as far as its texts are counted.

    Attributes:
        grades: the graded drafters.
        confidences: by agreement, the mean probability of the best token, for each of `CONFIDENCES`.
        points: the points whose families are all counted.
        pairs: the papers' pairs of models; empty before anything is counted.
        questions: the questions that the papers leave open.
        prompts: number of prompts.
        looping: number of the target's texts that end in a loop.
        differing: number of drafted texts that differ from the target's own; rounding may break ties.
        length: tokens of a text.
    """

    grades: list[GradedAgreement]
    confidences: dict[float, list[float]]
    points: list[MapPoint]
    pairs: list[Pair]
    questions: list[Question]
    prompts: int
    looping: int
    differing: int
    length: int

    def of_slope(self, slope: float) -> list[MapPoint]:
        """The points of one curve v(n)."""
        return [point for point in self.points if point.slope == slope]


@dataclass
class TextRuns:
    """Writes the greedy texts of graded drafters and policies after some prompts, and stores their counts.

    Args:
        decoder: decoder with a language model as drafter.
        store: stores the counts.
        length: new tokens of a text.
        seed: seed of the drafters' noise.

    Attributes:
        prompts: token ids of the prompts. Only `plain` may be called before they are set.

    Raises:
        ConfigError: the drafter is not a language model.
    """

    decoder: Decoder
    store: RunStore
    length: int
    seed: int
    prompts: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not isinstance(self.decoder.drafter, LanguageModelDrafter):
            raise ConfigError("the map grades language models that draft; this drafter is not one, name one with --as")
        self._draft: LanguageModelDrafter = self.decoder.drafter
        self._plain = self.decoder.plain()

    def plain(self, prompt: Ids) -> TextCounts:
        """The target's own greedy text."""
        key = ("plain", short_digest(list(prompt)))
        return self.store.run(key, TextCounts, lambda: self._write(self._plain, prompt))

    def grade(self, aimed_agreement: float) -> GradedAgreement:
        """The drafter's grade with this agreement on the texts of the prompts."""
        key = ("grade", aimed_agreement, self._digests)
        return self.store.run(key, GradedAgreement, lambda: find_grade(aimed_agreement, self._known, self.seed))

    def confidences(self, grade: GradedAgreement) -> list[float]:
        """The mean probability that a drafter gives to its best token, at each of `CONFIDENCES`."""
        key = ("confidences", grade.wanted, self._digests)
        drafters = [_at_confidence(grade, name) for name in CONFIDENCES]
        return self.store.run(key, list[float], lambda: [confidence(drafter, self._known) for drafter in drafters])

    def counts(self, grade: GradedAgreement, confidence: str, policy: str, prompt: Ids) -> TextCounts:
        """The counts of a prompt's text by a drafter of this grade and confidence, and a policy."""
        key = ("counts", grade.wanted, confidence, policy, self._digests, short_digest(list(prompt)))
        drafter = _at_confidence(grade, confidence)
        return self.store.run(key, TextCounts, lambda: self._write(self._graded(drafter, policy), prompt))

    def auto_counts(self, grade: GradedAgreement, draft_cost: float, slope: float) -> list[TextCounts]:
        """The counts of all prompts' texts by `auto` at given costs, in order, since `auto` learns between texts."""

        def write() -> list[TextCounts]:
            decoder = self._graded(grade.grade, AUTO).with_costs(cost_curve(draft_cost, slope))
            return [self._write(decoder, prompt) for prompt in self.prompts]

        key = (AUTO, grade.wanted, draft_cost, slope, self._digests)
        return self.store.run(key, list[TextCounts], write)

    @cached_property
    def _known(self) -> list[KnownText]:
        """Both models' logits along the target's own texts."""
        model = self._draft.model
        target = self.decoder.target
        return [KnownText.read(model, target, prompt, self.plain(prompt).tokens) for prompt in self.prompts]

    def _graded(self, grade: Grade, policy: str) -> Decoder:
        drafter = GradedDrafter(self._draft, LanguageModelDrafter(self.decoder.target), grade)
        return self.decoder.with_drafter(drafter).with_policy(make_policy(policy))

    def _write(self, decoder: Decoder, prompt: Ids) -> TextCounts:
        options: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "seed": 0}
        return TextCounts.of(decoder.generate(list(prompt), max_new_tokens=self.length, **options))

    @cached_property
    def _digests(self) -> str:
        return short_digest(self.prompts)


def _at_confidence(grade: GradedAgreement, confidence: str) -> Grade:
    return replace(grade.grade, temperature=grade.grade.temperature * CONFIDENCES[confidence])


def cost_curve(draft_cost: float, slope: float) -> CostCurve:
    """The costs of a point of the map for the policy `auto`; only passes cost anything."""
    return CostCurve(linear_costs(slope), (DraftCosts(draft_cost, Costs((1,), (draft_cost,))),), 0.0, 0.0)


def read_map_prompts(limit: int) -> PromptTexts:
    """The candidates for the prompts of the map: up to `limit` of every set that ships, no file twice.

    Args:
        limit: prompts of the whole map.
    """
    texts = read_prompt_texts(paper_names(), None, limit)
    files = {key: read_paper(key[0]).sets[key[1]] for key in texts.texts}
    whole_files = {prompt_set.file for prompt_set in files.values() if not prompt_set.category}
    set_keys: dict[tuple[str, str | None], tuple[str, str]] = {}
    for key, prompt_set in files.items():
        if not (prompt_set.category and prompt_set.file in whole_files):
            set_keys.setdefault((prompt_set.file, prompt_set.category), key)
    return PromptTexts({key: texts.texts[key] for key in set_keys.values()}, texts.missing, texts.notes)


def choose_prompts(
    sets: Mapping[tuple[str, str], Sequence[Ids]], limit: int, seed: int, is_looping: Callable[[Ids], bool]
) -> list[list[int]]:
    """Token ids of the prompts of the map; those whose texts end in a loop are taken only if others do not suffice.

    Args:
        sets: token ids of the candidates by paper and set.
        limit: number of prompts.
        seed: seed of the order in which a set's candidates are tried.
        is_looping: whether the target's text after a prompt ends in a loop; called as seldom as possible.
    """
    prompts = list[list[int]]()
    looping = list[list[int]]()
    for ids in _candidates(sets, Random(seed)):
        if ids in prompts or ids in looping:
            continue
        (looping if is_looping(ids) else prompts).append(ids)
        if len(prompts) == limit:
            break
    return (prompts + looping)[:limit]


def _candidates(sets: Mapping[tuple[str, str], Sequence[Ids]], random: Random) -> Iterator[list[int]]:
    """The candidates of all sets alternately, each set in random order, cut to `MAX_PROMPT_TOKENS`."""
    shuffled_sets = [random.sample([*set_prompts], len(set_prompts)) for set_prompts in sets.values()]
    for ids in chain.from_iterable(zip_longest(*shuffled_sets)):
        if ids:
            yield list(ids[:MAX_PROMPT_TOKENS])


def cost_grid() -> list[tuple[float, float]]:
    """Pairs of c and s at all points of the map, sorted by s."""
    return [(draft_cost, slope) for slope, draft_cost in product(SLOPES, DRAFT_COSTS)]


def policies() -> list[str]:
    """Every policy that is counted: those of the families, then those of the questions."""
    specs = list(chain.from_iterable(families().values()))
    for question in questions():
        specs += [question.left, question.right, *question.settings.values()]
    return list(dict.fromkeys(specs))


def count_steps(prompts: int) -> int:
    """The number of times that a whole run calls `progress`."""
    return len(AGREEMENTS) * (len(CONFIDENCES) * len(policies()) * prompts + len(cost_grid()))


def run_map(runs: TextRuns, progress: Callable[[str], None] = lambda _: None) -> WinnerMap:
    """Count the texts that are not stored yet, and make the map; after an interruption, make it of what is finished.

    The texts of `auto` differ from point to point, so they are counted last, and with calibrated drafters only.

    Args:
        runs: writes the texts after the chosen prompts.
        progress: called after every text, and after the texts of `auto` at one point.
    """
    counts = MapCounts()
    with runs.store.interruptible():
        _count(runs, counts, progress)
    points = []
    for costs, agreement, name in product(cost_grid(), counts.texts, CONFIDENCES):
        auto = counts.auto_texts.get((agreement, name, *costs))
        points.append(_point(agreement, name, costs, counts.texts[agreement][name], auto))
    model_pairs: list[Pair] = []
    if counts.texts:
        model_pairs += [place(model_pair, counts.taus(model_pair.policy)) for model_pair in published_pairs()]
    return WinnerMap(
        grades=list(counts.grades.values()),
        confidences=counts.confidences,
        points=points,
        pairs=model_pairs,
        questions=[answer(question, counts.texts) for question in questions()],
        prompts=len(runs.prompts),
        looping=sum(map(attrgetter("looping"), counts.plain)),
        differing=counts.differing,
        length=runs.length,
    )


@dataclass
class MapCounts:
    """The counts that a map is made of.

    Attributes:
        plain: the target's own texts.
        grades: the graded drafters, by the agreement that was aimed at.
        confidences: by agreement, as of the map.
        texts: the texts by agreement, confidence and policy; an agreement has all of its texts or none.
        auto_texts: the texts of `auto`, by agreement, confidence, c and s.
    """

    plain: list[TextCounts] = field(default_factory=list)
    grades: dict[float, GradedAgreement] = field(default_factory=dict)
    confidences: dict[float, list[float]] = field(default_factory=dict)
    texts: dict[float, dict[str, dict[str, list[TextCounts]]]] = field(default_factory=dict)
    auto_texts: dict[tuple[float, str, float, float], list[TextCounts]] = field(default_factory=dict)

    def taus(self, policy: str) -> dict[float, float]:
        """Tokens per round of a policy by the agreement that a grade reached, not the one that was aimed at."""
        taus = {}
        for agreement, texts in self.texts.items():
            taus[self.grades[agreement].reached] = speedups(FREE, texts[CALIBRATED][policy])[0].item()
        return taus

    @property
    def differing(self) -> int:
        """The number of texts that differ from the target's own."""
        differing = 0
        for texts_by_confidence in self.texts.values():
            for policy_texts in chain.from_iterable(map(dict.values, texts_by_confidence.values())):
                for text, plain_text in zip(policy_texts, self.plain, strict=True):
                    differing += text.tokens != plain_text.tokens
        return differing


def _count(runs: TextRuns, counts: MapCounts, progress: Callable[[str], None]) -> None:
    """Count the texts that are not stored yet. After an interruption, `counts` has all that is finished."""
    counts.plain = [runs.plain(prompt) for prompt in runs.prompts]
    for agreement in AGREEMENTS:
        grade = counts.grades[agreement] = runs.grade(agreement)
        counts.confidences[agreement] = runs.confidences(grade)
        texts_by_confidence: dict[str, dict[str, list[TextCounts]]] = {}
        for name, policy, prompt in product(CONFIDENCES, policies(), runs.prompts):
            policy_texts = texts_by_confidence.setdefault(name, {}).setdefault(policy, [])
            policy_texts.append(runs.counts(grade, name, policy, prompt))
            progress(f"{agreement:g} {policy.partition(':')[0]}")
        counts.texts[agreement] = texts_by_confidence
    for agreement, costs in product(AGREEMENTS, cost_grid()):
        counts.auto_texts[agreement, CALIBRATED, *costs] = runs.auto_counts(counts.grades[agreement], *costs)
        progress(f"{agreement:g} auto")


def _point(
    agreement: float,
    confidence: str,
    costs: tuple[float, float],
    texts: Mapping[str, Sequence[TextCounts]],
    auto: Sequence[TextCounts] | None,
) -> MapPoint:
    """A point of the map; of families with the same R, the earlier one wins."""
    passes = PassCosts(costs[0], linear_costs(costs[1]))
    rates = {PLAIN: torch.ones(1 + len(next(iter(texts.values()))))}
    settings = {PLAIN: PLAIN}
    for name, specs in families().items():
        family_rates = {spec: speedups(passes, texts[spec]) for spec in specs}
        settings[name] = max(family_rates, key=lambda spec: family_rates[spec][0].item())
        rates[name] = family_rates[settings[name]]
    order = sorted(rates, key=lambda name: -rates[name][0].item())
    lead = estimate(rates[order[0]] / rates[order[1]])
    best_rate = rates[order[0]][0].item()
    own_auto = speedups(passes, auto)[0].item() if auto else None
    return MapPoint(
        agreement,
        confidence,
        *costs,
        winner=order[0],
        best=best_rate,
        tied_with=None if side(lead) else order[1],
        lead=lead,
        speedups={name: rates[name][0].item() for name in order},
        settings=settings,
        auto=own_auto,
        share=own_auto / best_rate if own_auto else None,
    )
