"""Native passes at the positions of true contexts: taken where they are right, refused where they are wrong."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, MistralConfig, PreTrainedConfig

from drafttree.models import TargetModel
from drafttree.models.backend_choice import choose_backend
from drafttree.models.native import native_backend, packing_plan
from drafttree.models.native.native_backend import NativeBackend
from testing import tiny
from testing.fused_families import CONFIGS
from testing.marks import needs_native

pytestmark = needs_native
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
CONTEXT = 1 << 17
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": CONTEXT // 4}
Patch = Callable[[pytest.MonkeyPatch], None]


def at_true_size(config: PreTrainedConfig, window: int = 4096) -> PreTrainedConfig:
    config.max_position_embeddings = CONTEXT
    if getattr(config, "sliding_window", None):
        config.sliding_window = window
    return config


@every_dtype
@pytest.mark.parametrize("context", [8_198, 32_768, CONTEXT])
@pytest.mark.parametrize("name", CONFIGS)
def test_native_passes_run_every_family_at_true_contexts(name, context, dtype):
    config = at_true_size(CONFIGS[name]())
    config.max_position_embeddings = context
    backend = TargetModel(tiny.from_config(config).to(dtype), choose_backend).backend
    assert isinstance(backend, NativeBackend), backend.fallback_reason


def wider_window(by: int) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        right = packing_plan.PackedLayer.__init__

        def wrong(self: Any, block: Any) -> None:
            right(self, block)
            self.shape["window"] += by

        monkeypatch.setattr(packing_plan.PackedLayer, "__init__", wrong)

    return patch


def no_attention_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    right = packing_plan._rotaries
    monkeypatch.setattr(
        packing_plan, "_rotaries", lambda *given: {kind: (own, 1.0) for kind, (own, _) in right(*given).items()}
    )


def other_late_positions(shift: int) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        right = native_backend.run_pass

        def wrong(model: Any, segments: Any, *others: Any) -> Any:
            (segment,) = segments
            if segment.cache.first_position < -shift:
                return right(model, segments, *others)
            segment.cache.first_position += shift
            result = right(model, [segment._replace(positions=segment.positions + shift)], *others)
            segment.cache.first_position -= shift
            return result

        monkeypatch.setattr(native_backend, "run_pass", wrong)

    return patch


def no_long_frequencies(monkeypatch: pytest.MonkeyPatch) -> None:
    right = packing_plan._rotaries
    monkeypatch.setattr(
        packing_plan, "_rotaries", lambda *given: {k: v for k, v in right(*given).items() if k != packing_plan.LONG}
    )


MUTANTS: dict[str, tuple[Callable[[], PreTrainedConfig], Patch]] = {
    "a window one wider": (lambda: MistralConfig(**tiny.GROUPED, sliding_window=8), wider_window(1)),
    "a window one narrower": (lambda: MistralConfig(**tiny.GROUPED, sliding_window=8), wider_window(-1)),
    "yarn without its attention factor": (
        lambda: LlamaConfig(**{**tiny.GROUPED, "rope_parameters": YARN}),
        no_attention_factor,
    ),
    "LongRoPE without its long frequencies": (CONFIGS["phi3_longrope"], no_long_frequencies),
    "positions of 16 bits": (lambda: LlamaConfig(**tiny.GROUPED), other_late_positions(-(1 << 16))),
    "late positions that are one too low": (lambda: LlamaConfig(**tiny.GROUPED), other_late_positions(-1)),
}


@every_dtype
@pytest.mark.parametrize("mutant", MUTANTS)
def test_native_passes_that_are_wrong_late_are_refused(mutant, dtype, monkeypatch):
    make, patch = MUTANTS[mutant]
    config = at_true_size(make())
    assert isinstance(TargetModel(tiny.from_config(config).to(dtype), choose_backend).backend, NativeBackend)
    patch(monkeypatch)
    backend = TargetModel(tiny.from_config(config).to(dtype), choose_backend).backend
    assert "NativeBackend: its logits differ" in str(backend.fallback_reason)
