"""Adapters of peft that act not only by their layers, but also by peft's wrapper, which drafttree does not run."""

from torch import nn

OF_CALLS = ("forward", "generate", "_enable_peft_forward_hooks")
"""Methods by which a tuner of peft changes calls beyond what its layers do."""
BY_LAYERS = {"LoraModel", "AdaLoraModel", "RoadModel", "GloraModel"}
"""Tuners whose methods of these names only compute losses, or serve callers who name an adapter for each row."""


def acts_by_call(tuner: type[nn.Module]) -> bool:
    """Whether a tuner of peft acts by more than its layers (X-LoRA, Poly, ...)."""
    if tuner.__name__ in BY_LAYERS:
        return False
    for cls in tuner.__mro__:
        is_of_peft = cls.__name__ != "BaseTuner" and cls.__module__.startswith("peft.")
        if is_of_peft and not vars(cls).keys().isdisjoint(OF_CALLS):
            return True
    return False


def activated_adapter(part: nn.Module) -> str | None:
    """The name of a layer's aLoRA adapter that is active and enabled, None if there is none.

    Activated LoRA (Greenewald et al. 2025) adapts only tokens after its invocation tokens, which a layer does not see.
    """
    variants = getattr(part, "lora_variant", None)
    if not isinstance(variants, dict) or getattr(part, "disable_adapters", False):
        return None
    for name in getattr(part, "active_adapters", ()):
        if name in variants and type(variants[name]).__name__.startswith("ALora"):
            return name
    return None
