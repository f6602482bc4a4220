"""Checkpoint files of trained heads: reading them, telling their kind, and what does not fit.

A kind of heads is a `HeadFormat`, and `registry.py` lists them.
"""

from drafttree.drafters.formats import block, mtp
from drafttree.drafters.formats.checkpoints import (
    INDICES,
    SUFFIXES,
    dequantised,
    read_config,
    read_json,
    read_tensors,
    read_weights,
    weight_files,
)
from drafttree.drafters.formats.config import Count, Fields, text_fields
from drafttree.drafters.formats.format import SIZES, Checkpoint, HeadFormat, any_name, listed, misshapen
from drafttree.drafters.formats.hub import download, download_file, hub_answers, silence
from drafttree.drafters.formats.registry import (
    ASSISTANT,
    FORMATS,
    LANGUAGE_MODEL,
    PUBLISHED,
    UnsupportedDrafter,
    recognise,
    unsupported_kind,
)

__all__ = [
    "ASSISTANT",
    "FORMATS",
    "INDICES",
    "LANGUAGE_MODEL",
    "PUBLISHED",
    "SIZES",
    "SUFFIXES",
    "Checkpoint",
    "Count",
    "Fields",
    "HeadFormat",
    "UnsupportedDrafter",
    "any_name",
    "block",
    "dequantised",
    "download",
    "download_file",
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
    "text_fields",
    "unsupported_kind",
    "weight_files",
]
