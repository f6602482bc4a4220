"""`tune`: measure costs and acceptance on a user's prompts, choose drafter, policy and draft temperature, confirm."""

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from drafttree.core.cost_curve import CostCurve, parse_cost_curve
from drafttree.core.errors import ConfigError, DraftTreeError, InputError
from drafttree.drafters import Drafter
from drafttree.engine.decoder import Decoder
from drafttree.engine.metrics import Metrics
from drafttree.evaluation.tune.arms import GRID, Arm, make_arms, no_drafter
from drafttree.evaluation.tune.draft_temperatures import (
    DRAFT_TEMPERATURES,
    SURVIVORS,
    WARM_TEXTS,
    TemperatureGain,
    at_draft_temperatures,
    best_at_1,
    temperature_gain,
)
from drafttree.evaluation.tune.halving import FIRST_TEXTS, Race, Rung, Timed, halve, planned_runs
from drafttree.loading import PolicyLike
from drafttree.measure.interval import Interval
from drafttree.measure.law import LimitingFactor, SpeedupLaw, doubt, drafts_nothing, law_terms
from drafttree.measure.method import PLAIN
from drafttree.measure.run_store import RunStore

LEAST_TOKENS = 4
"""A shorter prompt is left out."""
LEAST_PROMPTS = 9
"""With fewer prompts the choice is confirmed on those it was made on."""
HELD_OUT = 1 / 3
"""The share of the prompts that the choice does not see."""
CHOOSING = 0.6
"""The share of the time in which drafter and policy are chosen."""
TEMPERING = 0.8
"""The share after which the draft temperature is chosen too; the rest confirms the choice."""
CONFIRMING = 16
"""Texts that confirm a choice at most, or as many as prompts are held out."""
WARM_UP = 8


@dataclass(frozen=True)
class MeasuredCosts:
    """A drafter's cost curve, and the seconds it took to measure.

    Attributes:
        curve: the curve as `CostCurve.to_json` gives it; None where the drafter cannot draft for the target.
        seconds: seconds of measuring.
        error: why there is no curve.
    """

    curve: dict[str, Any] | None
    seconds: float
    error: str = ""


@dataclass(frozen=True)
class TunedMethod:
    """What was measured of a drafter and a policy.

    Attributes:
        drafter: the name of the drafter.
        policy: the canonical specification of the policy.
        texts: the number of texts compared with plain decoding.
        ratio: its decoding speed over plain decoding's; None where the times tell none.
        draft_temperature: the draft temperature of its texts.
    """

    drafter: str
    policy: str
    texts: int
    ratio: float | None
    draft_temperature: float = 1.0

    def __str__(self) -> str:
        warmth = "" if self.draft_temperature == 1 else f" at draft temperature {self.draft_temperature:g}"
        return f"{self.drafter} with {self.policy}{warmth}"


@dataclass(frozen=True)
class Tuning:
    """The outcome.

    Attributes:
        best: the fastest way; None if none could be measured.
        decoder: the decoder of that way.
        costs: the cost curve of its drafter.
        expected: R by the cost curve and what was accepted in the texts it was chosen on.
        gain: the gain in decoding speed over plain decoding, with its interval; None without a text.
        confirmed: whether the gain was measured after the choice, and so owes nothing to it, on more than one prompt.
        apart: whether it was measured on prompts that the choice had not seen.
        metrics: metrics of the texts in which the gain was measured.
        plain: the metrics of plain decoding of the same texts.
        ways: all that were tried, those of the last rung first and the best of them first.
        rungs: the rungs of the successive halving.
        missing: what was not measured for lack of time, a clause each.
        left_out: drafters that cannot be used, with the reason.
        too_short: prompts left out as too short.
        interrupted: whether Ctrl-C has ended it before it was done.
        temperature_gain: what a draft temperature other than 1 is worth; None where none was raced.
        one_prompt: whether all texts were of one prompt, whose gain says nothing of other prompts.
    """

    best: TunedMethod | None
    decoder: Decoder | None
    costs: CostCurve | None
    expected: float
    gain: Interval | None
    confirmed: bool
    apart: bool
    metrics: Metrics
    plain: Metrics
    ways: list[TunedMethod]
    rungs: list[Rung]
    missing: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    too_short: int = 0
    interrupted: bool = False
    temperature_gain: TemperatureGain | None = None
    one_prompt: bool = False

    @property
    def recommends(self) -> bool:
        """Whether anything is recommended, if only not to speculate: the gain is confirmed, and all was done."""
        return self.confirmed and not self.interrupted and (not self.doubt or drafts_nothing(self.metrics))

    @property
    def speculates(self) -> bool:
        """Whether speculating is recommended: the gain is greater than its interval, and is confirmed."""
        return self.gain is not None and self.gain.mean > self.gain.margin and self.confirmed and not self.doubt

    @property
    def doubt(self) -> str | None:
        """Why the times tell no gain; None where they do."""
        return doubt(self.metrics, self.plain) if self.best else None

    @property
    def law(self) -> SpeedupLaw:
        """The law's terms of the best way."""
        return SpeedupLaw.of(self.metrics, self.plain)

    @property
    def limit(self) -> LimitingFactor:
        """What limits its speed."""
        return LimitingFactor.of(self.law, self.metrics)

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON, but ratios that the times do not tell; an interval may have no margin yet."""
        told = not self.doubt
        gain = {"mean": self.gain.mean, "margin": _finite(self.gain.margin)} if self.gain and told else None
        found: dict[str, object] = {"speculate": self.speculates, "best": self.best and asdict(self.best), "gain": gain}
        if self.best:
            found |= {"law": law_terms(self.law, self.doubt), "limit": asdict(self.limit) if told else None}
        return found | {
            "expected": self.expected,
            "confirmed": self.confirmed,
            "on prompts apart": self.apart,
            "doubt": self.doubt,
            "draft temperature": asdict(self.temperature_gain) if self.temperature_gain and told else None,
            "costs": self.costs and self.costs.to_json(),
            "ways": [asdict(way) for way in self.ways],
            "rungs": [asdict(rung) for rung in self.rungs],
            "missing": self.missing,
            "left_out": self.left_out,
            "too_short": self.too_short,
            "interrupted": self.interrupted,
            "one prompt": self.one_prompt,
        }


def tune(
    decoder: Decoder,
    drafters: Mapping[str, Drafter],
    prompts: Sequence[Sequence[int]],
    *,
    policies: Sequence[PolicyLike] = GRID,
    draft_temperatures: Sequence[float] = DRAFT_TEMPERATURES,
    minutes: float = 5.0,
    left_out: Mapping[str, str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
    store: RunStore | None = None,
    **options,
) -> Tuning:
    """Find the drafter and the policy that decode the prompts fastest, and whether that beats plain decoding.

    The prompts are split: the choice among all ways is made on most of them by successive halving. The best two then
    race at other draft temperatures too, and the winner is confirmed against plain decoding on the other prompts; so is
    its draft temperature against 1.

    Args:
        decoder: the decoder, for its target, verifier and tokenizer.
        drafters: the drafters, by name, as `find_drafters` gives them.
        prompts: token ids of each prompt.
        policies: policies to try with every drafter, as for `parse_policies`; those the verifier does not admit are
            skipped.
        draft_temperatures: draft temperatures to try beside 1.
        minutes: minutes for all of it; a text that has begun is finished.
        left_out: drafters that could not be loaded, with the reason, to tell with the rest.
        progress: called after every text with the way it was written in.
        store: keeps finished runs; by default none. The same runs count the time they took when they were made.
        **options: options of `Decoder.new_request` but `draft_temperature`; without a seed it is 0, so that all write
            the same texts.

    Raises:
        ConfigError: `minutes` is not above 0, no policy is lossless with the verifier, `draft_temperature` is given, or
            1 is among `draft_temperatures`.
        InputError: no prompt is long enough.
        ModelError: no drafter can draft for the target.
    """
    if not (isinstance(minutes, int | float) and 0 < minutes < math.inf):
        raise ConfigError(f"minutes is {minutes!r}; give a number above 0, such as 5")
    if "draft_temperature" in options:
        raise ConfigError("draft temperatures are raced; give draft_temperatures instead of draft_temperature")
    long = [list(prompt) for prompt in prompts if len(prompt) >= LEAST_TOKENS]
    if not long:
        longest = max(map(len, prompts), default=0)
        raise InputError(f"no prompt has {LEAST_TOKENS} tokens or more, the longest has {longest}; give longer ones")
    store = store or RunStore()
    greedy = not options.get("temperature", decoder.defaults.get("temperature"))
    decoders, unfit, spent = _with_costs(decoder, drafters, store, greedy=greedy)
    unfit = dict(left_out or {}) | unfit
    if not decoders:
        raise no_drafter(unfit)
    arms = make_arms(decoders, policies)
    timer = _Timer({PLAIN: decoder.plain()} | {name: arm.decoder for name, arm in arms.items()}, options, store)
    chosen_on, held = _split(long)
    choosing = Race(functools.partial(timer.run, "choose", chosen_on, progress), len(chosen_on), spent)
    confirmed_on = held or chosen_on
    confirming = Race(functools.partial(timer.run, "confirm", confirmed_on, progress), len(confirmed_on))
    ranked, rungs, later = [], [], []
    with store.interruptible():
        ranked, rungs = halve(choosing, list(arms), 60 * minutes * CHOOSING)
        settled = ranked if rungs[-1].complete else []
        if warm := at_draft_temperatures(arms, settled, draft_temperatures, greedy=greedy):
            arms |= warm
            timer.decoders |= {name: arm.decoder for name, arm in warm.items()}
            best, later = halve(choosing, [*ranked[:SURVIVORS], *warm], 60 * minutes * TEMPERING, WARM_TEXTS)
            ranked = [*best, *(name for name in ranked if name not in best)]
        confirming.spent = choosing.spent
        if ranked:
            finalists = dict.fromkeys([PLAIN, ranked[0], best_at_1(arms, ranked)])
            confirming.run([*finalists], max(CONFIRMING, len(held)), 60 * minutes)
    if not choosing.runs.get(PLAIN):
        raise KeyboardInterrupt
    ranked = ranked or choosing.ranked(arms)
    found = _result(arms, choosing, confirming, ranked, rungs, later, apart=bool(held))
    alone = len(set(map(tuple, long))) == 1
    return replace(
        found,
        confirmed=found.confirmed and not alone,
        left_out=unfit,
        too_short=len(prompts) - len(long),
        interrupted=store.interrupted,
        one_prompt=alone,
    )


def planned_texts(prompts: int, arms: int) -> int:
    """The texts of a tuning that has the time for all of them, at most."""
    survivors = min(SURVIVORS, arms)
    warm = planned_runs(survivors * (1 + len(DRAFT_TEMPERATURES)), WARM_TEXTS) - planned_runs(survivors)
    return planned_runs(arms) + warm + 3 * max(CONFIRMING, int(prompts * HELD_OUT))


def time_text(decoder: Decoder, prompt: list[int], options: Mapping[str, Any]) -> Metrics:
    """Write a text; what it took."""
    return decoder.generate(prompt, **options).metrics


def measure_costs(decoder: Decoder, *, greedy: bool) -> MeasuredCosts:
    """Measure the cost curve of a decoder's target and drafter in greedy texts or in others."""
    started = time.perf_counter()
    try:
        curve = decoder.costs(greedy=greedy).to_json()
    except DraftTreeError as error:
        return MeasuredCosts(None, time.perf_counter() - started, str(error))
    return MeasuredCosts(curve, time.perf_counter() - started)


@dataclass
class _Timer:
    """Times texts of ways by name, after a warm-up of each; those that are kept are not run again."""

    decoders: dict[str, Decoder]
    options: Mapping[str, Any]
    store: RunStore
    warm: set[str] = field(default_factory=set)

    def run(self, phase: str, prompts: list[list[int]], progress: Callable[[str], None], way: str, text: int) -> Timed:
        prompt = prompts[text % len(prompts)]
        timed = self.store.run((phase, text, way), Timed, functools.partial(self._time, way, prompt))
        progress(way)
        return timed

    def _time(self, way: str, prompt: list[int]) -> Timed:
        decoder, options, warming = self.decoders[way], {"seed": 0, **self.options}, 0.0
        if way not in self.warm:
            self.warm.add(way)
            length = min(WARM_UP, options.get("max_new_tokens", WARM_UP))
            warming = time_text(decoder, prompt, {**options, "max_new_tokens": length}).seconds
        metrics = time_text(decoder, prompt, options)
        return Timed(metrics, warming + metrics.seconds)


def _with_costs(
    decoder: Decoder, drafters: Mapping[str, Drafter], store: RunStore, *, greedy: bool
) -> tuple[dict[str, Decoder], dict[str, str], float]:
    """Decoders that know the costs of their drafter, drafters that failed with the reason, and the seconds it took."""
    found, unfit, spent = {}, {}, 0.0
    for name, drafter in drafters.items():
        drafting = decoder.with_drafter(drafter)
        measured = store.run(("costs", name), MeasuredCosts, functools.partial(measure_costs, drafting, greedy=greedy))
        spent += measured.seconds
        if measured.curve is None:
            unfit[name] = measured.error
        else:
            found[name] = drafting.with_costs(parse_cost_curve(measured.curve))
    return found, unfit, spent


def _split(prompts: list[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
    """The prompts to choose on, and those to confirm on, evenly spaced; none of these where there are too few."""
    if len(prompts) < LEAST_PROMPTS:
        return prompts, []
    every = round(1 / HELD_OUT)
    held = [prompt for index, prompt in enumerate(prompts) if index % every == every - 1]
    return [prompt for index, prompt in enumerate(prompts) if index % every != every - 1], held


def _result(
    arms: Mapping[str, Arm],
    choosing: Race,
    confirming: Race,
    ranked: list[str],
    rungs: list[Rung],
    later: list[Rung],
    *,
    apart: bool,
) -> Tuning:
    warm = temperature_gain(arms, ranked, choosing, confirming)
    if warm and not warm.pays:
        kept = best_at_1(arms, ranked)
        ranked = [kept, *(name for name in ranked if name != kept)]
    ways = [_way(arms[name], choosing, name) for name in ranked]
    best = ranked[0] if ranked else None
    confirmed = bool(best and (gain := confirming.gain(best)) and math.isfinite(gain.margin))
    judged = confirming if confirmed else choosing
    metrics, plain = judged.totals(best) if best else (Metrics(), Metrics())
    costs = arms[best].decoder.costs() if best else None
    return Tuning(
        best=ways[0] if ways else None,
        decoder=arms[best].decoder if best else None,
        costs=costs,
        expected=_expected(choosing.totals(best)[0], costs) if best and costs else 0.0,
        gain=judged.gain(best) if best else None,
        confirmed=confirmed,
        apart=apart and confirmed,
        metrics=metrics,
        plain=plain,
        ways=ways,
        rungs=[*rungs, *later],
        missing=_missing(arms, choosing, rungs, later, confirmed=confirmed),
        temperature_gain=warm,
    )


def _way(arm: Arm, race: Race, name: str) -> TunedMethod:
    ratio = None if doubt(*race.totals(name)) else race.ratio(name)
    return TunedMethod(arm.drafter, arm.policy, len(race.runs[name]), ratio, arm.draft_temperature)


def _expected(metrics: Metrics, costs: CostCurve) -> float:
    """R of counted rounds by a cost curve."""
    spent = sum(costs.round(each.nodes, each.widths, each.source) for each in metrics.rounds)
    return metrics.tokens * costs.plain_round / spent if spent else 0.0


def _missing(
    arms: Mapping[str, Arm], choosing: Race, rungs: list[Rung], later: list[Rung], *, confirmed: bool
) -> list[str]:
    warm = [name for name, arm in arms.items() if arm.draft_temperature != 1]
    cold = [name for name in arms if name not in warm]
    tried, tried_warm = ([name for name in names if choosing.runs.get(name)] for names in (cold, warm))
    if not tried:
        return [f"none of {_ways(len(cold))} was tried"]
    found = [f"{len(cold) - len(tried)} of {_ways(len(cold))} were not tried"] if len(tried) < len(cold) else []
    if not rungs or not rungs[-1].complete:
        texts = rungs[-1].texts if rungs else FIRST_TEXTS
        found.append(f"the choice rests on fewer than {texts} texts of each")
    if len(tried_warm) < len(warm):
        found.append(f"{len(warm) - len(tried_warm)} of {_ways(len(warm))} at other draft temperatures were not tried")
    elif later and not later[-1].complete:
        found.append(f"the draft temperature rests on fewer than {later[-1].texts} texts of each")
    return found if confirmed else [*found, "the gain was not confirmed after the choice"]


def _ways(count: int) -> str:
    return f"{count} ways" if count > 1 else "1 way"


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
