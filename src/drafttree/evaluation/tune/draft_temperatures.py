"""Draft temperatures in a tuning: the ways that are raced at others than 1, and what the best of them is worth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from drafttree.core.errors import ConfigError
from drafttree.evaluation.tune.arms import Arm
from drafttree.evaluation.tune.halving import Race
from drafttree.measure.interval import Interval
from drafttree.policies import Chain

DRAFT_TEMPERATURES = (0.6, 0.8, 1.25)
"""Raced beside 1, in the order in which they are tried if time is short."""
WARM_TEXTS = 4
"""Texts of each in the first rung: they differ less than policies do."""
SURVIVORS = 2
"""Ways of the race that go on to others than 1."""


@dataclass(frozen=True)
class TemperatureGain:
    """What a draft temperature is worth.

    Attributes:
        draft_temperature: the fastest of those other than 1.
        way: the drafter and the policy that it was measured with.
        rival: the fastest drafter and policy at draft temperature 1.
        ratio: decoding speed over the rival's, on the same prompts by turns.
        confirmed: whether it was measured after the choice.
    """

    draft_temperature: float
    way: str
    rival: str
    ratio: Interval
    confirmed: bool

    @property
    def pays(self) -> bool:
        """Whether it is recommended: it was confirmed, and its whole interval lies above 1."""
        return self.confirmed and self.ratio.low is not None and self.ratio.low > 1

    @property
    def sentence(self) -> str:
        """What it was worth, for people."""
        ratio = self.ratio
        interval = "on one text" if ratio.low is None else f"[{ratio.low:.2f}, {ratio.high:.2f}]"
        ways = [f"{name} at " if self.way != self.rival else "" for name in (self.way, self.rival)]
        told = "" if self.confirmed else ", in the race alone"
        stays = "" if self.pays else "; 1.0 is kept"
        return (
            f"{ways[0]}draft temperature {float(self.draft_temperature)}: {ratio.mean:.2f} {interval} times "
            f"{ways[1]}draft temperature 1.0, by turns{told}{stays}"
        )


def at_draft_temperatures(
    arms: Mapping[str, Arm], ranked: Sequence[str], draft_temperatures: Sequence[float], *, greedy: bool
) -> dict[str, Arm]:
    """The best ways at other draft temperatures, those of the first way first.

    There are none for a lossy verifier, whose texts depend on the drafts, nor of a greedy chain, which is the same
    at any draft temperature. All other texts, or their distribution, are the target's whatever is drafted.

    Args:
        arms: all ways.
        ranked: the ways that were raced, the best first.
        draft_temperatures: draft temperatures other than 1.
        greedy: whether texts are written at temperature 0.

    Raises:
        ConfigError: one of them is 1.
    """
    if 1 in draft_temperatures:
        raise ConfigError("draft temperature 1 is raced in any case; leave it out")
    found = {}
    for name in ranked[:SURVIVORS]:
        arm = arms[name]
        decoder = arm.decoder
        if (decoder.verifier and not decoder.verifier.lossless) or (greedy and isinstance(decoder.policy, Chain)):
            continue
        for value in draft_temperatures:
            warm = decoder.with_defaults(draft_temperature=value).with_costs(decoder.costs())
            found[f"{name}, draft temperature {value:g}"] = replace(arm, draft_temperature=value, decoder=warm)
    return found


def temperature_gain(
    arms: Mapping[str, Arm], ranked: Sequence[str], choosing: Race, confirming: Race
) -> TemperatureGain | None:
    """What the best draft temperature other than 1 is worth; None where none was raced.

    Args:
        arms: all ways, those at other draft temperatures too.
        ranked: the ways that were raced, the best first.
        choosing: the race in which they were.
        confirming: the race of those that were confirmed.
    """
    others = [name for name in ranked if arms[name].draft_temperature != 1]
    if not others:
        return None
    way, rival = others[0], best_at_1(arms, ranked)
    confirmed = confirming.ratio_to(way, rival)
    ratio = confirmed or choosing.ratio_to(way, rival)
    if not ratio:
        return None
    ours, theirs = (f"{arm.drafter} with {arm.policy}" for arm in (arms[way], arms[rival]))
    return TemperatureGain(arms[way].draft_temperature, ours, theirs, ratio, confirmed is not None)


def best_at_1(arms: Mapping[str, Arm], ranked: Sequence[str]) -> str:
    """The best way at draft temperature 1."""
    return next(name for name in ranked if arms[name].draft_temperature == 1)
