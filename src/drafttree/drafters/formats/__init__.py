"""Checkpoint files of trained heads: reading them, telling their kind, and what does not fit.

A new kind of heads is one file with a `HeadFormat`, named in `registry.py`.
"""

from drafttree.drafters.formats import block, mtp
from drafttree.drafters.formats.checkpoints import INDICES, read_config, read_json, read_tensors
from drafttree.drafters.formats.fp8 import dequantised, read_weights
from drafttree.drafters.formats.head_checkpoint import SIZES, Checkpoint, HeadFormat, listed, misshapen
from drafttree.drafters.formats.hub import download, hub_answers, silence
from drafttree.drafters.formats.registry import (
    ASSISTANT,
    FORMATS,
    LANGUAGE_MODEL,
    PUBLISHED,
    UnsupportedDrafter,
    recognise,
)
from drafttree.drafters.formats.unsupported import unsupported_kind

__all__ = [
    "ASSISTANT",
    "FORMATS",
    "INDICES",
    "LANGUAGE_MODEL",
    "PUBLISHED",
    "SIZES",
    "Checkpoint",
    "HeadFormat",
    "UnsupportedDrafter",
    "block",
    "dequantised",
    "download",
    "hub_answers",
    "listed",
    "misshapen",
    "mtp",
    "read_config",
    "read_json",
    "read_tensors",
    "read_weights",
    "recognise",
    "silence",
    "unsupported_kind",
]
