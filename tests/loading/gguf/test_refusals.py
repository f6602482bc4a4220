"""GGUF files that cannot be read are refused by name."""

import struct
from contextlib import suppress
from pathlib import Path

import gguf
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import drafttree
from drafttree.errors import ConfigError, ModelError
from drafttree.loading import find_gguf, load_model, load_tokenizer, memory
from drafttree.loading.gguf.architectures import settings_of
from drafttree.loading.gguf.reader import GGUFFile
from drafttree.loading.inspect import inspect
from helpers.refusals import told
from testing import gguf_files, tiny

CPU = torch.device("cpu")


def refused(path, content=None):
    """What a file is refused with."""
    if content is not None:
        path.write_bytes(content)
    return told(ModelError, load_model, path, torch.float32, CPU)


def test_a_file_that_is_cut_is_told_where(path):
    content = path.read_bytes()
    assert refused(path, content[:-1]).endswith("download or copy it again")
    message = refused(path, content[: len(content) // 2])
    assert f"model.gguf is cut: it has {len(content) // 2:,} bytes, and " in message
    assert "is cut or damaged: it ends within its metadata, at byte 24" in refused(path, content[:25])
    assert "is cut or damaged: it ends within its metadata, at byte 4" in refused(path, content[:6])
    assert "is empty" in refused(path, b"")


def test_other_files_are_told_by_what_they_are(path):
    content = path.read_bytes()
    assert "is not a GGUF file: it begins with b'PK" in refused(path, b"PK\x03\x04" + content[4:])
    assert "before GGUF; download the model as" in refused(path, b"tjgg" + content[4:])
    assert "byte order of a big-endian machine" in refused(path, b"GGUF" + struct.pack(">I", 3) + content[8:])
    assert "of version 1; drafttree reads versions 2 and 3" in refused(
        path, b"GGUF" + struct.pack("<I", 1) + content[8:]
    )
    assert "of version 9;" in refused(path, b"GGUF" + struct.pack("<I", 9) + content[8:])


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"split.count": 3}, "is one of 3 parts of a model; join them (llama-gguf-split --merge"),
        (
            {"general.architecture": "mamba"},
            "a model of the architecture 'mamba'; drafttree reads GGUF files of ",
        ),
        ({"general.type": "adapter"}, "holds something other than a model (adapter)"),
        ({"llama.attention.head_count": [4, 2, 4]}, "gives a number for each layer as llama.attention.head_count"),
        ({"llama.context_length": "long"}, "gives 'long' as llama.context_length, where drafttree needs a number"),
        ({"llama.block_count": None}, "gives nothing as llama.block_count, where drafttree needs a number"),
        ({"llama.expert_count": 8}, "gives llama.expert_count, which drafttree does not know of this architecture"),
        ({"llama.attention.causal": False}, "gives llama.attention.causal, which drafttree does not know"),
        (
            {"llama.rope.scaling.type": "dynamic", "llama.rope.scaling.factor": 2.0},
            "scales rotary frequencies by 'dynamic'",
        ),
        (
            {"llama.feed_forward_length": 128},
            "do not fit its config.json: model.layers.0.mlp.down_proj.weight is [64, 96]",
        ),
        (
            {"llama.block_count": 2},
            "do not fit its config.json: model.layers has 3 entries in the files, and num_hidden_layers is 2",
        ),
        ({"llama.block_count": 4}, "are incomplete: model.layers.3.input_layernorm.weight and 8 more missing"),
        ({"llama.block_count": 10**6}, "num_hidden_layers as 1000000; it must be between 0 and 1000"),
        ({"llama.rope.scaling.attn_factor": 1.1}, "gives llama.rope.scaling.attn_factor, which drafttree does not"),
        ({"llama.rope.scaling.type": "yarn"}, "gives nothing as llama.rope.scaling.factor, where drafttree needs"),
        ({"general.alignment": 0}, "gives general.alignment as 0"),
    ],
)
def test_metadata_that_cannot_be_followed_is_named(llama, tmp_path, metadata, message):
    assert message in refused(gguf_files.write(llama, tmp_path / "model.gguf", metadata=metadata))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"tokenizer.ggml.model": "rwkv"}, "has a tokenizer of the kind 'rwkv'; drafttree reads those of GPT-2's kind"),
        ({"tokenizer.ggml.model": None}, "has no tokenizer"),
        (
            {"tokenizer.ggml.pre": "new-2027"},
            "splits text by 'new-2027' (tokenizer.ggml.pre); drafttree knows ",
        ),
        ({"tokenizer.ggml.pre": None}, "splits text by 'default'"),
        ({"tokenizer.ggml.merges": None}, "of GPT-2's kind without merges"),
        ({"tokenizer.ggml.model": "llama"}, "of SentencePiece's kind without a score for each token"),
    ],
)
def test_a_tokenizer_that_is_not_known_is_named(llama, tmp_path, metadata, message):
    path = gguf_files.write(llama, tmp_path / "model.gguf", metadata=metadata)
    assert message in told(ModelError, drafttree.load, path, "none")
    assert drafttree.load(path, "none", tokenizer=load_tokenizer("embedded")).generate("a", max_new_tokens=2).tokens


def test_ids_that_are_no_tokens_are_told(llama, tmp_path):
    path = gguf_files.write(llama, tmp_path / "model.gguf", metadata={"tokenizer.ggml.eos_token_id": 5000})
    assert "gives tokenizer.ggml.eos_token_id as 5000, which is not a token's id" in refused(path)
    path = gguf_files.write(llama, tmp_path / "none.gguf", metadata={"tokenizer.ggml.tokens": None})
    assert "has no tokens (tokenizer.ggml.tokens)" in refused(path)


def test_tensors_without_a_place_are_named(tmp_path):
    path = gguf_files.write(tiny.from_config(gguf_files.CONFIGS["qwen3"]()), tmp_path / "model.gguf")
    message = refused(path, path.read_bytes().replace(b"qwen3", b"llama"))
    assert "tensors that a model of its architecture (llama) has no place for: blk.0.attn_k_norm.weight, " in message


def test_a_kind_of_weights_that_gguf_does_not_know_is_named(path):
    content = bytearray(path.read_bytes())
    name = b"blk.2.ffn_up.weight"
    place = content.index(name) + len(name) + 4 + 2 * 8
    content[place : place + 4] = struct.pack("<I", 77)
    message = refused(path, bytes(content))
    assert (
        "holds blk.2.ffn_up.weight in a kind of weights that the package gguf does not know (number 77); update"
        in message
    )


def test_the_package_that_reads_weights_is_asked_for(path, monkeypatch):
    def refuse(purpose, extra):
        raise ConfigError(f'{purpose} needs gguf, which is not installed: pip install "drafttree[{extra}]"')

    monkeypatch.setattr("drafttree.loading.folders.check_requirements", refuse)
    message = told(ConfigError, drafttree.load, path)
    assert message == 'reading a GGUF file needs gguf, which is not installed: pip install "drafttree[gguf]"'


def test_paths_and_folders(path, llama, tmp_path):
    folder = path.parent
    assert find_gguf(folder) == path
    assert find_gguf("embedded") is find_gguf("lookup") is find_gguf("org/name") is None
    (folder / "mmproj-model.gguf").write_bytes(b"GGUF")
    assert find_gguf(folder) == path
    gguf_files.write(llama, folder / "other.gguf")
    assert "holds several GGUF files: model.gguf, other.gguf; name one of them" in told(ModelError, find_gguf, folder)
    assert "GGUF file 'none.gguf' does not exist; give a file, or one of the hub" in told(
        ModelError, find_gguf, "none.gguf"
    )
    assert told(ModelError, drafttree.load, "embedded", "none.gguf").startswith("GGUF file 'none.gguf' does not exist")
    assert told(ModelError, drafttree.load, "embedded", "mixed:none.gguf").startswith("GGUF file 'none.gguf' does not")
    message = told(ModelError, drafttree.load, path, "mtp")
    assert "which drafttree cannot read from a GGUF file" in message


def test_a_folder_with_weights_of_both_kinds_is_told_which_are_taken(path, llama, caplog):
    llama.save_pretrained(path.parent)
    load_tokenizer("embedded").save_pretrained(path.parent)
    decoder = drafttree.load(path.parent, "none")
    assert decoder.target.module.name_or_path == str(path.parent)
    assert f"{path.parent} holds model.safetensors and model.gguf; the first is used" in caplog.text
    assert drafttree.load(path, "none").target.module.name_or_path == str(path)


@given(st.data())
def test_a_damaged_file_is_refused_and_never_fails_otherwise(small, data):
    content = bytearray(small[1])
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content)))]
    for _ in range(data.draw(st.integers(0, 4))):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    small[0].write_bytes(content)
    with suppress(ModelError):
        settings_of(GGUFFile(small[0]))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A file of few bytes and its content, all of which a property may change."""
    path = tmp_path_factory.mktemp("small") / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in (
        ("block_count", 1),
        ("context_length", 64),
        ("embedding_length", 32),
        ("feed_forward_length", 32),
    ):
        writer.add_uint32(f"llama.{key}", value)
    writer.add_uint32("llama.attention.head_count", 4)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_string("llama.rope.scaling.type", "none")
    writer.add_array("tokenizer.ggml.tokens", ["a", "b", "c"])
    writer.add_array("tokenizer.ggml.scores", [0.0, -1.0, -2.0])
    writer.add_tensor("token_embd.weight", torch.zeros(3, 32).numpy())
    writer.add_tensor("blk.0.ffn_norm.weight", torch.ones(32).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    settings_of(GGUFFile(path))
    return path, path.read_bytes()


def write_experts(path: Path, **changed: Tensor) -> Path:
    """A mixture's file with some tensors of its second layer replaced, or left out where they are empty."""
    model = tiny.from_config(gguf_files.CONFIGS["qwen3_moe"]())
    given = {f"blk.1.ffn_{name}_exps.weight": value for name, value in changed.items()}
    left_out = [name for name, value in given.items() if not value.numel()]
    replaced = {name: value for name, value in given.items() if value.numel()}
    return gguf_files.write(model, path, "Q4_0", without=left_out, tensors=replaced)


@pytest.mark.parametrize("quantize", ["none", None])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"up": torch.ones(7, 32, 64)}, "blk.1.ffn_up_exps.weight is [7, 32, 64] and should be [8, 32, 64]"),
        ({"down": torch.ones(9, 64, 32)}, "layers.1.mlp.experts.down_proj is [9, 64, 32] and should be [8, 64, 32]"),
        (
            {"gate": torch.ones(8, 16, 64), "up": torch.ones(8, 48, 64)},
            "blk.1.ffn_gate_exps.weight is [8, 16, 64] and should be [8, 32, 64]",
        ),
        ({"up": torch.ones(8, 32, 96)}, "blk.1.ffn_up_exps.weight is [8, 32, 96] and should be [8, 32, 64]"),
        ({"up": torch.empty(0)}, "holds blk.1.ffn_gate_exps.weight, and not both gates and up projections"),
    ],
)
def test_experts_of_other_sizes_are_named_before_they_are_read(changed, message, quantize, tmp_path):
    path = write_experts(tmp_path / "model.gguf", **changed)
    assert message in told(ModelError, drafttree.load, path, "none", quantize=quantize)
    assert any(message in problem for problem in inspect(str(path)).problems)


@pytest.mark.parametrize("chosen", [0, 9])
def test_a_token_has_as_many_experts_as_there_are_at_most(chosen, tmp_path):
    model = tiny.from_config(gguf_files.CONFIGS["qwen3_moe"]())
    path = gguf_files.write(model, tmp_path / "model.gguf", metadata={"qwen3moe.expert_used_count": chosen})
    assert f"expert_used_count is {chosen}, of 8 experts" in refused(path)


def test_a_tensor_without_numbers_is_named(llama, tmp_path):
    path = gguf_files.write(llama, tmp_path / "model.gguf", tensors={"blk.1.attn_v.weight": torch.empty(32, 0)})
    assert "holds blk.1.attn_v.weight of the shape [32, 0]" in refused(path)


def test_weights_that_are_unpacked_must_fit_into_memory(tmp_path, monkeypatch):
    model = tiny.from_config(gguf_files.CONFIGS["qwen3_moe"]())
    kinds = {f"blk.{layer}.ffn_up_exps.weight": "Q8_0" for layer in range(3)}  # so that experts do not stay in blocks
    path = gguf_files.write(model, tmp_path / "model.gguf", "Q4_0", kinds=kinds)
    monkeypatch.setattr(memory, "free_bytes", lambda: path.stat().st_size + 1000)
    assert "GB of memory are free" in refused(path)
