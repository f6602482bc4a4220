"""Mixtures of experts, of which `exact_text` computes every token alone.

An expert's product has as many rows as tokens of the pass were routed to it, and products of other numbers of rows may
add up in another order. How many these are depends on the tokens, so no trial of a few tokens shows it.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from drafttree.models.module.module_checks import decoder_of
from drafttree.models.module.recurrent import replaced_forward

CLASS = "Experts"
"""What the name of a class of experts has in it."""
BY_TOKEN = (
    ("hidden_states", "top_k_index", "top_k_weights"),
    ("hidden_states", "router_indices", "routing_weights"),
    ("hidden_states", "router_logits"),
)
"""What experts of transformers are given with a row for each token."""
BY_EXPERT = ("inputs", "expert_size")
"""What JetMoe's are given: rows in the order of experts, and how many each of them gets."""
DENSE = {"Llama4TextExperts", "FbgemmFp8Llama4TextExperts"}
"""Experts each of which is given all tokens."""


def routed_experts(module: PreTrainedModel) -> list[nn.Module]:
    """The experts of a module, each of which is given some tokens of a pass only."""
    return [submodule for submodule in decoder_of(module).modules() if _parameters(submodule) in (*BY_TOKEN, BY_EXPERT)]


def unknown_experts(module: PreTrainedModel) -> str | None:
    """The name of a part that may route tokens to experts in a way of its own, None without one."""
    known_ids = {id(submodule) for expert_module in routed_experts(module) for submodule in expert_module.modules()}
    for name, submodule in decoder_of(module).named_modules():
        takes_all_tokens = type(submodule).__name__ in DENSE or "Shared" in type(submodule).__name__
        if id(submodule) not in known_ids and not takes_all_tokens and _may_route(name, submodule):
            return name
    return None


def _may_route(name: str, part: nn.Module) -> bool:
    """Whether a part has the look of experts: its class is called so, or it has a list or a stack of them."""
    is_list = isinstance(part, nn.ModuleList | nn.ModuleDict) and "expert" in name.rpartition(".")[2]
    is_stack = any(weight is not None and weight.ndim == 3 for weight in part._parameters.values())
    is_foreign = not type(part).__module__.startswith(("torch.", "transformers."))
    return CLASS in type(part).__name__ or is_list or (is_stack and is_foreign)


@contextmanager
def token_by_token(experts: Sequence[nn.Module], padding: int = 0) -> Iterator[None]:
    """Let experts compute every token alone while a pass calls them.

    Args:
        experts: the modules of experts.
        padding: rows at the end of the pass that nobody reads.
    """
    with ExitStack() as undo:
        for expert_module in experts:
            token_forward = (
                _by_expert(expert_module.forward)
                if _parameters(expert_module) == BY_EXPERT
                else _by_token(expert_module.forward, padding)
            )
            undo.enter_context(replaced_forward(expert_module, token_forward))
        yield


def _parameters(part: nn.Module) -> tuple[str, ...]:
    """What the forward of a module of experts takes; nothing for other modules."""
    if CLASS not in type(part).__name__:
        return ()
    return tuple(inspect.signature(type(part).forward).parameters)[1:]


def _by_token(forward: Callable[..., Tensor], padding: int) -> Callable[..., Tensor]:
    def run(states: Tensor, *routing: Tensor) -> Tensor:
        rows = [tensor.reshape(-1, 1, tensor.shape[-1]) for tensor in (states, *routing)]
        tokens = zip(*(token_rows[: len(token_rows) - padding] for token_rows in rows), strict=True)
        # copies, since where a row begins in memory may decide how it is added up
        outputs = torch.cat([forward(*(row.clone() for row in token)).reshape(1, -1) for token in tokens])
        return nn.functional.pad(outputs, (0, 0, 0, padding)).reshape(states.shape)

    return run


def _by_expert(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(inputs: Tensor, expert_size: list[int]) -> Tensor:
        owners = [expert for expert, size in enumerate(expert_size) for _ in range(size)]
        sizes = ([int(expert == owner) for expert in range(len(expert_size))] for owner in owners)
        return torch.cat([forward(inputs[row : row + 1].clone(), size) for row, size in enumerate(sizes)])

    return run
