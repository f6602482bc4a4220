"""`quantize="int4"`: a model's linear layers in four bits by GPTQ, and its head in eight."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from drafttree.core.errors import ModelError
from drafttree.loading.int4.folder import Int4Folder
from drafttree.loading.int4.rounding import RoundedLayer, round_layers, why_not_rounded
from drafttree.loading.int4.samples import sampled_texts

logger = logging.getLogger("drafttree")
TEXTS, LENGTH = 64, 512
"""Rows of texts that decide how weights are rounded, and tokens of each."""


@dataclass
class Seconds:
    """Where the time of a rounding went.

    Attributes:
        sampling: seconds of drawing texts.
        reading: of passes over them.
        rounding: of rounding weights.
    """

    sampling: float = 0.0
    reading: float = 0.0
    rounding: float = 0.0


@dataclass
class Progress:
    """Whom to tell how far a rounding is; nobody by default.

    Attributes:
        texts: called with the share of the texts that are drawn.
        layer: called with each decoder layer that is rounded.
    """

    texts: Callable[[float], None] = field(default=lambda share: None)
    layer: Callable[[RoundedLayer], None] = field(default=lambda layer: None)


def check_int4(module: PreTrainedModel) -> None:
    """Refuse a model that is not rounded to four bits.

    Raises:
        ModelError: why not.
    """
    if reason := why_not_rounded(module):
        raise ModelError(f"{type(module).__name__} {reason}; leave out quantize, or give int8")


def quantize_int4(
    module: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None = None,
    folder: Int4Folder | None = None,
    progress: Progress | None = None,
) -> Seconds:
    """Round the linear layers of a model to four bits, by texts that it writes itself; its head stays as it is.

    Args:
        module: the model.
        tokenizer: its tokenizer, whose chat template opens conversations; None for texts alone.
        folder: where what is rounded is kept, and goes on from; None for nowhere.
        progress: whom to tell how far it is.

    Returns:
        Where the time went.

    Raises:
        ModelError: the model is not rounded, or what its layers read is not finite.
    """
    check_int4(module)
    progress = progress or Progress(layer=_log)
    seconds = Seconds()
    started = time.perf_counter()
    texts = folder.read_texts() if folder else None
    if texts is None:
        texts = sampled_texts(module, tokenizer, TEXTS, LENGTH, progress.texts)
        if folder:
            folder.write_texts(texts)
    seconds.sampling = time.perf_counter() - started

    def add(layer: RoundedLayer) -> None:
        seconds.reading += layer.reading
        seconds.rounding += layer.rounding
        progress.layer(layer)

    round_layers(module, texts, folder, add)
    return seconds


def _log(layer: RoundedLayer) -> None:
    timing = f"{layer.reading:.1f} s reading, {layer.rounding:.1f} s rounding"
    logger.info("layer %d of %d is in four bits (%s)", layer.number, layer.layers, timing)
