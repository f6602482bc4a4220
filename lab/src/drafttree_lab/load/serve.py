"""A server under load, by turns beside one without a drafter, or one that shares no prefixes, on the same prompts."""

import asyncio
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from typing import Any

from drafttree.measure.driver import by_turns
from drafttree.measure.interval import Interval
from drafttree_lab.experiment.cells import check_given
from drafttree_lab.load.http_load import LoadRun, run_load

SPECULATIVE, WITHOUT_DRAFTER = "speculative", "no drafter"
SHARED, WHOLE = "prefixes shared", "prompts read whole"
TURN_STEP = 97
"""Tokens by which the system prompts of two turns begin later in the same text."""
SHARES = (50, 95, 99)
"""The percentiles that are told."""


@dataclass(frozen=True)
class ServedWay:
    """One server under so many clients.

    Attributes:
        tokens_per_second: the tokens per second of all clients together, the geometric mean over the turns.
        first_token: seconds to the first token, by percentile.
        next_token: seconds from token to token, by percentile.
        cached: share of the prompts' tokens that the server did not have to read.
    """

    tokens_per_second: float
    first_token: dict[int, float]
    next_token: dict[int, float]
    cached: float = 0.0

    @classmethod
    def of(cls, runs: Sequence[LoadRun]) -> "ServedWay":
        """The figures of some turns."""
        texts = [text for run in runs for text in run.texts]
        return cls(
            tokens_per_second=math.exp(statistics.fmean(math.log(run.tokens_per_second) for run in runs)),
            first_token=_percentiles([text.first_token for text in texts]),
            next_token=_percentiles([gap for text in texts for gap in text.gaps]),
            cached=sum(text.cached_tokens for text in texts) / max(sum(text.prompt_tokens for text in texts), 1),
        )


@dataclass(frozen=True)
class ServeRow:
    """Both servers under so many clients.

    Attributes:
        at_once: clients.
        ways: the servers, by name.
        ratio: tokens per second of the first over those of the second.
        texts: texts that both servers wrote.
        same: how many of them are the same.
    """

    at_once: int
    ways: dict[str, ServedWay]
    ratio: Interval
    texts: int
    same: int

    @classmethod
    def of(cls, at_once: int, turns: Sequence[Mapping[str, LoadRun]], ways: Sequence[str]) -> "ServeRow":
        """The figures of some turns, each with a run of both servers, whose names are the ways."""
        ours, theirs = ([turn[way] for turn in turns] for way in ways)
        pairs = [
            (one.text, other.text)
            for mine, plain in zip(ours, theirs, strict=True)
            for one, other in zip(mine.texts, plain.texts, strict=True)
        ]
        speeds = ([run.tokens_per_second for run in runs] for runs in (ours, theirs))
        found = dict(zip(ways, map(ServedWay.of, (ours, theirs)), strict=True))
        return cls(
            at_once, found, Interval.of_ratio_by_student(*speeds), len(pairs), sum(one == other for one, other in pairs)
        )


@dataclass(frozen=True)
class ServeBench:
    """The measurements of one model and drafter.

    Attributes:
        rows: the rows, by the number of clients.
        turns: turns of each.
        tokens: tokens of every text.
    """

    rows: list[ServeRow]
    turns: int
    tokens: int

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON."""
        return asdict(self)


def bench_serve(
    addresses: Mapping[str, str],
    prompts: Sequence[str],
    sizes: Sequence[int],
    *,
    systems: Sequence[str] = ("",),
    repeats: int = 5,
    per_client: int = 2,
    progress: Callable[[str], None] = lambda _: None,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    seed: int = 0,
) -> ServeBench:
    """Measure two servers, turn by turn; every turn has other prompts, and another server goes first.

    Args:
        addresses: addresses of two servers, by name: `SPECULATIVE` and `WITHOUT_DRAFTER`, or `SHARED` and `WHOLE`.
        prompts: a turn takes the next ones, and begins anew where they end.
        sizes: clients at once.
        systems: what all prompts of a turn begin with; a turn takes the next one.
        repeats: turns of each size, behind one that is not counted.
        per_client: texts of each client in a turn.
        progress: called after every run with what it was.
        max_new_tokens: new tokens of every text; none ends before.
        temperature: the temperature of all texts.
        seed: the seed of the first text of a turn.

    Raises:
        ConfigError: there are no prompts.
        InputError: a server refused a request or went away.
    """
    check_given(prompt=prompts)
    options = {"max_tokens": max_new_tokens, "temperature": temperature, "seed": seed, "ignore_eos": True}
    turns = _Turns(addresses, cycle(prompts), cycle(systems), per_client, options, progress)
    rows = [ServeRow.of(size, turns.run(size, repeats), [*addresses]) for size in sizes]
    return ServeBench(rows, repeats, max_new_tokens)


def system_prompts(texts: Sequence[str], tokenizer: Any, tokens: int, turns: int) -> list[str]:
    """A beginning of about so many tokens for each turn, out of some texts.

    Args:
        texts: what it is made of, again and again where they are short.
        tokenizer: of the served model.
        tokens: its length.
        turns: how many are wanted.
    """
    ids: list[int] = tokenizer("\n".join(texts), add_special_tokens=False)["input_ids"]
    starts = [turn * TURN_STEP for turn in range(turns)]
    return [tokenizer.decode([*islice(cycle(ids), start, start + tokens)]) + "\n\n" for start in starts]


@dataclass(frozen=True)
class _Turns:
    """Runs turns; the attributes are those of `bench_serve`."""

    addresses: Mapping[str, str]
    prompts: "cycle[str]"
    systems: "cycle[str]"
    per_client: int
    options: Mapping[str, Any]
    progress: Callable[[str], None]

    def run(self, at_once: int, repeats: int) -> list[dict[str, LoadRun]]:
        """So many turns, behind one that is not counted."""
        systems = [*islice(self.systems, repeats + 1)]
        texts = [[begin + text for text in islice(self.prompts, at_once * self.per_client)] for begin in systems]
        found: list[dict[str, LoadRun]] = [{} for _ in texts]
        for turn, way in by_turns([*self.addresses], len(texts)):
            found[turn][way] = asyncio.run(run_load(self.addresses[way], texts[turn], at_once, self.options))
            self.progress(f"{at_once} clients, {way}")
        return found[1:]


def _percentiles(values: Sequence[float]) -> dict[int, float]:
    """By percent; those of one value are that value."""
    cuts = statistics.quantiles(values, n=100, method="inclusive") if len(values) > 1 else [*values] * 99
    return {share: cuts[share - 1] for share in SHARES if cuts}
