"""Models of drafttree-native with a module's packed weights."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from drafttree.core.stages import stage
from drafttree.models.module.fingerprint import samples, version
from drafttree.models.module.released import Release, can_release, stand_in
from drafttree.models.native import kernels
from drafttree.models.native.packed_products import check_products, packed_products
from drafttree.models.native.packing_plan import PackingPlan, embedding_scale
from drafttree.models.native.products import Place, Products, tensors_of, weight_of, weight_place
from drafttree.models.norms import norm_of
from drafttree.models.quantization.quantized_embedding import dtype_of, table_of


class PackedModel:
    """A model of drafttree-native with the weights of a module. A layer releases each weight once it is packed.

    Args:
        module: a module that `PackingPlan` accepts.

    Attributes:
        model: the model of drafttree-native.
        layout: layout of its KV caches.

    Raises:
        AttributeError: a layer is not like those of its family, or has a part that drafttree-native does not know.
        ValueError: the sizes of layers do not match.
        WrongProductError: a packed product is not its layer's.
    """

    @stage("pack")
    def __init__(self, module: nn.Module) -> None:
        plan = PackingPlan(module)
        architecture = plan.architecture
        self.layout = architecture.layout
        self.model = _new_model(plan)
        for rotary in plan.rotaries.values():
            self.model.add_rotary(*rotary)
        if inputs := architecture.layer_inputs:
            self.model.add_layer_inputs(
                embeddings=inputs.embedding.weight.detach(),
                embedding_scale=embedding_scale(inputs.embedding),
                projection=weight_of(inputs.projection),
                projection_scale=inputs.projection_scale,
                norm=norm_of(inputs.norm),
                sum_scale=inputs.sum_scale,
            )
            self._release(-1, Products.alone("layer_inputs", inputs.projection))
        for index, layer in enumerate(plan.layers):
            self.model.add_layer(norms=layer.norms, weights=layer.products.read(), shape=plan.shape_of(index))
            self._release(index, layer.products)
        if self._add_head(plan):
            self._release(-1, Products.alone("head", architecture.head), holders=1 + plan.is_tied)
        self._settings = _as_values(plan.settings)
        self._stamps = [*map(_stamp, plan.tensors)]
        self._head = [*map(_stamp, tensors_of(architecture.head))]
        self._embedding = [_stamp(table_of(architecture.embedding))] if plan.is_tied else None
        self._releases = [stamp for stamp in [*self._stamps, *self._head] if isinstance(stamp, Release)]

    def has_head(self, layer: Any) -> bool:
        """Whether the packed output projection is that of this linear layer."""
        return _are_stamped(self._head, tensors_of(layer))

    def has_embedding(self, embedding: Any) -> bool:
        """Whether the packed output projection has the weight of this embedding."""
        return self._embedding is not None and _are_stamped(self._embedding, [table_of(embedding)])

    def holds(self, module: nn.Module) -> bool:
        """Whether packing a module now would give the same model.

        Raises:
            AttributeError: a layer is not like those of its family, or has a part that drafttree-native does not know.
        """
        plan = PackingPlan(module)
        return _are_stamped(self._stamps, plan.tensors) and _as_values(plan.settings) == self._settings

    def multiplies_for(self, module: nn.Module) -> AbstractContextManager[None]:
        """Context manager: the module's layers multiply by packed weights; a tied embedding looks up packed rows."""
        plan = PackingPlan(module)
        return packed_products(self.model, plan.products, plan.architecture.embedding if plan.is_tied else None)

    def take_back(self) -> None:
        """Let layers release weights again that were given back to them, if possible."""
        for release in self._releases:
            release.take_back()

    def _add_head(self, plan: PackingPlan) -> bool:
        """Add the last norm, if any, and the output projection, and return whether the projection was packed.

        If another packed model has the same output projection, as the target of a draft head often has, it is shared.
        """
        architecture = plan.architecture
        divisor = architecture.logits_divisor
        cap = architecture.logits_cap or 0.0
        if owner := _owner(lambda packed: packed.has_head(architecture.head)):
            self.model.share_head(norm=plan.norm, other=owner, divisor=divisor, cap=cap)
            return False
        self.model.add_head(norm=plan.norm, weight=weight_of(architecture.head), divisor=divisor, cap=cap)
        return True

    def _release(self, index: int, products: Products, holders: int = 1) -> None:
        """Compare the packed products with those of linear layers, and let the layers release their weights.

        Args:
            index: index of the decoder layer, -1 for none.
            products: the packed products.
            holders: number of modules that have each weight.
        """
        check_products(self.model, index, products)
        for layer, output_places in products.places.items():
            owner, name = weight_place(layer)
            if can_release(owner, name, holders):
                weight = getattr(owner, name)
                unpack = partial(_unpack, self.model, index, output_places, weight.shape, weight.dtype)
                Release(owner, name, unpack, holders)
        kernels.native.trim_heap()


packed_models = WeakKeyDictionary[nn.Module, PackedModel]()
"""The packed model of each module, which several backends may share."""


def _new_model(plan: PackingPlan) -> Any:
    """A model without layers. It reads the module's own embedding, or a packed head that shares the weight."""
    architecture = plan.architecture
    embedding = architecture.embedding
    owner = None if plan.is_tied else _owner(lambda packed: packed.has_embedding(embedding))
    model = kernels.native.Model(
        threads=torch.get_num_threads(),
        embeddings=None if plan.is_tied or owner else table_of(embedding).detach(),
        width=embedding.embedding_dim,
        embedding_scale=embedding_scale(embedding, architecture.embedding_multiplier),
        cached=kernels.FORMATS[dtype_of(embedding)],
        blocks=getattr(embedding, "blocks", None),
    )
    if owner:
        model.share_embedding(owner)
    if entry := plan.entry:
        model.add_entry(**entry)
    return model


def _owner(has: Callable[[PackedModel], bool]) -> Any:
    """The drafttree-native model of the first packed model for which `has` is true; None if there is none."""
    return next((packed.model for packed in [*packed_models.values()] if has(packed)), None)


def _stamp(tensor: Any) -> Any:
    """A value that differs between tensors, and after an edit of this tensor."""
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
    """Convert tensors and containers of them to values that compare equal if the contents are equal, NaN included."""
    if isinstance(value, Tensor):
        entries = value.detach().clone(memory_format=torch.contiguous_format).view(-1)
        return value.dtype, value.shape, entries.view(torch.uint8).numpy().tobytes()
    if isinstance(value, dict):
        return {key: _as_values(entry) for key, entry in value.items()}
    return tuple(map(_as_values, value)) if isinstance(value, list | tuple) else value


def _unpack(model: Any, index: int, output_places: Sequence[Place], shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Unpack a linear layer's weight from its places in products."""
    weight = torch.empty(shape, dtype=dtype, device="cpu")
    for output_place in output_places:
        if len(output_places) == 1 and output_place.outputs is None:
            model.unpack(
                layer=index,
                name=output_place.product,
                first=output_place.first,
                count=len(weight),
                to=weight.data_ptr(),
            )
            continue
        rows = torch.empty((len(output_place.outputs), shape[-1]), dtype=dtype, device="cpu")  # pyright: ignore[reportArgumentType]
        model.unpack(
            layer=index, name=output_place.product, first=output_place.first, count=len(rows), to=rows.data_ptr()
        )
        weight.flatten(0, -2)[output_place.outputs] = rows
    return weight
