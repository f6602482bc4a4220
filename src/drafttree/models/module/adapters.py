"""Adapters that act not only in their layers, but also in peft's wrapper, which drafttree does not run."""

from torch import nn

CALL_METHODS = ("forward", "generate", "_enable_peft_forward_hooks")
"""Methods by which a tuner of peft changes calls of the model, beyond its layers."""
LAYER_TUNERS = {"LoraModel", "AdaLoraModel", "RoadModel", "GloraModel"}
"""Tuners that act in layers only. Their methods of these names compute losses, or let callers name adapters by row."""


def acts_by_call(tuner: type[nn.Module]) -> bool:
    """Whether a tuner of peft acts beyond its layers (X-LoRA, Poly, ...)."""
    if tuner.__name__ in LAYER_TUNERS:
        return False
    for cls in tuner.__mro__:
        is_of_peft = cls.__name__ != "BaseTuner" and cls.__module__.startswith("peft.")
        if is_of_peft and not vars(cls).keys().isdisjoint(CALL_METHODS):
            return True
    return False


def activated_adapter(layer: nn.Module) -> str | None:
    """The name of a layer's aLoRA adapter that is active and enabled, None if there is none.

    Activated LoRA (Greenewald et al. 2025) adapts only tokens after its invocation tokens, which a layer does not see.
    """
    variants = getattr(layer, "lora_variant", None)
    if not isinstance(variants, dict) or getattr(layer, "disable_adapters", False):
        return None
    for name in getattr(layer, "active_adapters", ()):
        if name in variants and type(variants[name]).__name__.startswith("ALora"):
            return name
    return None
