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
"""Number of text rows that calibrate the rounding, and tokens of each."""


@dataclass
class Seconds:
    """Seconds that the steps of a rounding took.

    Attributes:
        sampling: drawing texts from the model.
        reading: passes over the texts.
        rounding: rounding weights.
    """

    sampling: float = 0.0
    reading: float = 0.0
    rounding: float = 0.0


@dataclass
class Progress:
    """Callbacks that report the progress of a rounding; they do nothing by default.

    Attributes:
        texts: called with the share of texts drawn so far, from 0 to 1.
        layer: called after each decoder layer.
    """

    texts: Callable[[float], None] = field(default=lambda share: None)
    layer: Callable[[RoundedLayer], None] = field(default=lambda layer: None)


def check_int4(module: PreTrainedModel) -> None:
    """Refuse a model that cannot be rounded to four bits.

    Raises:
        ModelError: the model cannot be rounded; the message says why.
    """
    if reason := why_not_rounded(module):
        raise ModelError(f"{type(module).__name__} {reason}; leave out quantize, or give int8")


def quantize_int4(
    module: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None = None,
    folder: Int4Folder | None = None,
    progress: Progress | None = None,
) -> Seconds:
    """Round the linear layers of a model, except its head, to four bits, calibrated by texts that it writes itself.

    Args:
        module: the model, whose layers are replaced.
        tokenizer: its tokenizer, whose chat template opens conversations; None for plain texts.
        folder: folder to store results in and to resume from; None to store nothing.
        progress: progress callbacks. Default: each layer is logged.

    Returns:
        The seconds that each step took.

    Raises:
        ModelError: the model cannot be rounded, or the inputs of its layers are not finite.
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
