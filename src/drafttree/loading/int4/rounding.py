"""Rounds the linear layers of a model to four bits, decoder layer by decoder layer.

Each decoder layer reads the outputs of the layers before it, which are rounded already, so that its rounding takes
their errors into account. The inputs of a linear layer weigh how it is rounded (`drafttree.models.quantization.gptq`).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from drafttree.core.errors import ModelError
from drafttree.models.families import Block, describe, why_not_known
from drafttree.models.module.recurrent import replaced_forward
from drafttree.models.quantization.block_linear import BlockLinear
from drafttree.models.quantization.blocks import GROUP
from drafttree.models.quantization.gptq import Hessian, RoundedWeight, round_weight
from drafttree.models.quantization.quantized_linear import quantization

FORM = "q4_zero"
TEXTS_AT_ONCE = 4
"""Texts that are batched in one pass of a decoder layer."""


class Call(NamedTuple):
    """The arguments of a decoder layer's call, without the residual stream.

    Attributes:
        args: positional arguments.
        kwargs: keyword arguments.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class LayerStore(Protocol):
    """Stores rounded layers, so that a stopped rounding can resume."""

    def read(self, index: int) -> dict[str, RoundedWeight] | None:
        """The rounded weights of a decoder layer by name; None if they are not stored."""
        ...

    def write(self, index: int, weights: dict[str, RoundedWeight]) -> None:
        """Store the rounded weights of a decoder layer."""
        ...


class RoundedLayer(NamedTuple):
    """Progress report after a decoder layer.

    Attributes:
        number: the layer's number, counted from 1.
        layers: number of decoder layers.
        reading: seconds that the passes over the texts took.
        rounding: seconds that rounding the weights took.
    """

    number: int
    layers: int
    reading: float
    rounding: float


def why_not_rounded(module: PreTrainedModel) -> str | None:
    """Why a model cannot be rounded to four bits; None if it can."""
    if method := quantization(module):
        return f"is quantised already ({method})"
    if reason := why_not_known(module.config):
        return f"cannot be rounded to four bits: {reason}"
    try:
        blocks = describe(module).blocks
    except AttributeError as error:
        return f"cannot be rounded to four bits: a layer is not as those of its family ({error})"
    first_linears = [group[0] for block in blocks for group in _groups(block)]
    uneven_sizes = [linear.in_features for linear in first_linears if linear.in_features % GROUP]
    if uneven_sizes:
        return f"has linear layers with {min(uneven_sizes)} inputs, and four bits need a multiple of {GROUP}"
    return None


@torch.no_grad()
def round_layers(
    module: PreTrainedModel,
    texts: Tensor,
    store: LayerStore | None = None,
    progress: Callable[[RoundedLayer], None] = lambda layer: None,
) -> None:
    """Replace the linear layers in a model's decoder layers by layers with weights in four bits.

    Args:
        module: the model, for which `why_not_rounded` is None.
        texts: token ids that the layers read, int64 `[texts, tokens]`.
        store: stores rounded weights, and returns those of an earlier run; None to store nothing.
        progress: called after each decoder layer.

    Raises:
        ModelError: the inputs of a layer are not finite.
    """
    layers: Any = module.get_decoder().layers  # pyright: ignore[reportAttributeAccessIssue]
    blocks = describe(module).blocks
    with torch.inference_mode():
        streams, calls = _calls(module, layers, texts)
    for index, (layer, block) in enumerate(zip(layers, blocks, strict=True)):
        started = time.perf_counter()
        groups = [*_named_groups(module, block)]
        rounded_weights = store.read(index) if store else None
        rounding_seconds = 0.0
        if rounded_weights is None:
            hessians = _hessians(layer, groups, streams, calls[index])
            rounding_started = time.perf_counter()
            rounded_weights = _rounded(groups, hessians)
            rounding_seconds = time.perf_counter() - rounding_started
            if store:
                store.write(index, rounded_weights)
        _put_dequantized(groups, rounded_weights)
        streams = _run(layer, streams, calls[index])
        _put_blocks(module, groups, rounded_weights)
        reading_seconds = time.perf_counter() - started - rounding_seconds
        progress(RoundedLayer(index + 1, len(layers), reading_seconds, rounding_seconds))


def _groups(block: Block) -> list[Sequence[Any]]:
    """The linear layers of a decoder layer, grouped by the input that they read; experts are not rounded."""
    groups = [block.attention.qkv, [block.attention.out]]
    if block.mlp:
        groups += [block.mlp.gate_up, [block.mlp.down]]
    if block.inputs:
        groups += [[block.inputs.gate], [block.inputs.projection]]
    return [group for group in groups if group]


def _named_groups(module: nn.Module, block: Block) -> Iterator[dict[str, Any]]:
    """Groups of linear layers of a decoder layer that read the same input, by their names in the model."""
    names = {id(submodule): name for name, submodule in module.named_modules()}
    for group in _groups(block):
        yield {names[id(linear)]: linear for linear in group}


def _hessians(
    layer: nn.Module, groups: Sequence[Mapping[str, Any]], streams: Sequence[Tensor], calls: Sequence[Call]
) -> list[Hessian]:
    """The Hessian of each group of linear layers, from one pass of their decoder layer over the texts."""
    first_linears = [next(iter(group.values())) for group in groups]
    hessians = [Hessian(linear.in_features) for linear in first_linears]
    with ExitStack() as undo:
        for linear, hessian in zip(first_linears, hessians, strict=True):
            hook = linear.register_forward_pre_hook(lambda layer, args, hessian=hessian: hessian.add(args[0]))
            undo.callback(hook.remove)
        _run(layer, streams, calls)
    return hessians


def _rounded(groups: Sequence[Mapping[str, Any]], hessians: Sequence[Hessian]) -> dict[str, RoundedWeight]:
    """The rounded weights of linear layers by name.

    Raises:
        ModelError: the inputs of a layer are not finite.
    """
    rounded_weights: dict[str, RoundedWeight] = {}
    for group, hessian in zip(groups, hessians, strict=True):
        matrix = hessian.matrix()
        if not bool(matrix.isfinite().all()):
            raise ModelError(
                f"the input of {next(iter(group))} has values that are not finite; load the model in float32"
            )
        for name, linear in group.items():
            rounded_weights[name] = round_weight(linear.weight.detach(), matrix)
    return rounded_weights


def _put_dequantized(groups: Sequence[Mapping[str, Any]], weights: Mapping[str, RoundedWeight]) -> None:
    """Give linear layers the values of their rounded weights."""
    for group in groups:
        for name, linear in group.items():
            linear.weight.data = weights[name].dequantized().to(linear.weight.dtype)


def _put_blocks(module: nn.Module, groups: Sequence[Mapping[str, Any]], weights: Mapping[str, RoundedWeight]) -> None:
    """Replace linear layers of a model by those whose weights are in blocks."""
    for group in groups:
        for name, linear in group.items():
            parent, _, child = name.rpartition(".")
            setattr(module.get_submodule(parent), child, BlockLinear(linear, weights[name].blocks(), FORM))


def _calls(module: PreTrainedModel, layers: Any, texts: Tensor) -> tuple[list[Tensor], list[list[Call]]]:
    """The residual streams `[texts, tokens, hidden]` before the first layer, and every layer's calls, one per batch.

    Layers are skipped meanwhile, so this costs little.
    """
    returns_tuple = _returns_tuple(module, layers[0], texts[:1, :2])
    calls: list[list[Call]] = [[] for _ in layers]
    streams = list[Tensor]()

    def note(index: int, stream: Tensor, *args: Any, **kwargs: Any) -> Any:
        if index == 0:
            streams.append(stream)
        calls[index].append(Call(args, kwargs))
        return (stream,) if returns_tuple else stream

    with ExitStack() as undo:
        for index, layer in enumerate(layers):
            undo.enter_context(replaced_forward(layer, partial(note, index)))
        for batch in texts.split(TEXTS_AT_ONCE):
            module.get_decoder()(input_ids=batch.to(module.device), use_cache=False)
    return streams, calls


def _returns_tuple(module: PreTrainedModel, layer: nn.Module, text: Tensor) -> bool:
    """Whether a decoder layer returns a tuple, which the residual stream is the first entry of."""
    outputs: list[Any] = []
    hook = layer.register_forward_hook(lambda layer, args, output: outputs.append(output))
    try:
        module.get_decoder()(input_ids=text.to(module.device), use_cache=False)
    finally:
        hook.remove()
    return isinstance(outputs[0], tuple)


def _run(layer: nn.Module, streams: Sequence[Tensor], calls: Sequence[Call]) -> list[Tensor]:
    """The residual streams after a layer."""
    outputs = [layer(stream, *call.args, **call.kwargs) for stream, call in zip(streams, calls, strict=True)]
    return [output[0] if isinstance(output, tuple) else output for output in outputs]
