"""Functions and objects that may hide a state are named; those that cannot are not."""

import functools
import operator
import os
from collections.abc import Callable
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import ACT2FN

from drafttree.models.module.fingerprint import Fingerprint
from testing import tiny

STATE = {"factor": 2.0}
FACTOR = 2.0


class Calling(nn.Module):
    """A layer of a user's own, which calls something."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.scales = {"one": 1.0}
        self.register_buffer("shift", torch.zeros(1))

    def forward(self, states: Tensor) -> Tensor:
        return self.scaled(self.function(states))

    def scaled(self, states: Tensor) -> Tensor:
        return states * self.scales["one"] + self.shift


class Holder:
    def __init__(self, function: Any = None) -> None:
        self.function, self.scale = function, 2.0

    def apply(self, states: Tensor) -> Tensor:
        return states * self.scale

    def __call__(self, states: Tensor) -> Tensor:
        return states * self.scale


class Slotted:
    __slots__ = ("scale",)

    def __call__(self, states: Tensor) -> Tensor:
        return states * self.scale


class Settings:
    scale = 2.0


class Kind(Enum):
    ONE = 1


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, states: Tensor) -> Tensor:
        return states**3


def closure() -> Callable[[Tensor], Tensor]:
    state = {"factor": 2.0}
    return lambda states: states * state["factor"]


def with_number() -> Callable[[Tensor], Tensor]:
    factor = 2.0
    return lambda states: states * factor


def with_default(states: Tensor, state: dict[str, float] = STATE) -> Tensor:
    return states * state["factor"]


def with_attribute(states: Tensor) -> Tensor:
    return states * with_attribute.factor  # pyright: ignore[reportFunctionMemberAccess]


with_attribute.factor = 2.0  # pyright: ignore[reportFunctionMemberAccess]


def plain(states: Tensor, factor: float = 2.0, kind: Kind = Kind.ONE) -> Tensor:
    return states * factor


def wrapped() -> Callable[[Tensor], Tensor]:
    function = closure()

    @functools.wraps(plain)
    def wrapper(states: Tensor) -> Tensor:
        return function(states)

    return wrapper


HIDING: dict[str, Callable[[], Any]] = {
    "a closure": closure,
    "a closure over a number, which another function may set": with_number,
    "a closure in a list": lambda: [closure()],
    "a closure in a tuple in a dict": lambda: {"one": (1, closure())},
    "a closure of an object": lambda: Holder(closure()),
    "a closure of a namespace": lambda: SimpleNamespace(function=closure()),
    "a partial of a closure": lambda: functools.partial(closure()),
    "a partial over a closure": lambda: functools.partial(map, closure()),
    "a decorated closure": wrapped,
    "a closure in a library's wrapper": lambda: torch.no_grad()(closure()),
    "a cached closure": lambda: functools.cache(closure()),
    "a method of an object": lambda: Holder().apply,
    "a method of a container": lambda: STATE.get,
    "a method of a tensor": lambda: torch.ones(1).mul,
    "a method of a layer elsewhere": lambda: nn.Linear(2, 2).forward,
    "a mutable default": lambda: with_default,
    "a function's attribute": lambda: with_attribute,
    "slots": Slotted,
    "a class with values": lambda: Settings,
    "a library's object": torch.Generator,
    "a longer list than is compared": lambda: [0] * 70_000,
}


@pytest.mark.parametrize("name", HIDING)
def test_what_may_hide_a_state_is_named(name):
    module = nn.Sequential(Calling(HIDING[name]()))
    assert Fingerprint(module).unseen == "the attribute function of the class Calling"


FREE: dict[str, Any] = {
    "a builtin": torch.relu,
    "a builtin of a module": F.gelu,
    "an operator": operator.mul,
    "a torch function": F.silu,
    "a wrapped torch function": F.max_pool1d,
    "a torch op": torch.ops.aten.relu,
    "an unbound method": Tensor.relu,
    "a function": plain,
    "a lambda": lambda states: states * 2,
    "a wrapped function": torch.no_grad()(plain),
    "a partial": functools.partial(plain, factor=3.0),
    "a partial over a tensor": functools.partial(torch.mul, torch.ones(1)),
    "a function of autograd": Cubed.apply,
    "an object that can be called": Holder(F.gelu),
    "a module": ACT2FN["gelu_new"],
    "a class": nn.Linear,
    "a member of an enum": Kind.ONE,
    "functions in containers": {"one": [F.gelu, (plain, None)]},
}


@pytest.mark.parametrize("name", FREE)
def test_what_hides_nothing_is_not_named(name):
    module = nn.Sequential(Calling(FREE[name]))
    assert Fingerprint(module).unseen is None


def test_a_method_of_the_layer_itself_or_of_what_it_holds_hides_nothing():
    layer, holder = Calling(None), Holder()
    layer.function, layer.holder = layer.scaled, holder
    layer.other = holder.apply
    assert Fingerprint(nn.Sequential(layer)).unseen is None


def test_methods_that_close_over_a_state_are_named():
    state = {"factor": 2.0}

    class Closing(nn.Module):
        def forward(self, states: Tensor) -> Tensor:
            return self.scaled(states)

        def scaled(self, states: Tensor) -> Tensor:
            return states * state["factor"]

    class Property(Closing):
        scaled = property(lambda self: lambda states: states * state["factor"])

    class Static(Closing):
        scaled = staticmethod(closure())

    for cls in (Closing, Property, Static):
        assert Fingerprint(cls()).unseen == f"the method scaled of the class {cls.__name__}"


def times_factor(states: Tensor) -> Tensor:
    return states * FACTOR


def scaled_by_state(states: Tensor) -> Tensor:
    return states * STATE["factor"]


def test_layers_that_read_globals_are_named():
    class State(nn.Module):
        def forward(self, states: Tensor) -> Tensor:
            return states * STATE["factor"]

    class Number(nn.Module):
        def forward(self, states: Tensor) -> Tensor:
            return times_factor(states)

    class Inner(nn.Module):
        def forward(self, states: Tensor) -> Tensor:
            return torch.stack([scaled_by_state(row) for row in states])

    class Process(nn.Module):
        def forward(self, states: Tensor) -> Tensor:
            return states * float(os.environ.get("FACTOR", 1))

    for cls in (State, Number, Inner, Process):
        assert Fingerprint(cls()).unseen == f"the method forward of the class {cls.__name__}"


def test_layers_that_read_code_alone_are_not_named():
    class Code(nn.Module):
        def forward(self, states: Tensor) -> Tensor:
            return plain(F.gelu(torch.relu(states))) + functools.reduce(operator.add, range(len(Kind)))

    assert Fingerprint(Code()).unseen is None


def test_a_closure_that_is_put_at_a_librarys_layer_is_named():
    module: Any = tiny.build("llama")
    attention = module.model.layers[1].self_attn
    attention.rotary = plain
    assert Fingerprint(module).unseen is None
    for function in (closure(), functools.partial(torch.mul, closure())):
        attention.rotary = function
        assert Fingerprint(module).unseen == "the attribute rotary of the class LlamaAttention"


@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_models_of_transformers_hide_nothing(name):
    assert Fingerprint(tiny.build(name)).unseen is None


def test_what_partials_and_classes_of_objects_hold_is_compared(monkeypatch):
    settings = functools.partial(plain, factor=2.0)
    fingerprint = Fingerprint(nn.Sequential(Calling(settings), Calling(Holder())))
    assert fingerprint.matches()
    monkeypatch.setitem(settings.keywords, "factor", 3.0)
    assert not fingerprint.matches()
    monkeypatch.undo()
    assert fingerprint.matches()
    monkeypatch.setattr(Holder, "shift", 3.0, raising=False)
    assert not fingerprint.matches()
