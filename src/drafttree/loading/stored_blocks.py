"""Weights that stay in few bits as files have them, which drafttree-native multiplies."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
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
"""Weights of linear layers but the head and those of experts."""
STACKED = re.compile(r"(model\.layers\.\d+\..*\bexperts)\.(gate_up|down)_proj")
"""The weights of a layer's experts where one tensor has those of all."""
EXPERT = re.compile(r"(model\.layers\.\d+\..*\bexperts)\.(\d+)\.(gate|up|down)_proj\.weight")
"""The weights of one expert."""
EXPERT_PARTS = ("gate", "up", "down")
"""Its linear layers."""
TOGETHER = ({"q", "k", "v"}, {"gate", "up"})
"""Linear layers of one input, whose rows are made once."""


class StoredWeight(Protocol):
    """A weight of a module, which is read from its file when somebody asks for it.

    Attributes:
        is_left_out: whether a placeholder without values is read in its place.
        is_packed: whether its numbers are in few bits in the file.
        form: the name of the blocks that it may stay in, as of `drafttree.models.quantization.blocks`; none if empty.
        shape: its shape.
    """

    is_left_out: bool
    is_packed: bool

    def __getitem__(self, _: object) -> Tensor:
        """The whole weight: transformers takes what it materialises by `[...]`."""
        ...

    @property
    def form(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def part_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of the tensors that it is made of, by what messages call them."""
        ...

    def blocks(self) -> Tensor:
        """Its blocks, uint8 `[outputs, bytes]`.

        Raises:
            ModelError: scales are not finite, or none that blocks have.
        """
        ...

    def stacks(self) -> list[Tensor]:
        """The blocks of all experts, uint8 `[experts, outputs, bytes]`: of gates and of what they gate, or of outputs.

        Raises:
            ModelError: as of `blocks`.
        """
        ...


def why_not_multiplied(config: PreTrainedConfig, device: torch.device) -> str | None:
    """Why nothing multiplies the blocks of a model on a device, None if something does."""
    if device.type != "cpu":
        return f"nothing multiplies blocks on {device.type}"
    if kernels.native is None:
        return 'drafttree-native is not installed (pip install "drafttree[native]")'
    return why_not_known(config)


def kept_weights(weights: Mapping[str, StoredWeight]) -> dict[str, StoredWeight]:
    """Those of a model's weights that stay in blocks, by the names of transformers."""
    ends = {EMBEDDING, HEAD}
    in_blocks = {name for name, weight in weights.items() if weight.form and (LINEAR.fullmatch(name) or name in ends)}
    kept_names = {name for name in in_blocks if _siblings(name) & weights.keys() <= in_blocks}
    expert_names = [
        names for names in _experts_of(weights).values() if _are_whole(names) and _are_alike(weights, names)
    ]
    kept_names.update(*expert_names)
    return {name: weights[name] for name in weights if name in kept_names}


def _experts_of(weights: Mapping[str, StoredWeight]) -> dict[str, list[str]]:
    """By the name of a layer's experts, the names of their weights."""
    names = defaultdict[str, list[str]](list)
    for name in weights:
        if match := STACKED.fullmatch(name) or EXPERT.fullmatch(name):
            names[match[1]].append(name)
    return names


def _are_whole(names: Sequence[str]) -> bool:
    """Whether a layer's experts have all their weights; else the file is damaged, which transformers tells."""
    if any(map(STACKED.fullmatch, names)):
        return len(names) == len(("gate_up", "down"))
    projections = {(int(match[2]), match[3]) for match in map(EXPERT.fullmatch, names) if match}
    return projections == {(index, projection) for index in range(len(names) // 3) for projection in EXPERT_PARTS}


def _are_alike(weights: Mapping[str, StoredWeight], names: Sequence[str]) -> bool:
    """Whether all weights of a layer's experts are in blocks: those of one input in the same, whose rows are one."""
    reads_inner = [name for name in names if "down_proj" in name]
    reads_hidden = [name for name in names if "down_proj" not in name]
    forms = [{weights[name].form for name in group_names} for group_names in (reads_inner, reads_hidden)]
    return all(len(group_forms) == 1 and "" not in group_forms for group_forms in forms)


def _siblings(name: str) -> set[str]:
    """The weights that are in blocks if this one is."""
    if not (match := LINEAR.fullmatch(name)):
        return {name}
    prefix, projection = match.groups()
    projections = next((group for group in TOGETHER if projection in group), {projection})
    return {f"{prefix}{sibling}_proj.weight" for sibling in projections}


def with_placeholders(
    weights: Mapping[str, StoredWeight], kept: Mapping[str, StoredWeight], dtype: torch.dtype
) -> dict[str, Any]:
    """What transformers reads: weights, and placeholders without values for those that are kept.

    Those of experts that lie apart have one as they are stacked, since transformers would copy theirs to stack them.
    """
    state_dict: dict[str, Any] = {
        name: weights[name] for name in weights if not (name in kept and EXPERT.fullmatch(name))
    }
    for experts, names in _experts_of(kept).items():
        if not all(map(EXPERT.fullmatch, names)):
            continue
        count = len(names) // 3
        placeholder = torch.zeros((), dtype=dtype)
        intermediate_size, hidden_size = weights[f"{experts}.0.gate_proj.weight"].shape
        state_dict[f"{experts}.gate_up_proj"] = placeholder.expand(count, 2 * intermediate_size, hidden_size)
        state_dict[f"{experts}.down_proj"] = placeholder.expand(count, hidden_size, intermediate_size)
    for weight in kept.values():
        weight.is_left_out = True
    return state_dict


def put_blocks(model: PreTrainedModel, kept: Mapping[str, StoredWeight]) -> None:
    """Replace the linear layers of a model by those with weights in blocks, and an embedding that has the head's.

    Args:
        model: the model, whose weights of these names are placeholders.
        kept: as of `kept_weights`.

    Raises:
        ModelError: scales in the file are not finite.
    """
    experts = _experts_of(kept)
    for name, weight in kept.items():
        if name == EMBEDDING:
            _put_embedding(model, weight)
        if name == EMBEDDING or STACKED.fullmatch(name) or EXPERT.fullmatch(name):
            continue
        parent, _, child = name.removesuffix(".weight").rpartition(".")
        owner: Any = model.get_submodule(parent) if parent else model
        setattr(owner, child, BlockLinear(getattr(owner, child), weight.blocks(), weight.form))
    for name, weight_names in experts.items():
        parent, _, child = name.rpartition(".")
        owner = model.get_submodule(parent)
        setattr(owner, child, _experts_in_blocks(getattr(owner, child), {key: kept[key] for key in weight_names}))


def _experts_in_blocks(experts: Any, weights: Mapping[str, StoredWeight]) -> LinearExperts:
    """A layer's experts with weights in blocks, in the place of those whose weights are placeholders."""
    layers: dict[str, dict[int, BlockLinear]] = {"gate": {}, "up": {}, "down": {}}
    for name, weight in weights.items():
        if match := EXPERT.fullmatch(name):
            layers[match[3]][int(match[2])] = _linear_in_blocks(weight, weight.blocks())
            continue
        for projection, stack in zip(["gate", "up"] if "gate_up" in name else ["down"], weight.stacks(), strict=True):
            # each is a tensor of its own, since layers release only what nobody shares
            expert_blocks = [torch.from_numpy(blocks.numpy()) for blocks in stack]
            layers[projection] = {
                index: _linear_in_blocks(weight, blocks) for index, blocks in enumerate(expert_blocks)
            }
    layers_in_order = {
        projection: [layers_by_index[index] for index in range(len(layers_by_index))]
        for projection, layers_by_index in layers.items()
    }
    return LinearExperts(experts, layers_in_order["gate"], layers_in_order["up"], layers_in_order["down"])


def _linear_in_blocks(weight: StoredWeight, blocks: Tensor) -> BlockLinear:
    """A linear layer of an expert, whose blocks are a weight's or part of one that is stacked."""
    return BlockLinear(nn.Linear(weight.shape[-1], len(blocks), bias=False, device="meta"), blocks, weight.form)


def _put_embedding(model: PreTrainedModel, weight: StoredWeight) -> None:
    """Put an embedding in blocks in the place of a model's, and a head with the same weight if the two are tied."""
    head: Any = model.get_output_embeddings()
    embedding: Any = model.get_input_embeddings()
    assert only_looks_up(embedding)
    blocks = BlockLinear(head, weight.blocks(), weight.form)  # of the same sizes
    if model.config.tie_word_embeddings:
        assert type(head) is nn.Linear
        model.set_output_embeddings(blocks)
    model.set_input_embeddings(QuantizedEmbedding(blocks, embedding))
