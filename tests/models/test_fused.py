"""The lean decoder is the module it stands in for: same logits, same hidden states, same weights in memory."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from transformers import GPTNeoXConfig, LlamaConfig, MistralConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from drafttree.models import fused as lean
from drafttree.models.base import append, read
from drafttree.models.fused import LeanModel
from drafttree.models.huggingface import HuggingFaceModel, lay_out_for_cpu
from drafttree.models.validation import wrap
from helpers import tiny

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 1e4}
LLAMA3["original_max_position_embeddings"] = 32
CONFIGS = {name: tiny.CONFIGS[name] for name in ("gpt_neox", "llama", "qwen2", "qwen3", "mistral")} | {
    "gpt_neox_in_turn": lambda: GPTNeoXConfig(**tiny.SIZES, use_parallel_residual=False, rotary_pct=1.0),
    "llama_biased": lambda: LlamaConfig(**tiny.GROUPED, attention_bias=True, mlp_bias=True),
    "llama_tied": lambda: LlamaConfig(**tiny.GROUPED, tie_word_embeddings=True),
    "llama3_rope": lambda: LlamaConfig(**tiny.GROUPED, rope_parameters=LLAMA3),
}
every_family = pytest.mark.parametrize("name", CONFIGS)


def build(name: str) -> tuple[HuggingFaceModel, nn.Module]:
    """A wrapped model, lean if one fits, and an untouched clone of its module."""
    module = tiny.from_config(CONFIGS[name]())
    clone = deepcopy(module)
    return wrap(module), clone


@every_family
def test_logits_equal_transformers_along_every_path(name):
    model, clone = build(name)
    assert isinstance(model, LeanModel)
    cache, prefix = model.new_cache(1, 40), tiny.random_tokens(9, 1)
    read(model, cache, prefix[:6], chunk=4)
    append(model, cache, prefix[6:])
    tree = tiny.random_tree((3, 5, 4), 2)
    assert tiny.worst_gap(tiny.score(model, cache, tree)[0], clone, prefix, tree) < 1e-4


@every_family
def test_kept_rows_serve_the_next_round(name):
    model, clone = build(name)
    cache, prefix = model.new_cache(1, 12), tiny.random_tokens(5, 3)
    read(model, cache, prefix)
    for seed in (4, 5, 6):
        tree = tiny.random_tree((3, 3, 2), seed)
        tiny.score(model, cache, tree)
        path = tiny.leaf_paths(tree)[-1]
        cache.commit(path)
        prefix += tree.tokens[0, path].tolist()
    tree = tiny.random_tree((2, 4), 7)
    assert tiny.worst_gap(tiny.score(model, cache, tree)[0], clone, prefix, tree) < 1e-4


@every_family
def test_batches_of_trees_are_scored_like_lone_ones(name):
    model, _ = build(name)
    trees = [tiny.random_tree((2, 3), seed) for seed in (1, 2, 3)]
    lone = [tiny.score(model, model.new_cache(1, 8), tree)[0] for tree in trees]
    together = tiny.score(model, model.new_cache(3, 8), tiny.stacked(trees))
    torch.testing.assert_close(together, torch.stack(lone), atol=1e-5, rtol=1e-5)


@every_family
def test_hidden_layers_are_the_wrapped_models(name):
    model, clone = build(name)
    wrapped = HuggingFaceModel(clone)
    tree, layers = tiny.random_tree((2, 3), 8), tuple(range(tiny.LAYERS + 1))
    outputs = [
        m.forward(m.new_cache(1, 8), tree.tokens, tree.depths, tree.ancestors, hidden_layers=layers)
        for m in (model, wrapped)
    ]
    for ours, theirs in zip(outputs[0].hidden, outputs[1].hidden, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("laid_out", [False, True], ids=["as loaded", "input-major"])
def test_fused_weights_are_the_modules_own(laid_out):
    module = tiny.build("llama")
    if laid_out:
        lay_out_for_cpu(module)
    before = deepcopy(module.state_dict())
    size = _storage_bytes(module)
    assert isinstance(wrap(module), LeanModel)
    assert _storage_bytes(module) == size
    attention = module.model.layers[0].self_attn
    owners = {part.weight.untyped_storage().data_ptr() for part in (attention.q_proj, attention.v_proj)}
    assert len(owners) == 1
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


def test_the_module_keeps_working():
    model, clone = build("llama")
    model.release()
    tokens = torch.tensor([tiny.random_tokens(9, 1)])
    with torch.inference_mode():
        torch.testing.assert_close(model.module(tokens).logits, clone(tokens).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["mistral_sliding", "gemma3", "gpt2", "qwen2_moe_sliding"])
def test_other_architectures_stay_wrapped(name):
    assert type(wrap(tiny.build(name))) is HuggingFaceModel


def test_a_mistral_whose_window_is_never_full_stays_wrapped():
    config = MistralConfig(**tiny.GROUPED, sliding_window=4096)
    assert type(wrap(tiny.from_config(config))) is HuggingFaceModel


def test_replaced_linear_layers_stay_wrapped():
    class Quantised(nn.Linear):
        """A linear layer whose product is its own."""

    module = tiny.build("llama")
    own = module.model.layers[1].mlp.up_proj
    module.model.layers[1].mlp.up_proj = Quantised(own.in_features, own.out_features, bias=False)
    assert type(wrap(module)) is HuggingFaceModel


def test_a_lean_decoder_that_differs_is_not_trusted(monkeypatch):
    monkeypatch.setattr(lean.Pass, "rotate", lambda *_: None)
    assert type(wrap(tiny.build("llama"))) is HuggingFaceModel


def test_bfloat16_is_served():
    assert isinstance(wrap(tiny.build("llama").to(torch.bfloat16)), LeanModel)


def _storage_bytes(module: nn.Module) -> int:
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in module.parameters()}
    return sum(storages.values())


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_large_products_are_those_of_the_layer(biased, rows, monkeypatch):
    layer = nn.Linear(24, 40, bias=biased)
    x, residual = torch.randn(rows, 24), torch.randn(rows, 40)
    expected = (x.double() @ layer.weight.double().T + (layer.bias.double() if biased else 0)).float()
    for size in (1, 1 << 30):
        monkeypatch.setattr(lean, "PACKED_FROM", size)
        product = lean.product(layer)
        with torch.inference_mode():
            torch.testing.assert_close(product.of(x), expected, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(product.onto(residual, x), expected + residual, atol=1e-5, rtol=1e-5)


@every_family
def test_packed_weights_give_the_same_logits(name, monkeypatch):
    monkeypatch.setattr(lean, "PACKED_FROM", 1)
    model, clone = build(name)
    assert isinstance(model, LeanModel)
    cache, prefix, tree = model.new_cache(1, 40), tiny.random_tokens(9, 1), tiny.random_tree((3, 5, 4), 2)
    read(model, cache, prefix)
    assert tiny.worst_gap(tiny.score(model, cache, tree)[0], clone, prefix, tree) < 1e-4


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_rms_norms_are_transformers_own(size):
    norm = LlamaRMSNorm(40, eps=1e-5)
    norm.weight.data.normal_()
    x = size * torch.randn(5, 40)
    with torch.inference_mode():
        torch.testing.assert_close(lean.rms_norm(norm)(x), norm(x), atol=1e-6, rtol=1e-5)
