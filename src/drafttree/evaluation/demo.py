"""The work of `drafttree demo`: the shipped models at the cost of a larger target."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from drafttree.core.errors import ConfigError
from drafttree.core.machine_memory import machine_memory
from drafttree.engine.compatibility import keeps_text, precision_of
from drafttree.engine.decoder import Decoder
from drafttree.engine.generation import Generation
from drafttree.evaluation.compare import Comparison, judge_texts
from drafttree.loading.placement import find_device
from drafttree.measure.inflation import load_inflated
from drafttree.measure.shapes import SHAPES

PLAIN, DRAFTED = "plain decoding", "drafttree"
"""The two ways of the demo."""
FLOAT32_TOKENS = 32
"""Tokens that plain decoding in float32 writes to be timed, if the target is quantised."""
SIZES = {"cpu": ("100m",), "cuda": ("llama-8b", "pythia-2.8b", "300m")}
"""Sizes by kind of device; the first that fits into memory is taken."""
COPIES, LARGEST_ITEM = 3, 4
"""Maximum number of copies of the weights while a target is made and packed, and of bytes of a weight."""


@dataclass(frozen=True)
class DemoTarget:
    """The decoder of the demo.

    Attributes:
        decoder: the embedded models, with the target inflated.
        shape: the name of the target's shape, which sets the cost of its passes.
        is_quantised: whether the target's weights are quantised.
    """

    decoder: Decoder
    shape: str
    is_quantised: bool = False

    @property
    def sentence(self) -> str:
        """What the target is, and whether texts of it can differ."""
        dtype = precision_of(self.decoder.target)
        count = torch.get_num_threads()
        threads = "1 thread" if count == 1 else f"{count} threads"
        size = self.shape.upper() if self.shape[0].isdigit() else self.shape
        ties = (
            "the same text" if keeps_text(self.decoder.target) else "the same text, except where rounding breaks a tie"
        )
        return (
            f"Target: a toy model of 10 M parameters, slowed down to the speed of a {size} model "
            f"({dtype}, {threads}). In {dtype} both ways write {ties}."
        )


@dataclass(frozen=True)
class DemoResult:
    """The result of the demo.

    Attributes:
        target: the decoder that wrote the texts.
        compared: the comparison of the two texts.
        float32: tokens per second of plain decoding in float32; None if the target is not quantised.
    """

    target: DemoTarget
    compared: Comparison
    float32: float | None

    @property
    def agreement(self) -> str:
        """Whether the texts are the same, in words."""
        difference = self.compared.from_plain
        if difference is None:
            return "Both texts are the same, token for token."
        if not difference.is_tie:
            return f"Texts differ from token {difference.position} on, which should never happen: please report it."
        return (
            f"Texts differ from token {difference.position} on: {precision_of(self.target.decoder.target)} "
            "rounding broke a tie between two equally likely tokens. --dtype float32 gives identical text."
        )

    @property
    def lines(self) -> list[str]:
        """The result in plain words."""
        speedup = self.compared.speedup
        drafted, plain = speedup.drafted, speedup.plain
        speeds = f"{drafted.tokens_per_second:.1f} tokens/s against {plain.tokens_per_second:.1f}"
        lines = [
            f"{drafted.tokens} tokens in {len(drafted.rounds)} target passes instead of {len(plain.rounds)}",
            self.agreement,
        ]
        if speedup.doubt:
            return [*lines, f"{speeds}. {speedup.doubt}"]
        lines.append(f"{speedup.law.measured:.2f} times as fast as plain decoding: {speeds}")
        if self.float32:
            ratio = drafted.tokens_per_second / self.float32
            lines.append(f"{ratio:.2f} times as fast as plain decoding in float32 ({self.float32:.1f} tokens/s)")
        if speedup.law.measured < 1:
            lines.append(
                "Drafting does not pay on this machine: a pass over several tokens costs too much more than one "
                "over one token."
            )
        return [*lines, speedup.limit.sentence]

    def summary(self) -> dict[str, object]:
        """All figures, for JSON; the speed-up is None if there is a doubt."""
        speedup = self.compared.speedup
        return {
            "size": self.target.shape,
            "dtype": precision_of(self.target.decoder.target),
            "pass_seconds": speedup.plain.target_pass,
            "tokens": speedup.drafted.tokens,
            "passes": len(speedup.drafted.rounds),
            "plain_passes": len(speedup.plain.rounds),
            "same_text": self.compared.from_plain is None,
            "tokens_per_second": speedup.drafted.tokens_per_second,
            "plain_tokens_per_second": speedup.plain.tokens_per_second,
            "float32_plain_tokens_per_second": self.float32,
            "speedup": None if speedup.doubt else speedup.law.measured,
            "doubt": speedup.doubt,
        }


def judge(target: DemoTarget, texts: Mapping[str, Generation], prompt: str, options: Mapping[str, Any]) -> DemoResult:
    """Compare two texts of a prompt; if the target is quantised, also time plain decoding in float32."""
    comparison = judge_texts(target.decoder, prompt, options, texts[DRAFTED], texts[PLAIN])
    float32 = None
    if target.is_quantised:
        device = target.decoder.target.device.type
        float32_decoder = load_inflated("embedded", "none", target.shape, "float32", device)
        short_options = dict(options, max_new_tokens=min(FLOAT32_TOKENS, options["max_new_tokens"]))
        float32 = [float32_decoder.generate(prompt, **short_options) for _ in range(2)][-1].metrics.tokens_per_second
    return DemoResult(target, comparison, float32)


def load_demo(drafter: str, dtype: str, device: str, quantize: str | None, shape: str | None = None) -> DemoTarget:
    """Load the embedded models, with the target inflated to the largest size of the demo that fits into memory.

    Args:
        drafter: as for `drafttree.load`.
        dtype: as for `drafttree.load`.
        device: as for `drafttree.load`.
        quantize: as for `drafttree.load`.
        shape: the name of a shape to take instead.

    Raises:
        ConfigError: there is no room for the smallest size; or as in `drafttree.load`.
    """
    device_type = "cuda" if find_device(device).type == "cuda" else "cpu"
    sizes = (shape,) if shape else SIZES[device_type]
    name = next((size for size in sizes if _has_room(device_type, size)), None)
    if name is None:
        needed_gigabytes = COPIES * LARGEST_ITEM * SHAPES[sizes[-1]].weights / 1e9
        raise ConfigError(
            f"a demo of the size {sizes[-1]} needs {needed_gigabytes:.1f} GB of free memory; free some of it"
        )
    return DemoTarget(load_inflated("embedded", drafter, name, dtype, device, quantize), name, quantize is not None)


def _has_room(device_type: str, shape: str) -> bool:
    needed_bytes = COPIES * LARGEST_ITEM * SHAPES[shape].weights
    if device_type == "cuda":
        return needed_bytes < torch.cuda.mem_get_info()[0]
    memory = machine_memory()
    return memory is None or needed_bytes < memory.free
