"""Embedded models share their weights in memory, and nothing else: no change of one is seen by another."""

import gc
import os
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model

import drafttree
from drafttree import Decoder
from drafttree.loading import pretrained, shared_weights
from testing.marks import needs_native

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no files in memory here")
MAPPED = "memfd:drafttree weights"
PROMPT = "The old man looked at the sea"


def load(**options) -> Decoder:
    return drafttree.load(**{"drafter": "embedded-draft", "policy": "chain", "dtype": "float32", **options})


def text(decoder: Decoder) -> list[int]:
    return decoder.generate(PROMPT, max_new_tokens=12, temperature=0).tokens


def resident() -> int:
    """Bytes of this process, where a page that is mapped several times counts once."""
    gc.collect()
    lines = dict(line.split(":", 1) for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return 1024 * int(lines["Pss"].split()[0])


@pytest.fixture(autouse=True)
def _nothing_loaded():
    gc.collect()
    shared_weights._files.clear()


def test_the_files_are_read_once(monkeypatch):
    read, reads = pretrained._read, []
    monkeypatch.setattr(pretrained, "_read", lambda *arguments: reads.append(arguments[0]) or read(*arguments))
    decoders = [load() for _ in range(3)]
    assert len(reads) == 2
    assert text(decoders[0]) == text(decoders[2])
    load(dtype="bfloat16")
    assert len(reads) == 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_second_model_takes_no_memory_for_its_weights(dtype, on_torch):
    first = load(drafter="none", dtype=dtype).target.module
    size = sum(each.nbytes for each in first.parameters())
    before = resident()
    others = [load(drafter="none", dtype=dtype).target.module for _ in range(3)]
    for model in others:  # all pages are touched
        assert all(
            torch.equal(ours, theirs) for ours, theirs in zip(first.parameters(), model.parameters(), strict=True)
        )
    assert resident() - before < size


@needs_native
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_second_model_packs_its_weights_and_keeps_nothing_else(dtype):
    first = load(drafter="none", dtype=dtype)
    size, before = first.target.nbytes, resident()
    others = [load(drafter="none", dtype=dtype) for _ in range(3)]
    assert resident() - before < 1.2 * len(others) * size


def test_a_change_in_place_is_the_models_own():
    one, other = load(), load()
    expected = text(other)
    with torch.no_grad():
        for weight in one.target.module.parameters():
            weight.mul_(-1)
            weight.data.add_(1)
    assert text(one) != expected
    assert text(other) == text(load()) == expected


def test_hooks_and_adapters_are_the_models_own():
    one, other = load(), load()
    expected = text(other)
    one.target.module.register_forward_hook(lambda _, __, output: output)
    adapted = get_peft_model(other.target.module, LoraConfig(init_lora_weights=False, target_modules=["q_proj"]))
    assert not one.target.module.get_submodule("model.layers.0.self_attn.q_proj")._forward_hooks
    assert text(one) == expected
    adapted.merge_and_unload()
    assert text(one) == text(load()) == expected


def test_weights_are_laid_out_as_those_of_a_model_of_its_own(tmp_path):
    one, folder = load(drafter="none"), str(pretrained.zoo.folder("embedded"))
    plain = pretrained._fused(pretrained._read("embedded", folder, torch.float32, torch.device("cpu")))
    for (name, ours), (_, own) in zip(one.target.module.named_parameters(), plain.named_parameters(), strict=True):
        assert torch.equal(ours, own), name
        assert (ours.stride(), ours.requires_grad) == (own.stride(), own.requires_grad), name
        assert ours.data_ptr() % own.element_size() == 0
    one.target.module.save_pretrained(tmp_path)
    saved = drafttree.load(tmp_path, "none", dtype="float32", tokenizer=one.tokenizer)
    assert text(saved) == text(one)


@needs_native
def test_quantised_models_have_their_own():
    load(drafter="none", quantize="int8")
    assert not shared_weights._files


def mappings() -> int:
    """How many of the files this process has mapped; tests before may have left models that somebody keeps."""
    return Path("/proc/self/maps").read_text().count(MAPPED)


def test_the_weights_go_with_the_last_model():
    gc.collect()
    before = mappings()
    one, other = load(), load()
    assert len(shared_weights._files) == 2
    del one
    gc.collect()
    assert len(shared_weights._files) == 2
    assert mappings() > before
    assert text(other)
    del other
    for _ in range(2):  # what drafttree-native holds goes with the module
        gc.collect()
    assert len(shared_weights._files) == 0
    assert mappings() == before
