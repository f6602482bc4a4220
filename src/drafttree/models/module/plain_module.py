"""Detect modules without hooks, adapters and replaced forwards, which fused layers may stand in for."""

from itertools import chain

from torch import nn
from torch.nn.modules import module as global_hooks

from drafttree.models.module.fingerprint import is_plain, own_hooks

CLASSES = (
    "torch.nn.modules.",
    "transformers.models.",
    "transformers.activations",
    "drafttree.drafters.",
    "drafttree.models.fused.int8_linear",
)
"""Packages whose module classes count as plain: not peft, bitsandbytes, torch's parametrizations ..."""
INERT_HOOKS = "transformers.utils.output_capturing"
"""transformers leaves hooks behind that do nothing outside of a call with `output_hidden_states`."""


def is_plain_module(module: nn.Module) -> bool:
    """Whether a module in evaluation mode has neither hooks nor layers or weights of another kind than its class's."""
    hooks = global_hooks._global_forward_hooks, global_hooks._global_forward_pre_hooks
    return not any(hooks) and all(_is_plain_part(part) for part in module.modules())


def _is_plain_part(part: nn.Module) -> bool:
    replaced = "forward" in part.__dict__ or hasattr(part, "_hf_hook") or part.training
    hooked = any(getattr(hook, "__module__", None) != INERT_HOOKS for hook in own_hooks(part))
    known = type(part).__module__.startswith(CLASSES) and (type(part) is nn.Linear or not isinstance(part, nn.Linear))
    tensors = chain(part._parameters.values(), part._buffers.values())
    return known and not replaced and not hooked and all(each is None or is_plain(each) for each in tensors)
