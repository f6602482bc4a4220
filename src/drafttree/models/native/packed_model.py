"""Models of drafttree-native, whose packed weights stand in for those of a module."""

from collections.abc import Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from drafttree.models.cache.kv_cache import CacheLayout
from drafttree.models.fused.fused_backend import LLAMAS
from drafttree.models.module.fingerprint import samples, version
from drafttree.models.module.mtp_embedding import MtpEmbedding
from drafttree.models.module.released import Released, ReleasedParameters, can_release, look, weights
from drafttree.models.native import kernels
from drafttree.models.native.native_layers import (
    NativeLayer,
    NativeLlamaLayer,
    NativeNeoXLayer,
    Place,
    Products,
    norm_of,
    weight_name,
    weight_of,
)


def new_model(embedding: nn.Embedding, entry: tuple | None = None, multiplier: float | None = None) -> Any:
    """A model of drafttree-native without layers.

    Args:
        embedding: of the tokens, read where it lies.
        entry: what a draft head begins with, None if it is none: norms of tokens and of states, the projection of both,
            whether states come first, and whether the residual stream begins with the normed state.
        multiplier: of embeddings, None for the embedding's own.
    """
    weight = embedding.weight.detach()
    # Gemma rounds its factor to the dtype of the weights, and so does its module
    scale = torch.as_tensor(getattr(embedding, "embed_scale", 1.0)).to(weight.dtype).item()
    scale = scale if multiplier is None else multiplier
    model = kernels.native.Model(torch.get_num_threads(), weight, scale, kernels.FORMATS[weight.dtype])
    if entry:
        model.add_entry(*entry)
    return model


def add_layer(model: Any, layer: NativeLayer, rotary: Any, kinds: dict[str | None, int]) -> None:
    """Add a decoder layer.

    Args:
        model: of drafttree-native.
        layer: what has to be known of it.
        rotary: the rotary embedding of a model of transformers.
        kinds: the rotary embeddings that the model has, by type.
    """
    if layer.rotary not in kinds:
        kinds[layer.rotary] = len(kinds)
        prefix = f"{layer.rotary}_" if hasattr(rotary, f"{layer.rotary}_inv_freq") else ""
        frequencies = getattr(rotary, f"{prefix}inv_freq").detach().float().contiguous()
        model.add_rotary(frequencies, getattr(rotary, f"{prefix}attention_scaling"))
    model.add_layer(layer.norms, layer.products.arrays, {**layer.shape, "rotary": kinds[layer.rotary]})


def add_head(model: Any, norm: tuple | None, head: Any, divisor: float = 1.0) -> bool:
    """Add the last norm, if there is one, and the output projection: one that is packed already, where it is the same.

    A draft head often has the target's. Whether it was packed for this model.
    """
    owner = next((packed.model for packed in [*packed_models.values()] if packed.has_head(head)), None)
    if owner:
        model.share_head(norm, owner, divisor)
    else:
        model.add_head(norm, weight_of(head), divisor)
    return owner is None


class PackedModel:
    """A model of drafttree-native with a module's weights, which the module's layers release as they are packed.

    Args:
        module: the module.

    Attributes:
        model: the model.
        layout: the layout of its KV caches.
    """

    def __init__(self, module: PreTrainedModel) -> None:
        decoder: Any = module.get_decoder()
        embedding: Any = module.get_input_embeddings()
        config, entry = module.config, None
        if isinstance(embedding, MtpEmbedding):
            projection = weight_of(embedding.eh_proj)
            entry = norm_of(embedding.enorm), norm_of(embedding.hnorm), projection, embedding.states_first, False
            embedding = embedding.embed_tokens
        self.model = new_model(embedding, entry, getattr(config, "embedding_multiplier", None))
        kinds, shape = dict[str | None, int](), dict[str, Any]()
        kind = NativeLlamaLayer if config.model_type in LLAMAS else NativeNeoXLayer
        for index, block in enumerate(decoder.layers):
            layer = kind(block, config)
            add_layer(self.model, layer, decoder.rotary_emb, kinds)
            self._release(index, layer.products)
            shape = layer.shape
        self.layout = CacheLayout.uniform(len(decoder.layers), shape["key_heads"], shape["width"])
        norm = decoder.norm if config.model_type in LLAMAS else decoder.final_layer_norm
        head: Any = module.get_output_embeddings()
        if add_head(self.model, norm_of(norm), head, getattr(config, "logits_scaling", 1.0)):
            products = Products()
            products.places[head] = [Place("head", 0, None)]
            self._release(-1, products)
        self._stamps, self._head = [*map(_stamp, weights(module))], _stamp(look(head)[weight_name(head)])
        self._head_bias = None if head.bias is None else _stamp(head.bias)

    def has_head(self, layer: Any) -> bool:
        """Whether a linear layer is the output projection that is packed."""
        bias = None if layer.bias is None else _stamp(layer.bias)
        return bias == self._head_bias and _is_stamped(self._head, look(layer)[weight_name(layer)])

    def holds(self, module: PreTrainedModel) -> bool:
        """Whether a module's weights are those that are packed."""
        now = [*weights(module)]
        return len(now) == len(self._stamps) and all(map(_is_stamped, self._stamps, now))

    def take_back(self) -> None:
        """Let layers release again what they were given back, where that can be."""
        for stamp in self._stamps:
            if isinstance(stamp, Released):
                stamp.owner.take_back()

    def _release(self, index: int, products: Products) -> None:
        """Let the layers that were packed release their weights."""
        products.arrays.clear()
        for layer, found in products.places.items():
            weight = look(layer)[weight_name(layer)]
            unpack = partial(_unpack, self.model, index, found, weight.shape, weight.dtype)
            del weight
            if can_release(layer, weight_name(layer)):
                ReleasedParameters(layer, weight_name(layer), unpack)
        kernels.native.trim_heap()


packed_models = WeakKeyDictionary[PreTrainedModel, PackedModel]()
"""The packed models of modules, which several backends may share."""


def _stamp(weight: Any) -> Any:
    if isinstance(weight, Released):
        return weight
    return weight.data_ptr(), version(weight), *(view.flatten().tolist() for view in samples(weight))


def _is_stamped(stamp: Any, weight: Any) -> bool:
    if isinstance(stamp, Released):
        return stamp is weight or stamp.is_unchanged(weight)
    return stamp == _stamp(weight)


def _unpack(model: Any, index: int, places: Sequence[Place], shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """A linear layer's weight."""
    whole = torch.empty(shape, dtype=dtype, device="cpu")
    for place in places:
        if len(places) == 1 and place.outputs is None:
            model.unpack(index, place.product, place.first, len(whole), whole.data_ptr())
            continue
        rows = torch.empty((len(place.outputs), shape[1]), dtype=dtype, device="cpu")  # pyright: ignore[reportArgumentType]
        model.unpack(index, place.product, place.first, len(rows), rows.data_ptr())
        whole[place.outputs] = rows
    return whole
