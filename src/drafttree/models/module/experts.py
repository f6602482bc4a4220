"""Mixtures of experts, which under `exact_text` compute every token alone.

An expert's product has one row for each token that is routed to it. With other numbers of rows it may add up in another
order. These numbers depend on the tokens, so a trial on a few tokens does not show it.
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
"""Part of the name of every class of experts."""
BY_TOKEN = (
    ("hidden_states", "top_k_index", "top_k_weights"),
    ("hidden_states", "router_indices", "routing_weights"),
    ("hidden_states", "router_logits"),
)
"""Parameters of transformers' experts whose arguments have one row for each token."""
BY_EXPERT = ("inputs", "expert_size")
"""Parameters of JetMoe's experts: rows sorted by expert, and the number of rows of each expert."""
DENSE = {"Llama4TextExperts", "FbgemmFp8Llama4TextExperts"}
"""Classes whose experts each compute all tokens."""


def routed_experts(module: PreTrainedModel) -> list[nn.Module]:
    """The submodules of experts to which the tokens of a pass are routed."""
    return [submodule for submodule in decoder_of(module).modules() if _parameters(submodule) in (*BY_TOKEN, BY_EXPERT)]


def unknown_experts(module: PreTrainedModel) -> str | None:
    """The name of a submodule that may route tokens to experts in an unknown way, None if there is none."""
    known_ids = set[int]()
    for expert_module in routed_experts(module):
        known_ids.update(map(id, expert_module.modules()))
    for name, submodule in decoder_of(module).named_modules():
        takes_all_tokens = type(submodule).__name__ in DENSE or "Shared" in type(submodule).__name__
        if id(submodule) not in known_ids and not takes_all_tokens and _may_route(name, submodule):
            return name
    return None


def _may_route(name: str, submodule: nn.Module) -> bool:
    """Whether a submodule looks like experts: by the name of its class, or as a list or a stack of experts."""
    is_list = isinstance(submodule, nn.ModuleList | nn.ModuleDict) and "expert" in name.rpartition(".")[2]
    is_stack = any(weight is not None and weight.ndim == 3 for weight in submodule._parameters.values())
    is_foreign = not type(submodule).__module__.startswith(("torch.", "transformers."))
    return CLASS in type(submodule).__name__ or is_list or (is_stack and is_foreign)


@contextmanager
def token_by_token(experts: Sequence[nn.Module], padding: int = 0) -> Iterator[None]:
    """Context manager: experts compute every token alone.

    Args:
        experts: the modules of experts.
        padding: rows at the end of the pass that are not computed.
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


def _parameters(submodule: nn.Module) -> tuple[str, ...]:
    """Names of the parameters of an experts module's `forward`; empty for other modules."""
    if CLASS not in type(submodule).__name__:
        return ()
    return tuple(inspect.signature(type(submodule).forward).parameters)[1:]


def _by_token(forward: Callable[..., Tensor], padding: int) -> Callable[..., Tensor]:
    def run(states: Tensor, *routing: Tensor) -> Tensor:
        rows = [tensor.reshape(-1, 1, tensor.shape[-1]) for tensor in (states, *routing)]
        outputs = []
        for token in range(len(rows[0]) - padding):
            # copies, since a row's address may decide the order of its sums
            token_rows = [tensor[token].clone() for tensor in rows]
            outputs.append(forward(*token_rows).reshape(1, -1))
        return nn.functional.pad(torch.cat(outputs), (0, 0, 0, padding)).reshape(states.shape)

    return run


def _by_expert(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(inputs: Tensor, expert_size: list[int]) -> Tensor:
        rows = iter(inputs.split(1))
        outputs = []
        for expert, size in enumerate(expert_size):
            single_token = [int(index == expert) for index in range(len(expert_size))]
            outputs += [forward(next(rows).clone(), single_token) for _ in range(size)]
        return torch.cat(outputs)

    return run
