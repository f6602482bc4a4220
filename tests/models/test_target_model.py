"""A target model answers with the weights and hooks its module has now, whatever backend it began with."""

import weakref
from copy import deepcopy
from itertools import product

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from transformers import LlamaConfig

import drafttree
from drafttree.errors import ModelError
from drafttree.models import TargetModel
from drafttree.models.backend_choice import choose_backend
from drafttree.models.base import prefill
from drafttree.models.fused import fused_layer
from drafttree.models.fused.fused_backend import FusedBackend
from drafttree.models.module.module_backend import ModuleBackend
from drafttree.models.recorded.recorded_passes import RecordedBackend
from helpers.replays import Replays
from testing import tiny

BACKENDS = {
    "module": ModuleBackend,
    "fused": FusedBackend,
    "recorded": lambda module: RecordedBackend(FusedBackend(module), Replays()),
}
WIDE = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 4}
"""Wide enough for fused layers to keep packed copies on a CPU."""
PROMPT = tiny.random_tokens(6, 3) * 2


def wide(seed: int = 0):
    """A model whose weights are small enough that its text is not one token for ever."""
    module = tiny.from_config(LlamaConfig(**{**tiny.SIZES, **WIDE}), seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 2:
                parameter.mul_(0.25)
    return module


def untouched_text(module) -> list[int]:
    """What transformers' own generate writes after the prompt with a copy of the module."""
    ids = torch.tensor([PROMPT])
    text = module.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False, pad_token_id=0)
    return text[0].tolist()


def speculative(module) -> drafttree.Decoder:
    return drafttree.load(module, "lookup", policy="fixed:depth=3,breadth=3")


def load_other_weights(module) -> None:
    module.load_state_dict(wide(seed=1).state_dict())


@torch.no_grad()
def merge_adapter(module) -> None:
    """As a merged low-rank adapter does."""
    generator = torch.Generator().manual_seed(5)
    for layer in module.model.layers:
        down, up = torch.randn(4, 512, generator=generator), torch.randn(512, 4, generator=generator)
        layer.self_attn.o_proj.weight += 0.3 * up @ down / 16
        layer.self_attn.q_proj.weight += 0.3 * up @ down / 16


def edit_data(module) -> None:
    """Raises no version."""
    for layer in module.model.layers:
        layer.mlp.gate_proj.weight.data.mul_(-2)


def edit_rows(module) -> None:
    """One row of some weights and one column of others, which raises no version."""
    for layer in module.model.layers:
        layer.mlp.gate_proj.weight.data[3] *= -40
        layer.mlp.down_proj.weight.data[:, 5] *= -40
    module.lm_head.weight.data[7] *= -3


def edit_norms(module) -> None:
    for layer in module.model.layers:
        layer.input_layernorm.weight.data.mul_(-3)


def assign_data(module) -> None:
    layer = module.model.layers[1].mlp.up_proj
    layer.weight.data = layer.weight.data.flip(0).contiguous()


def replace_layers(module) -> None:
    module.model.layers[0].mlp = wide(seed=2).model.layers[0].mlp


def edit_in_inference_mode(module) -> None:
    with torch.inference_mode():
        module.model.layers[0].self_attn.v_proj.weight.mul_(-1)


CHANGES = (
    *(load_other_weights, merge_adapter, edit_data, edit_rows, edit_norms),
    *(assign_data, replace_layers, edit_in_inference_mode),
)


@pytest.mark.few(3)
@pytest.mark.parametrize("change", CHANGES)
def test_changed_weights_are_the_ones_that_answer(change, fast):
    module = wide()
    clone, decoder = deepcopy(module), speculative(module)
    before = untouched_text(clone)
    assert PROMPT + decoder.generate(PROMPT, max_new_tokens=16).tokens == before
    change(module)
    change(clone)
    assert untouched_text(clone) != before
    assert isinstance(decoder.target.backend, fast)
    assert PROMPT + decoder.generate(PROMPT, max_new_tokens=16).tokens == untouched_text(clone)
    assert isinstance(decoder.target.backend, fast)


@pytest.mark.few(1)
@pytest.mark.parametrize("change", CHANGES)
def test_logits_of_changed_weights_are_the_modules(change, fast):
    module, tree = wide(), tiny.random_tree((3, 4, 2), 2)
    clone, model = deepcopy(module), TargetModel(module, choose_backend)
    change(module)
    change(clone)
    cache, prefix = model.new_cache(24), tiny.random_tokens(7, 1)
    prefill(model, cache, prefix)
    assert isinstance(model.backend, fast)
    assert tiny.worst_gap(tiny.score(model, cache, tree)[0], clone, prefix, tree) < 1e-3


def test_weights_made_in_inference_mode_are_compared_by_samples():
    with torch.inference_mode():
        module = wide()
    clone, model, tree = deepcopy(module), TargetModel(module, choose_backend), tiny.random_tree((3, 4), 2)
    for each in (module, clone):
        with torch.inference_mode():
            each.model.layers[0].mlp.down_proj.weight.mul_(-2)
    cache = model.new_cache(8)
    assert tiny.worst_gap(tiny.score(model, cache, tree)[0], clone, [], tree) < 1e-3


def test_an_unchanged_module_keeps_its_backend():
    model = TargetModel(tiny.build("llama"), choose_backend)
    before = model.backend
    model.module.generation_config.temperature = 0.5
    model.release()
    for _ in range(3):
        tiny.score(model, model.new_cache(8), tiny.random_tree((2, 3), 1))
    assert model.backend is before


def test_models_of_one_module_do_not_disturb_each_other():
    module = tiny.build("llama")
    models = [TargetModel(module, choose_backend) for _ in range(2)]
    before = [model.backend for model in models]
    for model in models:
        model.new_cache(8)
    assert [model.backend for model in models] == before


PLACES = ("", "model.layers.0", "model.layers.1.mlp", "model.layers.2.self_attn.q_proj", "lm_head")


@pytest.mark.few(7)
@pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("when", ["before loading", "after loading"])
def test_a_hook_that_changes_nothing_is_called(kind, place, when):
    module, called = tiny.build("llama"), []

    def add():
        getattr(module.get_submodule(place), kind)(lambda *_: called.append(1))

    if when == "before loading":
        add()
    decoder = drafttree.load(module, "lookup")
    if when == "after loading":
        add()
    del called[:]
    rounds = decoder.generate(PROMPT, max_new_tokens=8).metrics.rounds
    assert len(called) >= len(rounds) > 0
    assert isinstance(decoder.target.backend, ModuleBackend)


def test_a_hook_that_changes_the_output_changes_the_text():
    module = tiny.build("llama")
    clone, decoder = deepcopy(module), drafttree.load(module, "lookup")
    for each in (module, clone):
        each.model.layers[1].register_forward_hook(lambda _, __, output: -output)
    assert PROMPT + decoder.generate(PROMPT, max_new_tokens=16).tokens == untouched_text(clone)


def test_fast_passes_return_when_the_hook_is_gone(fast):
    model = TargetModel(tiny.build("llama"), choose_backend)
    handle = model.module.lm_head.register_forward_hook(lambda *_: None)
    model.new_cache(8)
    assert isinstance(model.backend, ModuleBackend)
    handle.remove()
    model.new_cache(8)
    assert isinstance(model.backend, fast)


def test_a_global_hook_is_called():
    called, decoder = [], drafttree.load(tiny.build("llama"), "lookup")
    handle = nn.modules.module.register_module_forward_hook(lambda *_: called.append(1))
    try:
        decoder.generate(PROMPT, max_new_tokens=2)
    finally:
        handle.remove()
    assert called


def test_hooks_that_transformers_leaves_behind_are_no_obstacle(fast):
    module = tiny.build("llama")
    module(torch.tensor([[1, 2]]), output_hidden_states=True)
    assert any(part._forward_hooks for part in module.modules())
    assert isinstance(choose_backend(module), fast)


class Negated(nn.Module):
    def forward(self, weight):
        return -weight


class Wrapped(nn.Linear):
    """As a layer with an adapter."""


def parametrize_layer(module) -> None:
    parametrize.register_parametrization(module.model.layers[0].mlp.up_proj, "weight", Negated())


def change_class(module) -> None:
    module.model.layers[0].mlp.up_proj.__class__ = Wrapped


def own_forward(module) -> None:
    layer = module.model.layers[0].mlp.up_proj
    layer.forward = lambda x: -nn.functional.linear(x, layer.weight)


UNUSUAL = *product((parametrize_layer, change_class, own_forward), ("before", "after")), (nn.Module.train, "after")


@pytest.mark.few(4)
@pytest.mark.parametrize(("change", "when"), UNUSUAL)
def test_modules_that_are_not_plain_run_as_they_are(change, when, fast):
    module = tiny.build("llama")
    if when == "after":
        model = TargetModel(module, choose_backend)
        assert isinstance(model.backend, fast)
    change(module)
    clone = deepcopy(module)
    if when == "before":
        model = TargetModel(module, choose_backend)
    cache, tree = model.new_cache(8), tiny.random_tree((3, 4), 2)
    assert isinstance(model.backend, ModuleBackend)
    assert tiny.worst_gap(tiny.score(model, cache, tree)[0], clone, [], tree) < 1e-4


def test_a_module_changed_into_one_that_cannot_be_verified_is_refused():
    model = TargetModel(tiny.build("llama"), choose_backend)
    nn.init.constant_(model.module.model.norm.weight, torch.nan)
    for _ in range(2):
        with pytest.raises(ModelError, match="computes no finite logits"):
            model.new_cache(8)


def test_a_moved_model_tells_its_new_dtype():
    model = TargetModel(tiny.build("llama"), choose_backend)
    nbytes = model.nbytes
    model.module.to(torch.float64)
    model.new_cache(8)
    assert (model.dtype, model.nbytes) == (torch.float64, 2 * nbytes)
    assert tiny.score(model, model.new_cache(8), tiny.random_tree((2,), 1)).dtype == torch.float64


def test_a_text_goes_on_when_the_backend_is_replaced_under_it():
    model = TargetModel(tiny.build("llama"), lambda module: RecordedBackend(FusedBackend(module), Replays()))
    tree, prefix = tiny.random_tree((3, 4), 2), tiny.random_tokens(7, 1)
    cache = model.new_cache(24)
    prefill(model, cache, prefix)
    expected = tiny.score(model, cache, tree)
    cache.commit([])
    model.module.lm_head.weight.data = -model.module.lm_head.weight.data
    model.new_cache(24)
    torch.testing.assert_close(tiny.score(model, cache, tree), -expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wanted", [(), (2, 6), (8,)])
def test_only_the_states_asked_for_are_alive_at_the_last_layer(backend, wanted, monkeypatch):
    config = LlamaConfig(**{**tiny.GROUPED, "num_hidden_layers": 8})
    model = TargetModel(tiny.from_config(config), BACKENDS[backend])
    inputs: list[weakref.ref] = []
    alive: list[int] = []

    def note(x: torch.Tensor) -> None:
        inputs.append(weakref.ref(x))
        if len(inputs) == 8:
            alive.extend(index for index, each in enumerate(inputs) if each() is not None)

    if backend == "module":
        for layer in model.module.model.layers:
            layer.register_forward_pre_hook(lambda _, given: note(given[0]))
    else:
        forward = fused_layer.FusedLayer.forward
        monkeypatch.setattr(
            fused_layer.FusedLayer, "forward", lambda self, x, *rest: (note(x), forward(self, x, *rest))[1]
        )
    cache, tree = model.new_cache(8), tiny.random_tree((2, 3), 1)
    inputs.clear()  # a new cache of a module with new hooks selects its backend anew, which takes passes
    alive.clear()
    tiny.run(model, cache, tree.tokens, tree.depths, tree.ancestors, hidden_layers=wanted)
    embeddings = {0} if backend == "module" else set()
    """transformers' own loop keeps them."""
    assert set(alive) == {*(layer for layer in wanted if layer < 8), 7} | embeddings
