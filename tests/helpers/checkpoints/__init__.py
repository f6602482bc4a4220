"""Small random checkpoints in every format of drafters, and the logits that their authors' formulas give."""

from helpers.checkpoints.formats import (
    BLOCK,
    DEPTH,
    FORMATS,
    HIDDEN,
    MASK,
    VOCAB,
    Format,
    Tensors,
    hydra_shapes,
    medusa_shapes,
    names,
    target,
)
from helpers.checkpoints.mtp import MTP, MtpFormat

__all__ = [
    "BLOCK",
    "DEPTH",
    "FORMATS",
    "HIDDEN",
    "MASK",
    "MTP",
    "VOCAB",
    "Format",
    "MtpFormat",
    "Tensors",
    "hydra_shapes",
    "medusa_shapes",
    "names",
    "target",
]
