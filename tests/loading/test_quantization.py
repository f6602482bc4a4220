"""Models that are quantised as they are loaded: another model with a text of its own, the same in every way."""

import json
import logging

import pytest
from transformers import GPT2Config, StableLmConfig

import drafttree
from drafttree.drafters import LanguageModelDrafter
from drafttree.errors import ConfigError, ModelError
from drafttree.loading import target_options
from drafttree.loading.inspect import inspect
from drafttree.measure.reference import find_difference, transformers_generate, transformers_model
from drafttree.models.module.module_backend import ModuleBackend
from drafttree.models.native.native_backend import NativeBackend
from drafttree.models.quantization.int8_linear import Int8Linear
from helpers.refusals import told
from testing import tiny
from testing.marks import needs_native
from testing.tokenizers import words

pytestmark = needs_native
PROMPT = [3, 1, 4, 1, 5]
OPTIONS = {"max_new_tokens": 20, "ignore_eos": True}


@pytest.mark.few(1)
@pytest.mark.parametrize("options", [{}, {"exact_text": True}, {"dtype": "float32"}])
@pytest.mark.parametrize("policy", ["chain", "talon:budget=9,width=3"])
def test_text_in_trees_is_plain_decodings(policy, options, folder):
    decoder = drafttree.load(folder, folder, policy, quantize="int8", **options)
    assert isinstance(transformers_model(decoder).backend, NativeBackend)
    assert decoder.target.exact_text
    assert decoder.generate(PROMPT, **OPTIONS).tokens == decoder.plain().generate(PROMPT, **OPTIONS).tokens


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_text_is_transformers_own_or_differs_by_a_tie_of_eight_bits(dtype):
    decoder = drafttree.load("embedded", "none", dtype=dtype, quantize="int8")
    for text in ("The old man", "def add(a, b):", "It was", "In the beginning"):
        prompt = decoder.tokenizer.encode(text)
        found = decoder.generate(prompt, **OPTIONS).tokens
        expected = transformers_generate(decoder, prompt, **OPTIONS).tokens
        difference = find_difference(decoder, prompt, expected, found, **OPTIONS)
        assert difference is None or difference.is_tie


@pytest.mark.usefixtures("on_torch")
def test_on_a_cpu_it_needs_the_package(folder):
    for options in ({"quantize": "int8"}, {"quantize_drafter": "int8"}):
        message = told(ConfigError, drafttree.load, folder, folder, device="cpu", **options)
        install = 'pip install "drafttree[native]"'
        assert message == f"{next(iter(options))}='int8' needs drafttree-native on a CPU; install it: {install}"


def test_what_the_package_does_not_know_is_left_to_the_module(tmp_path):
    tiny.from_config(StableLmConfig(**tiny.GROUPED)).save_pretrained(tmp_path)
    words("a", "b").save_pretrained(tmp_path)
    decoder = drafttree.load(tmp_path, "none", dtype="float32", quantize="int8")
    assert isinstance(transformers_model(decoder).backend, ModuleBackend)
    text = decoder.generate(PROMPT, **OPTIONS).tokens
    assert text == transformers_generate(decoder, PROMPT, **OPTIONS).tokens


def test_it_is_named_and_smaller(folder, caplog):
    with caplog.at_level(logging.INFO, "drafttree"):
        quantised = drafttree.load(folder, "none", quantize="int8").target
    plain = drafttree.load(folder, "none", dtype="bfloat16").target
    assert ", bfloat16 with int8 weights, cpu, " in repr(quantised)
    assert quantised.nbytes < plain.nbytes
    sizes = f"{quantised.nbytes / 1e6:.1f} MB instead of {plain.nbytes / 1e6:.1f}"
    assert f"{folder}: quantised to int8, {sizes}" in caplog.messages


def test_a_drafter_alone_may_be_quantised(folder):
    decoder = drafttree.load(folder, folder, dtype="float32", quantize_drafter="int8")
    assert isinstance(decoder.drafter, LanguageModelDrafter)
    assert decoder.drafter.nbytes < decoder.target.nbytes
    plain = drafttree.load(folder, "none", dtype="float32")
    assert decoder.generate(PROMPT, **OPTIONS).tokens == plain.generate(PROMPT, **OPTIONS).tokens


def test_a_large_drafter_is_quantised_by_default(folder, monkeypatch):
    small = drafttree.load(folder, folder, dtype="float32").drafter
    monkeypatch.setattr(target_options, "MANY_BYTES", 1)
    found, asked, left, named = (
        drafttree.load(folder, folder, "chain", dtype="float32", **options).drafter
        for options in ({}, {"quantize_drafter": "int8"}, {"quantize_drafter": "none"}, {"quantize_drafter": None})
    )
    assert found.nbytes == asked.nbytes < small.nbytes
    assert left.nbytes == named.nbytes == small.nbytes
    assert isinstance(found.model.module.get_output_embeddings(), Int8Linear)


def test_with_drafter_quantises_by_default_too(folder, monkeypatch):
    monkeypatch.setattr(target_options, "MANY_BYTES", 1)
    decoder = drafttree.load(folder, "lookup", dtype="float32").with_drafter(folder)
    assert decoder.drafter.model.quantization == "int8"
    assert decoder.target.quantization is None


def test_a_loaded_drafter_keeps_its_weights(folder, monkeypatch):
    monkeypatch.setattr(target_options, "MANY_BYTES", 1)
    decoder = drafttree.load(folder, tiny.build("llama"), dtype="float32")
    assert decoder.drafter.model.quantization is None


def test_a_drafter_that_native_does_not_run_keeps_its_weights(folder, monkeypatch, tmp_path):
    monkeypatch.setattr(target_options, "MANY_BYTES", 1)
    tiny.build("gpt2").save_pretrained(tmp_path)
    decoder = drafttree.load(folder, tmp_path, dtype="float32")
    assert decoder.drafter.model.quantization is None


@pytest.mark.few(1)
@pytest.mark.parametrize("head", ["embedded-hydra", "mixed:embedded-eagle3"])
def test_heads_draft_for_a_quantised_target(head):
    decoder = drafttree.load("embedded", head, "talon:budget=12", dtype="float32", quantize="int8")
    text = decoder.generate("The old man", max_new_tokens=24)
    assert text.tokens == decoder.plain().generate("The old man", max_new_tokens=24).tokens
    assert text.metrics.mean_accepted_tokens > 1
    assert text.metrics.draft_weight_bytes == drafttree.load("embedded", head, dtype="float32").drafter.nbytes


@pytest.mark.parametrize("option", ["quantize", "quantize_drafter"])
@pytest.mark.parametrize("kind", ["int3", 8, True, ["int8"]])
def test_kinds_that_do_not_exist_are_told(option, kind, folder):
    message = told(ConfigError, drafttree.load, folder, folder, **{option: kind})
    assert message.startswith(f"unknown {option} {kind!r}")
    assert "int8" in message


def test_loaded_models_are_not_changed(folder):
    message = told(ConfigError, drafttree.load, tiny.build("llama"), "none", quantize="int8")
    assert "quantize='int8' is for a model that is loaded by name; give its folder" in message
    message = told(ConfigError, drafttree.load, folder, tiny.build("llama"), quantize_drafter="int8")
    assert "quantize_drafter='int8' is for a model that is loaded by name" in message


@pytest.mark.parametrize("drafter", ["lookup", "none", None])
def test_only_language_models_draft_quantised(drafter, folder):
    message = told(ConfigError, drafttree.load, folder, drafter, quantize_drafter="int8")
    assert message.endswith(f"quantize_drafter='int8' is for a language model that drafts, not {str(drafter)!r}")


def test_what_cannot_draft_quantised_is_told_before_the_target_is_read(tmp_path):
    (tmp_path / "config.json").write_text(tiny.build("llama").config.to_json_string())  # and no weights
    message = told(ConfigError, drafttree.load, tmp_path, "lookup", quantize_drafter="int8")
    assert "is for a language model that drafts, not 'lookup'" in message


def test_heads_are_not_quantised():
    message = told(ConfigError, drafttree.load, "embedded", "embedded-medusa", quantize_drafter="int8")
    assert "is for a language model that drafts, not 'embedded-medusa'" in message


def test_what_is_quantised_already_is_told_before_its_weights_are_read(folder):
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))
    message = told(ModelError, drafttree.load, folder, "none", quantize="int8")
    assert message == f"{str(folder)!r} is quantised already (gptq); leave out quantize"
    assert inspect(str(folder)).details["quantised"] == "gptq"


def test_a_model_without_linear_layers_is_told(tmp_path):
    tiny.from_config(GPT2Config(**tiny.SIZES)).save_pretrained(tmp_path)
    words("a", "b").save_pretrained(tmp_path)
    message = told(ModelError, drafttree.load, tmp_path, "none", quantize="int8")
    assert "GPT2LMHeadModel has no linear layers to quantise but its head; leave out quantize" in message
