"""low_memory: weights that exist once, the same text, and what cannot be had with it."""

import pytest
import torch
from torch import nn

import drafttree
from drafttree.errors import ConfigError
from drafttree.evaluation.reference import transformers_generate, transformers_model
from drafttree.models.fused import fused_linear
from drafttree.models.fused.fused_backend import FusedBackend
from drafttree.models.fused.packed_linear import PackedLinear
from helpers.refusals import told
from testing import tiny

PROMPT = [3, 1, 4, 1, 5]
OPTIONS = {"max_new_tokens": 20, "ignore_eos": True}


@pytest.fixture(autouse=True)
def packs(monkeypatch):
    """Weights of any size are packed."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(fused_linear, "PACKED_FROM", 1)


def test_weights_exist_once_and_the_text_is_the_same(folder):
    usual = drafttree.load(folder, folder, "talon:budget=9,width=3", dtype="float32")
    decoder = drafttree.load(folder, folder, "talon:budget=9,width=3", dtype="float32", low_memory=True)
    assert isinstance(decoder.target.backend, FusedBackend)
    assert (decoder.target.packed_nbytes, decoder.target.nbytes) == (0, usual.target.nbytes)
    assert usual.target.packed_nbytes > 0
    text = decoder.generate(PROMPT, **OPTIONS).tokens
    assert text == usual.generate(PROMPT, **OPTIONS).tokens
    assert text == decoder.plain().generate(PROMPT, **OPTIONS).tokens
    assert text == transformers_generate(decoder, PROMPT, **OPTIONS).tokens


def test_a_state_dict_has_the_weights_as_they_were(folder, tmp_path):
    usual, low = (drafttree.load(folder, "none", dtype="float32", low_memory=low) for low in (False, True))
    expected, found = (transformers_model(each).module.state_dict() for each in (usual, low))
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    low.target.release()
    transformers_model(low).module.save_pretrained(tmp_path)
    again = drafttree.load(tmp_path, "none", dtype="float32", tokenizer=low.tokenizer)
    assert again.generate(PROMPT, **OPTIONS).tokens == usual.generate(PROMPT, **OPTIONS).tokens


@pytest.mark.parametrize("options", [{"quantize": "int8"}, {"exact_text": True}, {"lossy_window": 8}])
def test_it_goes_with_other_forms_of_the_target(options, folder):
    usual, low = (drafttree.load(folder, "none", dtype="float32", low_memory=low, **options) for low in (False, True))
    assert low.generate(PROMPT, **OPTIONS).tokens == usual.generate(PROMPT, **OPTIONS).tokens


def test_every_linear_layer_but_the_head_is_packed(folder):
    module = transformers_model(drafttree.load(folder, "none", dtype="float32", low_memory=True)).module
    assert [part for part in module.modules() if type(part) is nn.Linear] == [module.get_output_embeddings()]
    assert any(isinstance(part, PackedLinear) for part in module.modules())


def test_what_cannot_be_had_is_told(folder):
    message = told(ConfigError, drafttree.load, tiny.build("llama"), "none", low_memory=True)
    assert message == "low_memory is for a target that is loaded by name; give its folder or hub name"
    assert "low_memory is 1; give True or False" in told(ConfigError, drafttree.load, folder, "none", low_memory=1)
