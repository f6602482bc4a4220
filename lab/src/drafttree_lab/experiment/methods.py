"""Methods against plain decoding, over the same prompts, by turns in one process.

A base model decoded greedily often ends in a loop, which any drafter predicts; so where all prompts are of one group,
those whose text loops are reported apart from those whose text does not.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from drafttree.core.errors import ConfigError
from drafttree.engine.decoder import Decoder, Prompt
from drafttree.engine.metrics import Metrics
from drafttree.engine.speedup_law import SpeedupLaw
from drafttree.evaluation.text_record import TextRecord
from drafttree.loading import DrafterSource, PolicyLike, parse_policies
from drafttree.measure.doubt import doubt, law_terms
from drafttree.measure.interval import Interval
from drafttree.measure.method import PLAIN, Method, parse_methods
from drafttree.measure.method_decoders import make_decoders
from drafttree.measure.run_store import RunStore
from drafttree.policies import Chain
from drafttree_lab.experiment.cells import check_given
from drafttree_lab.experiment.peers import Peer
from drafttree_lab.experiment.race import Outputs, race, text_records, totals, way

ALL = "all"
"""The group of prompts that are of no set."""
TAIL, PERIOD = 48, 16


@dataclass(frozen=True)
class MethodRow:
    """Medians over the repeats, of one method on one group of prompts.

    Attributes:
        method: its canonical specification, that of a policy where all methods have one drafter, or "plain".
        group: name of a set of prompts, "all", "looping" or "not looping".
        prompts: how many are in the group.
        law: its terms; those of plain decoding are its own.
        predicted: R by the law.
        tokens_per_second: prompts included.
        acceptance_rate: accepted drafted tokens per drafted token.
        level_acceptance: accepted drafted tokens per drafted level.
        mean_nodes: nodes scored per target pass.
        over_plain: speed in that of plain decoding, over prompts and repeats.
        over_chain: speed in that of the same drafter's chain, None where no chain of it was run.
        doubt: why the times tell no ratio, None where they do.
    """

    method: str
    group: str
    prompts: int
    law: SpeedupLaw
    predicted: float
    tokens_per_second: float
    acceptance_rate: float
    level_acceptance: float
    mean_nodes: float
    over_plain: Interval
    over_chain: Interval | None = None
    doubt: str | None = None

    @classmethod
    def of(
        cls, method: str, group: str, chosen: Sequence[bool], runs: list[list[Outputs]], chain: str | None = None
    ) -> "MethodRow":
        """The medians of a method over the chosen prompts; `chain` is the one that drafts chains with its drafter."""
        own, base = totals(method, chosen, runs), totals(PLAIN, chosen, runs)
        laws = [SpeedupLaw.of(mine, plain) for mine, plain in zip(own, base, strict=True)]
        law = SpeedupLaw(*(statistics.median(getattr(each, term.name) for each in laws) for term in fields(SpeedupLaw)))
        figures = ("tokens_per_second", "acceptance_rate", "level_acceptance", "mean_nodes")
        return cls(
            method=method,
            group=group,
            prompts=sum(chosen),
            law=law,
            predicted=law.predicted,
            **{name: statistics.median(getattr(metrics, name) for metrics in own) for name in figures},
            over_plain=_ratio(method, PLAIN, chosen, runs),
            over_chain=_ratio(method, chain, chosen, runs) if chain else None,
            doubt=doubt(Metrics.total(own), Metrics.total(base)) if method != PLAIN else None,
        )

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON, but ratios that the times do not tell."""
        untold = dict.fromkeys(("predicted", "over_plain", "over_chain")) if self.doubt else {}
        return {**asdict(self), **untold, "law": law_terms(self.law, self.doubt)}


def _ratio(name: str, base: str, chosen: Sequence[bool], runs: list[list[Outputs]]) -> Interval:
    """The speed of one method in that of another, from every chosen prompt and repeat."""
    turns = [turn for run in runs for turn, wanted in zip(run, chosen, strict=True) if wanted]
    return Interval.of_ratio_by_student(
        *([turn[each].metrics.tokens_per_second for turn in turns] for each in (name, base))
    )


@dataclass(frozen=True)
class PeerRow:
    """Medians over the repeats, of another program's way of generating, on one group of prompts.

    Attributes:
        name: the name of the way.
        group: as for `MethodRow`.
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

    @classmethod
    def of(cls, name: str, group: str, chosen: Sequence[bool], runs: list[list[Outputs]]) -> "PeerRow":
        """The medians of a way over the chosen prompts."""
        taken = [[turn for turn, wanted in zip(run, chosen, strict=True) if wanted] for run in runs]
        speeds = [_speed(turns, name) for turns in taken]
        over_plain = [own / _speed(turns, PLAIN) for own, turns in zip(speeds, taken, strict=True)]
        identical = sum(turn[name].tokens == turn[PLAIN].tokens for turn in taken[0])
        return cls(name, group, sum(chosen), statistics.median(speeds), statistics.median(over_plain), identical)


@dataclass(frozen=True)
class DrafterCost:
    """The cost of a drafter; medians over its methods on all prompts.

    Attributes:
        drafter: its name.
        passes: per round.
        seconds: per pass.
        weight_bytes: memory of its weights, those it shares with the target left out.
        cache_bytes: memory of what it keeps of the longest text.
    """

    drafter: str
    passes: float
    seconds: float
    weight_bytes: int
    cache_bytes: int

    @classmethod
    def of(cls, drafter: str, metrics: Sequence[Metrics]) -> "DrafterCost":
        """The cost by the metrics of its methods."""
        return cls(
            drafter=drafter,
            passes=statistics.median(each.draft_efficiency for each in metrics),
            seconds=statistics.median(each.draft_pass for each in metrics),
            weight_bytes=max(each.draft_weight_bytes for each in metrics),
            cache_bytes=max(each.draft_cache_bytes for each in metrics),
        )


@dataclass(frozen=True)
class MethodBench:
    """Everything measured.

    Attributes:
        rows: the rows, by group and method.
        peers: the rows of other programs.
        prompts: how many.
        looping: texts of plain decoding that end in a loop.
        texts: every single text but those of peers.
        costs: costs of the drafters, where methods have several.
    """

    rows: list[MethodRow]
    peers: list[PeerRow]
    prompts: int
    looping: int
    texts: list[TextRecord] = field(default_factory=list)
    costs: list[DrafterCost] = field(default_factory=list)

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON."""
        return {**asdict(self), "rows": [row.summary() for row in self.rows]}


def loops(tokens: Sequence[int]) -> bool:
    """True if the last 48 tokens repeat with a period of at most 16."""
    tail = tokens[-TAIL:]
    return len(tail) == TAIL and any(tail[period:] == tail[:-period] for period in range(1, PERIOD + 1))


def bench_policies(
    decoder: Decoder,
    prompts: Sequence[Prompt],
    policies: Sequence[PolicyLike],
    *,
    peers: Mapping[str, Peer] = MappingProxyType({}),
    **options,
) -> MethodBench:
    """Run plain decoding and every policy over the prompts, by turns.

    Args:
        decoder: a decoder with a drafter.
        prompts: texts or token ids.
        policies: as for `parse_policies`; rows are keyed by their canonical specifications.
        peers: other ways of generating from token ids, to run by turns with ours.
        **options: as for `bench_methods`; `repeats` is 3 by default.

    Raises:
        ConfigError: the decoder has no drafter.
    """
    if decoder.drafter is None:
        raise ConfigError("policies need a drafter; name one")
    settings: dict[str, Any] = {"repeats": 3} | options
    chosen = parse_policies(policies)
    decoders = ((spec, decoder.with_policy(policy)) for spec, policy in chosen.items())
    chains = _chains({spec: Method("", policy) for spec, policy in chosen.items()})
    return _bench(decoder, decoders, {ALL: prompts}, peers, chains=chains, **settings)[0]


def bench_drafters(
    decoder: Decoder,
    drafters: Mapping[str, DrafterSource],
    sets: Mapping[str, Sequence[Prompt]],
    policies: Sequence[PolicyLike],
    **options,
) -> MethodBench:
    """Run plain decoding and every drafter with every policy over the prompts, by turns.

    Args:
        decoder: the decoder, for its target, verifier and tokenizer.
        drafters: the drafters, by name; each as for `drafttree.load`, "auto" and "none" excepted.
        sets: prompts by the name of their set.
        policies: as for `parse_policies`.
        **options: as for `bench_methods`.

    Raises:
        ConfigError: there is no drafter, no policy or no prompt.
    """
    check_given(drafter=drafters, policy=policies)
    methods = [Method(name, policy) for name in drafters for policy in parse_policies(policies).values()]
    return bench_methods(decoder, methods, sets, drafters=drafters, **options)


def bench_methods(
    decoder: Decoder,
    methods: Sequence[str | Method],
    sets: Mapping[str, Sequence[Prompt]],
    *,
    drafters: Mapping[str, DrafterSource] = MappingProxyType({}),
    **options,
) -> MethodBench:
    """Run plain decoding and every method over the prompts, by turns.

    Args:
        decoder: the decoder, for its target and tokenizer, and its verifier where a method names none.
        methods: as for `parse_methods`.
        sets: prompts by the name of their set.
        drafters: sources by the names that methods have for them, as for `make_decoders`.
        **options: `repeats`, the times everything runs after a warm-up (1 by default); `progress`, which is called
            after every text with what was run; `store`, which keeps finished runs; and as for `Decoder.new_request`.
            Without a seed it is 0, since lossless methods all write the same texts then.

    Raises:
        ConfigError: there is no method or no prompt, or as for `make_decoders`.
    """
    check_given(prompt=[*sets.values()])
    chosen = {spec: method for spec, method in parse_methods(methods).items() if method.drafter}
    chains = _chains(chosen)
    made = make_decoders(decoder, chosen.values(), drafters)
    bench, runs = _bench(decoder, made.items(), sets, {}, chains=chains, **options)
    everything = [True] * bench.prompts
    spent: dict[str, list[Metrics]] = {}
    for spec, method in chosen.items():
        spent.setdefault(str(method.drafter), []).extend(totals(spec, everything, runs))
    return replace(bench, costs=[DrafterCost.of(name, metrics) for name, metrics in spent.items()])


def _chains(methods: Mapping[str, Method]) -> dict[str, str]:
    """By method, the first one of the same drafter and verifier that drafts chains."""
    first: dict[tuple[str | None, str], str] = {}
    for spec, method in methods.items():
        if isinstance(method.policy, Chain):
            first.setdefault((method.drafter, method.verifier_name), spec)
    found = {spec: first.get((method.drafter, method.verifier_name)) for spec, method in methods.items()}
    return {spec: chain for spec, chain in found.items() if chain}


def _bench(
    decoder: Decoder,
    decoders: Iterable[tuple[str, Decoder]],
    sets: Mapping[str, Sequence[Prompt]],
    peers: Mapping[str, Peer],
    *,
    repeats: int = 1,
    progress: Callable[[str], None] = lambda _: None,
    store: RunStore | None = None,
    chains: Mapping[str, str] = MappingProxyType({}),
    **options: Any,
) -> tuple[MethodBench, list[list[Outputs]]]:
    """The rows of plain decoding and of every decoder, which are made once the options are known to be right."""
    settings: dict[str, Any] = {"seed": 0} | options
    prompts = [(group, decoder.new_request(prompt, **settings).tokens) for group in sets for prompt in sets[group]]
    ways = {name: way(each, settings) for name, each in [(PLAIN, decoder.plain()), *decoders]}
    runs = race(ways | dict(peers), [ids for _, ids in prompts], repeats, progress, store or RunStore())
    finished = [group for group, _ in prompts[: len(runs[0])]]
    groups = {name: [each == name for each in finished] for name in dict.fromkeys(finished)}
    looping = [loops(turn[PLAIN].tokens) for turn in runs[0]]
    if ALL in groups and any(looping) and not all(looping):
        groups |= {"looping": looping, "not looping": [not each for each in looping]}
    bench = MethodBench(
        rows=[
            MethodRow.of(name, group, chosen, runs, chains.get(name))
            for group, chosen in groups.items()
            for name in ways
        ],
        peers=[PeerRow.of(name, group, chosen, runs) for group, chosen in groups.items() for name in peers],
        prompts=len(looping),
        looping=sum(looping),
        texts=text_records(runs, finished),
    )
    return bench, runs


def _speed(turns: list[Outputs], name: str) -> float:
    return sum(len(turn[name].tokens) for turn in turns) / sum(turn[name].seconds for turn in turns)
