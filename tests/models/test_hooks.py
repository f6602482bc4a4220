"""Hooks are part of the model; those that tell one token from several cannot be verified in a tree."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import drafttree
from drafttree import Decoder
from drafttree.drafters import LanguageModelDrafter
from drafttree.errors import ModelError
from drafttree.models import TargetModel
from drafttree.models.backend_choice import choose_backend
from drafttree.models.base import prefill
from drafttree.models.module.module_backend import ModuleBackend
from drafttree.policies import Talon
from helpers.refusals import told
from testing import families, tiny

PROMPT = tiny.random_tokens(9, 1)
IDS = torch.tensor([PROMPT])
OPTIONS = {"max_new_tokens": 12, "do_sample": False}


def last_token(_: object, __: object, out: Tensor) -> Tensor:
    out = out.clone()
    out[:, -1] += 3
    return out


def prompt_only(_: object, __: object, out: Tensor) -> Tensor:
    return out if out.shape[1] == 1 else out + torch.linspace(-3, 3, out.shape[-1])


def decoding_only(_: object, __: object, out: Tensor) -> Tensor:
    return out if out.shape[1] > 1 else out + torch.linspace(-3, 3, out.shape[-1])


@pytest.mark.parametrize("hook", [last_token, prompt_only, decoding_only])
def test_hooks_that_count_tokens_are_refused_whenever_they_are_added(hook: Callable):
    module = tiny.build("llama")
    speculate = drafttree.hf.generate("lookup")
    module.generate(IDS, **OPTIONS, custom_generate=speculate)
    decoder = drafttree.load(module, "lookup")
    module.model.layers[1].register_forward_hook(hook)
    assert "logits there differ" in told(ModelError, decoder.generate, PROMPT, max_new_tokens=12)
    decoder.target.release()
    assert "logits there differ" in told(ModelError, module.generate, IDS, **OPTIONS, custom_generate=speculate)


@pytest.mark.parametrize("name", [name for name in ("lfm2", "qwen3_5", "falcon_h1") if name in families.known()])
def test_hooks_on_a_recurrent_layers_projection_are_called_once_per_token(name):
    module = tiny.from_config(families.config(name))
    part = next(part for name, part in module.named_modules() if name.endswith("out_proj"))
    part.register_forward_hook(lambda _, __, out: out * 2 + 0.5)
    expected = module.generate(IDS, **OPTIONS)[0, len(PROMPT) :].tolist()
    target = TargetModel(module, choose_backend)
    decoder = Decoder(target, LanguageModelDrafter(target), Talon(budget=8))
    assert decoder.generate(PROMPT, max_new_tokens=12).tokens == expected


def test_numbers_that_layers_keep_are_noticed():
    module = tiny.build("llama")
    decoder = drafttree.load(module, "lookup")
    before = decoder.generate(PROMPT, max_new_tokens=12).tokens
    for layer in module.model.layers:
        layer.self_attn.scaling *= 3
    decoder.target.release()
    expected = module.generate(IDS, **OPTIONS)[0, len(PROMPT) :].tolist()
    assert decoder.generate(PROMPT, max_new_tokens=12).tokens == expected != before


def test_a_forward_that_was_put_into_a_class_is_never_bypassed(monkeypatch):
    """Libraries replace `forward` in transformers' classes; what such a function closes over decides texts."""
    module, scale = tiny.build("llama"), [1.0]
    kind = type(module.model.layers[0].mlp)
    own = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, states: scale[0] * own(self, states))
    decoder = drafttree.load(module, "lookup")
    with drafttree.Engine(decoder) as engine:
        before = engine.submit(PROMPT, max_new_tokens=12).result().tokens
        scale[0] = 0.2
        after = engine.submit(PROMPT, max_new_tokens=12).result()
    alone = decoder.generate(PROMPT, max_new_tokens=12).tokens
    decoder.target.release()
    expected = module.generate(IDS, **OPTIONS)[0, len(PROMPT) :].tolist()
    assert after.tokens == alone == expected != before
    assert after.metrics.reused_tokens == 0
    assert repr(decoder.target).endswith(
        "ModuleBackend (no NativeBackend or FusedBackend: the forward of the class LlamaMLP is replaced), "
        "reuses no rows by default because of the forward of the class LlamaMLP)"
    )


def test_rows_are_not_reused_where_a_class_of_layers_closes_over_values():
    module, scale = tiny.build("llama"), [1.0]

    class Scaled(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module):
            super().__init__()
            self.inner = inner

        def forward(self, states: Tensor) -> Tensor:
            return scale[0] * self.inner(states)

    for layer in module.model.layers:
        layer.mlp = Scaled(layer.mlp)
    decoder = drafttree.load(module, "lookup")
    with drafttree.Engine(decoder) as engine:
        before = engine.submit(PROMPT, max_new_tokens=12).result().tokens
        scale[0] = 0.2
        after = engine.submit(PROMPT, max_new_tokens=12).result().tokens
    decoder.target.release()
    assert after == module.generate(IDS, **OPTIONS)[0, len(PROMPT) :].tolist() != before
    assert decoder.target.unseen == "the forward of the class Scaled"


def test_hidden_states_of_llama_4_are_found():
    module = tiny.from_config(families.config("llama4"))
    expected = module(IDS, output_hidden_states=True).hidden_states
    backend = ModuleBackend(module)
    with torch.inference_mode():
        _, states = prefill(backend, backend.new_cache(16), PROMPT, (0, 1, 4))
    for layer, state in zip((0, 1, 4), states, strict=True):
        torch.testing.assert_close(state, expected[layer], atol=1e-4, rtol=1e-4)
