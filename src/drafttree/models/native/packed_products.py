"""Single products of packed weights, in place of those that a module's linear layers compute.

Each packed product is compared with its layer's before the layer releases its weight. Then passes of drafttree-native
are compared with the module, whose layers use packed products. That is fast, and the products of both are equal.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from drafttree.core.errors import ModelError
from drafttree.models.families import Stacked
from drafttree.models.module.recurrent import replaced_forward
from drafttree.models.native.products import Place, Products
from drafttree.models.quantization.block_linear import BlockLinear
from drafttree.models.quantization.int8_linear import INT8_MAX, Int8Linear
from drafttree.models.quantization.quantized_embedding import QuantizedEmbedding, only_looks_up, scale_of, table_of
from drafttree.models.quantization.quantized_linear import ROWS_AT_ONCE, QuantizedLinear, dequantized_rows

UNITS = {torch.bfloat16: 2.0**-7, torch.float32: 2.0**-13}
"""By dtype, the largest allowed gap between two products of a row, as a fraction of the largest output.

In bfloat16 it is the rounding, in float32 the difference between sums.
"""
BLOCK_OUTPUTS, LAYER_OUTPUTS, FEWEST_OUTPUTS = 256, 2048, 8
"""Limits of compared outputs: most of a weight in blocks, most of a decoder layer, and fewest of a weight."""
CHUNK = 128
"""Number of inputs that drafttree-native rounds to eight bits with one scale, that of the largest input."""


class WrongProductError(ModelError):
    """A packed product differs from its layer's own."""


@contextmanager
def packed_products(model: Any, products: Iterable[tuple[int, Products]], embedding: Any) -> Iterator[None]:
    """Context manager: linear layers multiply by their packed weights, and do not read their own.

    Args:
        model: the model of drafttree-native.
        products: pairs of a decoder layer's index, -1 for none, and its products.
        embedding: an embedding that shares the head's weight, and so looks up packed rows; None for none.
    """
    with ExitStack() as undo:
        if embedding is not None and only_looks_up(embedding):
            undo.enter_context(replaced_forward(embedding, partial(_look_up, model, embedding)))
        for index, layer_products in products:
            for layer, output_places in layer_products.places.items():
                if not isinstance(layer, Stacked):
                    undo.enter_context(replaced_forward(layer, partial(_multiply, model, index, output_places, layer)))
        yield


@torch.no_grad()
def check_products(model: Any, index: int, products: Products) -> None:
    """Compare packed products of one row with those of the linear layers that they replace.

    Args:
        model: the model of drafttree-native.
        index: index of the decoder layer, -1 for none.
        products: the products; their layers still have their weights.

    Raises:
        WrongProductError: a packed product differs from its layer's own.
    """
    limit = min(BLOCK_OUTPUTS, max(FEWEST_OUTPUTS, LAYER_OUTPUTS // len(products.places)))
    for layer, output_places in products.places.items():
        if isinstance(layer, Stacked):
            continue
        outputs = _compared_outputs(layer, limit)
        row, reference = _own_product(layer, outputs)
        product = _multiply(model, index, output_places, layer, row)[:, outputs]
        gap = float(
            (product - reference).abs().max() / reference.abs().max().clamp(min=torch.finfo(torch.float32).tiny)
        )
        if not gap <= UNITS[row.dtype] and reference.isfinite().all():
            sizes = f"{layer.in_features} inputs and {layer.out_features} outputs"
            raise WrongProductError(f"the packed product of a layer of {sizes} differs by {gap:.3g} from its own")


def _compared_outputs(layer: Any, limit: int) -> Any:
    """Indices of the outputs to compare. Of blocks, which are slow to convert, both ends and some between; else all."""
    count = layer.out_features
    if not isinstance(layer, BlockLinear) or count <= limit:
        return slice(None)
    end_offsets = torch.arange(limit // 4, device="cpu")
    middle_outputs = torch.linspace(0, count - 1, limit // 2, device="cpu").long()
    return torch.cat((end_offsets, middle_outputs, count - 1 - end_offsets))


def _own_product(layer: Any, outputs: Any) -> tuple[Tensor, Tensor]:
    """A row of inputs, and some of the outputs that a linear layer computes from it.

    For quantised weights the row consists of integers, with the largest in each chunk, so that rounding to eight bits
    does not change it.
    """
    generator = torch.Generator("cpu").manual_seed(0)
    if not isinstance(layer, QuantizedLinear):
        row = torch.randn((1, layer.in_features), generator=generator, dtype=torch.float32, device="cpu")
        row = row.to(layer.weight.dtype)
        return row, nn.functional.linear(row, layer.weight, layer.bias)[:, outputs]
    row = torch.randint(-INT8_MAX, INT8_MAX, (1, layer.in_features), generator=generator, device="cpu").float()
    row[:, ::CHUNK] = INT8_MAX
    if not isinstance(layer, Int8Linear):
        weight = dequantized_rows(layer.quantized[outputs], None, layer.blocks)
        return row, nn.functional.linear(row, weight, None if layer.bias is None else layer.bias[outputs].float())
    # in parts, since a whole head of eight bits would take four times its memory in float32
    weight_chunks = layer.quantized.split(ROWS_AT_ONCE)
    product = (
        torch.cat([nn.functional.linear(row, weight_chunk.float()) for weight_chunk in weight_chunks], 1) * layer.scale
    )
    return row, product if layer.bias is None else product + layer.bias


def _multiply(model: Any, index: int, output_places: Sequence[Place], layer: Any, x: Tensor) -> Tensor:
    if not isinstance(layer, QuantizedLinear) and x.dtype != layer.weight.dtype:
        raise RuntimeError(f"rows of {x.dtype} are multiplied with a weight of {layer.weight.dtype}")
    rows = x.flatten(0, -2).float().contiguous()
    outputs = torch.empty((len(rows), layer.out_features), dtype=x.dtype, device="cpu")
    for output_place in output_places:
        count = layer.out_features if output_place.outputs is None else len(output_place.outputs)
        product = torch.empty((len(rows), count), dtype=torch.float32, device="cpu")
        model.multiply(
            threads=torch.get_num_threads(),
            layer=index,
            name=output_place.product,
            first=output_place.first,
            outputs=count,
            rows=rows.data_ptr(),
            count=len(rows),
            to=product.data_ptr(),
        )
        outputs[:, slice(None) if output_place.outputs is None else output_place.outputs] = product.to(x.dtype)
    return outputs.unflatten(0, x.shape[:-1])


def _look_up(model: Any, embedding: Any, tokens: Tensor) -> Tensor:
    table = table_of(embedding)
    ids = tokens.flatten()
    rows = torch.empty((len(ids), table.shape[1]), dtype=table.dtype, device="cpu")
    for row, token in zip(rows, ids.tolist(), strict=True):
        model.unpack(layer=-1, name="head", first=token, count=1, to=row.data_ptr())
    if isinstance(embedding, QuantizedEmbedding):
        return embedding.scaled(rows, ids).unflatten(0, tokens.shape)
    scale = scale_of(embedding)
    return (rows if scale == 1 else rows * scale).unflatten(0, tokens.shape)
