"""Experts in few bits in drafttree-native: passes, and packed products that are another expert's."""

from typing import Any

import pytest

import drafttree
from drafttree.models.backend_choice import choose_backend
from drafttree.models.native.native_backend import NativeBackend
from drafttree.models.native.packed_products import WrongProductError, check_products
from drafttree.models.native.packing_plan import PackingPlan
from drafttree.models.quantization.quantize import quantize_int8
from testing import fused_families, tiny
from testing.marks import needs_native

pytestmark = needs_native
FAMILIES = ["qwen3_moe", "gemma4_experts"]
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8] * 4


def quantised(family: str) -> Any:
    module = tiny.from_config(fused_families.CONFIGS[family]()).bfloat16()
    quantize_int8(module, head=True)
    return module


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_with_drafts_are_those_of_plain_decoding(family):
    with drafttree.load(quantised(family), "lookup", "talon") as decoder:
        target: Any = decoder.target
        assert isinstance(target.backend, NativeBackend), target.runs_on
        assert target.packed_nbytes == 0
        text = decoder.generate(TOKENS, max_new_tokens=16)
        assert text.tokens == decoder.plain().generate(TOKENS, max_new_tokens=16).tokens
        assert text.metrics.tau > 1


@pytest.mark.parametrize("part", ["gate", "up", "down"])
def test_a_product_of_another_expert_is_refused(part):
    module = quantised("qwen3_moe")
    backend: Any = choose_backend(module)
    index, products = next((own, each) for own, each in PackingPlan(module).products if f"{part}/1" in each.layers)
    check_products(backend.packed.model, index, products)
    own = products.layers
    own[f"{part}/0"], own[f"{part}/1"] = own[f"{part}/1"], own[f"{part}/0"]
    with pytest.raises(WrongProductError, match="differs by"):
        check_products(backend.packed.model, index, products)
