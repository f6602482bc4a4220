"""Experts with linear layers of their own give what stacked ones give, and can be quantised."""

from typing import Any

import pytest
import torch

from drafttree.models import TargetModel
from drafttree.models.backend_choice import choose_backend
from drafttree.models.fused.fused_backend import FusedBackend
from drafttree.models.quantization.int8_linear import Int8Linear
from drafttree.models.quantization.linear_experts import LinearExperts, linear_experts
from drafttree.models.quantization.quantize import quantize_int8
from testing import fused_families, tiny

FAMILIES = ["qwen3_moe", "gemma4_experts"]
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


def build(family: str) -> Any:
    return tiny.from_config(fused_families.CONFIGS[family]())


def experts_in(module: Any) -> list[tuple[Any, str, Any]]:
    parts = [(part, name, child) for part in module.modules() for name, child in part.named_children()]
    return [each for each in parts if "Experts" in type(each[2]).__name__]


@pytest.mark.parametrize("family", FAMILIES)
def test_they_give_what_stacked_ones_give(family):
    module = build(family)
    expected = module(torch.tensor([TOKENS])).logits
    found = experts_in(module)
    assert found
    for part, name, experts in found:
        setattr(part, name, linear_experts(experts))
    torch.testing.assert_close(module(torch.tensor([TOKENS])).logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_eight_bits_hold_their_weights_too(family):
    module, stacked = build(family), build(family)
    quantize_int8(module)
    for (_, _, experts), (_, _, before) in zip(experts_in(module), experts_in(stacked), strict=True):
        assert isinstance(experts, LinearExperts)
        for index, gate_up in enumerate(before.gate_up_proj):
            layers = experts.gate_proj[index], experts.up_proj[index], experts.down_proj[index]
            assert all(isinstance(each, Int8Linear) for each in layers)
            for own, weight in zip(layers, (*gate_up.chunk(2), before.down_proj[index]), strict=True):
                assert ((own.dequantized() - weight).abs() <= 0.51 * own.scale[:, None]).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_fused_layers_run_them(family):
    module = build(family)
    quantize_int8(module)
    model = TargetModel(module, choose_backend)
    assert isinstance(model.backend, FusedBackend), model.runs_on
