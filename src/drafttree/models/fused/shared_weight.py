from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn


class SharedWeightLinear(nn.Module):
    """A linear layer whose weight exists once, as products read it; layers of one input may share one.

    The weight is not called `weight`, so a model that reads a layer's weight itself fails instead of computing with
    something else.

    Args:
        layer: the layer that it stands in for.

    Attributes:
        shared: names of the parameters that layers of one input share.
        outputs: the outputs of the shared weight that are this layer's.
        bias: `[out]` or None.
    """

    shared: ClassVar[tuple[str, ...]] = ()

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.training = layer.training
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.outputs = slice(0, layer.out_features)
        self.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach(), requires_grad=False)

    def product(self, x: Tensor) -> Tensor:
        """The product of `[rows, in]` with the whole shared weight."""
        raise NotImplementedError

    def own(self) -> dict[str, Tensor]:
        """This layer's own part of what it shares, as its state dict has it."""
        raise NotImplementedError

    def take(self, parts: Mapping[str, Tensor]) -> None:
        """Take over what `own` gives, of this layer or of several one after the other."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"

    def forward(self, x: Tensor) -> Tensor:
        product = self.product(x.flatten(0, -2))[:, self.outputs]
        return (product if self.bias is None else product + self.bias).unflatten(0, x.shape[:-1])

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy with the same weight: a packed one can be neither copied nor changed in place."""
        memo |= {id(parameter): parameter for parameter in self._shared_parameters()}
        memo[id(self)] = other = type(self).__new__(type(self))
        vars(other).update(deepcopy(vars(self), memo))
        return other

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in self.shared:
            del destination[prefix + name]
        destination.update({prefix + name: part for name, part in self.own().items()})

    def _shared_parameters(self) -> list[nn.Parameter]:
        return [getattr(self, name) for name in self.shared]


def join(layers: Sequence[SharedWeightLinear]) -> None:
    """Let layers of one input share one weight, the outputs of one layer behind those of another."""
    first = layers[0]
    if all(getattr(layer, name) is getattr(first, name) for layer in layers for name in first.shared):
        return
    parts = [layer.own() for layer in layers]
    first.take({name: torch.cat([part[name] for part in parts]) for name in parts[0]})
    begin = 0
    for layer in layers:
        for name in first.shared:
            setattr(layer, name, getattr(first, name))
        layer.outputs = slice(begin, begin + layer.out_features)
        begin += layer.out_features
