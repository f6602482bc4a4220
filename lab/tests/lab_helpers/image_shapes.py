"""A small shape of a model that reads images."""

from typing import Any

from drafttree_lab.bench.images import SHAPES, ImageShape

LARGE = SHAPES["smolvlm-256m"]


def _config() -> Any:
    config = LARGE.config()
    config.text_config.num_hidden_layers = 2
    config.vision_config.num_hidden_layers = 1
    return config


SMALL = ImageShape(_config, LARGE.tokens, LARGE.inputs)
"""The large shape with few layers."""
