"""The price of `exact_text`, and what it changes: the same texts with and without it, by turns."""

import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from drafttree.engine.decoder import Decoder, Prompt
from drafttree.engine.metrics import Metrics
from drafttree.evaluation.bench.compare import whole
from drafttree.evaluation.reference import transformers_model
from drafttree.loading import PolicyLike, parse_policies
from drafttree.models import TargetModel, select_exact_text

PLAIN = "plain"


@dataclass(frozen=True)
class ExactTextRow:
    """Decoding in one way, without and with `exact_text`.

    Attributes:
        policy: its specification, or "plain" for decoding without speculation.
        prompts: texts of each kind.
        speeds: tokens per second without and with it, prompts included; medians over the repeats.
        same_text: texts that are plain decoding's of the same kind, without and with it.
    """

    policy: str
    prompts: int
    speeds: tuple[float, float]
    same_text: tuple[int, int]

    @property
    def cost(self) -> float:
        """Share of the time that `exact_text` adds."""
        return self.speeds[0] / self.speeds[1] - 1

    def summary(self) -> dict[str, object]:
        """Everything measured, for JSON."""
        return {**asdict(self), "cost": self.cost}


def bench_exact_text(
    decoder: Decoder,
    prompts: Sequence[Prompt],
    policies: Sequence[PolicyLike],
    *,
    repeats: int = 3,
    progress: Callable[[str], None] = lambda _: None,
    **options,
) -> list[ExactTextRow]:
    """Decode every prompt plainly and by every policy, without and with `exact_text`, all by turns.

    Args:
        decoder: with a drafter, and a transformers model without `exact_text` as target.
        prompts: texts or token ids.
        policies: as for `parse_policies`.
        repeats: times everything is run, after one prompt that is not counted.
        progress: called after every text.
        **options: as for `Decoder.new_request`.

    Raises:
        ConfigError: the target is no transformers model.
        ModelError: `exact_text` cannot hold for it.
    """
    exact = decoder.with_target(TargetModel(transformers_model(decoder).module, select_exact_text))
    kinds = decoder, exact
    chosen = parse_policies(policies)
    ways = {PLAIN: [each.plain() for each in kinds]}
    ways |= {spec: [each.with_policy(policy) for each in kinds] for spec, policy in chosen.items()}
    for both in ways.values():
        for each in both:
            each.generate(prompts[0], **options)
    runs = [_run(ways, prompts, options, progress) for _ in range(repeats)]
    plain = runs[0][PLAIN]
    rows = []
    for name in ways:
        speeds = [statistics.median(run[name][kind].metrics.tokens_per_second for run in runs) for kind in (0, 1)]
        same = [sum(map(operator.eq, runs[0][name][kind].texts, plain[kind].texts)) for kind in (0, 1)]
        rows.append(ExactTextRow(name, len(prompts), (speeds[0], speeds[1]), (same[0], same[1])))
    return rows


@dataclass(frozen=True)
class _Texts:
    texts: list[list[int]]
    metrics: Metrics


def _run(
    ways: Mapping[str, list[Decoder]],
    prompts: Sequence[Prompt],
    options: Mapping[str, Any],
    progress: Callable[[str], None],
) -> dict[str, list[_Texts]]:
    """Every prompt in every way, of both kinds one after the other."""
    found = {name: [[], []] for name in ways}
    for index, prompt in enumerate(prompts):
        for name, both in ways.items():
            for kind in (0, 1) if index % 2 else (1, 0):
                found[name][kind].append(whole(both[kind].generate(prompt, **options)))
                progress(name)
    return {
        name: [_Texts([each.tokens for each in kind], Metrics.total(each.metrics for each in kind)) for kind in both]
        for name, both in found.items()
    }
