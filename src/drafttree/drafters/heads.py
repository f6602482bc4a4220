"""What trained heads have in common: their building block, and a loader that says exactly what does not fit."""

import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from transformers import PreTrainedModel

from drafttree.errors import ModelError
from drafttree.models.huggingface import lay_out_for_cpu

SHARED_LM_HEAD = "shared_lm_head"
"""Key of a head's config: true where its vocabulary projections are the target's own and therefore not stored."""


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


def first_free(pattern: str, names: Iterable[str]) -> int:
    """One more than the highest number in the pattern's group over all names that match it; 0 where none does."""
    return 1 + max((int(match[1]) for name in names if (match := re.match(pattern, name))), default=-1)


def check_names(kind: str, heads: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Compare the names in a checkpoint with those of the heads it should hold.

    Raises:
        ModelError: tensors are missing or unexpected; all of them are listed.
    """
    expected = heads.state_dict().keys()
    differences = {"missing": expected - tensors.keys(), "unexpected": tensors.keys() - expected}
    found = [f"{word} {', '.join(sorted(names, key=_natural))}" for word, names in differences.items() if names]
    if found:
        raise ModelError(f"the tensors do not make a {kind} head: {'; '.join(found)}")


def check_sizes(kind: str, target: PreTrainedModel, block: Tensor, head: Tensor | None) -> None:
    """Compare the sizes a head was made for with the target's.

    Args:
        kind: of head, for the message.
        target: the model it is to draft for.
        block: a weight whose rows are the hidden size.
        head: a weight whose rows are the vocabulary, None for a head that uses the target's.

    Raises:
        ModelError: they differ; the message has both numbers.
    """
    vocab, hidden = projection(target).weight.shape
    sizes = {"hidden size": (block, hidden)} | ({} if head is None else {"vocabulary": (head, vocab)})
    for size, (weight, expected) in sizes.items():
        if weight.ndim == 2 and len(weight) != expected:
            raise ModelError(
                f"this {kind} head was made for a target with a {size} of {len(weight)}, this target's is {expected}; "
                "use it with the model it was trained on"
            )


def fill(kind: str, heads: nn.Module, tensors: Mapping[str, Tensor], target: PreTrainedModel) -> None:
    """Give heads made on the meta device a checkpoint's tensors, frozen, with the target's dtype and device.

    Raises:
        ModelError: tensors have other shapes than expected; all of them are listed.
    """
    shapes = {name: list(tensor.shape) for name, tensor in heads.state_dict().items()}
    wrong = [
        f"{name} is {list(tensors[name].shape)} and should be {shapes[name]}"
        for name in sorted(shapes, key=_natural)
        if list(tensors[name].shape) != shapes[name]
    ]
    if wrong:
        raise ModelError(f"the tensors of the {kind} head have wrong shapes: {'; '.join(wrong)}")
    fitting = {name: tensor.to(target.device, target.dtype) for name, tensor in tensors.items()}
    heads.load_state_dict(fitting, assign=True)
    heads.eval().requires_grad_(False)
    if target.device.type == "cpu" and target.dtype == torch.float32:
        lay_out_for_cpu(heads)


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts head 10 after head 9."""
    return [(int(part or 0), text) for text, part in re.findall(r"(\D+)(\d*)", f".{name}")]
