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
"""The settings of each drafter, in the order in which they are tried if time is short."""
DRAFT_TEMPERATURES = (0.6, 0.8, 1.25)
"""Raced beside 1 by the best ways, in the order in which they are tried if time is short."""
SURVIVORS, WARM_TEXTS = 2, 4
"""The ways that are raced at others than 1, and their texts in the first rung: they differ less than policies do."""
LEAST_TOKENS, LEAST_PROMPTS = 4, 9
"""A shorter prompt is left out; with fewer prompts the choice is confirmed on those it was made on."""
EVERY = 3
"""One of so many prompts is not seen by the choice, and confirms it."""
CHOOSING, TEMPERING = 0.6, 0.8
"""The shares of the time after which drafter and policy are chosen, and the draft temperature; the rest confirms."""
CONFIRMING = 16
"""Texts that confirm a choice at most, or as many as prompts are held out."""
WARM_UP = 8


class _Way(NamedTuple):
    """A drafter with a policy, a decoder with both, and the draft temperature that is the decoder's default."""

    drafter: str
    policy: str
    decoder: Decoder
    draft_temperature: float = 1.0


@dataclass(frozen=True)
class MeasuredCosts:
    """A drafter's cost curve as JSON, the seconds it took to measure, and why there is none where it cannot draft."""

    curve: dict[str, Any] | None
    seconds: float
    error: str = ""


def find_drafters(decoder: Decoder, names: Sequence[str]) -> tuple[dict[str, Drafter], dict[str, str]]:
    """The drafters of some names, and those that are left out, with the reason.

    Args:
        decoder: the decoder, for its target and tokenizer.
        names: drafters as `drafttree.load` takes them, but not "auto" and "none".

    Raises:
        ConfigError: "auto" or "none" is among them.
        ModelError: none of them can be used; the message names every one with its reason.
    """
    if reserved_names := {"none", "auto"}.intersection(names):
        raise ConfigError(f"{reserved_names.pop()!r} is not a drafter; plain decoding is run in any case")
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
    """The texts of a tuning that has the time for all of them, at most."""
    survivors = min(SURVIVORS, ways)
    warm = planned_runs(survivors * (1 + len(DRAFT_TEMPERATURES)), WARM_TEXTS) - planned_runs(survivors)
    return planned_runs(ways) + warm + 3 * max(CONFIRMING, int(prompts / EVERY))


def time_text(decoder: Decoder, prompt: list[int], options: Mapping[str, Any]) -> Metrics:
    """Write a text; what it took."""
    return decoder.generate(prompt, **options).metrics


def measure_costs(decoder: Decoder, *, greedy: bool) -> MeasuredCosts:
    """Measure the cost curve of a decoder's target and drafter in greedy texts or in others."""
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
    if 1 in draft_temperatures:
        raise ConfigError("draft temperature 1 is raced in any case; leave it out")
    long_prompts = [list(prompt) for prompt in prompts if len(prompt) >= LEAST_TOKENS]
    if not long_prompts:
        longest = max(map(len, prompts), default=0)
        raise InputError(f"no prompt has {LEAST_TOKENS} tokens or more, the longest has {longest}; give longer ones")
    store = store or RunStore()
    text_options = {"seed": 0, **options}
    plain = decoder.plain()
    verifier = decoder.verifier
    greedy = not options.get("temperature", decoder.defaults.get("temperature"))
    decoders = dict[str, Decoder]()
    unfit = dict(left_out or {})
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
    lossless_policies = {
        spec: policy
        for spec, policy in parse_policies(policies).items()
        if verifier is None or not incompatibility(policy, verifier)
    }
    if not lossless_policies:
        raise ConfigError(f"none of the policies is lossless with {verifier and verifier.__name__}; name another")
    ways = {
        f"{name}, {spec}": _Way(name, spec, drafting_decoder.with_policy(policy))
        for spec, policy in lossless_policies.items()
        for name, drafting_decoder in decoders.items()
    }
    warmed_ways = set[str]()

    def write(way: str, prompt: list[int]) -> Timed:
        writer = plain if way == PLAIN else ways[way].decoder
        warm_up_seconds = 0.0
        if way not in warmed_ways:
            warmed_ways.add(way)
            length = min(WARM_UP, text_options.get("max_new_tokens", WARM_UP))
            warm_up_seconds = time_text(writer, prompt, {**text_options, "max_new_tokens": length}).seconds
        metrics = time_text(writer, prompt, text_options)
        return Timed(metrics, warm_up_seconds + metrics.seconds)

    def race(phase: str, given: list[list[int]]) -> Race:
        def measure(way: str, text: int) -> Timed:
            timed = store.run((phase, text, way), Timed, functools.partial(write, way, given[text % len(given)]))
            progress(way)
            return timed

        return Race(measure, len(given))

    holdout = long_prompts[EVERY - 1 :: EVERY] if len(long_prompts) >= LEAST_PROMPTS else []
    choice_prompts = [prompt for index, prompt in enumerate(long_prompts) if not holdout or index % EVERY != EVERY - 1]
    choosing = race("choose", choice_prompts)
    confirming = race("confirm", holdout or choice_prompts)
    choosing.spent = seconds
    ranked = list[str]()
    rungs = list[Rung]()
    warm_rungs = list[Rung]()
    with store.interruptible():
        ranked, rungs = choosing.halve(list(ways), 60 * minutes * CHOOSING)
        warm_ways = _warmer(ways, ranked if rungs[-1].complete else [], draft_temperatures, greedy=greedy)
        if warm_ways:
            ways |= warm_ways
            fastest_ways, warm_rungs = choosing.halve(
                [*ranked[:SURVIVORS], *warm_ways], 60 * minutes * TEMPERING, WARM_TEXTS
            )
            ranked = [*fastest_ways, *(name for name in ranked if name not in fastest_ways)]
        confirming.spent = choosing.spent
        if ranked:
            finalists = dict.fromkeys([PLAIN, ranked[0], _coldest(ways, ranked)])
            confirming.run([*finalists], max(CONFIRMING, len(holdout)), 60 * minutes)
    if not choosing.runs.get(PLAIN):
        raise KeyboardInterrupt
    ranked = ranked or choosing.ranked(ways)
    temperature_gain = _temperature_gain(ways, ranked, choosing, confirming)
    if temperature_gain and not temperature_gain.pays:
        coldest_way = _coldest(ways, ranked)
        ranked = [coldest_way, *(name for name in ranked if name != coldest_way)]
    best_way = ranked[0] if ranked else None
    confirmed_gain = confirming.gain(best_way) if best_way else None
    confirmed = confirmed_gain is not None and math.isfinite(confirmed_gain.margin)
    judged_race = confirming if confirmed else choosing
    one_prompt = len(set(map(tuple, long_prompts))) == 1
    costs = ways[best_way].decoder.costs() if best_way else None
    methods = [
        TunedMethod(
            ways[name].drafter,
            ways[name].policy,
            len(choosing.runs[name]),
            None if speedup.doubt else speedup.law.decoding,
            ways[name].draft_temperature,
        )
        for name in ranked
        for speedup in [choosing.speedup(name)]
    ]
    return Tuning(
        best=methods[0] if methods else None,
        decoder=ways[best_way].decoder if best_way else None,
        costs=costs,
        expected=_expected(choosing.speedup(best_way).drafted, costs) if best_way and costs else 0.0,
        gain=judged_race.gain(best_way) if best_way else None,
        confirmed=confirmed and not one_prompt,
        apart=bool(holdout) and confirmed,
        speedup=judged_race.speedup(best_way) if best_way else None,
        ways=methods,
        rungs=[*rungs, *warm_rungs],
        missing=_missing(ways, choosing, rungs, warm_rungs, confirmed=confirmed),
        left_out=unfit,
        too_short=len(prompts) - len(long_prompts),
        interrupted=store.interrupted,
        temperature_gain=temperature_gain,
        one_prompt=one_prompt,
    )


def _warmer(
    ways: Mapping[str, _Way], ranked: Sequence[str], draft_temperatures: Sequence[float], *, greedy: bool
) -> dict[str, _Way]:
    """The best ways at other draft temperatures, those of the first way first.

    There are none for a lossy verifier, whose texts depend on the drafts, nor of a greedy chain, which is the same
    at any draft temperature. All other texts, or their distribution, are the target's whatever is drafted.
    """
    warm_ways = {}
    for name in ranked[:SURVIVORS]:
        decoder = ways[name].decoder
        if not ((decoder.verifier and not decoder.verifier.lossless) or (greedy and isinstance(decoder.policy, Chain))):
            for temperature in draft_temperatures:
                warm_decoder = decoder.with_defaults(draft_temperature=temperature).with_costs(decoder.costs())
                warm_ways[f"{name}, draft temperature {temperature:g}"] = ways[name]._replace(
                    draft_temperature=temperature, decoder=warm_decoder
                )
    return warm_ways


def _coldest(ways: Mapping[str, _Way], ranked: Sequence[str]) -> str:
    """The best way at draft temperature 1."""
    return next(name for name in ranked if ways[name].draft_temperature == 1)


def _temperature_gain(
    ways: Mapping[str, _Way], ranked: Sequence[str], choosing: Race, confirming: Race
) -> TemperatureGain | None:
    """What the best draft temperature other than 1 is worth; None where none was raced."""
    way = next((name for name in ranked if ways[name].draft_temperature != 1), None)
    if way is None:
        return None
    rival = _coldest(ways, ranked)
    confirmed = confirming.ratio_to(way, rival)
    ratio = confirmed or choosing.ratio_to(way, rival)
    way_name, rival_name = (f"{ways[name].drafter} with {ways[name].policy}" for name in (way, rival))
    return ratio and TemperatureGain(ways[way].draft_temperature, way_name, rival_name, ratio, confirmed is not None)


def _expected(metrics: Metrics, costs: CostCurve) -> float:
    """R of counted rounds by a cost curve."""
    total_cost = sum(costs.round(turn.nodes, turn.widths, turn.source) for turn in metrics.rounds)
    return metrics.tokens * costs.plain_round / total_cost if total_cost else 0.0


def _missing(
    ways: Mapping[str, _Way], choosing: Race, rungs: list[Rung], later: list[Rung], *, confirmed: bool
) -> list[str]:
    """What was not measured, a clause each."""
    warm_ways = [name for name, way in ways.items() if way.draft_temperature != 1]
    cold_ways = [name for name in ways if name not in warm_ways]
    tried_ways = [name for name in cold_ways if choosing.runs.get(name)]
    tried_warm_ways = [name for name in warm_ways if choosing.runs.get(name)]
    cold_phrase, warm_phrase = (f"{len(names)} ways" if len(names) > 1 else "1 way" for names in (cold_ways, warm_ways))
    if not tried_ways:
        return [f"none of {cold_phrase} was tried"]
    clauses = (
        [f"{len(cold_ways) - len(tried_ways)} of {cold_phrase} were not tried"]
        if len(tried_ways) < len(cold_ways)
        else []
    )
    if not rungs or not rungs[-1].complete:
        texts = rungs[-1].texts if rungs else FIRST_TEXTS
        clauses.append(f"the choice rests on fewer than {texts} texts of each")
    if len(tried_warm_ways) < len(warm_ways):
        clauses.append(
            f"{len(warm_ways) - len(tried_warm_ways)} of {warm_phrase} at other draft temperatures were not tried"
        )
    elif later and not later[-1].complete:
        clauses.append(f"the draft temperature rests on fewer than {later[-1].texts} texts of each")
    return clauses if confirmed else [*clauses, "the gain was not confirmed after the choice"]
