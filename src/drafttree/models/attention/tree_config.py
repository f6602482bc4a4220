"""Stand-ins for a module's configs, under which its layers attend to trees while a pass runs.

Layers of transformers find their attention function by a name in their config. Other models may share the config, so
nothing is written to it. A pass gives the layers of its module another object instead. It has all attributes of the
config, but our attention function's name.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from torch import nn
from transformers import PreTrainedConfig

from drafttree.models.attention.tree_attention import NAME


def configured_parts(module: nn.Module) -> list[nn.Module]:
    """The submodules that hold a config."""
    return [submodule for submodule in module.modules() if isinstance(vars(submodule).get("config"), PreTrainedConfig)]


@contextmanager
def attending_to_trees(submodules: Sequence[nn.Module]) -> Iterator[None]:
    """Context manager: let the layers of a module attend to trees.

    Args:
        submodules: `configured_parts` of the module.
    """
    configs = [vars(submodule)["config"] for submodule in submodules]
    views = {id(config): _tree_view(config) for config in configs}
    for submodule, config in zip(submodules, configs, strict=True):
        vars(submodule)["config"] = views[id(config)]
    try:
        yield
    finally:
        for submodule, config in zip(submodules, configs, strict=True):
            vars(submodule)["config"] = config


class _TreeView:
    """Base put before the class of a config in the class of its view, which has all attributes of the config."""

    def __init_subclass__(cls) -> None:
        """Skip what transformers does to a new class of configs: views are never initialised."""

    def __getattribute__(self, name: str) -> Any:
        if name == "_attn_implementation":
            return NAME
        value = super().__getattribute__(name)
        return _tree_view(value) if isinstance(value, PreTrainedConfig) else value


def _tree_view(config: PreTrainedConfig) -> PreTrainedConfig:
    if isinstance(config, _TreeView):
        return config
    view = object.__new__(_view_class(type(config)))
    object.__setattr__(view, "__dict__", vars(config))
    return view


@lru_cache(maxsize=64)
def _view_class(config_class: type[PreTrainedConfig]) -> Any:
    return type(config_class.__name__, (_TreeView, config_class), {})
