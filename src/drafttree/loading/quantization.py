"""Quantising a model as it is loaded."""

import logging
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedModel

from drafttree.core.errors import ConfigError, ModelError, unknown
from drafttree.models.fused.int8_linear import quantization_method, quantize_int8

logger = logging.getLogger("drafttree")

KINDS = {"int8": quantize_int8}


def check_quantization(option: str, kind: Any, source: object = None) -> None:
    """Refuse a quantisation there is none of, or one of a model that is loaded already.

    Args:
        option: that asks for it.
        kind: its value, None for none.
        source: of the model.

    Raises:
        ConfigError: the message names the option and its value.
    """
    if kind is None:
        return
    if not isinstance(kind, str) or kind not in KINDS:
        raise unknown(option, kind, KINDS)
    if isinstance(source, PreTrainedModel):
        raise ConfigError(f"{option}={kind!r} is for a model that is loaded by name; give its folder or hub name")


def check_unquantized(source: object, config: Mapping[str, Any]) -> None:
    """Refuse to quantise what was saved quantised.

    Args:
        source: of the model.
        config: the contents of its config.json.

    Raises:
        ModelError: it was.
    """
    if method := quantization_method(config.get("quantization_config")):
        raise ModelError(f"{str(source)!r} is quantised already ({method}); leave out quantize")


def apply_quantization(module: PreTrainedModel, kind: str, source: object) -> None:
    """Quantise a model that was just loaded.

    Raises:
        ModelError: it cannot be.
    """
    before = _megabytes(module)
    KINDS[kind](module)
    logger.info("%s: quantised to %s, %.1f MB instead of %.1f", source, kind, _megabytes(module), before)


def _megabytes(module: PreTrainedModel) -> float:
    return sum(parameter.nbytes for parameter in module.parameters()) / 1e6
