"""The parsed source of a target: a model to load by its name, or a loaded model."""

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from drafttree.core.autocast import refuse_autocast
from drafttree.core.errors import ConfigError
from drafttree.drafters import Drafter
from drafttree.loading import zoo
from drafttree.loading.model_files import ModelFiles
from drafttree.loading.placement import Placement, find_placement, is_auto, placement_of
from drafttree.loading.pretrained import load_model, load_tokenizer, refuse_assistant, stays_as_stored, unwrap
from drafttree.loading.target_options import (
    AS_STORED,
    BY_DEFAULT,
    KINDS,
    NONE,
    OPTION,
    check_quantization,
    refuse_rounding,
)
from drafttree.models import Model, TargetModel
from drafttree.models.backend_choice import Wants


class TargetOptions(NamedTuple):
    """The arguments of `drafttree.load` that say how to load the target.

    Attributes:
        wants: what its backend must be able to do.
    """

    dtype: str | torch.dtype
    device: str
    quantize: str | None
    max_model_len: int | None
    tensor_parallel_size: int
    wants: Wants

    @property
    def rounding(self) -> str | None:
        """`quantize` if it is one of `KINDS`; None for another value."""
        return self.quantize if isinstance(self.quantize, str) and self.quantize in KINDS else None


@dataclass(frozen=True)
class NamedTarget:
    """A target that is loaded by an embedded name, from a folder or a GGUF file, or by a hub name."""

    source: str | Path

    @cached_property
    def files(self) -> ModelFiles:
        """The target's files, which are found when they are first asked for.

        Raises:
            ModelError: the source does not exist.
            ConfigError: the packages that read GGUF files are missing.
        """
        return ModelFiles.of_model(self.source)

    @property
    def name(self) -> str:
        """The embedded name, else the source."""
        return zoo.name_of(Path(self.source)) or str(self.source)

    @property
    def location(self) -> str:
        """The folder, GGUF file or hub name; errors are those of `files`."""
        return self.files.path

    @property
    def config(self) -> PreTrainedConfig:
        """The transformers config; errors are those of `files` and `ModelFiles.config`."""
        return self.files.config

    def place(self, options: TargetOptions) -> Placement:
        """The device and dtype to load the target with.

        Raises:
            ConfigError: one of them is not available, `torch.autocast` is active, or the target cannot be quantised as
                asked on this device.
        """
        placement = find_placement(options.dtype, options.device, options.rounding)
        refuse_autocast(placement.device)
        check_quantization("quantize", options.quantize, placement.device, (NONE,))
        return placement

    def load(self, placement: Placement, options: TargetOptions) -> PreTrainedModel:
        """The loaded model.

        Weights that stay as stored are loaded in bfloat16 unless a dtype was asked for.

        Raises:
            ModelError: the target does not exist, or cannot be loaded or quantised.
        """
        device, dtype = placement
        quantize = options.quantize
        if quantize is None and not options.wants.lossy_window:  # drafttree-native has no KV caches for a window
            quantize = AS_STORED
        elif quantize == NONE:
            quantize = None
        if is_auto(options.dtype) and stays_as_stored(self.files, device, quantize):
            dtype = torch.bfloat16  # as with int8, since activations are rounded to eight bits anyway
        return load_model(self.files, dtype, device, quantize, options.tensor_parallel_size)

    def load_tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The tokenizer beside the target; errors are those of `drafttree.loading.load_tokenizer`."""
        return load_tokenizer(self.files)


@dataclass(frozen=True)
class GivenTarget:
    """A target that is a loaded model, without wrappers."""

    model: PreTrainedModel

    @property
    def name(self) -> str:
        """The name or folder that the model was loaded from; empty if it does not say."""
        return zoo.name_of(Path(self.location)) or self.location

    @property
    def location(self) -> str:
        """The folder, GGUF file or hub name that the model was loaded from; empty if it does not say."""
        return str(self.model.name_or_path or "")

    @property
    def config(self) -> PreTrainedConfig:
        """The model's own config."""
        return self.model.config

    def place(self, options: TargetOptions) -> Placement:
        """The model's own device and dtype.

        Raises:
            ConfigError: another device or dtype is asked for, `torch.autocast` is active, or the model is to be
                quantised or sharded.
            ModelError: the model is an assistant.
        """
        if options.tensor_parallel_size != 1:
            raise ConfigError(
                f"{OPTION}={options.tensor_parallel_size} is for a target that is loaded by name; give its folder or "
                "hub name"
            )
        placement = placement_of(self.model, options.dtype, options.device)
        refuse_autocast(placement.device)
        refuse_rounding("quantize", options.quantize)
        check_quantization("quantize", options.quantize, placement.device, (NONE,))
        refuse_assistant(self.model)
        return placement

    def load(self, placement: Placement, options: TargetOptions) -> PreTrainedModel:
        """The model itself, whatever its placement and the options."""
        return self.model

    def load_tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The tokenizer where the model was loaded from; None if it does not say.

        Raises:
            ModelError: there is no tokenizer, or it cannot be loaded.
        """
        return load_tokenizer(self.model)


TargetSpec = NamedTarget | GivenTarget


def parse_target(source: Any) -> TargetSpec:
    """Parse the source of a target, without looking for files.

    Raises:
        ConfigError: the source is neither a name, a path nor a loaded model.
        ModelError: the source has an adapter that `unwrap` refuses.
    """
    if isinstance(source, str | Path):
        return NamedTarget(source)
    model = unwrap(source)
    if isinstance(model, PreTrainedModel):
        return GivenTarget(model)
    type_name = type(model).__name__
    raise ConfigError(
        f"the target is of type {type_name}; give an embedded name, a folder, a hub name or a loaded model"
    )


@dataclass(frozen=True)
class LoadedTarget:
    """A loaded target, with what drafters need to be built for it.

    Attributes:
        model: the target.
        tokenizer: the target's.
        quantize: how to quantise a language model that drafts; None for not at all, `BY_DEFAULT` for what is fastest.
        held: the drafters of language models that are loaded for this target, by path; new ones are added.
        spec: what the target was loaded from; None if that is not known, or it is not a transformers model.
    """

    model: Model
    tokenizer: PreTrainedTokenizerBase | None = None
    quantize: str | None = BY_DEFAULT
    held: MutableMapping[str, Drafter] = field(default_factory=dict)
    spec: TargetSpec | None = None

    def for_model(self, drafter: object) -> TargetModel:
        """The target, for a drafter that is a model.

        Args:
            drafter: the drafter, for the message.

        Raises:
            ConfigError: the target is not a transformers model, which models that draft need.
        """
        if not isinstance(self.model, TargetModel):
            raise ConfigError(
                f"a model drafts for a transformers model, which this target is not; give {drafter!r} as an object"
            )
        return self.model
