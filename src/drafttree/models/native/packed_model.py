"""Models of drafttree-native, whose packed weights stand in for those of a module."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from drafttree.core.stages import stage
from drafttree.models.cache.kv_cache import Slot
from drafttree.models.fused.fused_backend import LLAMAS, embedding_multiplier, logits_cap, logits_divisor
from drafttree.models.fused.fused_layers import key_owners, layout_of
from drafttree.models.fused.int8_embedding import Int8Embedding, dtype_of, scale_of
from drafttree.models.module.fingerprint import samples, version
from drafttree.models.module.long_rope import long_frequencies_of, short_frequencies_of
from drafttree.models.module.mtp_embedding import MtpEmbedding
from drafttree.models.module.released import Release, can_release, stand_in
from drafttree.models.native import kernels
from drafttree.models.native.native_layers import (
    LayerInputs,
    NativeGemma4Layer,
    NativeLayer,
    NativeLlamaLayer,
    NativeNeoXLayer,
    Place,
    Products,
    norm_of,
    tensors_of,
    weight_of,
    weight_place,
)
from drafttree.models.native.packed_products import check_products, packed_products

LAYERS = {"gemma4_text": NativeGemma4Layer, "gpt_neox": NativeNeoXLayer}
"""The layers of families that are unlike Llama."""
LONG = "long"
"""Stands among the types of rotary embeddings for the long frequencies of LongRoPE."""


def new_model(
    embedding: Any, entry: tuple | None = None, multiplier: float | None = None, *, of_head: bool = False
) -> Any:
    """A model of drafttree-native without layers.

    Args:
        embedding: of the tokens, read where it lies, or out of the head of a packed model that has its weight.
        entry: what a draft head begins with, None if it is none: norms of tokens and of states, the projection of both,
            whether states come first, and whether the residual stream begins with the normed state.
        multiplier: of embeddings, None for the embedding's own.
        of_head: whether the head that the model gets has the embedding's weight.
    """
    owner = None if of_head else _owner(lambda packed: packed.has_embedding(embedding))
    table = None if of_head or owner else embedding.weight.detach()
    width, scale, dtype = embedding.embedding_dim, embedding_scale(embedding, multiplier), dtype_of(embedding)
    model = kernels.native.Model(torch.get_num_threads(), table, width, scale, kernels.FORMATS[dtype])
    if owner:
        model.share_embedding(owner)
    if entry:
        model.add_entry(*entry)
    return model


def embedding_scale(embedding: nn.Embedding, multiplier: float | None = None) -> float:
    """What embeddings are multiplied with, as of `new_model`."""
    if multiplier is not None:
        return multiplier
    return scale_of(embedding)


def table_of(embedding: Any) -> Tensor:
    """The weight of an embedding."""
    return embedding.quantized if isinstance(embedding, Int8Embedding) else embedding.weight


def are_tied(embedding: Any, head: Any) -> bool:
    """Whether an embedding and an output projection have one weight."""
    return table_of(embedding) is getattr(*weight_place(head))


def _owner(has: Callable[["PackedModel"], bool]) -> Any:
    """The model of drafttree-native of a packed model that has something, None where none has."""
    return next((packed.model for packed in [*packed_models.values()] if has(packed)), None)


def rotaries_of(layers: Sequence[NativeLayer], rotary: Any) -> dict[str | None, tuple[Tensor, float]]:
    """Frequencies and scaling of the rotary embeddings of layers, by type.

    Args:
        layers: the layers.
        rotary: the rotary embedding of a model of transformers.

    Returns:
        By type, and by `LONG` those of texts beyond the original context of LongRoPE.
    """
    rotaries: dict[str | None, tuple[Tensor, float]] = {}
    for layer_type in dict.fromkeys(layer.rotary for layer in layers if layer.turns):
        prefix = f"{layer_type}_" if hasattr(rotary, f"{layer_type}_inv_freq") else ""
        scaling = float(getattr(rotary, f"{prefix}attention_scaling"))
        rotaries[layer_type] = short_frequencies_of(rotary, layer_type).detach().float().contiguous(), scaling
        if (long := long_frequencies_of(rotary)) is not None:
            rotaries[LONG] = long.float().contiguous(), scaling
    return rotaries


def add_layer_inputs(model: Any, inputs: LayerInputs) -> None:
    """Add what layers read beside the residual stream to a model of drafttree-native, before its layers."""
    table, (of_projection, of_sum) = inputs.embedding, inputs.scales
    own = table.weight.detach(), embedding_scale(table)
    model.add_layer_inputs(*own, weight_of(inputs.projection), of_projection, inputs.norm, of_sum)


def add_layer(
    model: Any, layer: NativeLayer, rotaries: dict[str | None, tuple[Tensor, float]], slots: tuple[Slot, Slot]
) -> None:
    """Add a decoder layer to a model of drafttree-native, which has these rotary embeddings already.

    Args:
        model: the model.
        layer: the layer.
        rotaries: the rotary embeddings.
        slots: of the keys and values that the layer attends to.
    """
    keys, values = slots
    shape = {**layer.shape, "buffer": keys.buffer, "key_slot": keys.place, "value_slot": values.place}
    shape["rotary"] = [*rotaries].index(layer.rotary) if layer.turns else None
    if layer.turns and LONG in rotaries:
        shape["long_rotary"] = [*rotaries].index(LONG)
    model.add_layer(layer.norms, layer.products.read(), shape)


def add_head(model: Any, norm: tuple | None, head: Any, divisor: float = 1.0, cap: float | None = None) -> bool:
    """Add the last norm, if there is one, and the output projection: one that is packed already, where it is the same.

    A draft head often has the target's. Whether it was packed for this model.

    Args:
        model: the model.
        norm: the norm.
        head: the output projection.
        divisor: of logits.
        cap: what no logit goes beyond, None for none.
    """
    owner = _owner(lambda packed: packed.has_head(head))
    if owner:
        model.share_head(norm, owner, divisor, cap or 0.0)
    else:
        model.add_head(norm, weight_of(head), divisor, cap or 0.0)
    return owner is None


class PackingPlan:
    """All that is packed of a module; weights that are released stay so until they are packed.

    Args:
        module: the module.

    Attributes:
        embedding: of the tokens.
        mtp: what a multi-token-prediction layer reads in place of it, None for other models.
        multiplier: of embeddings, None for the embedding's own.
        layer_inputs: what layers read beside the residual stream, None for nothing.
        layers: the decoder layers.
        owners: as of `key_owners`.
        rotaries: their rotary embeddings.
        norm: the last norm.
        head: the output projection.
        divisor: of logits.
        cap: of logits, None for none.
        layout: of the KV caches.

    Raises:
        AttributeError: a layer is not as those of its family.
    """

    def __init__(self, module: PreTrainedModel) -> None:
        decoder: Any = module.get_decoder()
        config, embedding = module.config, module.get_input_embeddings()
        is_llama = config.model_type in LLAMAS
        self.mtp = embedding if isinstance(embedding, MtpEmbedding) else None
        self.embedding: Any = embedding if self.mtp is None else self.mtp.embed_tokens
        self.multiplier = embedding_multiplier(decoder)
        self.layer_inputs = LayerInputs.of(decoder)
        layer = LAYERS.get(config.model_type, NativeLlamaLayer)
        self.layers: list[NativeLayer] = [layer(block, config) for block in decoder.layers]
        self.owners = key_owners(decoder.layers)
        self.rotaries = rotaries_of(self.layers, decoder.rotary_emb)
        self.norm = norm_of(decoder.norm if is_llama else decoder.final_layer_norm)
        self.head: Any = module.get_output_embeddings()
        self.divisor, self.cap = logits_divisor(config), logits_cap(config)
        shapes = [(layer.shape["key_heads"], layer.shape["width"]) for layer in self.layers]
        self.layout = layout_of(shapes, self.owners)

    @property
    def is_tied(self) -> bool:
        """Whether the head has the embedding's weight."""
        return are_tied(self.embedding, self.head)

    @property
    def entry(self) -> tuple | None:
        """What an MTP layer begins with; see `new_model`."""
        if self.mtp is None:
            return None
        return *self._mtp_norms, weight_of(self.mtp.eh_proj), self.mtp.states_first, False

    @property
    def products(self) -> list[tuple[int, Products]]:
        """All products by the layer that they are of in drafttree-native, -1 for those of no layer."""
        inputs = [(-1, _alone("layer_inputs", self.layer_inputs.projection))] if self.layer_inputs else []
        layers = [(index, layer.products) for index, layer in enumerate(self.layers)]
        return [*inputs, *layers, (-1, _alone("head", self.head))]

    @property
    def tensors(self) -> list[Any]:
        """The tensors of the embedding and of linear layers."""
        projection = tensors_of(self.mtp.eh_proj) if self.mtp else []
        own = self.layer_inputs
        inputs = [own.embedding.weight, *tensors_of(own.projection)] if own else []
        layers = (tensor for layer in self.layers for tensor in layer.products.tensors)
        return [table_of(self.embedding), *projection, *inputs, *layers, *tensors_of(self.head)]

    @property
    def settings(self) -> object:
        """All else that is packed, as values that are equal where the same is packed."""
        mtp = [*self._mtp_norms, self.mtp.states_first] if self.mtp else None
        scale = embedding_scale(self.embedding, self.multiplier)
        own = self.layer_inputs
        inputs = [embedding_scale(own.embedding), own.norm, own.scales] if own else None
        layers = [(layer.norms, layer.shape, layer.rotary, layer.turns) for layer in self.layers]
        return _as_values([scale, mtp, inputs, layers, self.owners, self.rotaries, self.norm, self.divisor, self.cap])

    @property
    def _mtp_norms(self) -> list[tuple | None]:
        return [norm_of(self.mtp.enorm), norm_of(self.mtp.hnorm)] if self.mtp else []


class PackedModel:
    """A model of drafttree-native with a module's weights, which the module's layers release as they are packed.

    Args:
        module: the module.

    Attributes:
        model: the model.
        layout: the layout of its KV caches.

    Raises:
        AttributeError: as of `PackingPlan`.
        ValueError: sizes of layers do not fit together.
        WrongProductError: a packed product is not its layer's.
    """

    @stage("pack")
    def __init__(self, module: PreTrainedModel) -> None:
        plan = PackingPlan(module)
        self.model = new_model(plan.embedding, plan.entry, plan.multiplier, of_head=plan.is_tied)
        for rotary in plan.rotaries.values():
            self.model.add_rotary(*rotary)
        if plan.layer_inputs:
            add_layer_inputs(self.model, plan.layer_inputs)
            self._release(-1, _alone("layer_inputs", plan.layer_inputs.projection))
        for index, layer in enumerate(plan.layers):
            add_layer(self.model, layer, plan.rotaries, plan.layout.slots[plan.owners[index]])
            self._release(index, layer.products)
        self.layout = plan.layout
        if add_head(self.model, plan.norm, plan.head, plan.divisor, plan.cap):
            self._release(-1, _alone("head", plan.head), holders=1 + plan.is_tied)
        self._settings, self._stamps = plan.settings, [*map(_stamp, plan.tensors)]
        self._head = [*map(_stamp, tensors_of(plan.head))]
        self._embedding = [_stamp(table_of(plan.embedding))] if plan.is_tied else None
        self._releases = [stamp for stamp in [*self._stamps, *self._head] if isinstance(stamp, Release)]

    def has_head(self, layer: Any) -> bool:
        """Whether a linear layer is the output projection that is packed."""
        return _are_stamped(self._head, tensors_of(layer))

    def has_embedding(self, embedding: Any) -> bool:
        """Whether an embedding's weight is the output projection's that is packed."""
        return self._embedding is not None and _are_stamped(self._embedding, [table_of(embedding)])

    def holds(self, module: PreTrainedModel) -> bool:
        """Whether what is packed is what would be packed of a module now.

        Raises:
            AttributeError: as of `PackingPlan`.
        """
        plan = PackingPlan(module)
        return _are_stamped(self._stamps, plan.tensors) and plan.settings == self._settings

    def multiplies_for(self, module: PreTrainedModel) -> AbstractContextManager[None]:
        """Let the layers of the module that is packed multiply by what is packed of them, and look up rows there."""
        plan = PackingPlan(module)
        return packed_products(self.model, plan.products, plan.embedding if plan.is_tied else None)

    def take_back(self) -> None:
        """Let layers release again what they were given back, where that can be."""
        for release in self._releases:
            release.take_back()

    def _release(self, index: int, products: Products, holders: int = 1) -> None:
        """Let the layers that were packed release their weights, whose products are their own.

        Args:
            index: of the layer.
            products: what was packed of it.
            holders: modules that have each weight.
        """
        check_products(self.model, index, products)
        for layer, places in products.places.items():
            owner, name = weight_place(layer)
            if can_release(owner, name, holders):
                weight = getattr(owner, name)
                unpack = partial(_unpack, self.model, index, places, weight.shape, weight.dtype)
                Release(owner, name, unpack, holders)
        kernels.native.trim_heap()


def _alone(name: str, layer: Any) -> Products:
    """A linear layer that is a product by itself, and of no decoder layer."""
    products = Products()
    products.add(name, [layer])
    return products


packed_models = WeakKeyDictionary[PreTrainedModel, PackedModel]()
"""The packed models of modules, which several backends may share."""


def _stamp(tensor: Any) -> Any:
    """What tells a tensor from others and from what it is after an edit."""
    tensor = stand_in(tensor)
    if not isinstance(tensor, Tensor):
        return tensor
    return tensor.data_ptr(), version(tensor), tensor.shape, _as_values(samples(tensor))


def _are_stamped(stamps: Sequence[Any], tensors: Sequence[Any]) -> bool:
    return len(stamps) == len(tensors) and all(map(_is_stamped, stamps, tensors))


def _is_stamped(stamp: Any, tensor: Any) -> bool:
    if isinstance(stamp, Release):
        return stamp.is_of(tensor)
    return stamp == _stamp(tensor)


def _as_values(value: Any) -> Any:
    """Numbers, tensors and containers of them as values that are compared by what they hold, NaN included."""
    if isinstance(value, Tensor):
        entries = value.detach().clone(memory_format=torch.contiguous_format).view(-1)
        return value.dtype, value.shape, entries.view(torch.uint8).numpy().tobytes()
    if isinstance(value, dict):
        return {key: _as_values(entry) for key, entry in value.items()}
    return tuple(map(_as_values, value)) if isinstance(value, list | tuple) else value


def _unpack(model: Any, index: int, places: Sequence[Place], shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """A linear layer's weight."""
    whole = torch.empty(shape, dtype=dtype, device="cpu")
    for place in places:
        if len(places) == 1 and place.outputs is None:
            model.unpack(index, place.product, place.first, len(whole), whole.data_ptr())
            continue
        rows = torch.empty((len(place.outputs), shape[-1]), dtype=dtype, device="cpu")  # pyright: ignore[reportArgumentType]
        model.unpack(index, place.product, place.first, len(rows), rows.data_ptr())
        whole.flatten(0, -2)[place.outputs] = rows
    return whole
