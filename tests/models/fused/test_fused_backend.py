"""Fused layers compute what their module does: same logits, same hidden states, same weights in memory."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from drafttree.models import Segment, TargetModel
from drafttree.models.backend_choice import choose_backend
from drafttree.models.base import append, prefill
from drafttree.models.fused import fused_layer
from drafttree.models.fused.fused_backend import FusedBackend
from drafttree.models.module.module_backend import ModuleBackend, lay_out_for_cpu
from drafttree.models.norms import norm_call
from testing import tiny
from testing.fused_families import CONFIGS

every_family = pytest.mark.parametrize("name", CONFIGS)


def build(name: str) -> tuple[TargetModel, nn.Module]:
    """A model, fused if that is supported, and an untouched clone of its module."""
    module = tiny.from_config(CONFIGS[name]())
    clone = deepcopy(module)
    return TargetModel(module, choose_backend), clone


@pytest.mark.few(4)
@every_family
def test_logits_equal_transformers_along_every_path(name):
    model, clone = build(name)
    assert isinstance(model.backend, FusedBackend)
    cache, prefix = model.new_cache(40), tiny.random_tokens(9, 1)
    prefill(model, cache, prefix[:6], chunk=4)
    append(model, cache, prefix[6:])
    tree = tiny.random_tree((3, 5, 4), 2)
    assert tiny.worst_gap(tiny.score(model, cache, tree)[0], clone, prefix, tree) < 1e-4


@pytest.mark.few(6)
@every_family
def test_kept_rows_serve_the_next_round(name):
    model, clone = build(name)
    cache, prefix = model.new_cache(12), tiny.random_tokens(5, 3)
    prefill(model, cache, prefix)
    for seed in (4, 5, 6):
        tree = tiny.random_tree((3, 3, 2), seed)
        tiny.score(model, cache, tree)
        path = tiny.leaf_paths(tree)[-1]
        cache.commit(path)
        prefix += tree.tokens[path].tolist()
    tree = tiny.random_tree((2, 4), 7)
    assert tiny.worst_gap(tiny.score(model, cache, tree)[0], clone, prefix, tree) < 1e-4


@pytest.mark.few(10)
@every_family
def test_trees_of_a_shared_pass_are_scored_like_lone_ones(name):
    model, _ = build(name)
    trees = [tiny.random_tree(widths, seed) for seed, widths in enumerate([(2, 3), (), (4, 1)])]
    lone = [tiny.score(model, model.new_cache(8), tree) for tree in trees]
    together = model.forward([Segment(model.new_cache(8), tree.tokens, tree.depths, tree.ancestors) for tree in trees])
    for ours, own in zip(together, lone, strict=True):
        torch.testing.assert_close(ours.logits, own, atol=1e-5, rtol=1e-5)


@pytest.mark.few(10)
@every_family
def test_hidden_layers_are_the_modules(name):
    model, clone = build(name)
    wrapped = TargetModel(clone)
    tree, layers = tiny.random_tree((2, 3), 8), tuple(range(tiny.LAYERS + 1))
    outputs = [
        tiny.run(m, m.new_cache(8), tree.tokens, tree.depths, tree.ancestors, hidden_layers=layers)
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
    assert isinstance(choose_backend(module), FusedBackend)
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


@pytest.mark.parametrize("name", ["gpt2", "qwen2_moe_sliding"])
def test_other_architectures_run_as_modules(name):
    assert type(choose_backend(tiny.build(name))) is ModuleBackend


def test_a_module_with_replaced_linear_layers_is_run_as_it_is():
    class Quantised(nn.Linear):
        """A linear layer whose product is its own."""

    module = tiny.build("llama")
    own = module.model.layers[1].mlp.up_proj
    module.model.layers[1].mlp.up_proj = Quantised(own.in_features, own.out_features, bias=False)
    assert type(choose_backend(module)) is ModuleBackend


def test_fused_layers_that_differ_are_not_trusted(monkeypatch):
    monkeypatch.setattr(fused_layer.PassContext, "rotate", lambda *_: None)
    assert type(choose_backend(tiny.build("llama"))) is ModuleBackend


def test_bfloat16_is_served():
    assert isinstance(choose_backend(tiny.build("llama").to(torch.bfloat16)), FusedBackend)


@pytest.mark.few(8)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@every_family
@torch.inference_mode()
def test_a_converted_model_knows_far_positions(name, dtype):
    """`.to(dtype)` also rounds the rotary frequencies; positions above 256 are no numbers of bfloat16."""
    module = tiny.from_config(CONFIGS[name]())
    prompt, clone = tiny.random_tokens(400, 1), deepcopy(module.to(dtype))
    exact = deepcopy(clone).float()(torch.tensor([prompt])).logits[0, -1]
    model = TargetModel(module, FusedBackend)
    own = append(model, model.new_cache(400), prompt).logits[-1].float()
    theirs = clone(torch.tensor([prompt])).logits[0, -1].float()
    assert (own - exact).abs().max() <= 2 * (theirs - exact).abs().max()


def _storage_bytes(module: nn.Module) -> int:
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in module.parameters()}
    return sum(storages.values())


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_rms_norms_are_transformers_own(size):
    norm = LlamaRMSNorm(40, eps=1e-5)
    norm.weight.data.normal_()
    x = size * torch.randn(5, 40)
    with torch.inference_mode():
        torch.testing.assert_close(norm_call(norm)(x), norm(x), atol=1e-6, rtol=1e-5)


class Operations(TorchDispatchMode):
    """Counts the operations of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("nodes", "most"), {1: 111, 6: 135, 16: 135}.items())
@torch.inference_mode()
def test_a_lone_pass_takes_few_operations(nodes, most):
    """Those of three layers and a head: a list of one is neither joined nor split."""
    model = TargetModel(tiny.build("llama"), FusedBackend)
    cache, tree = model.new_cache(64), tiny.random_tree((nodes - 1,) * (nodes > 1), 1)
    append(model, cache, tiny.random_tokens(20, 1))
    segment = Segment(cache, tree.tokens, tree.depths + cache.length, tree.ancestors)
    with Operations() as operations:
        model.forward([segment])
    assert operations.count <= most
