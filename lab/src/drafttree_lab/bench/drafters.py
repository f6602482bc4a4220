"""Drafters, policies and verifiers on one target and several sets of prompts, interleaved in one process."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any

from drafttree.core.errors import ConfigError
from drafttree.engine.decoder import Decoder, Prompt
from drafttree.evaluation.method import PLAIN, Method, parse_methods
from drafttree.evaluation.method_decoders import make_decoders
from drafttree.evaluation.run_store import RunStore
from drafttree.evaluation.text_record import TextRecord
from drafttree.loading import DrafterSource, PolicyLike, parse_policies
from drafttree_lab.bench.policies import PolicyRow, policy_row
from drafttree_lab.experiment.race import race, text_records, totals, way


@dataclass(frozen=True)
class DrafterRow:
    """One method on one set of prompts.

    Attributes:
        drafter: its name, or "none" for plain decoding.
        row: the rest; its group is the set.
        verifier: its name, or "auto" where the method names none.
    """

    drafter: str
    row: PolicyRow
    verifier: str = "auto"

    @property
    def name(self) -> str:
        """The method in words."""
        if self.drafter == "none":
            return PLAIN
        judged = "" if self.verifier == "auto" else f", {self.verifier}"
        return f"{self.drafter}, {self.row.policy}{judged}"


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


@dataclass(frozen=True)
class DrafterBench:
    """Everything measured; of every single text, `texts`."""

    rows: list[DrafterRow]
    costs: list[DrafterCost]
    texts: list[TextRecord] = field(default_factory=list)

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON."""
        return asdict(self)


def bench_drafters(
    decoder: Decoder,
    drafters: Mapping[str, DrafterSource],
    sets: Mapping[str, Sequence[Prompt]],
    policies: Sequence[PolicyLike],
    **options,
) -> DrafterBench:
    """Run plain decoding and every drafter with every policy over the prompts, by turns.

    Args:
        decoder: for its target, verifier and tokenizer.
        drafters: by name; each as for `drafttree.load`, "auto" and "none" excepted.
        sets: prompts by the name of their set.
        policies: as for `parse_policies`.
        **options: as for `bench_methods`.

    Raises:
        ConfigError: there is no drafter, no policy or no prompt.
    """
    _check_given({"drafter": drafters, "policy": policies})
    methods = [Method(name, policy) for name in drafters for policy in parse_policies(policies).values()]
    return bench_methods(decoder, methods, sets, drafters=drafters, **options)


def bench_methods(
    decoder: Decoder,
    methods: Sequence[str | Method],
    sets: Mapping[str, Sequence[Prompt]],
    *,
    drafters: Mapping[str, DrafterSource] = MappingProxyType({}),
    repeats: int = 1,
    progress: Callable[[str], None] = lambda _: None,
    store: RunStore | None = None,
    **options,
) -> DrafterBench:
    """Run plain decoding and every method over the prompts, by turns.

    Args:
        decoder: for its target and tokenizer, and its verifier where a method names none.
        methods: as for `parse_methods`.
        sets: prompts by the name of their set.
        drafters: sources by the names that methods have for them, as for `make_decoders`.
        repeats: times everything runs, after a warm-up.
        progress: called after every text with what was run.
        store: keeps finished runs; by default none.
        **options: as for `Decoder.new_request`; without a seed it is 0, since lossless methods all write the same texts
            then.

    Raises:
        ConfigError: there is no method or no prompt, or as for `make_decoders`.
    """
    _check_given({"prompt": [*sets.values()]})
    settings: dict[str, Any] = {"seed": 0} | options
    chosen = {spec: method for spec, method in parse_methods(methods).items() if method.drafter}
    decoders = {PLAIN: decoder.plain()} | make_decoders(decoder, chosen.values(), drafters)
    ways = {name: way(each, settings) for name, each in decoders.items()}
    prompts = [(group, decoder.new_request(prompt, **settings).tokens) for group in sets for prompt in sets[group]]
    runs = race(ways, [ids for _, ids in prompts], repeats, progress, store or RunStore())
    groups = [group for group, _ in prompts[: len(runs[0])]]
    rows = [
        _row(chosen.get(name), policy_row(name, group, [each == group for each in groups], runs))
        for group in dict.fromkeys(groups)
        for name in ways
    ]
    spent = {spec: totals(spec, [True] * len(groups), runs) for spec in chosen}
    owners = dict.fromkeys(method.drafter for method in chosen.values() if method.drafter)
    costs = [_cost(name, [spent[spec] for spec in chosen if chosen[spec].drafter == name]) for name in owners]
    return DrafterBench(rows, costs, text_records(runs, groups))


def _check_given(given: Mapping[str, Any]) -> None:
    """Refuse to measure nothing."""
    for name, each in given.items():
        if not each or not all(each):
            raise ConfigError(f"there is no {name} to measure; give at least one")


def _row(method: Method | None, row: PolicyRow) -> DrafterRow:
    """The row of a method, None for plain decoding."""
    if method is None or method.drafter is None:
        return DrafterRow("none", row)
    return DrafterRow(method.drafter, replace(row, policy=method.policy_spec), method.verifier_name)


def _cost(name: str, spent: list) -> DrafterCost:
    metrics = [each for repeats in spent for each in repeats]
    return DrafterCost(
        drafter=name,
        passes=statistics.median(each.draft_efficiency for each in metrics),
        seconds=statistics.median(each.draft_pass for each in metrics),
        weight_bytes=max(each.draft_weight_bytes for each in metrics),
        cache_bytes=max(each.draft_cache_bytes for each in metrics),
    )
