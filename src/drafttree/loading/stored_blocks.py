"""Weights that stay in few bits as files have them, which drafttree-native multiplies."""

import re
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from drafttree.models.families import why_not_known
from drafttree.models.native import kernels
from drafttree.models.quantization.block_linear import BlockLinear
from drafttree.models.quantization.quantized_embedding import QuantizedEmbedding, only_looks_up

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
LINEAR = re.compile(r"(model\.layers\.\d+\.(?!.*\.experts\.).*\.)(\w+)_proj\.weight")
"""Weights of linear layers but the head. Those of experts are no layers of a module, which stacks them."""
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

    def blocks(self) -> Tensor:
        """Its blocks, uint8 `[outputs, bytes]`.

        Raises:
            ModelError: scales are not finite, or none that blocks have.
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
    blocks = {name for name, weight in weights.items() if weight.form and (LINEAR.fullmatch(name) or name in ends)}
    return {name: weights[name] for name in weights if name in blocks and _siblings(name) & weights.keys() <= blocks}


def _siblings(name: str) -> set[str]:
    """The weights that are in blocks if this one is."""
    if not (match := LINEAR.fullmatch(name)):
        return {name}
    before, own = match.groups()
    parts = next((together for together in TOGETHER if own in together), {own})
    return {f"{before}{part}_proj.weight" for part in parts}


def put_blocks(model: PreTrainedModel, kept: Mapping[str, StoredWeight]) -> None:
    """Replace the linear layers of a model by those with weights in blocks, and an embedding that has the head's.

    Args:
        model: the model, whose weights of these names are placeholders.
        kept: as of `kept_weights`.

    Raises:
        ModelError: scales in the file are not finite.
    """
    for name, weight in kept.items():
        if name == EMBEDDING:
            _put_embedding(model, weight)
            continue
        parent, _, own = name.removesuffix(".weight").rpartition(".")
        owner: Any = model.get_submodule(parent) if parent else model
        setattr(owner, own, BlockLinear(getattr(owner, own), weight.blocks(), weight.form))


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
