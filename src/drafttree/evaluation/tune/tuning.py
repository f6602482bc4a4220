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
    if wrong := {"none", "auto"}.intersection(names):
        raise ConfigError(f"{wrong.pop()!r} is not a drafter; plain decoding is run in any case")
    target, found, left_out = transformers_model(decoder), {}, {}
    for name in names:
        try:
            found[name] = find_drafter(name, target, decoder.tokenizer)
        except DraftTreeError as error:
            left_out[name] = str(error)
    if not found:
        raise _no_drafter(left_out)
    return found, left_out


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
    started = time.perf_counter()
    try:
        curve = decoder.costs(greedy=greedy).to_json()
    except DraftTreeError as error:
        return MeasuredCosts(None, time.perf_counter() - started, str(error))
    return MeasuredCosts(curve, time.perf_counter() - started)


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
    long = [list(prompt) for prompt in prompts if len(prompt) >= LEAST_TOKENS]
    if not long:
        longest = max(map(len, prompts), default=0)
        raise InputError(f"no prompt has {LEAST_TOKENS} tokens or more, the longest has {longest}; give longer ones")
    store, chosen, plain, verifier = store or RunStore(), {"seed": 0, **options}, decoder.plain(), decoder.verifier
    greedy = not options.get("temperature", decoder.defaults.get("temperature"))
    able, unfit, spent = dict[str, Decoder](), dict(left_out or {}), 0.0
    for name, drafter in drafters.items():
        drafting = decoder.with_drafter(drafter)
        measured = store.run(("costs", name), MeasuredCosts, functools.partial(measure_costs, drafting, greedy=greedy))
        spent += measured.seconds
        if measured.curve is None:
            unfit[name] = measured.error
        else:
            able[name] = drafting.with_costs(parse_cost_curve(measured.curve))
    if not able:
        raise _no_drafter(unfit)
    fitting = {
        spec: policy
        for spec, policy in parse_policies(policies).items()
        if verifier is None or not incompatibility(policy, verifier)
    }
    if not fitting:
        raise ConfigError(f"none of the policies is lossless with {verifier and verifier.__name__}; name another")
    ways = {
        f"{name}, {spec}": _Way(name, spec, drafting.with_policy(policy))
        for spec, policy in fitting.items()
        for name, drafting in able.items()
    }
    warmed = set[str]()

    def write(way: str, prompt: list[int]) -> Timed:
        writer, warming = plain if way == PLAIN else ways[way].decoder, 0.0
        if way not in warmed:
            warmed.add(way)
            length = min(WARM_UP, chosen.get("max_new_tokens", WARM_UP))
            warming = time_text(writer, prompt, {**chosen, "max_new_tokens": length}).seconds
        metrics = time_text(writer, prompt, chosen)
        return Timed(metrics, warming + metrics.seconds)

    def race(phase: str, given: list[list[int]]) -> Race:
        def measure(way: str, text: int) -> Timed:
            timed = store.run((phase, text, way), Timed, functools.partial(write, way, given[text % len(given)]))
            progress(way)
            return timed

        return Race(measure, len(given))

    held = long[EVERY - 1 :: EVERY] if len(long) >= LEAST_PROMPTS else []
    seen = [prompt for place, prompt in enumerate(long) if not held or place % EVERY != EVERY - 1]
    choosing, confirming = race("choose", seen), race("confirm", held or seen)
    choosing.spent = spent
    ranked, rungs, later = list[str](), list[Rung](), list[Rung]()
    with store.interruptible():
        ranked, rungs = choosing.halve(list(ways), 60 * minutes * CHOOSING)
        warm = _warmer(ways, ranked if rungs[-1].complete else [], draft_temperatures, greedy=greedy)
        if warm:
            ways |= warm
            fastest, later = choosing.halve([*ranked[:SURVIVORS], *warm], 60 * minutes * TEMPERING, WARM_TEXTS)
            ranked = [*fastest, *(name for name in ranked if name not in fastest)]
        confirming.spent = choosing.spent
        if ranked:
            finalists = dict.fromkeys([PLAIN, ranked[0], _coldest(ways, ranked)])
            confirming.run([*finalists], max(CONFIRMING, len(held)), 60 * minutes)
    if not choosing.runs.get(PLAIN):
        raise KeyboardInterrupt
    ranked = ranked or choosing.ranked(ways)
    gain = _temperature_gain(ways, ranked, choosing, confirming)
    if gain and not gain.pays:
        kept = _coldest(ways, ranked)
        ranked = [kept, *(name for name in ranked if name != kept)]
    best = ranked[0] if ranked else None
    told = confirming.gain(best) if best else None
    confirmed = told is not None and math.isfinite(told.margin)
    judged, alone = confirming if confirmed else choosing, len(set(map(tuple, long))) == 1
    costs = ways[best].decoder.costs() if best else None
    tried = [
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
        best=tried[0] if tried else None,
        decoder=ways[best].decoder if best else None,
        costs=costs,
        expected=_expected(choosing.speedup(best).drafted, costs) if best and costs else 0.0,
        gain=judged.gain(best) if best else None,
        confirmed=confirmed and not alone,
        apart=bool(held) and confirmed,
        speedup=judged.speedup(best) if best else None,
        ways=tried,
        rungs=[*rungs, *later],
        missing=_missing(ways, choosing, rungs, later, confirmed=confirmed),
        left_out=unfit,
        too_short=len(prompts) - len(long),
        interrupted=store.interrupted,
        temperature_gain=gain,
        one_prompt=alone,
    )


def _warmer(
    ways: Mapping[str, _Way], ranked: Sequence[str], draft_temperatures: Sequence[float], *, greedy: bool
) -> dict[str, _Way]:
    """The best ways at other draft temperatures, those of the first way first.

    There are none for a lossy verifier, whose texts depend on the drafts, nor of a greedy chain, which is the same
    at any draft temperature. All other texts, or their distribution, are the target's whatever is drafted.
    """
    found = {}
    for name in ranked[:SURVIVORS]:
        own = ways[name].decoder
        if not ((own.verifier and not own.verifier.lossless) or (greedy and isinstance(own.policy, Chain))):
            for value in draft_temperatures:
                warm = own.with_defaults(draft_temperature=value).with_costs(own.costs())
                found[f"{name}, draft temperature {value:g}"] = ways[name]._replace(
                    draft_temperature=value, decoder=warm
                )
    return found


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
    ours, theirs = (f"{ways[name].drafter} with {ways[name].policy}" for name in (way, rival))
    return ratio and TemperatureGain(ways[way].draft_temperature, ours, theirs, ratio, confirmed is not None)


def _expected(metrics: Metrics, costs: CostCurve) -> float:
    """R of counted rounds by a cost curve."""
    spent = sum(costs.round(each.nodes, each.widths, each.source) for each in metrics.rounds)
    return metrics.tokens * costs.plain_round / spent if spent else 0.0


def _missing(
    ways: Mapping[str, _Way], choosing: Race, rungs: list[Rung], later: list[Rung], *, confirmed: bool
) -> list[str]:
    """What was not measured, a clause each."""
    warm = [name for name, way in ways.items() if way.draft_temperature != 1]
    cold = [name for name in ways if name not in warm]
    tried, tried_warm = ([name for name in names if choosing.runs.get(name)] for names in (cold, warm))
    all_of, all_warm = (f"{len(names)} ways" if len(names) > 1 else "1 way" for names in (cold, warm))
    if not tried:
        return [f"none of {all_of} was tried"]
    found = [f"{len(cold) - len(tried)} of {all_of} were not tried"] if len(tried) < len(cold) else []
    if not rungs or not rungs[-1].complete:
        texts = rungs[-1].texts if rungs else FIRST_TEXTS
        found.append(f"the choice rests on fewer than {texts} texts of each")
    if len(tried_warm) < len(warm):
        found.append(f"{len(warm) - len(tried_warm)} of {all_warm} at other draft temperatures were not tried")
    elif later and not later[-1].complete:
        found.append(f"the draft temperature rests on fewer than {later[-1].texts} texts of each")
    return found if confirmed else [*found, "the gain was not confirmed after the choice"]
