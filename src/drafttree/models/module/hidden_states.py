"""Captures hidden states of a module's layers during a pass, for drafters that read them."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from drafttree.core.errors import ModelError
from drafttree.models.module.module_checks import decoder_of
from drafttree.models.segment import BEFORE_NORM


@contextmanager
def capturing(module: PreTrainedModel, layers: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """Capture the states `[1, tokens, hidden]` of these layers by hooks.

    transformers' `output_hidden_states` would keep those of all layers.

    Args:
        module: the module whose passes run within this context.
        layers: counted as in `Scorer.forward`.
    """
    states: dict[int, Tensor] = {}
    with ExitStack() as undo:
        for layer in set(layers):
            undo.callback(_capture(module, layer, states).remove)
        yield states


def _capture(module: PreTrainedModel, layer: int, states: dict[int, Tensor]) -> RemovableHandle:
    """Put the states of one layer into `states` in every pass."""
    decoder = decoder_of(module)
    layer_count = module.config.get_text_config().num_hidden_layers

    def keep_input(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states[layer] = args[0] if args else kwargs["hidden_states"]

    def keep_output(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        states[layer] = output[0] if isinstance(output, tuple) else output

    if layer == layer_count:
        return decoder.register_forward_hook(lambda _, __, output: states.__setitem__(layer, output.last_hidden_state))
    blocks = _blocks(decoder, layer_count)
    if layer == BEFORE_NORM:
        return blocks[-1].register_forward_hook(keep_output)
    return blocks[layer].register_forward_pre_hook(keep_input, with_kwargs=True)


def _blocks(decoder: nn.Module, count: int) -> nn.ModuleList:
    """The list of `count` layers of a decoder, whose name differs by architecture."""
    lists = [child for child in decoder.children() if isinstance(child, nn.ModuleList) and len(child) == count]
    if not lists:
        raise ModelError(f"{type(decoder).__name__} has no list of {count} layers whose states can be read")
    return lists[0]
