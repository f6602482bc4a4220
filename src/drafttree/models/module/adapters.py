"""Adapters of peft whose effect is not in the layers alone: peft's wrapper, which is not run, adds to it in a call."""

from torch import nn

OF_CALLS = ("forward", "generate", "_enable_peft_forward_hooks")
"""Methods by which a tuner of peft has a call act otherwise than its layers do."""
BY_LAYERS = {"LoraModel", "AdaLoraModel", "RoadModel", "GloraModel"}
"""Tuners that have such methods for losses, or for adapters by row that a caller names."""


def acts_by_call(tuner: type[nn.Module]) -> bool:
    """Whether what a tuner of peft does is not in the layers alone (X-LoRA, Poly, ...)."""
    peft_classes = (cls for cls in tuner.__mro__ if cls.__name__ != "BaseTuner" and cls.__module__.startswith("peft."))
    return tuner.__name__ not in BY_LAYERS and any(name in vars(cls) for cls in peft_classes for name in OF_CALLS)


def activated_adapter(part: nn.Module) -> str | None:
    """The name of a layer's aLoRA adapter that is active and enabled, None without one.

    Activated LoRA (Greenewald et al. 2025) adapts tokens behind its invocation tokens, and a layer sees no tokens.
    """
    variants = getattr(part, "lora_variant", None)
    if not isinstance(variants, dict) or getattr(part, "disable_adapters", False):
        return None
    active_names = (name for name in getattr(part, "active_adapters", ()) if name in variants)
    return next((name for name in active_names if type(variants[name]).__name__.startswith("ALora")), None)
