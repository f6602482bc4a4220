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
from helpers.checkpoints.fp8 import SCHEMES, in_fp8, out_of_fp8
from helpers.checkpoints.mtp import MTP, MtpFormat

__all__ = [
    "BLOCK",
    "DEPTH",
    "FORMATS",
    "HIDDEN",
    "MASK",
    "MTP",
    "SCHEMES",
    "VOCAB",
    "Format",
    "MtpFormat",
    "Tensors",
    "hydra_shapes",
    "in_fp8",
    "medusa_shapes",
    "names",
    "out_of_fp8",
    "target",
]
