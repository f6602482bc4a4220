"""The price of `exact_text`, and what it changes: the same texts with and without it, by turns."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from drafttree.engine.decoder import Decoder, Prompt
from drafttree.engine.metrics import Metrics
from drafttree.loading import PolicyLike, parse_policies
from drafttree.measure.method import PLAIN
from drafttree.measure.reference import transformers_model
from drafttree.measure.run_store import RunStore
from drafttree.models import TargetModel, select_exact_text
from drafttree_lab.experiment.race import Outputs, race, way


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
    store: RunStore | None = None,
    **options,
) -> list[ExactTextRow]:
    """Decode every prompt plainly and by every policy, without and with `exact_text`, all by turns.

    Args:
        decoder: the decoder with a drafter, and a transformers model without `exact_text` as target.
        prompts: texts or token ids.
        policies: as for `parse_policies`.
        repeats: times everything is run, after one prompt that is not counted.
        progress: called after every text.
        store: keeps finished runs; by default none.
        **options: as for `Decoder.new_request`.

    Raises:
        ConfigError: the target is no transformers model.
        ModelError: `exact_text` cannot hold for it.
    """
    exact = decoder.with_target(TargetModel(transformers_model(decoder).module, select_exact_text))
    chosen = parse_policies(policies)
    ways = {
        _name(spec, kind): way(each.with_policy(chosen[spec]) if spec in chosen else each.plain(), options)
        for spec in (PLAIN, *chosen)
        for kind, each in enumerate((decoder, exact))
    }
    ids = [decoder.new_request(prompt, **options).tokens for prompt in prompts]
    runs = race(ways, ids, repeats, lambda name: progress(name.split(" with ")[0]), store or RunStore())
    return [_row(spec, runs) for spec in (PLAIN, *chosen)]


def _name(spec: str, kind: int) -> str:
    """The name of a way without or with `exact_text`."""
    return f"{spec} with exact_text" if kind else spec


def _row(spec: str, runs: list[list[Outputs]]) -> ExactTextRow:
    speeds, same = [], []
    for kind in (0, 1):
        own, plain = _name(spec, kind), _name(PLAIN, kind)
        speeds.append(
            statistics.median(Metrics.total(turn[own].metrics for turn in run).tokens_per_second for run in runs)
        )
        same.append(sum(turn[own].tokens == turn[plain].tokens for turn in runs[0]))
    return ExactTextRow(spec, len(runs[0]), (speeds[0], speeds[1]), (same[0], same[1]))
