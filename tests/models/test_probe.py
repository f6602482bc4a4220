"""A model is trusted with trees only after a tree pass has agreed with the model's own logits."""

import pytest
import torch

import tiny
from drafttree.errors import ModelError
from drafttree.models import attention
from drafttree.models.probe import wrap


@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_known_architectures_pass(name):
    assert wrap(tiny.build(name)).vocab_size


def test_bfloat16_passes():
    assert wrap(tiny.build("llama").to(torch.bfloat16)).dtype == torch.bfloat16


def test_a_model_that_sees_siblings_is_refused_and_left_as_it_was(monkeypatch):
    module = tiny.build("llama")
    before = module.config._attn_implementation
    monkeypatch.setattr(attention.TreePlan, "mask", lambda *_: None)
    with pytest.raises(ModelError, match="differ by"):
        wrap(module)
    assert module.config._attn_implementation == before


def test_one_module_can_be_wrapped_twice_and_given_back():
    module = tiny.build("llama")
    before = module.config._attn_implementation
    wrap(module)
    again = wrap(module)
    again.release()
    assert module.config._attn_implementation == before
