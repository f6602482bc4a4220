"""Many requests at once: speculation under one budget against packed plain decoding, fixed budgets and others.

Every way decodes the same prompts, a turn after the other; each turn has other prompts, and another way goes first.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from drafttree.core.errors import ConfigError
from drafttree.engine.decoder import Decoder
from drafttree.measure.run_store import RunStore
from drafttree_lab.load.batch_row import BatchRow, make_rows
from drafttree_lab.load.batch_turns import BatchTurns, TextDifference, find_differences
from drafttree_lab.load.batch_ways import BatchWays

SIZES = (1, 2, 4, 8, 16, 32, 64)
BUDGETS = (1, 2, 4, 8)
LARGE = 16
"""The size at which batching is to show."""


@dataclass(frozen=True)
class BatchBench:
    """The measurements of one target and drafter.

    Attributes:
        rows: one per size.
        target: what ran.
        threads: threads of the CPU.
        prompts: different ones there were.
        texts: texts that were compared with plain decoding's.
        differences: those that were not the same.
        drafter_failures: rounds, of all ways, that went on without drafts, since the drafter raised an error.
        alone: the size at which prompts were decoded one by one too, None if none were.
        transformers: what of transformers was run, or why nothing was; empty if it was not asked for.
    """

    rows: list[BatchRow]
    target: str
    threads: int
    prompts: int
    texts: int
    differences: list[TextDifference]
    drafter_failures: int
    alone: int | None
    transformers: str

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON."""
        return {**asdict(self), "rows": [row.summary() for row in self.rows]}


def bench_batch(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    *,
    sizes: Sequence[int] = SIZES,
    budgets: Sequence[int] = BUDGETS,
    transformers: bool = True,
    one_by_one: bool = True,
    repeats: int = 3,
    progress: Callable[[str], None] = lambda _: None,
    store: RunStore | None = None,
    temperature: float = 0.0,
    **options: Any,
) -> BatchBench:
    """Measure every way of decoding at every batch size.

    Args:
        decoder: a decoder with a drafter.
        prompts: token ids; a turn takes the next ones, and begins anew where they end.
        sizes: requests that are served at a time.
        budgets: drafted nodes per request and round, each a way of its own.
        transformers: whether to run transformers' `generate_batch` too, where it runs.
        one_by_one: whether to decode plainly one text after the other too, at one of the sizes.
        repeats: turns of every size.
        progress: called after every run with what it was.
        store: keeps finished runs; by default none.
        temperature: the temperature of all texts.
        **options: `seed` and `max_new_tokens` of all texts; none ends before.

    Raises:
        ConfigError: the decoder has no drafter, or there is no prompt or size.
    """
    for name, given in {"prompt": prompts, "batch size": sizes}.items():
        if not given:
            raise ConfigError(f"there is no {name} to measure; give at least one")
    settings = {"seed": 0, "max_new_tokens": 64, "temperature": temperature, "ignore_eos": True} | options
    trial = prompts[0] if transformers else None
    ways = BatchWays.of(decoder, budgets, trial=trial, one_by_one=one_by_one, temperature=temperature)
    turns = BatchTurns(ways.ways, prompts, settings, alone_at(sizes), progress, store or RunStore())
    found = turns.run(list(dict.fromkeys(sizes)), repeats)
    runs = [run for own in found.values() for turn in own for run in turn.runs.values()]
    return BatchBench(
        rows=make_rows({size: [turn.runs for turn in own] for size, own in found.items()}),
        target=repr(decoder.target),
        threads=torch.get_num_threads(),
        prompts=len(prompts),
        texts=sum(len(run.texts) for run in runs),
        differences=list(find_differences(decoder, found, **settings)),
        drafter_failures=sum(run.drafter_failures for run in runs),
        alone=turns.alone if one_by_one and turns.alone in found else None,
        transformers=ways.transformers,
    )


def alone_at(sizes: Sequence[int]) -> int:
    """The size at which texts are decoded one by one too: the one at which batching is to show, or one below it."""
    return max((size for size in sizes if size <= LARGE), default=min(sizes))
