"""Weights exist once, in panels, and come back to whoever reads them: no edit is lost, no text is of other weights."""

import copy
import gc
import operator
import pickle
import threading
import weakref
from typing import Any

import pytest
import safetensors.torch
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import PreTrainedModel

import drafttree
from drafttree.drafters.target_parts import own_bytes
from drafttree.engine.drafting.prices import _digest
from drafttree.models import TargetModel
from drafttree.models.backend_choice import choose_backend
from drafttree.models.base import append
from drafttree.models.module.released import MAX_GIVEN_BACK, ReleasedWeight, shapes
from drafttree.models.native.native_backend import NativeBackend
from drafttree.models.quantization.int8_linear import Int8Linear
from drafttree.models.quantization.quantize import quantize_int8
from drafttree.models.quantization.quantized_linear import quantized_scales
from testing import tiny
from testing.fused_families import CONFIGS
from testing.marks import needs_native

pytestmark = needs_native
TOKENS = tiny.random_tokens(9, 1)
KINDS = [(torch.float32, None), (torch.bfloat16, None), (torch.bfloat16, "int8")]


def make(name: str = "llama", dtype: torch.dtype = torch.float32, quantize: str | None = None) -> PreTrainedModel:
    module: Any = tiny.from_config(CONFIGS[name]()).to(dtype)
    if quantize:
        quantize_int8(module, head=True)
    return module


def build(name: str = "llama", dtype: torch.dtype = torch.float32, quantize: str | None = None) -> TargetModel:
    gc.collect()
    model = TargetModel(make(name, dtype, quantize), choose_backend)
    assert isinstance(model.backend, NativeBackend)
    assert released(model.module)
    return model


def linear(module: nn.Module) -> list[Any]:
    return [part for part in module.modules() if isinstance(part, nn.Linear | Int8Linear)]


def released(module: nn.Module) -> list[Any]:
    """The linear layers that do without their weight at present."""
    return [
        part for part in linear(module) if any(isinstance(each, ReleasedWeight) for each in part._parameters.values())
    ]


@torch.inference_mode()
def logits(model: TargetModel) -> torch.Tensor:
    return append(model, model.new_cache(9), TOKENS).logits


def own_logits(module: PreTrainedModel) -> torch.Tensor:
    """Of the same weights in a module that was never packed."""
    clone = copy.deepcopy(module)
    TargetModel(clone).release()
    with torch.inference_mode():
        return clone(torch.tensor([TOKENS])).logits[:, -1:].float()


def assert_as_module(model: TargetModel) -> None:
    torch.testing.assert_close(logits(model), own_logits(model.module), atol=1e-4, rtol=1e-4)


@pytest.mark.few(7)
@pytest.mark.parametrize(("dtype", "quantize"), KINDS, ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_weights_exist_once_and_come_back_as_they_were(name, dtype, quantize):
    expected = {name: each.clone() for name, each in make(name, dtype, quantize).state_dict().items()}
    model = build(name, dtype, quantize)
    assert len(released(model.module)) == len(linear(model.module))
    assert model.packed_nbytes == 0
    fresh = make(name, dtype, quantize)
    sizes = {each.data_ptr(): each.nbytes for each in [*fresh.parameters(), *quantized_scales(fresh)]}
    assert model.nbytes == sum(sizes.values())
    found = model.module.state_dict()
    assert found.keys() == expected.keys()
    for key, each in found.items():
        assert torch.equal(each, expected[key]), key
        assert each.dtype == expected[key].dtype


@pytest.mark.few(8)
@pytest.mark.parametrize(
    "read",
    [
        lambda module: module.state_dict(),
        lambda module: [each.data for each in module.parameters()],
        lambda module: [each.data_ptr() for each in module.parameters()],
        lambda module: [each.stride() for each in module.parameters()],
        lambda module: [each.detach().numpy() for each in module.parameters()],
        lambda module: [repr(each) for each in module.parameters()],
        lambda module: torch._foreach_norm([*module.parameters()]),
        lambda module: [torch.stack(tensors=[each, each]) for each in module.parameters()],
        lambda module: safetensors.torch.save(module.state_dict()),
        copy.deepcopy,
        lambda module: [copy.copy(part.weight) for part in linear(module)],
        pickle.dumps,
        lambda module: module.to(torch.float32),
        lambda module: module(torch.tensor([TOKENS])),
        lambda module: module.requires_grad_(False),
        lambda module: torch.nn.utils.parameters_to_vector(module.parameters()),
        lambda module: torch.func.functional_call(module, dict(module.named_parameters()), torch.tensor([TOKENS])),
    ],
    ids=range(17),
)
def test_whoever_reads_weights_gets_ordinary_ones_and_the_text_stays(read):
    model = build()
    before = logits(model)
    model.release()
    read(model.module)
    assert not released(model.module)
    assert all(type(part.weight) is nn.Parameter for part in linear(model.module))
    assert not any("release" in vars(each) for each in model.module.parameters())
    assert torch.equal(logits(model), before)
    assert isinstance(model.backend, NativeBackend)


def test_who_only_looks_gives_nothing_back():
    model = build()
    count = len(released(model.module))
    expected = [(name, list(each.shape), str(each.dtype)) for name, each in make().state_dict().items()]
    assert shapes(model.module) == expected
    held = [*model.module.parameters()]
    looks = [
        *(repr, _digest, lambda model: own_bytes(model.module, model.module), logits),
        lambda model: sum(each.nbytes for each in model.module.parameters()),
        lambda model: [(name, each.shape, each.dtype, each.device) for name, each in model.module.named_parameters()],
        lambda model: (model.module.num_parameters(only_trainable=True), model.module.get_memory_footprint()),
        lambda model: (model.module.dtype, model.module.device),
        lambda model: {each: len(each) for each in model.module.parameters()},
        lambda model: held,
    ]
    for look_at in looks:
        look_at(model)
        assert len(released(model.module)) == count
    assert own_bytes(model.module, model.module) == 0


def test_memory_goes_and_what_was_read_is_released_again():
    module = make()
    model = TargetModel(module, choose_backend)
    assert [kept_bytes(part.weight) for part in linear(module)] == [4] * len(linear(module))
    module.state_dict()
    assert all(kept_bytes(part.weight) == part.weight.nbytes for part in linear(module))
    logits(model)
    assert [kept_bytes(part.weight) for part in linear(module)] == [4] * len(linear(module))


def kept_bytes(weight: nn.Parameter) -> int:
    with torch._C.DisableTorchFunctionSubclass():
        return weight.untyped_storage().nbytes()


def test_weights_exist_once_after_an_edit_too():
    model = build()
    count = len(released(model.module))
    double(model.module.get_input_embeddings().weight)
    logits(model)
    assert len(released(model.module)) == count


def test_what_is_read_all_the_time_stays():
    model = build()
    for _ in range(MAX_GIVEN_BACK + 1):
        model.module.state_dict()
        before = logits(model)
    assert not released(model.module)
    assert_as_module(model)
    assert torch.equal(logits(model), before)
    assert model.packed_nbytes > 0


def test_what_is_set_at_a_weight_stays():
    model = build()
    model.module.requires_grad_(False)
    model.module.lm_head.weight.role = "head"  # pyright: ignore[reportAttributeAccessIssue]
    logits(model)
    assert model.module.lm_head in released(model.module)
    assert not any(each.requires_grad for each in model.module.parameters())
    assert model.module.lm_head.weight.role == "head"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    "hold",
    [
        lambda weight: weight,
        lambda weight: weight[1:],
        lambda weight: weight.data,
        lambda weight: weight.detach().numpy(),
        lambda weight: {weight: 1},
        lambda weight: weight.untyped_storage(),
        lambda weight: weight.sum(),
    ],
    ids=["weight", "view", "data", "numpy", "key", "storage", "graph"],
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_what_somebody_holds_is_not_released(hold, when):
    module = make()
    held = hold(module.model.layers[1].mlp.up_proj.weight) if when == "before" else None
    model = TargetModel(module, choose_backend)
    if when == "after":
        module.state_dict()
        held = hold(module.model.layers[1].mlp.up_proj.weight)
    logits(model)
    assert module.model.layers[1].mlp.up_proj not in released(module)
    assert len(released(module)) == len(linear(module)) - 1
    del held


def test_what_somebody_holds_that_was_released_is_the_weight_still():
    model = build()
    held = [*model.module.parameters()]
    before = logits(model)
    double(held[-1])
    assert not torch.equal(logits(model), before)
    assert_as_module(model)
    assert all(map(operator.is_, held, model.module.parameters()))


def test_a_shallow_copy_edits_the_model_that_writes():
    for when in ("before", "after", "given back"):
        module = make()
        layer = module.model.layers[1].mlp.up_proj
        other = copy.copy(layer) if when == "before" else None
        model = TargetModel(module, choose_backend)
        if when == "given back":
            module.state_dict()
        other = other or copy.copy(layer)
        before = logits(model)
        double(other.weight)
        assert not torch.equal(logits(model), before)
        assert_as_module(model)


def steps(module: PreTrainedModel, optimizer: torch.optim.Optimizer) -> None:
    module.train()
    module(torch.tensor([TOKENS]), labels=torch.tensor([TOKENS])).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    module.eval()


@pytest.mark.parametrize("when", ["before", "after", "after a text"])
def test_an_optimiser_trains_the_model_that_writes(when):
    module = make()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0) if when == "before" else None
    model = TargetModel(module, choose_backend)
    if when == "after a text":
        logits(model)
    optimizer = optimizer or torch.optim.SGD(module.parameters(), lr=1.0)
    for _ in range(3):
        before = logits(model)
        model.release()
        steps(module, optimizer)
        assert_as_module(model)
        assert not torch.allclose(logits(model), before, atol=1e-3)


def double(weight: torch.Tensor) -> None:
    with torch.no_grad():
        weight.mul_(2)


@pytest.mark.few(14)
@pytest.mark.parametrize(
    "edit",
    [
        lambda module: double(module.model.layers[1].mlp.up_proj.weight),
        lambda module: module.model.layers[1].mlp.up_proj.weight.data.mul_(2),
        lambda module: module.model.layers[1].mlp.up_proj.weight.data[3, 5].add_(9),
        lambda module: module.load_state_dict({name: each * 1.1 for name, each in module.state_dict().items()}),
        lambda module: module.load_state_dict({k: each * 1.1 for k, each in module.state_dict().items()}, assign=True),
        lambda module: setattr(module.model.layers[1].mlp.up_proj, "weight", nn.Parameter(torch.randn(48, 32))),
        lambda module: setattr(module.model.layers[0].mlp, "up_proj", nn.Linear(32, 48, bias=False).eval()),
        lambda module: module.model.layers[0].mlp.up_proj.register_parameter("bias", nn.Parameter(torch.randn(48))),
        lambda module: module.state_dict()["model.layers.1.mlp.up_proj.weight"].mul_(2),
        lambda module: module.double().float() and double(module.lm_head.weight),
        lambda module: module.requires_grad_(False) and double(module.lm_head.weight),
        lambda module: module.double(),
        lambda module: module.bfloat16(),
        lambda module: double(module.get_input_embeddings().weight),
    ],
    ids=range(14),
)
@pytest.mark.parametrize("texts", [0, 1])
def test_edits_are_of_the_model_that_writes(edit, texts):
    model = build()
    before = logits(model)
    for _ in range(texts):
        model.module.state_dict()
        logits(model)
    model.release()
    edit(model.module)
    found = logits(model)
    assert found.dtype != before.dtype or not torch.equal(found, before)
    tolerance = 0.1 if model.dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(found.double(), own_logits(model.module).double(), atol=tolerance, rtol=tolerance)
    assert {each.dtype for each in model.module.parameters()} == {model.dtype}


def test_an_edit_while_a_text_begins_is_not_lost(monkeypatch):
    model = build()
    before, layer, equal = logits(model), model.module.lm_head, torch.equal
    model.module.state_dict()
    weight, edit = weakref.ref(layer.weight), threading.Thread(target=lambda: double(layer.weight))

    def equal_and_edited(*given: torch.Tensor) -> bool:
        found = equal(*given)
        if given[1] is weight() and not edit.ident:
            edit.start()
            edit.join(0.2)  # the edit may wait
        return found

    monkeypatch.setattr(torch, "equal", equal_and_edited)
    logits(model)
    edit.join()
    assert not equal(logits(model), before)
    assert_as_module(model)


def test_adapters_are_added_scaled_and_removed():
    model = build()
    before = logits(model)
    adapted: Any = get_peft_model(
        model.module, LoraConfig(target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    )
    found = TargetModel(adapted.get_base_model(), choose_backend)
    assert_as_module(found)
    assert not torch.allclose(logits(model), before, atol=1e-3)
    assert torch.equal(logits(model), logits(found))
    del found
    merged = TargetModel(adapted.merge_and_unload(), choose_backend)
    assert isinstance(merged.backend, NativeBackend)
    assert_as_module(merged)


def test_hooks_and_training_mode_run_the_module():
    model, seen = build(), []
    before = logits(model)
    handle = model.module.model.layers[1].mlp.up_proj.register_forward_hook(lambda *given: seen.append(1))
    torch.testing.assert_close(logits(model), before, atol=1e-5, rtol=1e-5)
    assert seen
    handle.remove()
    assert torch.equal(logits(model), before)
    assert isinstance(model.backend, NativeBackend)
    model.module.train()
    torch.testing.assert_close(logits(model), before, atol=1e-5, rtol=1e-5)
    model.module.eval()
    assert torch.equal(logits(model), before)


def test_weights_read_in_inference_mode_can_be_trained():
    model = build()
    model.release()
    with torch.inference_mode():
        model.module(torch.tensor([TOKENS]))
    steps(model.module, torch.optim.SGD(model.module.parameters(), lr=1.0))
    assert_as_module(model)


def test_saved_and_loaded_it_is_the_same(tmp_path):
    model = build()
    model.release()
    model.module.save_pretrained(tmp_path)
    again = TargetModel(type(model.module).from_pretrained(tmp_path), choose_backend)
    assert torch.equal(logits(again), logits(model))


def test_two_targets_share_a_module():
    first = build()
    second = TargetModel(first.module, choose_backend)
    assert released(first.module)
    expected = logits(first)
    assert torch.equal(logits(second), expected)
    first.module.state_dict()
    del first
    gc.collect()
    assert torch.equal(logits(second), expected)
    module = second.module
    del second
    gc.collect()
    assert own_logits(module).allclose(expected, atol=1e-4)


@pytest.mark.few(1)
@pytest.mark.parametrize("quantize", [None, "int8"])
def test_others_may_read_while_texts_are_written(quantize):
    decoder = drafttree.load("embedded", "embedded-draft", "chain", device="cpu", dtype="bfloat16", quantize=quantize)
    module: Any = decoder.target.module  # pyright: ignore[reportAttributeAccessIssue]
    options: Any = {"max_new_tokens": 6, "temperature": 0}
    expected = decoder.generate("It was", **options).tokens
    weights, stop, failed = {n: w.clone() for n, w in module.state_dict().items()}, threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            if not all(torch.equal(each, weights[name]) for name, each in module.state_dict().items()):
                failed.append(1)

    others = [threading.Thread(target=read) for _ in range(2)]
    for other in others:
        other.start()
    try:
        for _ in range(4):
            assert decoder.generate("It was", **options).tokens == expected
    finally:
        stop.set()
        for other in others:
            other.join()
    assert not failed


def experts_of(model: TargetModel) -> Any:
    return model.module.get_decoder().layers[0].mlp.experts


def test_stacked_weights_of_experts_exist_once_and_come_back():
    before = make("qwen3_moe").state_dict()
    model = build("qwen3_moe")
    assert model.packed_nbytes == 0
    assert all(isinstance(each, ReleasedWeight) for each in experts_of(model).parameters())
    after = model.module.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    del after
    gc.collect()
    model.new_cache(1)
    assert all(isinstance(each, ReleasedWeight) for each in experts_of(model).parameters())


@pytest.mark.parametrize("edited", ["gate_up_proj", "down_proj", "router", "top_k", "norm_topk_prob"])
def test_edits_of_experts_are_in_the_next_text(edited):
    model = build("qwen3_moe")
    before, layer = logits(model), model.module.get_decoder().layers[0].mlp
    with torch.no_grad():
        if edited == "router":
            layer.gate.weight.neg_()
        elif edited in ("top_k", "norm_topk_prob"):
            setattr(layer.gate, edited, 1 if edited == "top_k" else False)
        else:
            getattr(layer.experts, edited)[2].mul_(-3)
    after = logits(model)
    assert isinstance(model.backend, NativeBackend)
    own = model.module(input_ids=torch.tensor([TOKENS])).logits[:, -1:]
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, own, rtol=1e-4, atol=1e-4)
