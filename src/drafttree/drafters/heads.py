"""What trained heads have in common: their building block and the parts of the target they use."""

from torch import Tensor, nn
from torch.nn.functional import silu
from transformers import PreTrainedModel


class ResBlock(nn.Module):
    """x + SiLU(W x + b), where x stands for a learnt map of it if several vectors side by side become one.

    Args:
        hidden: width of the result.
        parts: vectors side by side in the input.
    """

    def __init__(self, hidden: int, parts: int = 1) -> None:
        super().__init__()
        self.linear = nn.Linear(parts * hidden, hidden)
        self.res_connection = nn.Linear(parts * hidden, hidden) if parts > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """`[..., hidden]` from `[..., parts * hidden]`."""
        return self.res_connection(x) + silu(self.linear(x))


def projection(target: PreTrainedModel) -> nn.Linear:
    """The target's vocabulary projection, whose weight is `[vocab, hidden]`."""
    return target.get_output_embeddings()  # pyright: ignore[reportReturnType]


def embedding(target: PreTrainedModel) -> nn.Embedding:
    """The target's token embedding, whose weight is `[vocab, hidden]`."""
    return target.get_input_embeddings()  # pyright: ignore[reportReturnType]


def last_layer(target: PreTrainedModel) -> int:
    """The index of the target's hidden state after its final norm, as `Model.forward` counts them."""
    return target.config.get_text_config().num_hidden_layers


def own_bytes(heads: nn.Module, target: PreTrainedModel) -> int:
    """Bytes of the heads' parameters that are not the target's own."""
    shared = {parameter.data_ptr() for parameter in target.parameters()}
    return sum(parameter.nbytes for parameter in heads.parameters() if parameter.data_ptr() not in shared)


def unknown_state(target: PreTrainedModel) -> Tensor:
    """`[1, 1, hidden]` zeros: what a head reads before the target has read any token."""
    weight = projection(target).weight
    return weight.new_zeros(1, 1, weight.shape[1])
