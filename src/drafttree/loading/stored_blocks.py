"""Keeps weights in the quantised blocks of their files, which drafttree-native multiplies as they are."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from drafttree.models.families import why_not_known
from drafttree.models.native import kernels
from drafttree.models.quantization.block_linear import BlockLinear
from drafttree.models.quantization.linear_experts import LinearExperts
from drafttree.models.quantization.quantized_embedding import QuantizedEmbedding, only_looks_up

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
LINEAR = re.compile(r"(model\.layers\.\d+\.(?!.*\.experts\.).*\.)(\w+)_proj\.weight")
"""Weights of linear layers, without the head and experts."""
STACKED = re.compile(r"(model\.layers\.\d+\..*\bexperts)\.(gate_up|down)_proj")
"""Weights of all experts of a layer in one tensor."""
EXPERT = re.compile(r"(model\.layers\.\d+\..*\bexperts)\.(\d+)\.(gate|up|down)_proj\.weight")
"""A weight of one expert."""
EXPERT_PROJECTIONS = ("gate", "up", "down")
"""Names of an expert's linear layers."""
SHARED_INPUTS = ({"q", "k", "v"}, {"gate", "up"})
"""Linear layers that read the same input, so that its rows are quantised once for all of them."""


class StoredWeight(Protocol):
    """A weight of a module, which is read from its file on access.

    Attributes:
        is_left_out: whether to return a placeholder without values instead.
        is_packed: whether the file stores it in few bits.
        form: name of the blocks it can stay in, from `drafttree.models.quantization.blocks`; empty if it cannot.
        shape: its shape.
    """

    is_left_out: bool
    is_packed: bool

    def __getitem__(self, _: object) -> Tensor:
        """The whole weight; transformers materialises weights by `weight[...]`."""
        ...

    @property
    def form(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def part_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of its tensors, by their names in messages."""
        ...

    def blocks(self) -> Tensor:
        """Its blocks, uint8 `[outputs, bytes]`.

        Raises:
            ModelError: a scale is not finite, or is not representable in blocks.
        """
        ...

    def stacks(self) -> list[Tensor]:
        """The blocks of all experts, uint8 `[experts, outputs, bytes]`: of gate and up projections, or of down ones.

        Raises:
            ModelError: a scale is not finite.
        """
        ...


def why_not_multiplied(config: PreTrainedConfig, device: torch.device) -> str | None:
    """Why drafttree cannot multiply the blocks of a model on a device; None if it can."""
    if device.type != "cpu":
        return f"no kernel multiplies blocks on {device.type}"
    if kernels.native is None:
        return 'drafttree-native is not installed (pip install "drafttree[native]")'
    return why_not_known(config)


def kept_weights(weights: Mapping[str, StoredWeight]) -> dict[str, StoredWeight]:
    """The weights of a model that can stay in blocks, by the names of transformers.

    Weights that read the same input stay only if all of them can.
    """
    ends = {EMBEDDING, HEAD}
    in_blocks = {name for name, weight in weights.items() if weight.form and (LINEAR.fullmatch(name) or name in ends)}
    kept_names = {name for name in in_blocks if _siblings(name) & weights.keys() <= in_blocks}
    for expert_names in _experts_of(weights).values():
        if _are_whole(expert_names) and _are_alike(weights, expert_names):
            kept_names.update(expert_names)
    return {name: weights[name] for name in weights if name in kept_names}


def _experts_of(weights: Mapping[str, StoredWeight]) -> dict[str, list[str]]:
    """The names of experts' weights, by the name of the module that holds a layer's experts."""
    names = defaultdict[str, list[str]](list)
    for name in weights:
        if match := STACKED.fullmatch(name) or EXPERT.fullmatch(name):
            names[match[1]].append(name)
    return names


def _are_whole(names: Sequence[str]) -> bool:
    """Whether no weight of a layer's experts is missing; loading reports missing ones."""
    if any(map(STACKED.fullmatch, names)):
        return len(names) == len(("gate_up", "down"))
    projections = {(int(match[2]), match[3]) for match in map(EXPERT.fullmatch, names) if match}
    return projections == set(product(range(len(names) // 3), EXPERT_PROJECTIONS))


def _are_alike(weights: Mapping[str, StoredWeight], names: Sequence[str]) -> bool:
    """Whether all weights of a layer's experts are in blocks, and those that read the same input in the same form."""
    down_forms = {weights[name].form for name in names if "down_proj" in name}
    gate_up_forms = {weights[name].form for name in names if "down_proj" not in name}
    return len(down_forms) == len(gate_up_forms) == 1 and "" not in down_forms | gate_up_forms


def _siblings(name: str) -> set[str]:
    """The names of the weights that read the same input as this one, itself included."""
    if not (match := LINEAR.fullmatch(name)):
        return {name}
    prefix, projection = match.groups()
    projections = next((group for group in SHARED_INPUTS if projection in group), {projection})
    return {f"{prefix}{sibling}_proj.weight" for sibling in projections}


def with_placeholders(
    weights: Mapping[str, StoredWeight], block_weights: Mapping[str, StoredWeight], dtype: torch.dtype
) -> dict[str, Any]:
    """The state dict for transformers, with placeholders without values for weights that stay in blocks.

    Experts with a tensor for each weight get one stacked placeholder, since transformers would copy single tensors to
    stack them.

    Args:
        weights: all weights of a model.
        block_weights: the weights that stay in blocks, which are marked as left out.
        dtype: dtype of the stacked placeholders.
    """
    state_dict: dict[str, Any] = {
        name: weights[name] for name in weights if not (name in block_weights and EXPERT.fullmatch(name))
    }
    for experts, names in _experts_of(block_weights).items():
        if not all(map(EXPERT.fullmatch, names)):
            continue
        count = len(names) // 3
        placeholder = torch.zeros((), dtype=dtype)
        intermediate_size, hidden_size = weights[f"{experts}.0.gate_proj.weight"].shape
        state_dict[f"{experts}.gate_up_proj"] = placeholder.expand(count, 2 * intermediate_size, hidden_size)
        state_dict[f"{experts}.down_proj"] = placeholder.expand(count, hidden_size, intermediate_size)
    for weight in block_weights.values():
        weight.is_left_out = True
    return state_dict


def put_blocks(model: PreTrainedModel, block_weights: Mapping[str, StoredWeight]) -> None:
    """Replace linear layers, experts and the embedding of a model by layers with weights in blocks.

    Args:
        model: the model, which has placeholders for these weights.
        block_weights: the weights that stay in blocks, from `kept_weights`.

    Raises:
        ModelError: a scale in the file is not finite, or is not representable in blocks.
    """
    for name, weight in block_weights.items():
        if name == EMBEDDING:
            _put_embedding(model, weight)
        if name == EMBEDDING or STACKED.fullmatch(name) or EXPERT.fullmatch(name):
            continue
        parent, _, child = name.removesuffix(".weight").rpartition(".")
        owner: Any = model.get_submodule(parent) if parent else model
        setattr(owner, child, BlockLinear(getattr(owner, child), weight.blocks(), weight.form))
    for experts_name, weight_names in _experts_of(block_weights).items():
        parent, _, child = experts_name.rpartition(".")
        owner = model.get_submodule(parent)
        expert_weights = {name: block_weights[name] for name in weight_names}
        setattr(owner, child, _experts_in_blocks(getattr(owner, child), expert_weights))


def _experts_in_blocks(experts: Any, weights: Mapping[str, StoredWeight]) -> LinearExperts:
    """A layer's experts with weights in blocks, which replace the experts with placeholders."""
    layers: dict[str, dict[int, BlockLinear]] = {projection: {} for projection in EXPERT_PROJECTIONS}
    for name, weight in weights.items():
        if match := EXPERT.fullmatch(name):
            layers[match[3]][int(match[2])] = _linear_in_blocks(weight, weight.blocks())
            continue
        projections = ["gate", "up"] if "gate_up" in name else ["down"]
        for projection, stack in zip(projections, weight.stacks(), strict=True):
            for index, blocks in enumerate(stack):
                # a tensor of its own, since layers release only memory that is not shared
                own_blocks = torch.from_numpy(blocks.numpy())
                layers[projection][index] = _linear_in_blocks(weight, own_blocks)
    return LinearExperts(experts, *[_in_order(layers[projection]) for projection in EXPERT_PROJECTIONS])


def _in_order(layers: Mapping[int, BlockLinear]) -> list[BlockLinear]:
    """The layers of all experts, first expert first."""
    return [layers[index] for index in range(len(layers))]


def _linear_in_blocks(weight: StoredWeight, blocks: Tensor) -> BlockLinear:
    """A linear layer of an expert.

    Args:
        weight: the expert's weight, or the stacked weight of all experts.
        blocks: blocks of this expert, uint8 `[outputs, bytes]`.
    """
    return BlockLinear(nn.Linear(weight.shape[-1], len(blocks), bias=False, device="meta"), blocks, weight.form)


def _put_embedding(model: PreTrainedModel, weight: StoredWeight) -> None:
    """Replace a model's embedding by one in blocks, and its head too if the two share a weight."""
    head: Any = model.get_output_embeddings()
    embedding: Any = model.get_input_embeddings()
    assert only_looks_up(embedding)
    blocks = BlockLinear(head, weight.blocks(), weight.form)  # the head has the embedding's sizes
    if model.config.tie_word_embeddings:
        assert type(head) is nn.Linear
        model.set_output_embeddings(blocks)
    model.set_input_embeddings(QuantizedEmbedding(blocks, embedding))
