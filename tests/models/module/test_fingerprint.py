"""A fingerprint sees every change of what a module holds, and few entries of a weight suffice for it."""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules

from drafttree.models.module.fingerprint import Fingerprint, samples
from drafttree.models.module.unseen_state import LONGEST
from testing import tiny


@pytest.mark.parametrize("shape", [(6,), (5, 8), (8, 5), (256, 256, 1, 1), (4, 16, 12), (12, 16, 4)])
def test_every_row_and_column_is_sampled_by_few_views(shape):
    weight = torch.zeros(shape)
    views = samples(weight)
    for view in views:
        view.fill_(1)
    assert len(views) <= 6
    last = weight.view(-1, shape[-1]) if weight.ndim > 1 else weight[None]
    assert bool(last.any(0).all())
    assert bool(weight.flatten(1).any(1).all() if weight.ndim > 1 else weight.all())


class Holding(nn.Module):
    """A layer that holds what decides its output in many ways."""

    rate = 1.0
    rates = {"one": [1.0]}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.number, self.flag, self.mode, self.dtype = 1, True, "plain", torch.float32
        self.list, self.tuple, self.set, self.dict = [1.0, [2.0]], (1.0, [2.0]), {"one"}, {"one": 1.0, "two": [2.0]}
        self.frozen, self.one, self.other = frozenset({1}), [3.0], [3.0]
        self.twice = [self.one, self.other, self.one]
        self.nested: list[Any] = [[5.0], [2.0]]
        self.nested_tuples: Any = (*map(tuple, self.nested),)  # no constants, which layers would share
        self.dicts: list[Any] = [{"one": "two"}, {}]
        self.settings = SimpleNamespace(scale=1.0, inner=SimpleNamespace(scale=1.0))
        self.function, self.partial = torch.relu, partial(torch.add, torch.zeros(2), alpha=2)
        self.tensor, self.tensors = torch.zeros(2), [torch.zeros(2)]
        self.layers = {"one": nn.Linear(3, 3)}
        self.long = [0] * (LONGEST + 1)
        self.linear, self.same, self.tied = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(3, 4)
        self.tied.weight = self.linear.weight
        self.same.load_state_dict(self.linear.state_dict())
        self.register_buffer("buffer", torch.zeros(2))
        self.register_buffer("unsaved", torch.zeros(2), persistent=False)
        with torch.inference_mode():
            self.made_in_inference = torch.zeros(4, 5)
        self.cycle: list[Any] = [1.0]
        self.cycle.append(self.cycle)

    def forward(self, states: Tensor) -> Tensor:
        return states


class Other(Holding):
    pass


class Silent(nn.Linear):
    """A layer without attributes of its class, so that only its type tells it from `nn.Linear`."""


@torch.inference_mode()
def edit_in_inference(layer: Any) -> None:
    layer.made_in_inference.add_(1)


@torch.no_grad()
def edit_in_place(layer: Any) -> None:
    layer.linear.weight[0, 1] += 1


def edit_after_replacing(layer: Any) -> None:
    layer.linear.bias = nn.Parameter(layer.linear.bias.clone())


CHANGES: dict[str, Callable[[Any], object]] = {
    "a number": lambda layer: setattr(layer, "number", 2),
    "the type of a number": lambda layer: setattr(layer, "number", 1.0),
    "a flag that becomes an equal number": lambda layer: setattr(layer, "flag", 1),
    "a string": lambda layer: setattr(layer, "mode", "other"),
    "a dtype": lambda layer: setattr(layer, "dtype", torch.float16),
    "an attribute that is added": lambda layer: setattr(layer, "added", None),
    "an attribute that is removed": lambda layer: delattr(layer, "number"),
    "the name of an attribute": lambda layer: setattr(layer, "renamed", vars(layer).pop("cycle")),
    "a list": lambda layer: layer.list.append(3.0),
    "a list in a list": lambda layer: layer.list[1].__setitem__(0, 3.0),
    "a list in a tuple": lambda layer: layer.tuple[1].__setitem__(0, 3.0),
    "a list that becomes a tuple": lambda layer: setattr(layer, "one", (3.0,)),
    "a tuple": lambda layer: setattr(layer, "tuple", (2.0, [2.0])),
    "a set": lambda layer: layer.set.add("two"),
    "a frozen set": lambda layer: setattr(layer, "frozen", frozenset({2})),
    "a value of a dict": lambda layer: layer.dict.update(one=2.0),
    "a key of a dict": lambda layer: layer.dict.update(three=layer.dict.pop("two")),
    "a list in a dict": lambda layer: layer.dict["two"].append(3.0),
    "a list that contains itself": lambda layer: layer.cycle.__setitem__(0, 2.0),
    "where the same values are nested": lambda layer: layer.nested.__setitem__(slice(None), [[[5.0], 2.0]]),
    "where the same values are nested in tuples": lambda layer: setattr(layer, "nested_tuples", (((5.0,), 2.0),)),
    "where the same values are nested in dicts": lambda layer: layer.dicts.__setitem__(
        slice(None), ["one", {"two": {}}]
    ),
    "a list that is no longer held twice": lambda layer: layer.twice.__setitem__(0, [3.0]),
    "which of two equal lists is held twice": lambda layer: layer.twice.__setitem__(2, layer.other),
    "a list that is held twice": lambda layer: setattr(layer, "other", layer.one),
    "a namespace": lambda layer: setattr(layer.settings, "scale", 2.0),
    "a namespace in a namespace": lambda layer: setattr(layer.settings.inner, "scale", 2.0),
    "a function": lambda layer: setattr(layer, "function", torch.tanh),
    "the function of a partial": lambda layer: setattr(
        layer, "partial", partial(torch.sub, *layer.partial.args, **layer.partial.keywords)
    ),
    "an argument of a partial": lambda layer: layer.partial.args[0].add_(1),
    "a named argument of a partial": lambda layer: layer.partial.keywords.update(alpha=3),
    "a tensor in place": lambda layer: layer.tensor.add_(1),
    "a tensor by data": lambda layer: layer.tensor.data.add_(1),
    "a tensor that is replaced": lambda layer: setattr(layer, "tensor", torch.ones(2)),
    "a tensor that gets another dtype": lambda layer: setattr(layer, "tensor", layer.tensor.double()),
    "a tensor that gets another shape": lambda layer: setattr(layer, "tensor", layer.tensor[:1]),
    "a tensor in a list": lambda layer: layer.tensors[0].add_(1),
    "a tensor in a list that is replaced": lambda layer: layer.tensors.__setitem__(0, torch.ones(2)),
    "a tensor made in inference mode": edit_in_inference,
    "a tensor made in inference mode by data": lambda layer: layer.made_in_inference.data.mul_(2).add_(1),
    "a buffer in place": lambda layer: layer.buffer.add_(1),
    "a buffer that is replaced": lambda layer: setattr(layer, "buffer", torch.ones(2)),
    "a buffer that is not saved": lambda layer: layer.unsaved.add_(1),
    "a buffer that gets saved": lambda layer: layer._non_persistent_buffers_set.clear(),
    "an entry of a weight": edit_in_place,
    "a weight by data": lambda layer: layer.linear.weight.data.mul_(2),
    "a weight that is moved": lambda layer: setattr(layer.linear.weight, "data", layer.linear.weight.data.clone()),
    "a weight that is replaced by an equal one": edit_after_replacing,
    "a weight that is tied to an equal one": lambda layer: setattr(layer.same, "weight", layer.linear.weight),
    "a weight that is no longer tied": lambda layer: setattr(layer.tied, "weight", nn.Parameter(layer.linear.weight)),
    "a weight of a layer in a dict": lambda layer: layer.layers["one"].weight.data.mul_(2),
    "a layer that is replaced": lambda layer: setattr(layer, "linear", nn.Linear(3, 4)),
    "a layer that is added": lambda layer: layer.add_module("added", nn.Identity()),
    "the class of a layer": lambda layer: setattr(layer, "__class__", Other),
    "the class of a library's layer": lambda layer: setattr(layer.linear, "__class__", Silent),
    "a hook": lambda layer: layer.linear.register_forward_hook(lambda _, __, out: out),
    "a hook before": lambda layer: layer.linear.register_forward_pre_hook(lambda _, states: states),
    "a forward": lambda layer: setattr(layer.linear, "forward", layer.forward),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_what_a_module_holds_is_seen(change):
    module = nn.Sequential(Holding(), Holding())
    fingerprint = Fingerprint(module)
    assert fingerprint.matches()
    CHANGES[change](module[1])
    assert not fingerprint.matches()
    assert Fingerprint(module).matches()


def replace_by_equals(layer: Any) -> None:
    for name in ("list", "tuple", "set", "dict", "settings", "tensor", "tensors", "buffer", "unsaved", "cycle"):
        setattr(layer, name, deepcopy(getattr(layer, name)))


KEPT: dict[str, Callable[[Any], object]] = {
    "equal objects": replace_by_equals,
    "a hook of the backward pass": lambda layer: layer.linear.register_full_backward_hook(lambda *_: None),
    "an entry of a matrix by data": lambda layer: layer.linear.weight.data[0, 1].add_(1),
    "an entry of a long list": lambda layer: layer.long.__setitem__(0, 1),
}


@pytest.mark.parametrize("change", KEPT)
def test_what_decides_no_text_or_is_not_compared_is_not_seen(change):
    module = nn.Sequential(Holding(), Holding())
    fingerprint = Fingerprint(module)
    KEPT[change](module[1])
    assert fingerprint.matches()
    assert fingerprint.matches()


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_equal_objects_that_were_put_in_place_is_seen(change):
    module = nn.Sequential(Holding(), Holding())
    fingerprint = Fingerprint(module)
    replace_by_equals(module[1])
    assert fingerprint.matches()
    CHANGES[change](module[1])
    assert not fingerprint.matches()


def test_a_hook_is_seen_until_it_is_removed():
    module = nn.Sequential(nn.Linear(2, 2))
    fingerprint = Fingerprint(module)
    for register in (
        module[0].register_forward_hook,
        module[0].register_forward_pre_hook,
        torch_modules.register_module_forward_hook,
        torch_modules.register_module_forward_pre_hook,
    ):
        handle = register(lambda *_: None)
        assert not fingerprint.matches()
        hooked = Fingerprint(module)
        handle.remove()
        assert fingerprint.matches()
        assert not hooked.matches()


def test_a_change_of_a_class_is_seen(monkeypatch):
    module = nn.Sequential(nn.Linear(2, 2), Holding())
    fingerprint = Fingerprint(module)
    for owner, name, value in (
        (nn.Linear, "forward", lambda _, states: states),
        (Holding, "forward", lambda _, states: states),
        (Holding, "rate", 2.0),
        (Holding, "added", 1.0),
    ):
        monkeypatch.setattr(owner, name, value, raising=False)
        assert not fingerprint.matches(), name
        monkeypatch.undo()
        assert fingerprint.matches()
    monkeypatch.setattr(Holding, "rates", deepcopy(Holding.rates))
    assert fingerprint.matches()
    monkeypatch.setitem(Holding.rates, "one", [2.0])
    assert not fingerprint.matches()


def test_a_change_of_a_config_is_seen():
    module: Any = tiny.build("llama")
    fingerprint = Fingerprint(module)
    config = module.config
    for name, value in (("rms_norm_eps", 0.5), ("rope_parameters", {**config.rope_parameters, "rope_theta": 5.0})):
        before = getattr(config, name)
        setattr(config, name, value)
        assert not fingerprint.matches(), name
        setattr(config, name, before)
        assert fingerprint.matches()
    config.rope_parameters["rope_theta"] = 5.0
    assert not fingerprint.matches()


def test_another_way_to_attend_is_not_seen():
    module: Any = tiny.build("llama")
    fingerprint = Fingerprint(module)
    module.config._attn_implementation = "eager"
    assert fingerprint.matches()


def test_frequencies_that_passes_overwrite_are_not_compared():
    rotary: Any = nn.Module()
    rotary.rope_type = "longrope"
    for name in ("inv_freq", "original_inv_freq", "long_inv_freq"):
        rotary.register_buffer(name, torch.ones(2), persistent=False)
    module = nn.Sequential(rotary)
    fingerprint = Fingerprint(module)
    rotary.inv_freq.mul_(2)
    rotary.inv_freq = rotary.inv_freq * 2
    assert fingerprint.matches()
    rotary.original_inv_freq.mul_(2)
    assert not fingerprint.matches()
