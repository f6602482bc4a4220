"""The shipped models at the cost of a larger one: what `drafttree demo` shows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from drafttree.core.errors import ConfigError
from drafttree.core.machine_memory import machine_memory
from drafttree.engine.compatibility import keeps_text, precision_of
from drafttree.engine.decoder import Decoder
from drafttree.engine.generation import Generation
from drafttree.loading.placement import find_device
from drafttree.measure.inflation import load_inflated
from drafttree.measure.law import LimitingFactor, SpeedupLaw, doubt
from drafttree.measure.reference import Difference, find_difference
from drafttree.measure.shapes import SHAPES

PLAIN, DRAFTED = "plain decoding", "drafttree"
"""The two ways of the demo."""
FLOAT32_TOKENS = 32
"""Tokens by which plain decoding in float32 is timed beside a quantised target."""
SIZES = {"cpu": ("100m",), "cuda": ("llama-8b", "pythia-2.8b", "300m")}
"""The sizes by kind of device; the first that there is room for is taken."""
COPIES, LARGEST_ITEM = 3, 4
"""Copies of the weights that exist at most while a target is made and packed, and bytes of one weight at most."""


@dataclass(frozen=True)
class DemoTarget:
    """The decoder of the demo.

    Attributes:
        decoder: the embedded models, the target inflated.
        shape: name of the shape that its passes cost as much as.
        is_quantised: whether its weights are.
    """

    decoder: Decoder
    shape: str
    is_quantised: bool = False

    @property
    def sentence(self) -> str:
        """What it is, and whether its texts can differ."""
        dtype, count = precision_of(self.decoder.target), torch.get_num_threads()
        threads = "1 thread" if count == 1 else f"{count} threads"
        size = self.shape.upper() if self.shape[0].isdigit() else self.shape
        ties = "the same text" if keeps_text(self.decoder.target) else "the same text but for ties that rounding breaks"
        return (
            f"Target: a toy model of 10 M parameters, slowed down to the speed of a {size} model "
            f"({dtype}, {threads}). In {dtype} both ways write {ties}."
        )


@dataclass(frozen=True)
class DemoResult:
    """What the demo has shown.

    Attributes:
        target: the target it was shown with.
        plain: the text by plain decoding.
        drafted: the text by drafts.
        difference: where they differ, None if nowhere.
        float32: tokens per second of plain decoding in float32, None where the target is not quantised.
    """

    target: DemoTarget
    plain: Generation
    drafted: Generation
    difference: Difference | None
    float32: float | None

    @property
    def speedup(self) -> float:
        """Tokens per second over those of plain decoding, the prompt included."""
        return self.drafted.metrics.tokens_per_second / self.plain.metrics.tokens_per_second

    @property
    def doubt(self) -> str | None:
        """Why the times tell no ratio; None where they do."""
        return doubt(self.drafted.metrics, self.plain.metrics)

    @property
    def agreement(self) -> str:
        """Whether the texts are the same, in words."""
        if self.difference is None:
            return "Both texts are the same, token for token."
        if not self.difference.explained:
            return f"Texts differ from token {self.difference.position} on, which should not be: please report it."
        return (
            f"Texts differ from token {self.difference.position} on: {precision_of(self.target.decoder.target)} "
            "rounding broke a tie between two equally likely tokens. --dtype float32 gives identical text."
        )

    @property
    def lines(self) -> list[str]:
        """The result in plain words."""
        own, plain = self.drafted.metrics, self.plain.metrics
        speeds = f"{own.tokens_per_second:.1f} tokens/s against {plain.tokens_per_second:.1f}"
        found = [f"{own.tokens} tokens in {len(own.rounds)} passes instead of {len(plain.rounds)}", self.agreement]
        if self.doubt:
            return [*found, f"{speeds}. {self.doubt}"]
        found.append(f"{self.speedup:.2f} times as fast as plain decoding: {speeds}")
        if self.float32:
            ratio = own.tokens_per_second / self.float32
            found.append(f"{ratio:.2f} times as fast as plain decoding in float32 ({self.float32:.1f} tokens/s)")
        if self.speedup < 1:
            found.append("Drafts do not pay on this machine: a pass over several tokens costs too much more than one.")
        return [*found, LimitingFactor.of(SpeedupLaw.of(own, plain), own).sentence]

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON; no ratio where the times tell none."""
        return {
            "size": self.target.shape,
            "dtype": precision_of(self.target.decoder.target),
            "pass_seconds": self.plain.metrics.target_pass,
            "tokens": self.drafted.metrics.tokens,
            "passes": len(self.drafted.metrics.rounds),
            "plain_passes": len(self.plain.metrics.rounds),
            "same_text": self.difference is None,
            "tokens_per_second": self.drafted.metrics.tokens_per_second,
            "plain_tokens_per_second": self.plain.metrics.tokens_per_second,
            "float32_plain_tokens_per_second": self.float32,
            "speedup": None if self.doubt else self.speedup,
            "doubt": self.doubt,
        }


def judge(target: DemoTarget, texts: Mapping[str, Generation], prompt: str, options: Mapping[str, Any]) -> DemoResult:
    """The result of two texts of a prompt; beside a quantised target, plain decoding in float32 is timed."""
    decoder, plain, drafted = target.decoder, texts[PLAIN], texts[DRAFTED]
    ids = decoder.new_request(prompt, **options).tokens
    difference = find_difference(decoder, ids, plain.tokens, drafted.tokens, **options)
    float32 = None
    if target.is_quantised:
        whole = load_inflated("embedded", "none", target.shape, "float32", decoder.target.device.type)
        short = dict(options, max_new_tokens=min(FLOAT32_TOKENS, options["max_new_tokens"]))
        float32 = [whole.generate(ids, **short) for _ in range(2)][-1].metrics.tokens_per_second
    return DemoResult(target, plain, drafted, difference, float32)


def load_demo(drafter: str, dtype: str, device: str, quantize: str | None, shape: str | None = None) -> DemoTarget:
    """The embedded models with a target of the largest size of the demo that this machine has the memory for.

    Args:
        drafter: as for `drafttree.load`.
        dtype: as for `drafttree.load`.
        device: as for `drafttree.load`.
        quantize: as for `drafttree.load`.
        shape: name of a shape to take instead.

    Raises:
        ConfigError: there is no room for the smallest of them, or as `drafttree.load` does.
    """
    kind = "cuda" if find_device(device).type == "cuda" else "cpu"
    sizes = (shape,) if shape else SIZES[kind]
    name = next((each for each in sizes if _has_room(kind, each)), None)
    if name is None:
        need = COPIES * LARGEST_ITEM * SHAPES[sizes[-1]].weights / 1e9
        raise ConfigError(f"a demo of the size {sizes[-1]} needs {need:.1f} GB of free memory; free some of it")
    return DemoTarget(load_inflated("embedded", drafter, name, dtype, device, quantize), name, quantize is not None)


def _has_room(kind: str, shape: str) -> bool:
    need = COPIES * LARGEST_ITEM * SHAPES[shape].weights
    if kind == "cuda":
        return need < torch.cuda.mem_get_info()[0]
    memory = machine_memory()
    return memory is None or need < memory.free
