"""Drafters that are models: loaded ones, those in files, and the layers of a target's own."""

import logging
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from drafttree.core.errors import ModelError
from drafttree.drafters import AssistantDrafter, Drafter, LanguageModelDrafter, OtherTokenizerDrafter
from drafttree.drafters.assistant import ASSISTANTS
from drafttree.drafters.formats import ASSISTANT, LANGUAGE_MODEL, block, mtp, read_weights, unsupported_kind
from drafttree.loading.drafter_methods import head_formats
from drafttree.loading.drafter_spec import DrafterSpec, named
from drafttree.loading.folders import find_folder
from drafttree.loading.gguf.reader import SUFFIX
from drafttree.loading.model_files import FoundModel, ModelFiles
from drafttree.loading.names import model_name
from drafttree.loading.pretrained import check_files, quiet, read_model, tokenizer_beside
from drafttree.loading.target_options import refuse_rounding
from drafttree.loading.targets import LoadedTarget, TargetSpec
from drafttree.loading.vocabularies import check_tokenizers, map_vocabularies
from drafttree.models import TargetModel
from drafttree.models.backend_choice import choose_backend

logger = logging.getLogger("drafttree")
MTP = "mtp"
"""The name of the drafter that runs the MTP layers in the target's own checkpoint."""


@dataclass(frozen=True)
class GivenModel(DrafterSpec):
    """A loaded model without wrappers: a language model, or an assistant.

    Attributes:
        model: the model.
    """

    model: PreTrainedModel

    def check(self, target: TargetSpec | None = None, quantize: str | None = None) -> None:
        refuse_rounding("quantize_drafter", quantize)

    def build(self, target: LoadedTarget) -> Drafter:
        target_model = target.for_model(self.source)
        if head := made_for(self.model, target_model.module):
            _check_assistant(head, target.tokenizer, self.model)
            return head
        return _language_drafter(self.model, self.model, target_model, target.tokenizer)


@dataclass(frozen=True)
class FilesDrafter(DrafterSpec):
    """A drafter in files: of an embedded name, a folder, a GGUF file or a hub name."""

    @cached_property
    def files(self) -> ModelFiles:
        """The files, which are found and downloaded when they are first asked for.

        Raises:
            ModelError: the source does not exist, or cannot be downloaded.
            ConfigError: the packages that read GGUF files are missing.
        """
        return ModelFiles.of_drafter(self.source)

    @property
    def is_language_model(self) -> bool:
        return self.files.kind == LANGUAGE_MODEL

    def check(self, target: TargetSpec | None = None, quantize: str | None = None) -> None:
        super().check(target, quantize)
        if self.is_language_model:
            check_files(self.files, quantize)

    def build(self, target: LoadedTarget) -> Drafter:
        return named(self._built(target), model_name(self.source))

    def _built(self, target: LoadedTarget) -> Drafter:
        target_model = target.for_model(self.source)
        files = self.files
        if head := load_head(files, target_model.module):
            _check_assistant(head, target.tokenizer, files)
            return head
        if files.path not in target.held:
            model = read_model(files, target_model.dtype, target_model.device, target.quantize, drafts=True)
            drafter = target.held[files.path] = _language_drafter(model, files, target_model, target.tokenizer)
            return drafter
        return target.held[files.path]


@dataclass(frozen=True)
class OwnLayers(DrafterSpec):
    """The MTP layers in the target's own checkpoint."""

    source: str | Path = MTP

    def check(self, target: TargetSpec | None = None, quantize: str | None = None) -> None:
        super().check(target, quantize)
        if target is None:
            return
        if not target.location:
            raise ModelError(
                f"{MTP!r} drafts with layers from the target's files, and this loaded model does not say where its "
                "files are"
            )
        if target.location.endswith(SUFFIX):
            raise ModelError(f"{MTP!r} drafts with layers of the target, which drafttree cannot read from a GGUF file")

    def build(self, target: LoadedTarget) -> Drafter:
        module = target.for_model(MTP).module
        _check_not_meta(module, f"{MTP!r} is a head")
        try:
            with quiet():
                return named(mtp.load_own(find_folder(str(module.name_or_path)), module), MTP)
        except ModelError as error:
            raise ModelError(f"cannot load drafter {MTP!r}: {error}") from error


def made_for(model: PreTrainedModel, target: PreTrainedModel) -> Drafter | None:
    """The drafter of a loaded model that was made for one target, such as an assistant; None for a language model.

    Raises:
        ModelError: the model does not fit the target, or drafttree does not run its kind.
    """
    if model.config.model_type in ASSISTANTS:
        return AssistantDrafter(model.eval(), target)
    if model.config.model_type in block.ASSISTANTS:
        return block.FORMAT.load(model.state_dict(), model.config.to_dict(), target)
    if unsupported_format := unsupported_kind((), model.config.to_dict()):
        raise ModelError(f"the drafter is {unsupported_format}")
    return None


def load_head(files: ModelFiles, target: PreTrainedModel) -> Drafter | None:
    """The drafter in the files of a trained head or an assistant; None for a language model.

    Raises:
        ModelError: the files are damaged or of no known kind, or the head does not fit the target.
    """
    model_kind = files.kind
    if model_kind == LANGUAGE_MODEL:
        return None
    _check_not_meta(target, f"{str(files.source)!r} is a head ({model_kind})")
    try:
        with quiet():
            if model_kind == ASSISTANT:
                return made_for(read_model(files, target.dtype, target.device), target)
            weights = read_weights(Path(files.path), target.dtype, config=files.settings)
            return head_formats()[model_kind].load(weights, files.settings, target)
    except ModelError as error:
        raise ModelError(f"cannot load drafter {str(files.source)!r}: {error}") from error


def _check_assistant(head: Drafter, tokenizer: PreTrainedTokenizerBase | None, origin: FoundModel) -> None:
    """Refuse an assistant with another tokenizer than its target's; other heads pass."""
    if isinstance(head, AssistantDrafter):
        check_tokenizers(tokenizer, tokenizer_beside(origin))


def _language_drafter(
    model: PreTrainedModel, origin: FoundModel, target: TargetModel, tokenizer: PreTrainedTokenizerBase | None
) -> LanguageModelDrafter | OtherTokenizerDrafter:
    """The drafter of a language model.

    Args:
        model: the language model.
        origin: the files that it was loaded from, or the model itself.
        target: the model to draft for.
        tokenizer: the target's.

    Raises:
        TokenizerMismatch: the language model has less than a third of the target's tokens.
    """
    _warn_of_size(model, target.module)
    vocabulary = map_vocabularies(target, tokenizer, model, tokenizer_beside(origin))
    draft_model = TargetModel(model, choose_backend)
    return OtherTokenizerDrafter(draft_model, vocabulary) if vocabulary else LanguageModelDrafter(draft_model)


def _check_not_meta(target: PreTrainedModel, subject: str) -> None:
    """Refuse a head if the target's weights, which it reads, are not in memory."""
    if target.device.type == "meta":
        reason = "it reads the target's weights, but accelerate has offloaded them"
        raise ModelError(f"{subject}: {reason}; use a language model or 'lookup' to draft")


def _warn_of_size(drafter: PreTrainedModel, target: PreTrainedModel) -> None:
    """Warn if a draft model is no smaller than its target: its passes cost as much as they could save."""
    drafter_size = sum(parameter.numel() for parameter in drafter.parameters())
    target_size = sum(parameter.numel() for parameter in target.parameters())
    if drafter_size >= target_size:
        logger.warning(
            "the drafter has %.1f million parameters and the target %.1f: it cannot make the text faster; name a "
            "smaller drafter, or 'lookup'",
            *(drafter_size / 1e6, target_size / 1e6),
        )
