"""Finds the drafter that a name, a folder, a model or a class specifies.

A source is parsed once: `parse_drafter` makes it a `DrafterSpec`. Its `check` refuses what can be refused before
weights are read, and its `build` makes the drafter for a loaded target.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from drafttree.core.errors import DraftTreeError, ModelError
from drafttree.drafters import LOOKUPS, Drafter, MixedDrafter, SuffixDrafter
from drafttree.drafters.formats import PUBLISHED, download, mtp
from drafttree.loading.class_drafters import ClassDrafter, check_members, is_lookup
from drafttree.loading.drafter_spec import DrafterSpec, named
from drafttree.loading.folders import local_folder
from drafttree.loading.model_drafters import MTP, FilesDrafter, GivenModel, OwnLayers
from drafttree.loading.names import model_name
from drafttree.loading.placement import is_auto
from drafttree.loading.pretrained import ModelSource, unwrap
from drafttree.loading.target_options import BY_DEFAULT
from drafttree.loading.targets import GivenTarget, LoadedTarget, TargetSpec, parse_target
from drafttree.models import Model, TargetModel

logger = logging.getLogger("drafttree")
DrafterSource = ModelSource | Drafter | type[Drafter]
MIXED = "mixed:"
OWN_LAYERS = f"{MIXED}{MTP}"
"""What "auto" chooses if the checkpoint has such layers."""
NO_DRAFTER = "none"
PartSpec = ClassDrafter | OwnLayers | FilesDrafter
"""What can draft in a mixed drafter where lookup does not."""


@dataclass(frozen=True)
class NoDrafter(DrafterSpec):
    """Plain decoding."""

    def build(self, target: LoadedTarget) -> None:
        return None


@dataclass(frozen=True)
class GivenDrafter(DrafterSpec):
    """A drafter that is an object of the protocol.

    Attributes:
        drafter: the object that the user gave, which `build` returns.
    """

    drafter: Drafter

    def build(self, target: LoadedTarget) -> Drafter:
        return self.drafter


@dataclass(frozen=True)
class MixedParts(DrafterSpec):
    """Lookup where the text repeats, and another drafter elsewhere.

    Attributes:
        model: the other drafter.
    """

    model: PartSpec

    @property
    def drafter_class(self) -> type[Drafter] | None:
        return self.model.drafter_class

    @property
    def is_language_model(self) -> bool:
        return self.model.is_language_model

    def check(self, target: TargetSpec | None = None, quantize: str | None = None) -> None:
        super().check(target, quantize)
        self.model.check(target, quantize)

    def build(self, target: LoadedTarget) -> Drafter:
        return self.around(self.model.build(target), target.model)

    def around(self, drafter: Drafter, target: Model) -> Drafter:
        """The mixed drafter of the other drafter, for the same target."""
        mixed_drafter = MixedDrafter(SuffixDrafter(target.vocab_size, target.device), drafter)
        return named(mixed_drafter, MIXED + model_name(self.model.source))


@dataclass(frozen=True)
class AutoDrafter(DrafterSpec):
    """The drafter that `Choice.of` chooses for a target, which is logged.

    If it chooses the MTP layers of the target's checkpoint and they cannot be run, the drafter is lookup.
    """

    def build(self, target: LoadedTarget) -> Drafter | None:
        spec = target.spec or GivenTarget(target.for_model(self.source).module)
        name, reason = Choice.of(spec)
        logger.log(logging.WARNING if name in LOOKUPS else logging.INFO, "drafter: %s (%s)", name, reason)
        chosen_drafter = parse_drafter(name)
        try:
            chosen_drafter.check(spec)
            return chosen_drafter.build(target)
        except ModelError as error:
            if name != OWN_LAYERS:
                raise
            logger.warning("drafter: lookup (%s)", error)
            return parse_drafter("lookup").build(target)


def parse_drafter(source: Any) -> DrafterSpec:
    """Parse the source of a drafter, without looking for its files.

    Args:
        source: what `drafttree.load` takes as drafter.

    Raises:
        ConfigError: the source is not a drafter, its class cannot be imported, or a parameter has no value.
        ModelError: the source has an adapter that `unwrap` refuses.
    """
    if isinstance(source, str):
        return _parse_name(source)
    if isinstance(source, Path):
        return FilesDrafter(source)
    if isinstance(source, type):
        return ClassDrafter.given(source)
    if source is None:
        return NoDrafter(str(source))
    drafter = unwrap(source)
    if isinstance(drafter, PreTrainedModel):
        return GivenModel(type(drafter).__name__, drafter)
    return GivenDrafter(type(drafter).__name__, check_members(drafter))


def _parse_name(name: str) -> DrafterSpec:
    if name == NO_DRAFTER:
        return NoDrafter(name)
    if is_auto(name):
        return AutoDrafter(name)
    if name.startswith(MIXED):
        model = name.removeprefix(MIXED)
        # "mixed:lookup" is refused when its files are looked for, since there are none
        return MixedParts(name, FilesDrafter(model) if is_lookup(model) else _parse_model(model))
    return _parse_model(name)


def _parse_model(name: str) -> PartSpec:
    """A class, the target's own layers, or files; any other name counts as that of files."""
    class_drafter = ClassDrafter.named(name)
    return class_drafter or (OwnLayers() if name == MTP else FilesDrafter(name))


def find_drafter(
    source: DrafterSource | None,
    target: TargetModel,
    tokenizer: PreTrainedTokenizerBase | None,
    quantize: str | None = BY_DEFAULT,
) -> Drafter | None:
    """The drafter of a source for a loaded target, in its dtype and on its device; None for plain decoding.

    Args:
        source: what `drafttree.load` takes as drafter.
        target: the model to draft for.
        tokenizer: the target's.
        quantize: as in `LoadedTarget`.

    Raises:
        DraftTreeError: as in `parse_drafter`, `DrafterSpec.check` and `DrafterSpec.build`.
    """
    spec = parse_drafter(source)
    target_spec = GivenTarget(target.module)
    spec.check(target_spec)
    return spec.build(LoadedTarget(target, tokenizer, quantize, spec=target_spec))


class Choice(NamedTuple):
    """A drafter's name and the reason for choosing it."""

    name: str
    reason: str

    @classmethod
    def of(cls, target: TargetSpec) -> "Choice":
        """The drafter for "auto": the target's own MTP layers, else a head known for the target, else lookup."""
        name = target.name
        if name == "embedded":
            return cls("mixed:embedded-eagle3", "its head was trained for the embedded target")
        if _has_mtp_layers(target):
            return cls(OWN_LAYERS, f"{name} comes with MTP layers of its own")
        head = PUBLISHED.get(name.lower())
        if head is None:
            reason = f"no model is known to draft for {name or 'this target'}; lookup drafts what the text repeats"
            return cls("lookup", reason)
        try:
            download(head)
        except ModelError as error:
            return cls("lookup", f"{head} was published for it, but: {error}")
        return cls(head, f"it was published for {name}")


def choose_drafter(target: ModelSource) -> Choice:
    """The drafter that "auto" means for a target; errors are those of `parse_target`."""
    return Choice.of(parse_target(target))


def _has_mtp_layers(target: TargetSpec) -> bool:
    """Whether a target's checkpoint is on this machine and has MTP layers that drafttree runs."""
    folder = local_folder(target.name)
    if folder is None:
        return False
    try:
        return mtp.is_tried(target.config) and bool(mtp.own_names(folder, target.config))
    except (DraftTreeError, OSError, ValueError):  # loading reports the problem
        return False
