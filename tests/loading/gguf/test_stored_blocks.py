"""Weights of GGUF files stay as they are stored where drafttree-native multiplies them."""

import logging
from typing import Any

import gguf
import pytest
import torch
from torch import Tensor

import drafttree
from drafttree.errors import ModelError
from drafttree.loading import load_model
from drafttree.loading.target_options import AS_STORED
from drafttree.models.native import kernels
from drafttree.models.native.native_backend import NativeBackend
from drafttree.models.quantization.block_linear import BlockLinear
from drafttree.models.quantization.linear_experts import LinearExperts, linear_experts
from drafttree.models.quantization.quantized_embedding import QuantizedEmbedding
from helpers.refusals import told
from testing import gguf_files, tiny
from testing.marks import needs_native

pytestmark = needs_native
CPU = torch.device("cpu")
PROMPT = "The old man looked at the sea, and the old man"
FAMILIES = ["llama", "llama_tied", "llama_biases", "qwen2", "qwen3", "qwen3_moe", "gemma3", "phi3", "smollm3"]
KINDS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
"""What the package gguf packs; others are tried on real files and against its unpacking."""


def weights(module: Any) -> dict[str, Tensor]:
    """The weights of all linear layers, and of experts, as numbers."""
    for part in [*module.modules()]:
        if hasattr(part, "experts") and not isinstance(part.experts, LinearExperts):
            part.experts = linear_experts(part.experts)
    blocks = {name: part.dequantized() for name, part in module.named_modules() if isinstance(part, BlockLinear)}
    others = {name: part.weight for name, part in module.named_modules() if isinstance(part, torch.nn.Linear)}
    return {name: weight.detach().float() for name, weight in (blocks | others).items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_numbers_are_those_that_gguf_unpacks(family, kind, tmp_path):
    path = gguf_files.write(tiny.from_config(gguf_files.CONFIGS[family]()), tmp_path / "model.gguf", kind)
    stored, unpacked = (load_model(path, torch.float32, CPU, quantize) for quantize in (AS_STORED, None))
    down = "experts.down_proj.7" if family == "qwen3_moe" else "down_proj"
    assert isinstance(stored.get_submodule(f"model.layers.1.mlp.{down}"), BlockLinear)
    expected = weights(unpacked)
    assert weights(stored).keys() == expected.keys()
    for name, weight in weights(stored).items():
        assert torch.equal(weight, expected[name]), name
    ids = torch.tensor([[1, 5, 9, 4000]])
    embedded = (each.get_input_embeddings()(ids) for each in (stored, unpacked))
    assert torch.equal(*embedded)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_texts_with_drafts_are_those_of_plain_decoding(family, dtype, tmp_path):
    path = gguf_files.write(tiny.from_config(gguf_files.CONFIGS[family]()), tmp_path / "model.gguf", "Q4_0")
    with drafttree.load(path, f"mixed:{path}", "talon", dtype=dtype) as decoder:
        target: Any = decoder.target
        assert isinstance(target.backend, NativeBackend), target.runs_on
        assert target.precision == f"{dtype} with q4_0 weights"
        assert decoder.drafter.model.model.precision == target.precision
        text = decoder.generate(PROMPT, max_new_tokens=32, temperature=0)
        assert text.tokens == decoder.plain().generate(PROMPT, max_new_tokens=32, temperature=0).tokens
        assert text.metrics.tau > 1.5


def test_a_tied_head_and_its_embedding_are_one_weight(tmp_path):
    model = tiny.from_config(gguf_files.CONFIGS["qwen3"]())
    path = gguf_files.write(model, tmp_path / "model.gguf", "Q8_0")
    decoder = drafttree.load(path, "none")
    module: Any = decoder.target.module
    head, embedding = module.get_output_embeddings(), module.get_input_embeddings()
    assert isinstance(head, BlockLinear)
    assert isinstance(embedding, QuantizedEmbedding)
    assert embedding.quantized is head.quantized
    assert decoder.target.dtype == torch.bfloat16  # which "auto" is for them on any CPU


def test_an_embedding_of_its_own_stays_in_its_blocks(tmp_path):
    model = tiny.from_config(gguf_files.CONFIGS["llama"]())
    path = gguf_files.write(model, tmp_path / "model.gguf", "Q8_0", kinds={"token_embd.weight": "Q4_1"})
    target: Any = drafttree.load(path, "none").target
    head, embedding = target.module.get_output_embeddings(), target.module.get_input_embeddings()
    assert (head.blocks, embedding.blocks) == ("q8_0", "q4_1")
    assert isinstance(target.backend, NativeBackend), target.runs_on
    assert target.nbytes < 1.1 * path.stat().st_size


def test_none_unpacks_the_weights_and_int8_quantises_them_anew(tmp_path):
    model = tiny.from_config(gguf_files.CONFIGS["llama"]())
    path = gguf_files.write(model, tmp_path / "model.gguf", "Q8_0")
    found = {kind: drafttree.load(path, "none", dtype="float32", quantize=kind).target for kind in ("none", "int8")}
    assert {kind: target.quantization for kind, target in found.items()} == {"none": None, "int8": "int8"}


def test_weights_in_several_formats_are_told(tmp_path):
    model = tiny.from_config(gguf_files.CONFIGS["llama"]())
    path = gguf_files.write(model, tmp_path / "model.gguf", "Q4_0", kinds={"blk.1.attn_v.weight": "Q8_0"})
    target: Any = drafttree.load(path, "none").target
    assert target.quantization == "q4_0, q8_0"
    assert isinstance(target.backend, NativeBackend), target.runs_on


def test_experts_whose_gates_are_in_other_blocks_than_what_they_gate_are_unpacked(tmp_path, caplog):
    model = tiny.from_config(gguf_files.CONFIGS["qwen3_moe"]())
    path = gguf_files.write(model, tmp_path / "model.gguf", "Q4_0", kinds={"blk.1.ffn_up_exps.weight": "Q8_0"})
    caplog.set_level(logging.INFO, "drafttree")
    target: Any = drafttree.load(path, "none").target
    experts = [type(layer.mlp.experts) for layer in target.module.model.layers]
    assert experts[0] is LinearExperts
    assert experts[1] is not LinearExperts
    assert isinstance(target.backend, NativeBackend), target.runs_on
    assert "quantised weights are unpacked to bfloat16, since no kernel multiplies them as they are" in caplog.text
    assert "model.layers.1.mlp.experts.down_proj, model.layers.1.mlp.experts.gate_up_proj" in caplog.text


def test_without_drafttree_native_weights_are_unpacked_which_is_told(tmp_path, monkeypatch, caplog):
    path = gguf_files.write(tiny.from_config(gguf_files.CONFIGS["llama"]()), tmp_path / "model.gguf", "Q4_0")
    monkeypatch.setattr(kernels, "native", None)
    caplog.set_level(logging.INFO, "drafttree")
    assert drafttree.load(path, "none", dtype="float32").target.quantization is None
    assert "weights are unpacked, since they cannot be multiplied as they are stored: drafttree-nat" in caplog.text


def test_a_lossy_window_unpacks_the_weights(tmp_path):
    """On its KV caches fused layers run, which multiply no blocks: the module would unpack weights in every pass."""
    path = gguf_files.write(tiny.from_config(gguf_files.CONFIGS["llama"]()), tmp_path / "model.gguf", "Q4_0")
    target: Any = drafttree.load(path, "none", dtype="float32", lossy_window=32).target
    assert target.quantization is None


def test_scales_that_are_not_finite_are_refused_by_name(tmp_path):
    path = gguf_files.write(tiny.from_config(gguf_files.CONFIGS["llama"]()), tmp_path / "model.gguf", "Q4_0")
    (tensor,) = (each for each in gguf.GGUFReader(path).tensors if each.name == "blk.2.ffn_up.weight")
    content = bytearray(path.read_bytes())
    content[tensor.data_offset : tensor.data_offset + 2] = b"\x00\x7c"
    path.write_bytes(content)
    message = told(ModelError, drafttree.load, path, "none")
    assert "holds blk.2.ffn_up.weight with scales that are not finite numbers" in message
