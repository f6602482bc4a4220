"""Every drafter under every policy, on one target and several sets of prompts, interleaved in one process."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from drafttree.core.errors import ConfigError
from drafttree.drafters import Drafter
from drafttree.engine.decoder import Decoder, Prompt
from drafttree.evaluation.bench.policies import PLAIN, PolicyRow, policy_row, race, totals, way
from drafttree.evaluation.reference import transformers_model
from drafttree.evaluation.run_store import RunStore
from drafttree.loading import DrafterSource, PolicyLike, find_drafter, parse_policies


@dataclass(frozen=True)
class DrafterRow:
    """One drafter and policy on one set of prompts.

    Attributes:
        drafter: its name, or "none" for plain decoding.
        row: the rest; its group is the set.
    """

    drafter: str
    row: PolicyRow


@dataclass(frozen=True)
class DrafterCost:
    """The cost of a drafter; medians over its policies on all prompts.

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
    """Everything measured."""

    rows: list[DrafterRow]
    costs: list[DrafterCost]

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON."""
        return asdict(self)


def bench_drafters(
    decoder: Decoder,
    drafters: Mapping[str, DrafterSource],
    sets: Mapping[str, Sequence[Prompt]],
    policies: Sequence[PolicyLike],
    *,
    repeats: int = 1,
    progress: Callable[[str], None] = lambda _: None,
    store: RunStore | None = None,
    **options,
) -> DrafterBench:
    """Run plain decoding and every drafter with every policy over the prompts, by turns.

    Args:
        decoder: for its target, verifier and tokenizer.
        drafters: by name; each as for `drafttree.load`, "auto" and "none" excepted.
        sets: prompts by the name of their set.
        policies: as for `parse_policies`.
        repeats: times everything runs, after a warm-up.
        progress: called after every text with what was run.
        store: keeps finished runs; by default none.
        **options: as for `Decoder.new_request`; without a seed it is 0, since all write the same texts then.

    Raises:
        ConfigError: there is no drafter, no policy or no prompt.
    """
    for name, given in {"drafter": drafters, "policy": policies, "prompt": [*sets.values()]}.items():
        if not given or not all(given):
            raise ConfigError(f"there is no {name} to measure; give at least one")
    settings: dict[str, Any] = {"seed": 0} | options
    grown, made = parse_policies(policies), {name: _drafter(decoder, each) for name, each in drafters.items()}
    pairs = {f"{name}, {spec}": (name, spec) for name in made for spec in grown}
    ways = {PLAIN: way(decoder.plain(), settings)}
    for key, (name, spec) in pairs.items():
        ways[key] = way(decoder.with_drafter(made[name]).with_policy(grown[spec]), settings)
    prompts = [(group, decoder.new_request(prompt, **settings).tokens) for group in sets for prompt in sets[group]]
    runs = race(ways, [ids for _, ids in prompts], repeats, progress, store or RunStore())
    rows, prompts = [], prompts[: len(runs[0])]
    for group in dict(prompts):
        chosen = [owner == group for owner, _ in prompts]
        for key in ways:
            name, spec = pairs.get(key, ("none", PLAIN))
            rows.append(DrafterRow(name, replace(policy_row(key, group, chosen, runs), policy=spec)))
    everything = [True] * len(prompts)
    spent = {key: totals(key, everything, runs) for key in pairs}
    own = {name: [spent[key] for key, (owner, _) in pairs.items() if owner == name] for name in drafters}
    return DrafterBench(rows, [_cost(name, metrics) for name, metrics in own.items()])


def _cost(name: str, spent: list) -> DrafterCost:
    metrics = [each for repeats in spent for each in repeats]
    return DrafterCost(
        drafter=name,
        passes=statistics.median(each.draft_efficiency for each in metrics),
        seconds=statistics.median(each.draft_pass for each in metrics),
        weight_bytes=max(each.draft_weight_bytes for each in metrics),
        cache_bytes=max(each.draft_cache_bytes for each in metrics),
    )


def _drafter(decoder: Decoder, source: DrafterSource) -> Drafter:
    """The drafter of a source, which may be one already."""
    if not isinstance(source, str | Path | type | PreTrainedModel):
        return source
    if found := find_drafter(source, transformers_model(decoder), decoder.tokenizer):
        return found
    raise ConfigError(f"{source!r} is no drafter to measure; plain decoding is run in any case")
