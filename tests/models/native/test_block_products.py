"""Products with weights in blocks: exact numbers, and rows that do not depend on each other."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel

from drafttree import Decoder
from drafttree.drafters import SuffixDrafter
from drafttree.models import TargetModel
from drafttree.models.native import kernels
from drafttree.models.native.native_backend import NativeBackend
from drafttree.models.native.products import ProductWeights
from drafttree.models.quantization.block_linear import BlockLinear
from drafttree.models.quantization.blocks import FORMATS, dequantized, random_blocks
from drafttree.policies import Talon
from testing import tiny
from testing.marks import needs_native

pytestmark = needs_native
OUTPUTS, INPUTS = 200, 512
every_format = pytest.mark.parametrize("name", FORMATS)


def packed(weight: Tensor, name: str) -> Any:
    """A model whose head is a weight in blocks."""
    embeddings = torch.zeros(3, INPUTS)
    model = kernels.native.Model(threads=2, embeddings=embeddings, width=INPUTS, embedding_scale=1.0, cached="float32")
    model.add_head(norm=None, weight=ProductWeights([weight], blocks=name), divisor=1.0, cap=0.0)
    return model


def product(model: Any, rows: Tensor, threads: int = 2) -> Tensor:
    found = torch.empty(len(rows), OUTPUTS)
    place = {"layer": -1, "name": "head", "first": 0, "outputs": OUTPUTS}
    model.multiply(threads=threads, **place, rows=rows.data_ptr(), count=len(rows), to=found.data_ptr())
    return found


def whole_rows(count: int) -> Tensor:
    """Rows that rounding to eight bits leaves as they are."""
    rows = torch.randint(-127, 128, (count, INPUTS), generator=torch.Generator().manual_seed(count)).float()
    rows[:, ::128] = 127
    return rows


@every_format
@pytest.mark.parametrize("count", [*range(1, 8), 16, 70])
def test_numbers_are_exact_and_rows_are_alone_what_they_are_in_company(name, count):
    weight, rows = random_blocks(name, OUTPUTS, INPUTS), whole_rows(count)
    model = packed(weight, name)
    found = product(model, rows)
    expected = rows.double() @ dequantized(weight, name).double().t()
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-6
    for index in range(count):
        assert torch.equal(product(model, rows[index : index + 1].contiguous(), threads=1)[0], found[index])


@every_format
def test_what_was_packed_is_read_out_again(name):
    weight = random_blocks(name, OUTPUTS, INPUTS)
    model = packed(weight, name)
    for first, count in ((0, OUTPUTS), (61, 37), (199, 1)):
        part = torch.empty_like(weight[:count])
        model.unpack(layer=-1, name="head", first=first, count=count, to=part.data_ptr())
        assert torch.equal(part, weight[first : first + count])


@pytest.mark.parametrize(
    ("weight", "name"),
    [
        (torch.zeros(OUTPUTS, 143, dtype=torch.uint8), "q4_k"),
        (torch.zeros(OUTPUTS, 0, dtype=torch.uint8), "q4_0"),
        (torch.zeros(OUTPUTS, 36, dtype=torch.int8), "q4_0"),
        (torch.zeros(36, dtype=torch.uint8), "q4_0"),
    ],
)
def test_what_is_no_matrix_of_whole_blocks_is_refused(weight, name):
    with pytest.raises(ValueError, match="weights of a product"):
        packed(weight, name)


def in_blocks(names: dict[str, str], dtype: torch.dtype) -> PreTrainedModel:
    """A small model whose linear layers have random weights in blocks, by the layer's name."""
    config = LlamaConfig(
        **{"vocab_size": tiny.VOCAB, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": None, "eos_token_id": None},
    )
    module: Any = tiny.from_config(config).to(dtype)
    layers = [(part, name, layer) for part in module.modules() for name, layer in part.named_children()]
    for part, name, layer in layers:
        if isinstance(layer, nn.Linear) and layer is not module.lm_head:
            form = names.get(name, names["others"])
            setattr(part, name, BlockLinear(layer, random_blocks(form, layer.out_features, layer.in_features), form))
    return module


MIXED = {"v_proj": "q6_k", "down_proj": "q6_k", "others": "q4_k"}
"""As llama.cpp mixes them (Q4_K_M)."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("names", [MIXED, *({"others": name} for name in FORMATS)], ids=str)
def test_texts_over_trees_are_those_of_plain_decoding(names, dtype):
    target = TargetModel(in_blocks(names, dtype), NativeBackend)
    decoder = Decoder(target, SuffixDrafter(tiny.VOCAB, torch.device("cpu")), Talon(budget=12))
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 3, 1, 4, 1]
    text = decoder.generate(prompt, max_new_tokens=24)
    assert text.tokens == decoder.plain().generate(prompt, max_new_tokens=24).tokens
