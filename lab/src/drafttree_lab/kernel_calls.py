"""Calls that `drafttree bench kernels` times: products of a layer, and attention, by several programs.

Each point makes the inputs of its calls, in as many copies as it is told, and the programs run on the same inputs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from drafttree.measure.shapes import Shape
from drafttree.models.fused.pass_inputs import Visibility
from drafttree.models.quantization.int8_linear import int8_product
from drafttree_lab.device_clock import Call

DTYPE = torch.bfloat16
EPSILON = 1e-5
TRITON, TORCH, MM, COPY, READ = "triton", "torch", "mm", "copy", "read"
"""Ways: our kernels, what fused layers call, the bare product, a copy, and a sum of all numbers."""
WAYS = {"memory": (COPY, READ), "bfloat16": (TRITON, TORCH, MM), "int8": (TRITON, TORCH), "attention": (TRITON, TORCH)}
"""The ways of each group of points."""


@dataclass(frozen=True)
class MemoryPoint:
    """A copy and a sum of so many bytes, which are many times those of a cache."""

    size: int
    group = "memory"

    @property
    def item_bytes(self) -> int:
        return self.size

    def moved_bytes(self, way: str) -> int:
        """Bytes that are read and written."""
        return 2 * self.size if way == COPY else self.size

    def make(self, device: torch.device, copy_count: int) -> Mapping[str, Callable[[], Sequence[Call]]]:
        """By way, a function that makes its calls."""
        source = torch.ones(self.size // 4, device=device)
        target = torch.empty_like(source)
        return {COPY: lambda: [partial(target.copy_, source)], READ: lambda: [source.sum]}


@dataclass(frozen=True)
class ProductPoint:
    """A product of a layer at a number of rows, with what the layer does to its result.

    Attributes:
        name: which product.
        outputs: outputs of the weight.
        inputs: inputs of the weight.
        ending: "add" for an addition to the residual stream and a norm, "gate" for gates, "" for nothing.
        rows: number of rows.
        int8: whether the weight has eight bits.
    """

    name: str
    outputs: int
    inputs: int
    ending: str
    rows: int
    int8: bool

    @property
    def group(self) -> str:
        return "int8" if self.int8 else "bfloat16"

    @property
    def item_bytes(self) -> int:
        """Bytes of the weight."""
        weights = self.outputs * self.inputs
        return weights + 4 * self.outputs if self.int8 else 2 * weights

    def moved_bytes(self, _: str) -> int:
        """Bytes of the weight, and of the rows that are read and written."""
        results = {"gate": self.outputs // 2, "add": 3 * self.outputs}.get(self.ending, self.outputs)
        return self.item_bytes + 2 * self.rows * (self.inputs + results)

    def make(self, device: torch.device, copy_count: int) -> Mapping[str, Callable[[], Sequence[Call]]]:
        """By way, a function that makes its calls, one for each copy of the weight."""
        generator = torch.Generator(device).manual_seed(0)

        def numbers(*shape: int) -> Tensor:
            return torch.randn(*shape, device=device, dtype=DTYPE, generator=generator)

        x, residual, norm = numbers(self.rows, self.inputs), numbers(self.rows, self.outputs), numbers(self.outputs)
        values = [numbers(self.outputs, self.inputs).mul_(self.inputs**-0.5) for _ in range(copy_count)]
        scale = None
        if self.int8:
            values = [value.mul_(127 / 5 * self.inputs**0.5).round_().clamp_(-127, 127).char() for value in values]
            scale = torch.full((self.outputs,), 5 / 127 * self.inputs**-0.5, device=device)
        inputs = _ProductInputs(self.ending, x, residual, norm, scale)
        return {
            TRITON: lambda: [inputs.in_triton(value) for value in values],
            TORCH: lambda: [partial(inputs.on_torch, value) for value in values],
            MM: lambda: [partial(torch.mm, x, value.t()) for value in values],
        }


@dataclass(frozen=True)
class _ProductInputs:
    """What a product reads beside its weight."""

    ending: str
    x: Tensor
    residual: Tensor
    norm: Tensor
    scale: Tensor | None

    def in_triton(self, values: Tensor) -> Call:
        """A call of our kernels."""
        from drafttree.models.triton.norms import RowNorm
        from drafttree.models.triton.products import Addition, LinearWeight, activate_linear, add_linear, linear

        weight = LinearWeight(values, None, self.scale)
        if self.ending == "gate":
            return partial(activate_linear, self.x, weight, "silu", gated=True)
        if self.ending == "add":
            addition = Addition(norm=RowNorm(self.norm, None, EPSILON, rounds_early=True))
            return partial(add_linear, self.x, weight, self.residual, addition)
        return partial(linear, self.x, weight)

    def on_torch(self, values: Tensor) -> tuple[Tensor, ...]:
        """The same by torch, as fused layers do it."""
        if self.scale is not None:
            product = int8_product(self.x, values, self.scale)
        elif self.ending == "add":
            product = torch.addmm(self.residual, self.x, values.t())
        else:
            product = torch.mm(self.x, values.t())
        if self.ending == "gate":
            gate, value = product.chunk(2, 1)
            return (F.silu(gate).mul_(value),)
        if self.ending == "add":
            residual = product if self.scale is None else product.add_(self.residual)
            return residual, F.rms_norm(residual, (len(self.norm),), self.norm, EPSILON)
        return (product,)


@dataclass(frozen=True)
class AttentionPoint:
    """Attention from the nodes of a binary tree to a prefix and to their ancestors.

    Attributes:
        prefix: rows of the prefix.
        nodes: nodes of the tree.
        heads: query heads.
        key_heads: key heads.
        width: width of a head.
    """

    prefix: int
    nodes: int
    heads: int
    key_heads: int
    width: int
    group = "attention"

    @property
    def item_bytes(self) -> int:
        """Bytes of the keys and values."""
        return 4 * self.key_heads * (self.prefix + self.nodes) * self.width

    def moved_bytes(self, _: str) -> int:
        """Bytes of keys and values, queries and results."""
        return self.item_bytes + 4 * self.nodes * self.heads * self.width

    @property
    def visible(self) -> "np.ndarray":
        """Bool `[nodes, nodes]`: each node's ancestors and itself."""
        visible = np.eye(self.nodes, dtype=bool)
        for node in range(1, self.nodes):
            visible[node] |= visible[(node - 1) // 2]
        return visible

    def make(self, device: torch.device, copy_count: int) -> Mapping[str, Callable[[], Sequence[Call]]]:
        """By way, a function that makes its calls, one for each copy of keys and values."""
        generator = torch.Generator(device).manual_seed(0)
        row_shape = copy_count, 2, self.key_heads, self.prefix + self.nodes, self.width
        rows = torch.randn(row_shape, device=device, dtype=DTYPE, generator=generator)
        query_shape = self.nodes, self.heads, self.width
        query = torch.randn(query_shape, device=device, dtype=DTYPE, generator=generator)
        return {TRITON: partial(self._in_triton, query, rows), TORCH: partial(self._on_torch, query, rows)}

    def _in_triton(self, query: Tensor, rows: Tensor) -> Sequence[Call]:
        from drafttree.models.triton.attention import PackedTrees, TextNodes, TreeSizes, attend_to_trees, workspace_size

        texts = [TextNodes(0, self.prefix, self.visible)]
        sizes = TreeSizes.of(texts)
        arrays = PackedTrees.of(texts, sizes)
        trees = PackedTrees(*(torch.from_numpy(array).to(query.device) for array in arrays))
        workspace = torch.empty(workspace_size(sizes, self.heads, self.width), device=query.device)
        attend = partial(attend_to_trees, trees=trees, sizes=sizes, scale=self.width**-0.5, workspace=workspace)
        return [partial(attend, query, (keys, values)) for keys, values in rows]

    def _on_torch(self, query: Tensor, rows: Tensor) -> Sequence[Call]:
        mask = None
        if self.nodes > 1:
            groups = self.heads // self.key_heads
            visible = torch.ones(self.nodes, self.prefix + self.nodes, dtype=torch.bool)
            visible[:, self.prefix :] = torch.from_numpy(self.visible)
            hidden = torch.zeros(visible.shape, dtype=DTYPE).masked_fill_(~visible, -torch.inf)
            mask = hidden.repeat(groups, 1).to(query.device)
        grouped_query = query.unflatten(1, (self.key_heads, -1))
        attend = Visibility(mask).attend
        return [partial(attend, grouped_query, keys[None], values[None], self.width**-0.5) for keys, values in rows]


Point = MemoryPoint | ProductPoint | AttentionPoint


def product_points(shape: Shape, vocab: int, rows: Sequence[int]) -> list[ProductPoint]:
    """The products of a Llama's layer, and its head, at every number of rows, with both kinds of weights."""
    attended = shape.heads * shape.head_dim
    weights = {
        "qkv": (attended + 2 * shape.key_value_heads * shape.head_dim, shape.hidden, ""),
        "output": (shape.hidden, attended, "add"),
        "gate and up": (2 * shape.intermediate, shape.hidden, "gate"),
        "down": (shape.hidden, shape.intermediate, "add"),
        "head": (vocab, shape.hidden, ""),
    }
    points = list[ProductPoint]()
    for is_int8 in (False, True):
        for name, weight in weights.items():
            points += [ProductPoint(name, *weight, row_count, is_int8) for row_count in rows]
    return points


def attention_points(shape: Shape, prefixes: Sequence[int], nodes: Sequence[int]) -> list[AttentionPoint]:
    """Attention of every tree behind every prefix."""
    points = list[AttentionPoint]()
    for prefix in prefixes:
        for node_count in nodes:
            points.append(AttentionPoint(prefix, node_count, shape.heads, shape.key_value_heads, shape.head_dim))
    return points
