"""`tune`: choose drafter, policy and draft temperature on some of a user's prompts, and confirm that on others."""

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from drafttree.core.cost_curve import CostCurve, parse_cost_curve
from drafttree.core.errors import ConfigError, DraftTreeError, InputError, ModelError
from drafttree.drafters import Drafter
from drafttree.engine.compatibility import incompatibility
from drafttree.engine.decoder import Decoder
from drafttree.engine.metrics import Metrics
from drafttree.evaluation.tune.race import FIRST_TEXTS, Race, Rung, Timed, planned_runs
from drafttree.evaluation.tune.recommendation import TemperatureGain, TunedMethod, Tuning
from drafttree.loading import PolicyLike, find_drafter, parse_policies
from drafttree.measure.method import PLAIN
from drafttree.measure.reference import transformers_model
from drafttree.measure.run_store import RunStore
from drafttree.policies import Chain
from drafttree.verifiers import Verifier

GRID = (
    "auto",
    "chain:depth=2",
    "talon:budget=16,width=4",
    "chain",
    "dynatree",
    "eagle:depth=5,top_k=4,budget=16",
    "chain:depth=1",
    "opt-tree:budget=16",
    "chain:depth=3",
    "talon",
    "chain:depth=8",
    "eagle",
    "opt-tree",
)
"""Policies that are tried with every drafter; if time is short, only the first ones."""
DRAFT_TEMPERATURES = (0.6, 0.8, 1.25)
"""Draft temperatures besides 1 at which the best ways race; if time is short, only the first ones."""
SURVIVORS, TEMPERATURE_TEXTS = 2, 4
"""Number of ways that race at draft temperatures other than 1, and of their texts in the first rung.

There are more texts than in the race of policies, since draft temperatures differ less.
"""
LEAST_TOKENS, LEAST_PROMPTS = 4, 9
"""The fewest tokens of a prompt that is used, and the fewest prompts for which some are held out."""
HOLDOUT_EVERY = 3
"""One in this many prompts is held out from the choice, and confirms it."""
CHOICE_END, TEMPERATURE_END = 0.6, 0.8
"""Shares of the time after which the choice of drafter and policy ends, and the choice of draft temperature."""
CONFIRMATION_TEXTS = 16
"""Texts of each finalist that confirm the choice; more if there are more prompts held out."""
WARM_UP = 8
"""Tokens of the short text that each way writes before its times count."""


class _Way(NamedTuple):
    """A drafter, a policy and a draft temperature, with the decoder that uses them."""

    drafter: str
    policy: str
    decoder: Decoder
    draft_temperature: float = 1.0


@dataclass(frozen=True)
class MeasuredCosts:
    """The outcome of measuring a drafter's costs.

    Attributes:
        curve: the cost curve as JSON; None if the drafter cannot draft.
        seconds: seconds that the measurement took.
        error: why there is no curve; empty if there is one.
    """

    curve: dict[str, Any] | None
    seconds: float
    error: str = ""


def find_drafters(decoder: Decoder, names: Sequence[str]) -> tuple[dict[str, Drafter], dict[str, str]]:
    """Load drafters; return those that fit the target, and the reason for each that does not, by name.

    Args:
        decoder: the decoder, for its target and tokenizer.
        names: drafters as `drafttree.load` takes them, except "auto" and "none".

    Raises:
        ConfigError: "auto" or "none" is among the names.
        ModelError: no drafter can be used; the message gives the reason for each.
    """
    if reserved_names := {"none", "auto"}.intersection(names):
        raise ConfigError(f"{reserved_names.pop()!r} is not a drafter; leave it out: plain decoding is always included")
    target = transformers_model(decoder)
    drafters = {}
    left_out = {}
    for name in names:
        try:
            drafters[name] = find_drafter(name, target, decoder.tokenizer)
        except DraftTreeError as error:
            left_out[name] = str(error)
    if not drafters:
        raise _no_drafter(left_out)
    return drafters, left_out


def _no_drafter(left_out: Mapping[str, str]) -> ModelError:
    reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items()) or "none was named"
    return ModelError(f"no drafter can be used for this target ({reasons}); name another")


def planned_texts(prompts: int, ways: int) -> int:
    """Maximum number of texts that a tuning writes, if time is not short."""
    survivors = min(SURVIVORS, ways)
    temperature_ways = survivors * (1 + len(DRAFT_TEMPERATURES))
    temperature_runs = planned_runs(temperature_ways, TEMPERATURE_TEXTS) - planned_runs(survivors)
    return planned_runs(ways) + temperature_runs + 3 * max(CONFIRMATION_TEXTS, int(prompts / HOLDOUT_EVERY))


def time_text(decoder: Decoder, prompt: list[int], options: Mapping[str, Any]) -> Metrics:
    """Write a text and return its metrics."""
    return decoder.generate(prompt, **options).metrics


def measure_costs(decoder: Decoder, *, greedy: bool) -> MeasuredCosts:
    """Measure the cost curve of a decoder's target and drafter, in greedy or in sampled texts."""
    start = time.perf_counter()
    try:
        curve = decoder.costs(greedy=greedy).to_json()
    except DraftTreeError as error:
        return MeasuredCosts(None, time.perf_counter() - start, str(error))
    return MeasuredCosts(curve, time.perf_counter() - start)


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

    Most prompts serve the choice. It is made by successive halving, after which the best two ways race at other draft
    temperatures. The other prompts confirm the winner against plain decoding, and its draft temperature against 1.

    Args:
        decoder: the decoder, for its target, verifier and tokenizer.
        drafters: the drafters, by name, as `find_drafters` gives them.
        prompts: token ids of each prompt.
        policies: policies to try with every drafter, as for `parse_policies`; those that are not lossless with the
            verifier are skipped.
        draft_temperatures: draft temperatures to try beside 1.
        minutes: minutes for everything; a text that has begun is finished.
        left_out: by name, why a drafter could not be loaded; becomes part of `Tuning.left_out`.
        progress: called after every text with the name of its way.
        store: keeps finished runs; by default none. A stored run counts with the time that it took at first.
        **options: options of `Decoder.new_request` except `draft_temperature`; the seed is 0 unless given, so that all
            ways write the same texts.

    Raises:
        ConfigError: `minutes` is not above 0, no policy is lossless with the verifier, `draft_temperature` is given,
            or 1 is among `draft_temperatures`.
        InputError: no prompt is long enough.
        ModelError: no drafter can draft for the target.
    """
    _check_options(minutes, draft_temperatures, options)
    prompt_split = _PromptSplit.of(prompts)
    store = store or RunStore()
    plain = decoder.plain()
    greedy = not options.get("temperature", decoder.defaults.get("temperature"))
    costed_drafters = _CostedDrafters.measured(decoder, drafters, left_out or {}, store, greedy=greedy)
    ways = _ways(costed_drafters.decoders, policies, decoder.verifier)
    contest = _Contest(_Writer(plain, ways, {"seed": 0, **options}), prompt_split, store, progress)
    contest.choosing.spent = costed_drafters.seconds
    with store.interruptible():
        contest.choose(60 * minutes * CHOICE_END)
        contest.choose_temperature(draft_temperatures, 60 * minutes * TEMPERATURE_END, greedy=greedy)
        contest.confirm(max(CONFIRMATION_TEXTS, len(prompt_split.holdout)), 60 * minutes)
    if not contest.choosing.runs.get(PLAIN):
        raise KeyboardInterrupt
    contest.rank_what_ran()
    temperature_gain = contest.temperature_gain()
    if temperature_gain and not temperature_gain.pays:
        contest.prefer(contest.best_at_one)
    return _outcome(contest, prompt_split, costed_drafters.left_out, temperature_gain, interrupted=store.interrupted)


def _check_options(minutes: float, draft_temperatures: Sequence[float], options: Mapping[str, Any]) -> None:
    if not (isinstance(minutes, int | float) and 0 < minutes < math.inf):
        raise ConfigError(f"minutes is {minutes!r}; give a number above 0, such as 5")
    if "draft_temperature" in options:
        raise ConfigError(
            "tune compares several draft temperatures; give draft_temperatures instead of draft_temperature"
        )
    if 1 in draft_temperatures:
        raise ConfigError("draft temperature 1 is always included; leave it out")


class _PromptSplit(NamedTuple):
    """The prompts of a tuning that are long enough.

    Attributes:
        choice: prompts on which the choice is made.
        holdout: prompts that only confirm it; empty if there are too few prompts to hold any out.
        too_short: the number of prompts left out.
    """

    choice: list[list[int]]
    holdout: list[list[int]]
    too_short: int

    @classmethod
    def of(cls, prompts: Sequence[Sequence[int]]) -> "_PromptSplit":
        """Split prompts.

        Raises:
            InputError: no prompt is long enough.
        """
        choice = [list(prompt) for prompt in prompts if len(prompt) >= LEAST_TOKENS]
        if not choice:
            longest = max(map(len, prompts), default=0)
            raise InputError(
                f"no prompt has {LEAST_TOKENS} tokens or more, the longest has {longest}; give longer ones"
            )
        too_short = len(prompts) - len(choice)
        if len(choice) < LEAST_PROMPTS:
            return cls(choice, [], too_short)
        holdout = choice[HOLDOUT_EVERY - 1 :: HOLDOUT_EVERY]
        del choice[HOLDOUT_EVERY - 1 :: HOLDOUT_EVERY]
        return cls(choice, holdout, too_short)

    @property
    def confirmation(self) -> list[list[int]]:
        """The prompts that confirm the choice: those held out or, if there are none, those of the choice."""
        return self.holdout or self.choice

    @property
    def is_one_prompt(self) -> bool:
        """Whether all prompts are equal."""
        return len(set(map(tuple, self.choice + self.holdout))) == 1


class _CostedDrafters(NamedTuple):
    """Drafters whose costs were measured.

    Attributes:
        decoders: by name of the drafter, a decoder with the drafter and its cost curve.
        left_out: by name, why a drafter cannot be used.
        seconds: seconds that all measurements took.
    """

    decoders: dict[str, Decoder]
    left_out: dict[str, str]
    seconds: float

    @classmethod
    def measured(
        cls,
        decoder: Decoder,
        drafters: Mapping[str, Drafter],
        left_out: Mapping[str, str],
        store: RunStore,
        *,
        greedy: bool,
    ) -> "_CostedDrafters":
        """Measure the costs of drafters, or take them from the store; arguments as for `tune`.

        Raises:
            ModelError: no drafter can draft.
        """
        decoders = dict[str, Decoder]()
        unfit = dict(left_out)
        seconds = 0.0
        for name, drafter in drafters.items():
            drafting_decoder = decoder.with_drafter(drafter)
            measured_costs = store.run(
                ("costs", name), MeasuredCosts, functools.partial(measure_costs, drafting_decoder, greedy=greedy)
            )
            seconds += measured_costs.seconds
            if measured_costs.curve is None:
                unfit[name] = measured_costs.error
            else:
                decoders[name] = drafting_decoder.with_costs(parse_cost_curve(measured_costs.curve))
        if not decoders:
            raise _no_drafter(unfit)
        return cls(decoders, unfit, seconds)


def _ways(
    decoders: Mapping[str, Decoder], policies: Sequence[PolicyLike], verifier: type[Verifier] | None
) -> dict[str, _Way]:
    """Every policy that is lossless with the verifier, with every drafter, at draft temperature 1.

    Raises:
        ConfigError: no policy is lossless with the verifier.
    """
    ways = {}
    for spec, policy in parse_policies(policies).items():
        if verifier is None or not incompatibility(policy, verifier):
            for name, decoder in decoders.items():
                ways[f"{name}, {spec}"] = _Way(name, spec, decoder.with_policy(policy))
    if not ways:
        raise ConfigError(f"none of the policies is lossless with {verifier and verifier.__name__}; name another")
    return ways


class _Writer:
    """Writes and times texts. Before the first text of a way, it writes a short one to warm up.

    Args:
        plain: the decoder of plain decoding.
        ways: the other ways, by name; others may be added at any time.
        options: options of all texts.
    """

    def __init__(self, plain: Decoder, ways: dict[str, _Way], options: Mapping[str, Any]) -> None:
        self.ways = ways
        self._plain = plain
        self._options = options
        self._warmed_ways = set[str]()

    def write(self, way: str, prompt: list[int]) -> Timed:
        """Write a text; its time includes that of the warm-up, if there is one."""
        decoder = self._plain if way == PLAIN else self.ways[way].decoder
        warm_up_seconds = 0.0
        if way not in self._warmed_ways:
            self._warmed_ways.add(way)
            length = min(WARM_UP, self._options.get("max_new_tokens", WARM_UP))
            warm_up_seconds = time_text(decoder, prompt, {**self._options, "max_new_tokens": length}).seconds
        metrics = time_text(decoder, prompt, self._options)
        return Timed(metrics, warm_up_seconds + metrics.seconds)


class _Contest:
    """The two races of a tuning: one chooses among the ways, the other confirms the choice.

    After an interruption, the attributes hold the results so far.

    Args:
        writer: writes the texts of both races.
        prompt_split: the prompts of both.
        store: keeps finished texts.
        progress: called after every text with its way.

    Attributes:
        ways: the ways by name; those at draft temperatures other than 1 are added before they race.
        choosing: the race that chooses.
        confirming: the race that confirms.
        ranked: ways that ran, the best first.
        rungs: rungs of the choice at draft temperature 1.
        temperature_rungs: rungs of the choice among draft temperatures.
    """

    def __init__(
        self, writer: _Writer, prompt_split: _PromptSplit, store: RunStore, progress: Callable[[str], None]
    ) -> None:
        self.ways = writer.ways
        self.ranked = list[str]()
        self.rungs = list[Rung]()
        self.temperature_rungs = list[Rung]()
        self._writer = writer
        self._store = store
        self._progress = progress
        self.choosing = self._race("choose", prompt_split.choice)
        self.confirming = self._race("confirm", prompt_split.confirmation)

    def _race(self, phase: str, prompts: list[list[int]]) -> Race:
        def measure(way: str, text: int) -> Timed:
            write = functools.partial(self._writer.write, way, prompts[text % len(prompts)])
            timed = self._store.run((phase, text, way), Timed, write)
            self._progress(way)
            return timed

        return Race(measure, len(prompts))

    def choose(self, time_limit: float) -> None:
        """Race all ways until this number of seconds is spent."""
        self.ranked, self.rungs = self.choosing.halve(list(self.ways), time_limit)

    def choose_temperature(self, draft_temperatures: Sequence[float], time_limit: float, *, greedy: bool) -> None:
        """Race the best ways at other draft temperatures too, if the choice among all ways is complete."""
        if not self.rungs[-1].complete:
            return
        temperature_ways = _at_temperatures(self.ways, self.ranked, draft_temperatures, greedy=greedy)
        if temperature_ways:
            self.ways |= temperature_ways
            fastest_ways, self.temperature_rungs = self.choosing.halve(
                [*self.ranked[:SURVIVORS], *temperature_ways], time_limit, TEMPERATURE_TEXTS
            )
            self.prefer(*fastest_ways)

    def confirm(self, texts: int, time_limit: float) -> None:
        """Race the best way, the best at draft temperature 1 and plain decoding on the prompts of the confirmation."""
        self.confirming.spent = self.choosing.spent
        if self.ranked:
            finalists = dict.fromkeys([PLAIN, self.ranked[0], self.best_at_one])
            self.confirming.run([*finalists], texts, time_limit)

    def rank_what_ran(self) -> None:
        """Rank the ways that ran, if the choice was interrupted before it ranked any."""
        self.ranked = self.ranked or self.choosing.ranked(self.ways)

    def prefer(self, *names: str) -> None:
        """Rank these ways before all others."""
        self.ranked = [*names, *(name for name in self.ranked if name not in names)]

    @property
    def best(self) -> str | None:
        """The best way; None if none ran."""
        return self.ranked[0] if self.ranked else None

    @property
    def best_at_one(self) -> str:
        """The best way at draft temperature 1."""
        return next(name for name in self.ranked if self.ways[name].draft_temperature == 1)

    def temperature_gain(self) -> TemperatureGain | None:
        """The gain of the best draft temperature other than 1 over 1; None if none was raced."""
        way = next((name for name in self.ranked if self.ways[name].draft_temperature != 1), None)
        if way is None:
            return None
        rival = self.best_at_one
        confirmed = self.confirming.ratio_to(way, rival)
        ratio = confirmed or self.choosing.ratio_to(way, rival)
        way_name, rival_name = (f"{self.ways[name].drafter} with {self.ways[name].policy}" for name in (way, rival))
        temperature = self.ways[way].draft_temperature
        return ratio and TemperatureGain(temperature, way_name, rival_name, ratio, confirmed is not None)

    def methods(self) -> list[TunedMethod]:
        """The measurements of each way in the choice, the best way first."""
        methods = []
        for name in self.ranked:
            way = self.ways[name]
            speedup = self.choosing.speedup(name)
            ratio = None if speedup.doubt else speedup.law.decoding
            texts = len(self.choosing.runs[name])
            methods.append(TunedMethod(way.drafter, way.policy, texts, ratio, way.draft_temperature))
        return methods


def _outcome(
    contest: _Contest,
    prompt_split: _PromptSplit,
    left_out: dict[str, str],
    temperature_gain: TemperatureGain | None,
    *,
    interrupted: bool,
) -> Tuning:
    """The outcome of a contest: its gain is that of the confirmation or, if there is none, that of the choice."""
    best_way = contest.best
    confirmed_gain = contest.confirming.gain(best_way) if best_way else None
    confirmed = confirmed_gain is not None and math.isfinite(confirmed_gain.margin)
    judged_race = contest.confirming if confirmed else contest.choosing
    costs = contest.ways[best_way].decoder.costs() if best_way else None
    methods = contest.methods()
    return Tuning(
        best=methods[0] if methods else None,
        decoder=contest.ways[best_way].decoder if best_way else None,
        costs=costs,
        expected=_expected(contest.choosing.speedup(best_way).drafted, costs) if best_way and costs else 0.0,
        gain=judged_race.gain(best_way) if best_way else None,
        confirmed=confirmed and not prompt_split.is_one_prompt,
        apart=bool(prompt_split.holdout) and confirmed,
        speedup=judged_race.speedup(best_way) if best_way else None,
        ways=methods,
        rungs=[*contest.rungs, *contest.temperature_rungs],
        missing=_missing(contest, confirmed=confirmed),
        left_out=left_out,
        too_short=prompt_split.too_short,
        interrupted=interrupted,
        temperature_gain=temperature_gain,
        one_prompt=prompt_split.is_one_prompt,
    )


def _at_temperatures(
    ways: Mapping[str, _Way], ranked: Sequence[str], draft_temperatures: Sequence[float], *, greedy: bool
) -> dict[str, _Way]:
    """The best ways at other draft temperatures, those of the first way first.

    A way with a lossy verifier is left out, since its texts depend on the drafts. So is a greedy chain, which is the
    same at any draft temperature. All other ways keep the target's texts or their distribution.
    """
    temperature_ways = {}
    for name in ranked[:SURVIVORS]:
        decoder = ways[name].decoder
        if not ((decoder.verifier and not decoder.verifier.lossless) or (greedy and isinstance(decoder.policy, Chain))):
            for temperature in draft_temperatures:
                temperature_decoder = decoder.with_defaults(draft_temperature=temperature).with_costs(decoder.costs())
                temperature_ways[f"{name}, draft temperature {temperature:g}"] = ways[name]._replace(
                    draft_temperature=temperature, decoder=temperature_decoder
                )
    return temperature_ways


def _expected(metrics: Metrics, costs: CostCurve) -> float:
    """The speed-up R by a cost curve: the cost of the tokens in plain rounds over the cost of the rounds."""
    total_cost = sum(
        costs.round(text_round.nodes, text_round.widths, text_round.source) for text_round in metrics.rounds
    )
    return metrics.tokens * costs.plain_round / total_cost if total_cost else 0.0


def _missing(contest: _Contest, *, confirmed: bool) -> list[str]:
    """A clause for each measurement that is missing."""
    temperature_ways = [name for name, way in contest.ways.items() if way.draft_temperature != 1]
    ways_at_one = [name for name in contest.ways if name not in temperature_ways]
    untried_count = _untried_count(ways_at_one, contest.choosing)
    if untried_count == len(ways_at_one):
        return [f"none of {_phrase(ways_at_one)} was tried"]
    clauses = list[str]()
    if untried_count:
        clauses.append(f"{untried_count} of {_phrase(ways_at_one)} were not tried")
    rungs = contest.rungs
    if not rungs or not rungs[-1].complete:
        texts = rungs[-1].texts if rungs else FIRST_TEXTS
        clauses.append(f"the choice rests on fewer than {texts} texts of each")
    if untried_temperature_count := _untried_count(temperature_ways, contest.choosing):
        clauses.append(
            f"{untried_temperature_count} of {_phrase(temperature_ways)} at other draft temperatures were not tried"
        )
    elif contest.temperature_rungs and not contest.temperature_rungs[-1].complete:
        clauses.append(f"the draft temperature rests on fewer than {contest.temperature_rungs[-1].texts} texts of each")
    if not confirmed:
        clauses.append("the gain was not confirmed after the choice")
    return clauses


def _untried_count(ways: Sequence[str], race: Race) -> int:
    return sum(not race.runs.get(name) for name in ways)


def _phrase(ways: Sequence[str]) -> str:
    return f"{len(ways)} ways" if len(ways) > 1 else "1 way"
