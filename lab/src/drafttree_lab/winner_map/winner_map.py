"""Who wins where: the best policy by agreement and confidence of the drafter, cost of a draft pass and cost of a tree.

Texts are counted, never timed, so any machine will do.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, product, zip_longest
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
"""s in v(n) = 1 + s (n - 1), with what it is like."""
GPU = 0.005
"""The slope that the tables of Traversal Verification imply."""
MOST_TOKENS = 256
"""Tokens of a prompt at most; longer ones are cut, so that books are texts among others."""
Ids = Sequence[int]


@dataclass(frozen=True)
class MapPoint:
    """A point of the map; `auto` is no family.

    Attributes:
        draft_cost: c.
        slope: s, the cost of a node of a target pass beyond the first.
        winner: the fastest family; plain decoding is one.
        best: R of the winner.
        tied_with: the second family where the interval of `lead` includes 1 or there is none; else None.
        lead: R of the winner over that of the second, with its interval over prompts.
        speedups: R by family, the fastest first.
        settings: the fastest policy by family.
        auto: R of the policy `auto`; None where it is not counted.
        share: R of `auto` over that of the winner.
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
    """What is counted so far.

    Attributes:
        grades: drafters, by the agreement that was looked for.
        confidences: by agreement, the mean probability that the drafters of `CONFIDENCES` give to their best token.
        points: points of the map whose families are all counted.
        pairs: the papers' pairs of models; empty before anything is counted.
        questions: what the papers leave open.
        prompts: number of prompts.
        looping: how many of their texts end in a loop.
        differing: texts that are not the target's own, which rounding may cause where two tokens are as likely.
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

    def confidences(self, grade: GradedAgreement) -> list[float]:
        """The mean probability that a drafter gives to its best token at every one of `CONFIDENCES`."""
        key = ("confidences", grade.wanted, self._digests)
        drafters = [_at_confidence(grade, name) for name in CONFIDENCES]
        return self.store.run(key, list[float], lambda: [confidence(each, self._known) for each in drafters])

    def counts(self, grade: GradedAgreement, confidence: str, policy: str, prompt: Ids) -> TextCounts:
        """The text of a prompt by a graded drafter, more or less sure, and a policy."""
        key = ("counts", grade.wanted, confidence, policy, self._digests, short_digest(list(prompt)))
        drafter = _at_confidence(grade, confidence)
        return self.store.run(key, TextCounts, lambda: self._write(self._graded(drafter, policy), prompt))

    def auto_counts(self, grade: GradedAgreement, draft_cost: float, slope: float) -> list[TextCounts]:
        """The texts of all prompts by `auto` at given costs, each of which goes on from what the last one learned."""

        def write() -> list[TextCounts]:
            decoder = self._graded(grade.grade, AUTO).with_costs(cost_curve(draft_cost, slope))
            return [self._write(decoder, prompt) for prompt in self.prompts]

        key = (AUTO, grade.wanted, draft_cost, slope, self._digests)
        return self.store.run(key, list[TextCounts], write)

    @cached_property
    def _known(self) -> list[KnownText]:
        """Both models' logits along the target's own texts."""
        model, target = self._draft.model, self.decoder.target
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
    """The costs of a point of the map as the policy `auto` takes them; all but passes costs nothing."""
    return CostCurve(linear_costs(slope), (DraftCosts(draft_cost, Costs((1,), (draft_cost,))),), 0.0, 0.0)


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


def cost_grid() -> list[tuple[float, float]]:
    """c and s of all costs of the map, curve after curve."""
    return [(draft_cost, slope) for slope, draft_cost in product(SLOPES, DRAFT_COSTS)]


def policies() -> list[str]:
    """Every policy that is counted: those of the families, then those that only questions are about."""
    found = [spec for each in families().values() for spec in each]
    for question in questions():
        found += [question.left, question.right, *question.settings.values()]
    return list(dict.fromkeys(found))


def count_steps(prompts: int) -> int:
    """Calls of `progress` of a whole run."""
    return len(AGREEMENTS) * (len(CONFIDENCES) * len(policies()) * prompts + len(cost_grid()))


def run_map(runs: TextRuns, progress: Callable[[str], None] = lambda _: None) -> WinnerMap:
    """Count what is not kept yet, and tell who wins where; after an interruption, with what is finished.

    `auto` writes every text anew at every point, so it is counted last, and with calibrated drafters only.

    Args:
        runs: runs texts after the chosen prompts.
        progress: called after every text, and after the texts of `auto` at one point.
    """
    plain: list[TextCounts] = []
    grades: dict[float, GradedAgreement] = {}
    confidences: dict[float, list[float]] = {}
    texts: dict[float, dict[str, dict[str, list[TextCounts]]]] = {}
    auto: dict[tuple[float, str, float, float], list[TextCounts]] = {}
    with runs.store.interruptible():
        plain = [runs.plain(prompt) for prompt in runs.prompts]
        for agreement in AGREEMENTS:
            grade = grades[agreement] = runs.grade(agreement)
            confidences[agreement] = runs.confidences(grade)
            counted: dict[str, dict[str, list[TextCounts]]] = {}
            for name, policy, prompt in product(CONFIDENCES, policies(), runs.prompts):
                own = counted.setdefault(name, {}).setdefault(policy, [])
                own.append(runs.counts(grade, name, policy, prompt))
                progress(f"{agreement:g} {policy.partition(':')[0]}")
            texts[agreement] = counted
        for agreement, costs in product(AGREEMENTS, cost_grid()):
            auto[agreement, CALIBRATED, *costs] = runs.auto_counts(grades[agreement], *costs)
            progress(f"{agreement:g} auto")
    pairs = [  # by the agreement that was reached, which the wanted one may miss by a token
        place(
            pair,
            {grades[each].reached: speedups(FREE, texts[each][CALIBRATED][pair.policy])[0].item() for each in texts},
        )
        for pair in published_pairs()
        if texts
    ]
    drafted = (kept for of_grade in texts.values() for by_policy in of_grade.values() for kept in by_policy.values())
    return WinnerMap(
        grades=list(grades.values()),
        confidences=confidences,
        points=[
            _point(agreement, name, costs, texts[agreement][name], auto.get((agreement, name, *costs)))
            for costs, agreement, name in product(cost_grid(), texts, CONFIDENCES)
        ],
        pairs=pairs,
        questions=[answer(question, texts) for question in questions()],
        prompts=len(runs.prompts),
        looping=sum(each.looping for each in plain),
        differing=sum(each.tokens != own.tokens for kept in drafted for each, own in zip(kept, plain, strict=True)),
        length=runs.length,
    )


def _point(
    agreement: float,
    confidence: str,
    costs: tuple[float, float],
    texts: Mapping[str, Sequence[TextCounts]],
    auto: Sequence[TextCounts] | None,
) -> MapPoint:
    """A point, with the families by R; of equals the earlier family is first."""
    passes = PassCosts(costs[0], linear_costs(costs[1]))
    rates, settings = {PLAIN: torch.ones(1 + len(next(iter(texts.values()))))}, {PLAIN: PLAIN}
    for name, own in families().items():
        found = {spec: speedups(passes, texts[spec]) for spec in own}
        settings[name] = max(found, key=lambda spec: found[spec][0].item())
        rates[name] = found[settings[name]]
    order = sorted(rates, key=lambda name: -rates[name][0].item())
    lead = estimate(rates[order[0]] / rates[order[1]])
    best = rates[order[0]][0].item()
    own_auto = speedups(passes, auto)[0].item() if auto else None
    return MapPoint(
        agreement,
        confidence,
        *costs,
        winner=order[0],
        best=best,
        tied_with=None if side(lead) else order[1],
        lead=lead,
        speedups={name: rates[name][0].item() for name in order},
        settings=settings,
        auto=own_auto,
        share=own_auto / best if own_auto else None,
    )
