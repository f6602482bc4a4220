"""Gemma 4: texts are those of transformers, what is computed otherwise is refused, and edits are in the next text."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch

from drafttree import Decoder
from drafttree.drafters import LanguageModelDrafter
from drafttree.models import TargetModel
from drafttree.models.backend_choice import choose_backend
from drafttree.models.base import append
from drafttree.models.native import packed_model, packing_plan
from drafttree.models.native.native_backend import NativeBackend
from drafttree.models.norms import norm_of
from drafttree.policies import Talon
from testing import tiny
from testing.fused_families import CONFIGS
from testing.marks import needs_native

KINDS = [name for name in CONFIGS if name.startswith("gemma4")]
TOKENS = tiny.random_tokens(12, 1)
Patch = Callable[[pytest.MonkeyPatch], None]


@needs_native
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("drafts", [False, True], ids=["plain", "drafted"])
def test_texts_are_those_of_transformers(name, drafts):
    module: Any = tiny.from_config(CONFIGS[name]())
    clone = deepcopy(module)
    target = TargetModel(module, choose_backend)
    assert isinstance(target.backend, NativeBackend)
    drafter = LanguageModelDrafter(TargetModel(tiny.from_config(CONFIGS[name]()), choose_backend)) if drafts else None
    decoder = Decoder(target, drafter, Talon(budget=12) if drafts else None)
    expected = clone.generate(torch.tensor([TOKENS]), max_new_tokens=30, do_sample=False)
    assert decoder.generate(TOKENS, max_new_tokens=30).tokens == expected[0, len(TOKENS) :].tolist()


def other_layers(change: Callable[[Any], object]) -> Patch:
    """Let layers be packed in another way."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        right: Any = packing_plan.PackedLayer.__init__

        def wrong(self: Any, block: Any) -> None:
            right(self, block)
            change(self)

        monkeypatch.setattr(packing_plan.PackedLayer, "__init__", wrong)

    return patch


def other_architecture(**changes: Any) -> Patch:
    """Let what is packed be of another architecture."""
    right = packing_plan.describe
    return lambda monkeypatch: monkeypatch.setattr(
        packing_plan, "describe", lambda module: replace(right(module), **changes)
    )


def no_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what layers read beside the residual stream be normed without a scale."""

    def wrong(norm: Any) -> Any:
        numbers = norm_of(norm)
        return numbers and numbers._replace(scale=numbers.scale**0)

    monkeypatch.setattr(packed_model, "norm_of", wrong)


def whole_heads_turned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rotary embeddings turn the pairs too that they leave alone."""
    right = packing_plan._rotaries

    def wrong(*given: Any) -> Any:
        return {kind: (own.where(own > 0, 0.01), scaling) for kind, (own, scaling) in right(*given).items()}

    monkeypatch.setattr(packing_plan, "_rotaries", wrong)


MUTANTS: dict[str, tuple[str, Patch]] = {
    "scores divided by a head's width": (
        "gemma4",
        other_layers(lambda layer: layer.shape.update(scale=layer.shape["width"] ** -0.5)),
    ),
    "values without their norm": ("gemma4", other_layers(lambda layer: layer.norms.pop("value"))),
    "no number behind a layer": ("gemma4", other_layers(lambda layer: layer.shape.pop("scalar"))),
    "logits without their bound": ("gemma4", other_architecture(logits_cap=None)),
    "all pairs turned": ("gemma4", whole_heads_turned),
    "a window of all layers": ("gemma4", other_layers(lambda layer: layer.shape.update(window=tiny.WINDOW))),
    "keys of another layer": ("gemma4_shared_keys", other_architecture(owners=[0, 1, 2, 3, 0, 1])),
    "inputs without their norm's scale": ("gemma4_shared_keys", no_scale),
    "experts that count for their share alone": (
        "gemma4_experts",
        other_layers(lambda layer: layer.shape.pop("expert_scales")),
    ),
    "a router that reads what the MLP reads": (
        "gemma4_experts",
        other_layers(lambda layer: layer.norms.update(before_router=layer.norms["before_mlp"])),
    ),
    "norms of MLP and experts exchanged": (
        "gemma4_experts",
        other_layers(
            lambda layer: layer.norms.update(
                after_inner=layer.norms["after_experts"], after_experts=layer.norms["after_inner"]
            )
        ),
    ),
}


@needs_native
@pytest.mark.parametrize("mutant", MUTANTS)
def test_native_passes_that_are_wrong_are_refused(mutant, monkeypatch):
    name, patch = MUTANTS[mutant]
    patch(monkeypatch)
    backend = TargetModel(tiny.from_config(CONFIGS[name]()), choose_backend).backend
    assert "NativeBackend: its logits differ" in str(backend.fallback_reason)


EDITS: dict[str, tuple[str, Callable[[Any], torch.Tensor]]] = {
    "layer_scalar": ("gemma4", lambda decoder: decoder.layers[1].layer_scalar),
    "embed_tokens_per_layer": ("gemma4_shared_keys", lambda decoder: decoder.embed_tokens_per_layer.weight),
    "per_layer_model_projection": ("gemma4_shared_keys", lambda decoder: decoder.per_layer_model_projection.weight),
    "per_layer_projection_norm": ("gemma4_shared_keys", lambda decoder: decoder.per_layer_projection_norm.weight),
    "per_layer_input_gate": ("gemma4_shared_keys", lambda decoder: decoder.layers[5].per_layer_input_gate.weight),
    "router": ("gemma4_experts", lambda decoder: decoder.layers[1].router.proj.weight),
    "per_expert_scale": ("gemma4_experts", lambda decoder: decoder.layers[1].router.per_expert_scale),
    "down_proj": ("gemma4_experts", lambda decoder: decoder.layers[1].experts.down_proj),
}


@torch.inference_mode()
def logits(model: TargetModel) -> torch.Tensor:
    return append(model, model.new_cache(len(TOKENS)), TOKENS).logits


@needs_native
@pytest.mark.parametrize("edited", EDITS)
def test_edits_are_in_the_next_text(edited):
    name, find = EDITS[edited]
    model = TargetModel(tiny.from_config(CONFIGS[name]()), choose_backend)
    before = logits(model)
    with torch.no_grad():
        find(model.module.get_decoder()).mul_(-2)
    after = logits(model)
    assert isinstance(model.backend, NativeBackend)
    assert not torch.allclose(before, after, atol=1e-3)
    with torch.inference_mode():
        own = model.module(input_ids=torch.tensor([TOKENS])).logits[:, -1:]
    torch.testing.assert_close(after, own, rtol=1e-4, atol=1e-4)
