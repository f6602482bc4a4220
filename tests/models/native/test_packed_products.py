"""What is packed of a linear layer is compared with it before it is trusted, and multiplies for it in checks."""

from typing import Any

import pytest
import torch
from torch import nn

import drafttree.models.native.products as products
from drafttree.models import TargetModel
from drafttree.models.backend_choice import choose_backend
from drafttree.models.base import append
from drafttree.models.module.released import ReleasedWeight
from drafttree.models.native.native_backend import NativeBackend
from drafttree.models.native.packed_model import PackedModel
from drafttree.models.quantization.quantize import quantize_int8
from testing import tiny
from testing.fused_families import CONFIGS
from testing.marks import needs_native

pytestmark = needs_native
KINDS = [(torch.float32, None), (torch.bfloat16, None), (torch.bfloat16, "int8")]
every_kind = pytest.mark.parametrize(("dtype", "quantize"), KINDS, ids=str)


def make(name: str, dtype: torch.dtype, quantize: str | None) -> Any:
    module: Any = tiny.from_config(CONFIGS[name]()).to(dtype)
    if quantize:
        quantize_int8(module, head=True)
    return module


def swapped(weight: torch.Tensor) -> torch.Tensor:
    rows = [1, 0, *range(2, len(weight))]
    return weight[rows].contiguous()


def scaled(weight: torch.Tensor) -> torch.Tensor:
    changed = weight.clone()
    changed[0] = -changed[0] + 1
    return changed


def cut(weight: torch.Tensor) -> torch.Tensor:
    changed = weight.clone()
    changed[:, -1] = 0
    return changed


@every_kind
@pytest.mark.parametrize("damage", [swapped, scaled, cut])
def test_a_product_that_is_packed_wrongly_is_refused_and_told(dtype, quantize, damage, monkeypatch):
    read = products._read

    def read_wrongly(layers, taken):
        product = read(layers, taken)
        return product._replace(weights=[damage(product.weights[0]), *product.weights[1:]])

    monkeypatch.setattr(products, "_read", read_wrongly)
    model = TargetModel(make("llama", dtype, quantize), choose_backend)
    assert not isinstance(model.backend, NativeBackend)
    assert "no NativeBackend: the packed product of a layer of 32 inputs" in model.runs_on


@every_kind
@pytest.mark.parametrize("name", ["llama", "gpt_neox", "phi3", "gemma4", "qwen2"])
@torch.inference_mode()
def test_packed_products_stand_in_for_linear_layers(name, dtype, quantize):
    module = make(name, dtype, quantize)
    ids = torch.tensor([tiny.random_tokens(9, 1)])
    own = module(ids).logits
    before = {name: vars(part).copy() for name, part in module.named_modules()}
    packed = PackedModel(module)
    with packed.multiplies_for(module):
        found = module(ids).logits
    assert {name: [*vars(part)] for name, part in module.named_modules()} == {n: [*own] for n, own in before.items()}
    assert found.dtype == own.dtype
    allowed = 1e-4 if dtype == torch.float32 else 0.1
    assert float((found - own).abs().max()) <= allowed * max(float(own.abs().max()), 1.0)


@torch.inference_mode()
def test_a_row_that_is_no_number_is_not_hidden():
    module = make("llama", torch.float32, None)
    packed = PackedModel(module)
    layer: nn.Module = module.model.layers[0].mlp.up_proj
    with packed.multiplies_for(module):
        products = layer(torch.tensor([[torch.nan] * 32, [1.0] * 32]))
    assert products[0].isnan().all()
    assert products[1].isfinite().all()


@every_kind
@pytest.mark.parametrize("name", ["llama_tied", "gemma3"])
@torch.inference_mode()
def test_a_tied_head_and_its_embedding_are_one_copy(name, dtype, quantize):
    module, tokens = make(name, dtype, quantize), tiny.random_tokens(9, 1)
    own = make(name, dtype, quantize)(torch.tensor([tokens])).logits[:, -1:].float()
    model = TargetModel(module, choose_backend)
    assert isinstance(model.backend, NativeBackend)
    assert model.packed_nbytes == 0
    head = module.get_output_embeddings()
    assert isinstance(head.quantized if quantize else head.weight, ReleasedWeight)
    found = append(model, model.new_cache(9), tokens).logits
    allowed = 1e-4 if dtype == torch.float32 else 0.1
    assert float((found - own).abs().max()) <= allowed * float(own.abs().max())
    with torch.no_grad():
        if not quantize:
            module.get_input_embeddings().weight[tokens[-1]].neg_()
            assert not torch.equal(append(model, model.new_cache(9), tokens).logits, found)
