"""Parts shared by trained heads: their residual block, and access to the target's layers."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from transformers import PreTrainedModel

from drafttree.drafters.base import ShownBySize


class ResBlock(nn.Module):
    """Residual block x + SiLU(W x + b); if `parts` > 1, a linear map to `hidden` replaces x in the skip connection.

    Args:
        hidden: width of the output.
        parts: vectors of width `hidden` concatenated in the input.
    """

    def __init__(self, hidden: int, parts: int = 1) -> None:
        super().__init__()
        self.linear = nn.Linear(parts * hidden, hidden)
        self.res_connection = nn.Linear(parts * hidden, hidden) if parts > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Map `[..., parts * hidden]` to `[..., hidden]`."""
        return self.res_connection(x) + silu(self.linear(x))


class Heads(Protocol):
    """Heads of which each drafts one level.

    Attributes:
        count: how many there are.
        shared: whether they use the target's output projection.
    """

    count: int
    shared: bool


class HeadsDrafter(ShownBySize):
    """Base of drafters with a head per level, which read the target's hidden state after its final norm.

    Args:
        heads: the heads, on the target's device and in its dtype.
        target: the model the heads were trained on.

    Attributes:
        zero_hidden: `[1, 1, hidden]` stands for the hidden state before a root that has none.
        project: makes logits of a head's output; those of the target's own projection are scaled as the target's are.
    """

    context: int | None = None
    levels: int | None

    def __init__(self, heads: Heads, target: PreTrainedModel) -> None:
        self.vocab_size = len(projection(target).weight)
        self.levels = heads.count
        self.hidden_layers: tuple[int, ...] = (last_layer(target),)
        self.nbytes = own_bytes(heads, target)
        self.zero_hidden = zero_hidden(target)
        self.project: Callable[[Tensor], Tensor] = partial(final_logits, target) if heads.shared else nn.Identity()


def projection(target: PreTrainedModel) -> nn.Linear:
    """Return the target's output projection (`lm_head`), whose weight is `[vocab, hidden]`."""
    return target.get_output_embeddings()  # pyright: ignore[reportReturnType]


def final_logits(target: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Return the target's own logits `[..., vocab]` of hidden states `[..., hidden]` after its final norm."""
    scale, bound = logits_scaling(target)
    logits = projection(target)(hidden) * scale
    return torch.tanh(logits / bound) * bound if bound else logits


def logits_scaling(target: PreTrainedModel) -> tuple[float, float | None]:
    """Return what a target multiplies the logits of its output projection by, and the bound of the product.

    Some families scale them (Granite, Cohere, Falcon-H1, HyperCLOVA X), Gemma bounds them; None is no bound.
    """
    config = target.config.get_text_config()
    scaling = getattr(config, "logits_scaling", None) or 1.0
    scale = scaling if config.model_type.startswith("hyperclovax") else 1 / scaling
    for name in ("logit_scale", "lm_head_multiplier", "output_multiplier"):
        scale *= getattr(config, name, None) or 1.0
    return scale, getattr(config, "final_logit_softcapping", None)


def embedding(target: PreTrainedModel) -> nn.Embedding:
    """Return the target's token embedding, whose weight is `[vocab, hidden]`."""
    return target.get_input_embeddings()  # pyright: ignore[reportReturnType]


def last_layer(target: PreTrainedModel) -> int:
    """Return the index of the target's hidden state after its final norm, counted as in `Model.forward`."""
    return target.config.get_text_config().num_hidden_layers


def own_bytes(heads: Any, target: PreTrainedModel) -> int:
    """Return the bytes of the heads' parameters that are not shared with the target."""
    shared = {parameter.data_ptr() for parameter in target.parameters() if not parameter.is_mkldnn}
    return sum(parameter.nbytes for parameter in heads.parameters() if parameter.data_ptr() not in shared)


def zero_hidden(target: PreTrainedModel) -> Tensor:
    """Return zeros `[1, 1, hidden]`, which a head reads while the target has no hidden state before the root."""
    hidden = target.config.get_text_config().hidden_size
    return torch.zeros(1, 1, hidden, dtype=target.dtype, device=target.device)
