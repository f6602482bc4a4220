"""The ways of decoding many requests that are compared, each as a function of the prompts of a turn."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from drafttree.core.errors import ConfigError
from drafttree.engine.decoder import Decoder
from drafttree.measure.method import PLAIN
from drafttree_lab.load import continuous_batching
from drafttree_lab.load.batch_run import BatchRun, EngineWay

SPECULATIVE, ONE_BY_ONE, TRANSFORMERS = "speculative", "one by one", "transformers"
FIXED = "fixed "
"""Before the nodes of a fixed budget."""
ALONE = 4
"""Prompts of a turn that are decoded one by one; how many there are does not change tokens per second."""
BatchDecoding = Callable[..., BatchRun]
"""Takes the batch size, the prompts, and options as for `EngineWay.run`."""


@dataclass(frozen=True)
class BatchWays:
    """The ways of decoding, and those that could not be had.

    Attributes:
        ways: the ways, by name.
        transformers: what of transformers is among them, or why nothing is; empty if it was not asked for.
    """

    ways: Mapping[str, BatchDecoding]
    transformers: str = ""

    @classmethod
    def of(
        cls,
        decoder: Decoder,
        budgets: Sequence[int],
        *,
        trial: Sequence[int] | None = None,
        one_by_one: bool = True,
        temperature: float = 0.0,
    ) -> "BatchWays":
        """All ways of decoding with a decoder.

        Args:
            decoder: a decoder with a drafter.
            budgets: drafted nodes per request and round of the fixed budgets.
            trial: a prompt by which transformers is tried; None to leave it out.
            one_by_one: whether plain decoding of one text after the other is among them.
            temperature: the temperature of the texts.

        Raises:
            ConfigError: there is no drafter.
        """
        if decoder.drafter is None:
            raise ConfigError("there is nothing to compare with plain decoding; name a drafter")
        ways: dict[str, BatchDecoding] = {SPECULATIVE: EngineWay(decoder).run, PLAIN: EngineWay(decoder.plain()).run}
        ways |= {f"{FIXED}{nodes}": EngineWay(_apart(decoder), nodes).run for nodes in dict.fromkeys(budgets)}
        if one_by_one:
            ways[ONE_BY_ONE] = partial(_run_one_by_one, EngineWay(decoder.plain()))
        if trial is None:
            return cls(ways)
        if reason := continuous_batching.why_not(decoder, trial, temperature):
            return cls(ways, f"not measured: {reason}")
        return cls(ways | {TRANSFORMERS: partial(_run_transformers, decoder)}, continuous_batching.describe(decoder))


def _apart(decoder: Decoder) -> Decoder:
    """The same decoder, which measures and learns for itself."""
    return decoder.with_target(decoder.target)


def _run_one_by_one(engine: EngineWay, size: int, prompts: Sequence[Sequence[int]], **options: Any) -> BatchRun:
    return engine.run(1, prompts[:ALONE], **options)


def _run_transformers(
    decoder: Decoder, size: int, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, **_: Any
) -> BatchRun:
    return continuous_batching.generate_batch(decoder, prompts, max_new_tokens)
