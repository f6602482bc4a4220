"""Every policy against plain decoding, over the same prompts, interleaved in one process.

A base model decoded greedily often ends in a loop, which any drafter predicts; so prompts whose text loops are
reported apart from those whose text does not.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from drafttree.core.errors import ConfigError
from drafttree.engine.decoder import Decoder, Prompt
from drafttree.engine.metrics import SpeedupLaw
from drafttree.evaluation.method import PLAIN
from drafttree.evaluation.run_store import RunStore
from drafttree.evaluation.text_record import TextRecord
from drafttree.loading import PolicyLike, parse_policies
from drafttree_lab.bench.peers import Peer
from drafttree_lab.experiment.race import Turn, race, text_records, totals, way

TAIL, PERIOD = 48, 16


@dataclass(frozen=True)
class PolicyRow:
    """Medians over the repeats, of one policy on one group of prompts.

    Attributes:
        policy: its canonical specification, or "plain".
        group: "all", and where there are both, "looping" and "not looping".
        prompts: how many are in the group.
        law: its terms; those of plain decoding are its own.
        predicted: R by the law.
        tokens_per_second: prompts included.
        acceptance_rate: accepted drafted tokens per drafted token.
        level_acceptance: accepted drafted tokens per drafted level.
        mean_nodes: nodes scored per target pass.
    """

    policy: str
    group: str
    prompts: int
    law: SpeedupLaw
    predicted: float
    tokens_per_second: float
    acceptance_rate: float
    level_acceptance: float
    mean_nodes: float


@dataclass(frozen=True)
class PeerRow:
    """Medians over the repeats, of another program's way of generating, on one group of prompts.

    Attributes:
        name: of the way.
        group: as for `PolicyRow`.
        prompts: how many are in the group.
        tokens_per_second: prompts included.
        over_plain: ratio to our plain decoding.
        identical: texts that are those of our plain decoding, token for token.
    """

    name: str
    group: str
    prompts: int
    tokens_per_second: float
    over_plain: float
    identical: int


@dataclass(frozen=True)
class PolicyBench:
    """All rows, those of peers apart, how many of the texts loop, and every single text but those of peers."""

    rows: list[PolicyRow]
    peers: list[PeerRow]
    prompts: int
    looping: int
    texts: list[TextRecord] = field(default_factory=list)

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON."""
        return asdict(self)


def loops(tokens: Sequence[int]) -> bool:
    """True if the last 48 tokens repeat with a period of at most 16."""
    tail = tokens[-TAIL:]
    return len(tail) == TAIL and any(tail[period:] == tail[:-period] for period in range(1, PERIOD + 1))


def bench_policies(
    decoder: Decoder,
    prompts: Sequence[Prompt],
    policies: Sequence[PolicyLike],
    *,
    repeats: int = 3,
    peers: Mapping[str, Peer] = MappingProxyType({}),
    progress: Callable[[str], None] = lambda _: None,
    store: RunStore | None = None,
    **options,
) -> PolicyBench:
    """Run plain decoding and every policy over the prompts, by turns.

    Args:
        decoder: with a drafter.
        prompts: texts or token ids.
        policies: as for `parse_policies`; rows are keyed by their canonical specifications.
        repeats: times everything runs, after a warm-up.
        peers: other ways of generating from token ids, to run by turns with ours.
        progress: called after every text with what was run.
        store: keeps finished runs; by default none.
        **options: as for `Decoder.new_request`; without a seed it is 0, since policies are compared on the same texts.

    Raises:
        ConfigError: the decoder has no drafter.
    """
    if decoder.drafter is None:
        raise ConfigError("policies need a drafter; name one")
    settings: dict[str, Any] = {"seed": 0} | options
    ids = [decoder.new_request(prompt, **settings).tokens for prompt in prompts]
    decoders = {spec: decoder.with_policy(policy) for spec, policy in parse_policies(policies).items()}
    decoders = {PLAIN: decoder.plain()} | decoders
    ways = {spec: way(each, settings) for spec, each in decoders.items()} | dict(peers)
    runs = race(ways, ids, repeats, progress, store or RunStore())
    looping = [loops(turn[PLAIN].tokens) for turn in runs[0]]
    groups = {"all": [True] * len(looping)}
    if any(looping) and not all(looping):
        groups |= {"looping": looping, "not looping": [not each for each in looping]}
    return PolicyBench(
        rows=[policy_row(spec, group, chosen, runs) for group, chosen in groups.items() for spec in decoders],
        peers=[_peer(name, group, chosen, runs) for group, chosen in groups.items() for name in peers],
        prompts=len(looping),
        looping=sum(looping),
        texts=text_records(runs, ["all"] * len(looping)),
    )


def _peer(name: str, group: str, chosen: list[bool], runs: list[list[Turn]]) -> PeerRow:
    taken = [[turn for turn, wanted in zip(run, chosen, strict=True) if wanted] for run in runs]
    speeds = [_speed(turns, name) for turns in taken]
    return PeerRow(
        name=name,
        group=group,
        prompts=sum(chosen),
        tokens_per_second=statistics.median(speeds),
        over_plain=statistics.median(own / _speed(turns, PLAIN) for own, turns in zip(speeds, taken, strict=True)),
        identical=sum(turn[name].tokens == turn[PLAIN].tokens for turn in taken[0]),
    )


def _speed(turns: list[Turn], name: str) -> float:
    return sum(len(turn[name].tokens) for turn in turns) / sum(turn[name].seconds for turn in turns)


def policy_row(spec: str, group: str, chosen: Sequence[bool], runs: list[list[Turn]]) -> PolicyRow:
    """The medians of a way over the chosen prompts."""
    own = totals(spec, chosen, runs)
    laws = [SpeedupLaw.of(mine, plain) for mine, plain in zip(own, totals(PLAIN, chosen, runs), strict=True)]
    terms = {name: statistics.median(getattr(law, name) for law in laws) for name in SpeedupLaw.__dataclass_fields__}
    return PolicyRow(
        policy=spec,
        group=group,
        prompts=sum(chosen),
        law=SpeedupLaw(**terms),
        predicted=SpeedupLaw(**terms).predicted,
        tokens_per_second=statistics.median(metrics.tokens_per_second for metrics in own),
        acceptance_rate=statistics.median(metrics.acceptance_rate for metrics in own),
        level_acceptance=statistics.median(metrics.level_acceptance for metrics in own),
        mean_nodes=statistics.median(metrics.mean_nodes for metrics in own),
    )
