"""The shipped models at the cost of a real one: what `drafttree demo` shows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from drafttree.core.errors import ConfigError
from drafttree.core.machine_memory import machine_memory
from drafttree.engine.compatibility import precision_of
from drafttree.engine.costs.pass_times import time_passes
from drafttree.engine.decoder import Decoder
from drafttree.engine.generation import Generation
from drafttree.engine.limiting_factor import LimitingFactor
from drafttree.engine.metrics import SpeedupLaw
from drafttree.evaluation.inflation import load_inflated
from drafttree.evaluation.reference import Difference, find_difference
from drafttree.evaluation.shapes import SHAPES
from drafttree.loading.placement import find_device

PLAIN, DRAFTED = "plain decoding", "drafttree"
"""The two ways of the demo."""
FLOAT32_TOKENS = 32
"""Tokens by which plain decoding in float32 is timed beside a quantised target."""
DISTURBED = 1.5
"""How many times as long as when it was chosen a plain pass takes where other work disturbs it."""
PASS_SECONDS, LONGEST = 0.04, 0.07
"""What a target pass of the demo should take, and takes at most where the smallest size does not take longer."""
SIZES = {"cpu": ("100m", "300m"), "cuda": ("300m", "pythia-2.8b", "llama-8b")}
"""The sizes to choose from, by kind of device."""
COPIES, LARGEST_ITEM = 3, 4
"""Copies of the weights that exist at most while a target is made and packed, and bytes of one weight at most."""


@dataclass(frozen=True)
class DemoTarget:
    """The decoder of the demo.

    Attributes:
        decoder: the embedded models, the target inflated.
        shape: name of the shape that its passes cost as much as.
        seconds: time of a pass over one token.
        is_quantised: whether its weights are.
    """

    decoder: Decoder
    shape: str
    seconds: float
    is_quantised: bool = False

    @property
    def sentence(self) -> str:
        """What it is, in words."""
        dtype = precision_of(self.decoder.target)
        return (
            f"computes the embedded model's function at the cost of a model of {self.shape} parameters in {dtype}: "
            f"{1e3 * self.seconds:.0f} ms a pass, {torch.get_num_threads()} threads"
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
    def is_disturbed(self) -> bool:
        """Whether the times cannot be those of an idle machine.

        Drafts gain no more than the tokens of a pass, and a plain pass takes what it took when the target was chosen.
        """
        plain = self.plain.metrics.target_pass
        gain = self.drafted.metrics.mean_accepted_tokens
        return self.speedup > 1.1 * gain or plain > DISTURBED * self.target.seconds

    @property
    def agreement(self) -> str:
        """Whether the texts are the same, in words."""
        if self.difference is None:
            return "yes"
        why = "where rounding decides a tie" if self.difference.explained else "which should not be: please report it"
        return f"up to token {self.difference.position}, {why}"

    @property
    def lines(self) -> list[str]:
        """The result in plain words."""
        own, plain = self.drafted.metrics, self.plain.metrics
        found = [
            f"{own.tokens} tokens in {len(own.rounds)} passes instead of {len(plain.rounds)}",
            f"the same text: {self.agreement}",
            f"{self.speedup:.2f} times as fast as plain decoding: {own.tokens_per_second:.1f} tokens/s "
            f"against {plain.tokens_per_second:.1f}",
        ]
        if self.float32:
            ratio = own.tokens_per_second / self.float32
            found.append(f"{ratio:.2f} times as fast as plain decoding in float32 ({self.float32:.1f} tokens/s)")
        if self.is_disturbed:
            found.append("Other work disturbed the times, so they mean little: run it again when the machine is idle.")
        elif self.speedup < 1:
            found.append("Drafts do not pay on this machine: a pass over several tokens costs too much more than one.")
        return [*found, LimitingFactor.of(SpeedupLaw.of(own, plain), own).sentence]

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON."""
        return {
            "size": self.target.shape,
            "dtype": precision_of(self.target.decoder.target),
            "pass_seconds": self.target.seconds,
            "tokens": self.drafted.metrics.tokens,
            "passes": len(self.drafted.metrics.rounds),
            "plain_passes": len(self.plain.metrics.rounds),
            "same_text": self.difference is None,
            "tokens_per_second": self.drafted.metrics.tokens_per_second,
            "plain_tokens_per_second": self.plain.metrics.tokens_per_second,
            "float32_plain_tokens_per_second": self.float32,
            "speedup": self.speedup,
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
    """The embedded models with a target whose passes take about `PASS_SECONDS` on this machine.

    Args:
        drafter: as for `drafttree.load`.
        dtype: as for `drafttree.load`.
        device: as for `drafttree.load`.
        quantize: as for `drafttree.load`.
        shape: name of a shape to take whatever its passes cost; None to choose one.

    Raises:
        ConfigError: there is no room for the smallest of them, or as `drafttree.load` does.
    """
    kind = "cuda" if find_device(device).type == "cuda" else "cpu"
    found: DemoTarget | None = None
    for name in (shape,) if shape else SIZES[kind]:
        if found and found.seconds * SHAPES[name].weights / SHAPES[found.shape].weights > LONGEST:
            break
        if not _has_room(kind, name):
            if found:
                break
            need = COPIES * LARGEST_ITEM * SHAPES[name].weights / 1e9
            raise ConfigError(f"a demo of the size {name} needs {need:.1f} GB of free memory; free some of it")
        found = None  # before the next one is made, the memory of the last one is needed
        decoder = load_inflated("embedded", drafter, name, dtype, device, quantize)
        found = DemoTarget(
            decoder, name, time_passes(decoder.target, (1,), 64, 5, typical=min)[1], quantize is not None
        )
        if found.seconds >= PASS_SECONDS:
            break
    assert found
    return found


def _has_room(kind: str, shape: str) -> bool:
    need = COPIES * LARGEST_ITEM * SHAPES[shape].weights
    if kind == "cuda":
        return need < torch.cuda.mem_get_info()[0]
    memory = machine_memory()
    return memory is None or need < memory.free
