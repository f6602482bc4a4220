"""The price of `exact_text`, and what it changes: the same texts with and without it, by turns."""

import functools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from drafttree.engine.decoder import Decoder, Prompt
from drafttree.evaluation.method import PLAIN
from drafttree.evaluation.reference import transformers_model
from drafttree.evaluation.run_store import RunStore
from drafttree.loading import PolicyLike, parse_policies
from drafttree.models import TargetModel, select_exact_text


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


@dataclass(frozen=True)
class TimedText:
    """A text and the seconds it took."""

    tokens: list[int]
    seconds: float


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
        decoder: with a drafter, and a transformers model without `exact_text` as target.
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
    ways = {(PLAIN, kind): each.plain() for kind, each in enumerate((decoder, exact))}
    for spec, policy in parse_policies(policies).items():
        ways |= {(spec, kind): each.with_policy(policy) for kind, each in enumerate((decoder, exact))}
    warm_up = functools.cache(lambda way: ways[way].generate(prompts[0], **options))

    def run(way: tuple[str, int], prompt: Prompt) -> TimedText:
        warm_up(way)
        generation = ways[way].generate(prompt, **options)
        return TimedText(generation.tokens, generation.metrics.seconds)

    store, found = store or RunStore(), {way: [] for way in ways}
    with store.interruptible():
        for repeat in range(repeats):
            for index, prompt in enumerate(prompts):
                for way, texts in found.items():
                    texts.append(store.run((repeat, index, *way), TimedText, functools.partial(run, way, prompt)))
                    progress(way[0])
    return [_row(name, found, len(prompts)) for name, kind in ways if kind == 0 and found[name, 1]]


def _row(name: str, found: dict[tuple[str, int], list[TimedText]], prompts: int) -> ExactTextRow:
    speeds, same = [], []
    for kind in (0, 1):
        texts, plain = found[name, kind], found[PLAIN, kind]
        rounds = [texts[start : start + prompts] for start in range(0, len(texts), prompts)]
        speeds.append(statistics.median(_tokens_per_second(each) for each in rounds))
        same.append(sum(own.tokens == other.tokens for own, other in zip(texts[:prompts], plain, strict=False)))
    return ExactTextRow(name, len(found[name, 1][:prompts]), (speeds[0], speeds[1]), (same[0], same[1]))


def _tokens_per_second(texts: Sequence[TimedText]) -> float:
    return sum(len(text.tokens) for text in texts) / sum(text.seconds for text in texts)
