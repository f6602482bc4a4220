"""A tied head of eight bits is the embedding too: one weight, looked up and multiplied."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from drafttree.models.quantization.int8_linear import Int8Linear
from drafttree.models.quantization.quantize import quantize_int8
from drafttree.models.quantization.quantized_embedding import QuantizedEmbedding
from testing import tiny
from testing.fused_families import CONFIGS

TIED = ["llama_tied", "gemma3"]
DTYPES = [torch.float32, torch.bfloat16]
IDS = torch.tensor([tiny.random_tokens(9, 1)])


def make(name: str, dtype: torch.dtype = torch.float32) -> Any:
    return tiny.from_config(CONFIGS[name]()).to(dtype)


def dequantised(name: str) -> Any:
    """The same model with ordinary layers whose weights have the values that eight bits stand for."""
    module = make(name)
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.Linear):
                unit = part.weight.abs().amax(1, keepdim=True) / 127
                part.weight.copy_((part.weight / unit).round() * unit)
    return module


@pytest.mark.parametrize("name", TIED)
@torch.inference_mode()
def test_embedding_and_head_are_one_weight_of_the_rounded_model(name):
    module = make(name)
    quantize_int8(module, head=True)
    head, embedding = module.get_output_embeddings(), module.get_input_embeddings()
    assert isinstance(head, Int8Linear)
    assert isinstance(embedding, QuantizedEmbedding)
    assert embedding.quantized is head.quantized
    assert embedding.scale.data_ptr() == head.scale.data_ptr()
    torch.testing.assert_close(module(IDS).logits, dequantised(name)(IDS).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", TIED)
def test_the_models_dtype_stays(name, dtype):
    module = make(name, dtype)
    quantize_int8(module, head=True)
    assert module.dtype == dtype
    assert module(IDS).logits.dtype == dtype


def test_an_embedding_with_a_weight_of_its_own_stays():
    module = make("llama")
    quantize_int8(module, head=True)
    assert isinstance(module.get_output_embeddings(), Int8Linear)
    assert type(module.get_input_embeddings()) is nn.Embedding


def test_the_head_stays_where_that_is_asked():
    module = make("llama_tied")
    quantize_int8(module)
    assert type(module.get_output_embeddings()) is nn.Linear
    assert module.get_input_embeddings().weight is module.get_output_embeddings().weight


class OwnEmbedding(nn.Embedding):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return super().forward(tokens) + 1


def test_an_embedding_that_does_more_than_look_up_keeps_its_head():
    module = make("llama_tied")
    own = OwnEmbedding(97, 32)
    own.weight = module.get_output_embeddings().weight
    module.set_input_embeddings(own)
    quantize_int8(module, head=True)
    assert type(module.get_output_embeddings()) is nn.Linear
    assert module.get_input_embeddings() is own


@torch.inference_mode()
def test_a_copy_shares_its_own_weight():
    module = make("llama_tied")
    quantize_int8(module, head=True)
    clone = copy.deepcopy(module)
    head, embedding = clone.get_output_embeddings(), clone.get_input_embeddings()
    assert embedding.quantized is head.quantized
    assert head.quantized is not module.get_output_embeddings().quantized
    assert torch.equal(clone(IDS).logits, module(IDS).logits)
