"""Compares the shapes of stored weights with those of their model, before any value is read."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from drafttree.drafters.formats.format import listed, misshapen
from drafttree.loading.stored_blocks import EXPERT, EXPERT_PROJECTIONS, STACKED, StoredWeight
from drafttree.models.families import why_not_known


def stored_problems(weights: Mapping[str, StoredWeight], model_class: Any, config: PreTrainedConfig) -> Iterator[str]:
    """A phrase for each weight that has another shape than in the model; missing weights are not reported.

    For experts with a tensor for each weight, missing and unexpected tensors are reported too.

    Args:
        weights: the weights by the names of transformers; experts may be stacked or apart.
        model_class: the model's class.
        config: its config.
    """
    with torch.device("meta"):
        parameters = dict(model_class(config).named_parameters())
    for name in sorted(weights.keys() & parameters.keys()):
        yield from _misshapen_parts(name, weights[name], parameters[name])
    if why_not_known(config) is None:  # unknown families stack experts in their own ways
        yield from _experts_apart(weights, parameters)


def _misshapen_parts(name: str, weight: StoredWeight, parameter: Tensor) -> Iterator[str]:
    tensor_shapes = weight.part_shapes
    if len(tensor_shapes) == 1 or not STACKED.fullmatch(name):
        yield from misshapen(name, weight.shape, parameter.shape)
        return
    count, outputs, inputs = parameter.shape
    for tensor_name, shape in tensor_shapes.items():
        yield from misshapen(tensor_name, shape, (count, outputs // len(tensor_shapes), inputs))


def _experts_apart(weights: Mapping[str, StoredWeight], parameters: Mapping[str, Tensor]) -> Iterator[str]:
    """Problems of experts with a tensor for each weight, all of which have the same shapes in a layer."""
    weights_by_layer = defaultdict[str, dict[tuple[int, str], StoredWeight]](dict)
    for name, weight in weights.items():
        if match := EXPERT.fullmatch(name):
            weights_by_layer[match[1]][int(match[2]), match[3]] = weight
    for experts, expert_weights in weights_by_layer.items():
        gate_up = parameters.get(f"{experts}.gate_up_proj")
        if gate_up is None:
            continue
        count, outputs, inputs = gate_up.shape
        shapes = {"gate": (outputs // 2, inputs), "up": (outputs // 2, inputs), "down": (inputs, outputs // 2)}
        expected_keys = set(product(range(count), EXPERT_PROJECTIONS))
        yield from listed("missing", [_name(experts, *key) for key in expected_keys - expert_weights.keys()])
        yield from listed("unexpected", [_name(experts, *key) for key in expert_weights.keys() - expected_keys])
        for index, projection in sorted(expected_keys & expert_weights.keys()):
            yield from misshapen(
                _name(experts, index, projection), expert_weights[index, projection].shape, shapes[projection]
            )
        stacked_names = [name for name in (f"{experts}.gate_up_proj", f"{experts}.down_proj") if name in weights]
        yield from listed("experts lie apart, and there are", stacked_names)


def _name(experts: str, index: int, projection: str) -> str:
    return f"{experts}.{index}.{projection}_proj.weight"
