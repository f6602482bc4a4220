"""Whatever is edited after it was packed, the next text is that of a model packed anew, on the same backend.

Models of one seed are edited before and after they are packed; both have to give the same logits bit for bit.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from transformers import MistralConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaMLP

import drafttree
from drafttree.models import TargetModel
from drafttree.models.backend_choice import choose_backend
from drafttree.models.base import append
from drafttree.models.native.native_backend import NativeBackend
from drafttree.models.quantization.quantize import quantize_int8
from testing import tiny
from testing.fused_families import CONFIGS
from testing.marks import needs_native

pytestmark = needs_native
Edit = Callable[[Any], object]
TOKENS = tiny.random_tokens(12, 1)


def make(name: str, dtype: torch.dtype = torch.float32, quantize: str | None = None) -> Any:
    module: Any = tiny.from_config(CONFIGS[name]()).to(dtype)
    if quantize:
        quantize_int8(module)
    return module


@torch.inference_mode()
def logits(model: TargetModel) -> torch.Tensor:
    return append(model, model.new_cache(len(TOKENS)), TOKENS).logits


def vector(module: PreTrainedModel, size: int, seed: int = 3) -> nn.Parameter:
    return nn.Parameter(torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(module.dtype))


def check(make_module: Callable[[], Any], edits: Sequence[Edit]) -> None:
    """Each edit changes the logits, into those of a model that had all edits so far before it was packed."""
    model = TargetModel(make_module(), choose_backend)
    before = logits(model)
    for count, edit in enumerate(edits, start=1):
        edit(model.module)
        after = logits(model)
        anew = make_module()
        for earlier in edits[:count]:
            earlier(anew)
        assert torch.equal(after, logits(TargetModel(anew, choose_backend))), count
        assert not torch.equal(after, before), count
        assert isinstance(model.backend, NativeBackend), count
        before = after


def output(module: Any) -> Any:
    return module.model.layers[1].self_attn.o_proj


def assign(module: Any) -> None:
    bias = {"model.layers.1.self_attn.o_proj.bias": vector(module, 32, 5)}
    module.load_state_dict(bias, assign=True, strict=False)


BIASES: list[Edit] = [
    lambda module: setattr(output(module), "bias", vector(module, 32)),
    lambda module: setattr(output(module), "bias", vector(module, 32, 4)),
    assign,
    lambda module: setattr(output(module), "bias", None),
    lambda module: output(module).register_parameter("bias", vector(module, 32, 6)),
    lambda module: output(module)._parameters.update(bias=None),
    lambda module: setattr(module.lm_head, "bias", vector(module, tiny.VOCAB)),
    lambda module: setattr(module.model.layers[0].self_attn.k_proj, "bias", vector(module, 16)),
]


def rescale(module: Any) -> None:
    output(module).scale = nn.Parameter(output(module).scale * 1.5, requires_grad=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_biases_beside_packed_weights_are_noticed(dtype):
    check(lambda: make("llama", dtype), BIASES)


def test_biases_and_scales_beside_packed_weights_of_eight_bits_are_noticed():
    check(lambda: make("llama", torch.bfloat16, "int8"), [rescale, BIASES[0], BIASES[1], rescale])


@torch.no_grad()
def scale_last(tensor: torch.Tensor) -> None:
    tensor[-1] *= 1.02


def turn(block: Any) -> None:
    block.use_parallel_residual = not block.use_parallel_residual


def swap(mlp: Any) -> None:
    mlp.gate_proj, mlp.up_proj = mlp.up_proj, mlp.gate_proj


SETTINGS: dict[str, list[Edit]] = {
    "llama": [
        lambda module: scale_last(module.model.rotary_emb.inv_freq),
        lambda module: setattr(module.model.rotary_emb, "inv_freq", module.model.rotary_emb.inv_freq * 0.9),
        lambda module: setattr(module.model.rotary_emb, "attention_scaling", 1.001),
        lambda module: setattr(module.model.layers[1].self_attn, "scaling", 0.36),
        lambda module: setattr(module.model.layers[0].self_attn, "scaling", torch.tensor(0.3)),
        lambda module: module.model.layers[0].self_attn.scaling.mul_(1.1),
        lambda module: setattr(module.model.layers[1].input_layernorm, "variance_epsilon", 1e-4),
        lambda module: setattr(module.model.norm, "variance_epsilon", 1e-3),
        lambda module: setattr(module.model.layers[1].mlp, "act_fn", nn.GELU(approximate="tanh").eval()),
        lambda module: swap(module.model.layers[1].mlp),
    ],
    "granite": [
        lambda module: setattr(module.model, "embedding_multiplier", 3.01),
        lambda module: setattr(module.model.layers[0], "residual_multiplier", 0.401),
        lambda module: setattr(module.config, "logits_scaling", 6.01),
    ],
    "gemma3": [
        lambda module: module.get_input_embeddings().embed_scale.mul_(1.01),
        lambda module: scale_last(module.model.rotary_emb.sliding_attention_inv_freq),
        lambda module: setattr(module.model.layers[0].self_attn.q_norm, "eps", 1e-2),
    ],
    "gpt_neox": [
        lambda module: turn(module.gpt_neox.layers[0]),
        lambda module: setattr(module.gpt_neox.layers[1].input_layernorm, "eps", 1e-3),
        lambda module: setattr(module.gpt_neox.final_layer_norm, "bias", None),
    ],
    "mistral_sliding": [lambda module: setattr(module.config, "sliding_window", 3)],
}


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_packed_beside_weights_is_noticed(name):
    check(lambda: make(name), SETTINGS[name])


def test_a_window_that_no_comparison_reaches_is_noticed():
    """Windows longer than the trees by which backends are compared with the module."""
    sizes = {**tiny.GROUPED, "max_position_embeddings": 512}

    def text(window: int, edited: int) -> list[float]:
        module = tiny.from_config(MistralConfig(**sizes, sliding_window=window))
        decoder = drafttree.load(module, "none")
        decoder.generate(prompt, max_new_tokens=1)
        module.config.sliding_window = edited
        return decoder.generate(prompt, max_new_tokens=1, temperature=0, logprobs=True).logprobs

    prompt = tiny.random_tokens(90, 1)
    assert text(80, 50) == text(50, 50) != text(80, 80)


def test_a_text_alone_in_a_list_and_in_an_engine_has_the_new_bias():
    module = make("llama")
    decoder = drafttree.load(module, "lookup", policy="chain")
    with drafttree.Engine(decoder) as engine:
        for token in (5, 6, 7):
            module.lm_head.bias = nn.Parameter(1e3 * nn.functional.one_hot(torch.tensor(token), tiny.VOCAB).float())
            if token == 5:
                found = [decoder.generate(TOKENS, max_new_tokens=4)]
            elif token == 6:
                found = decoder.generate([TOKENS, TOKENS[:5]], max_new_tokens=4)
            else:
                found = [engine.submit(TOKENS, max_new_tokens=4).result()]
            assert all(text.tokens == [token] * 4 for text in found)


def test_who_falls_back_says_why_and_comes_back(caplog):
    caplog.set_level(logging.INFO, logger="drafttree")
    model = TargetModel(make("llama"), choose_backend)
    activation = model.module.model.layers[1].mlp.act_fn
    model.module.model.layers[1].mlp.act_fn = nn.Mish()
    before = logits(model)
    reason = "no NativeBackend: a layer is not as those of its family (Mish is not a known activation)"
    assert f"FusedBackend ({reason})" in repr(model)
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", f"LlamaForCausalLM runs on FusedBackend: {reason}")
    ]
    model.module.model.layers[1].mlp.act_fn = activation
    assert not torch.equal(logits(model), before)
    assert repr(model).endswith("NativeBackend)")
    assert caplog.records[-1].message == "LlamaForCausalLM runs on NativeBackend again"


class Doubled(nn.Module):
    """A layer of a user's own."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return 2 * self.inner(states)


def place(module: Any, mlp: nn.Module) -> None:
    module.model.layers[2].mlp = mlp


OTHERS: dict[str, Edit] = {
    "model.layers.2.mlp is of the class Doubled, which is not one of transformers' own layers": lambda module: place(
        module, Doubled(module.model.layers[2].mlp)
    ),
    "model.layers.2.mlp has a forward hook": lambda module: module.model.layers[2].mlp.register_forward_hook(
        lambda _, __, output: 2 * output
    ),
    "the forward of model.layers.2.mlp is replaced": lambda module: setattr(
        module.model.layers[2].mlp, "forward", torch.zeros_like
    ),
    "model.layers.2.self_attn is in training mode; call its eval()": lambda module: module.model.layers[
        2
    ].self_attn.train(),
}


@pytest.mark.parametrize("reason", OTHERS)
def test_a_layer_that_no_other_code_may_run_is_named(reason, caplog):
    module = make("llama")
    decoder = drafttree.load(module, "lookup")
    decoder.generate(TOKENS, max_new_tokens=1)
    OTHERS[reason](module)
    decoder.generate(TOKENS, max_new_tokens=1)
    assert f"ModuleBackend (no NativeBackend or FusedBackend: {reason})" in repr(decoder.target)
    assert f"LlamaForCausalLM runs on ModuleBackend: no NativeBackend or FusedBackend: {reason}" in caplog.messages
    assert not decoder.target.exact_text


@pytest.mark.parametrize("tokens", [tiny.VOCAB + 7, tiny.VOCAB - 7])
def test_layers_made_in_training_mode_that_do_not_look_at_it_are_packed(tokens):
    module = make("llama")
    decoder = drafttree.load(module, "lookup")
    decoder.generate(TOKENS, max_new_tokens=1)
    module.resize_token_embeddings(tokens)
    module.model.layers[0].mlp = LlamaMLP(module.config)
    assert module.lm_head.training
    prompt = [token % tokens for token in TOKENS]
    text = decoder.generate(prompt, max_new_tokens=12, temperature=0).tokens
    assert repr(decoder.target).endswith("NativeBackend)")
    assert decoder.target.vocab_size == tokens
    decoder.target.release()
    ids = torch.tensor([prompt])
    assert text == module.generate(ids, max_new_tokens=12, do_sample=False)[0, len(prompt) :].tolist()
