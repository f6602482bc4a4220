"""A model's linear layers rounded to four bits, one decoder layer after the other.

Each decoder layer reads what those before it, rounded already, make of texts, so that what a layer loses is known to
those behind it. Its inputs weigh how it is rounded (`drafttree.models.quantization.gptq`).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
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
"""Texts that a decoder layer reads in one pass."""


class Call(NamedTuple):
    """What a decoder layer is called with beside the residual stream.

    Attributes:
        args: further arguments.
        kwargs: those by name.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class LayerStore(Protocol):
    """Keeps layers that are rounded, so that nothing is lost when the rounding is stopped."""

    def read(self, index: int) -> dict[str, RoundedWeight] | None:
        """The weights of a decoder layer by name, None where they are still to be rounded."""
        ...

    def write(self, index: int, weights: dict[str, RoundedWeight]) -> None:
        """Keep those of a decoder layer."""
        ...


class RoundedLayer(NamedTuple):
    """What is told of a decoder layer.

    Attributes:
        number: its place among the decoder layers, from 1 on.
        layers: number of these.
        reading: seconds that its passes took.
        rounding: seconds that its weights took.
    """

    number: int
    layers: int
    reading: float
    rounding: float


def why_not_rounded(module: PreTrainedModel) -> str | None:
    """Why a model is not rounded to four bits, None if it can be."""
    if method := quantization(module):
        return f"is quantised already ({method})"
    if reason := why_not_known(module.config):
        return f"cannot be rounded to four bits: {reason}"
    try:
        blocks = describe(module).blocks
    except AttributeError as error:
        return f"cannot be rounded to four bits: a layer is not as those of its family ({error})"
    input_sizes = {layer.in_features for layers in map(_groups, blocks) for layer, *_ in layers}
    if input_sizes := sorted(inputs for inputs in input_sizes if inputs % GROUP):
        return f"has linear layers with {input_sizes[0]} inputs, and four bits need a multiple of {GROUP}"
    return None


@torch.no_grad()
def round_layers(
    module: PreTrainedModel,
    texts: Tensor,
    store: LayerStore | None = None,
    progress: Callable[[RoundedLayer], None] = lambda layer: None,
) -> None:
    """Replace the linear layers of a model's decoder layers by those with weights in four bits.

    Args:
        module: the model, of which `why_not_rounded` says nothing.
        texts: int64 `[texts, tokens]` that the layers read.
        store: where weights are kept, None for nowhere.
        progress: called after each decoder layer.

    Raises:
        ModelError: weights or what layers read of texts are not finite.
    """
    layers: Any = module.get_decoder().layers  # pyright: ignore[reportAttributeAccessIssue]
    blocks = describe(module).blocks
    names = {id(submodule): name for name, submodule in module.named_modules()}
    with torch.inference_mode():
        streams, calls = _calls(module, layers, texts)
    for index, (layer, block) in enumerate(zip(layers, blocks, strict=True)):
        started = time.perf_counter()
        groups = _groups(block)
        rounded_weights = store.read(index) if store else None
        rounding_seconds = 0.0
        if rounded_weights is None:
            hessians = [Hessian(group[0].in_features) for group in groups]
            with _reading(groups, hessians):
                _run(layer, streams, calls[index])
            rounding_started = time.perf_counter()
            rounded_weights = {}
            for group, hessian in zip(groups, hessians, strict=True):
                matrix = hessian.matrix()
                if not bool(matrix.isfinite().all()):
                    raise ModelError(f"what {names[id(group[0])]} reads of texts is not finite; load in float32")
                for linear in group:
                    rounded_weights[names[id(linear)]] = round_weight(linear.weight.detach(), matrix)
            rounding_seconds = time.perf_counter() - rounding_started
            if store:
                store.write(index, rounded_weights)
        for linear in (linear for group in groups for linear in group):
            linear.weight.data = rounded_weights[names[id(linear)]].dequantized().to(linear.weight.dtype)
        streams = _run(layer, streams, calls[index])
        for linear in (linear for group in groups for linear in group):
            _replace(module, names[id(linear)], BlockLinear(linear, rounded_weights[names[id(linear)]].blocks(), FORM))
        progress(
            RoundedLayer(index + 1, len(layers), time.perf_counter() - started - rounding_seconds, rounding_seconds)
        )


def _groups(block: Block) -> list[Sequence[Any]]:
    """The linear layers of a decoder layer, those of one input together; experts stay as they are."""
    groups = [block.attention.qkv, [block.attention.out]]
    if block.mlp:
        groups += [block.mlp.gate_up, [block.mlp.down]]
    if block.inputs:
        groups += [[block.inputs.gate], [block.inputs.projection]]
    return [group for group in groups if group]


def _calls(module: PreTrainedModel, layers: Any, texts: Tensor) -> tuple[list[Tensor], list[list[Call]]]:
    """The residual streams `[texts, tokens, hidden]` before the first layer, and by layer what else it is called with.

    Layers stand aside meanwhile, so this costs nothing.
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
    """Whether a decoder layer returns a tuple, in whose first place the residual stream is."""
    outputs: list[Any] = []
    hook = layer.register_forward_hook(lambda layer, args, output: outputs.append(output))
    try:
        module.get_decoder()(input_ids=text.to(module.device), use_cache=False)
    finally:
        hook.remove()
    return isinstance(outputs[0], tuple)


def _run(layer: nn.Module, streams: Sequence[Tensor], calls: Sequence[Call]) -> list[Tensor]:
    """The residual streams behind a layer."""
    outputs = [layer(stream, *call.args, **call.kwargs) for stream, call in zip(streams, calls, strict=True)]
    return [output[0] if isinstance(output, tuple) else output for output in outputs]


@contextmanager
def _reading(groups: Sequence[Sequence[Any]], hessians: Sequence[Hessian]) -> Iterator[None]:
    """Count what linear layers read."""
    with ExitStack() as undo:
        for group, hessian in zip(groups, hessians, strict=True):
            hook = group[0].register_forward_pre_hook(lambda layer, args, hessian=hessian: hessian.add(args[0]))
            undo.callback(hook.remove)
        yield


def _replace(module: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(module.get_submodule(parent), child, layer)
