"""The drafter that a name, a folder, a model or a class stands for.

Users can give a class of their own, as its dotted name or as an entry point of the group `drafttree.drafters`, with
parameters behind it: "mypackage.Guesser:width=3". The drafter is made by

- `Class.for_target(target, tokenizer, **parameters)` if it has that class method, where `target` is a
  `drafttree.models.Model` and `tokenizer` the target's, or None;
- `Class(vocab_size, device, **parameters)` otherwise, as the lookup drafters are.

A parameter's value is passed as None, a boolean or a number if it reads like one, else as a string. The result must
have every member of the protocol `drafttree.drafters.Drafter`.
"""

import inspect
import logging
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from drafttree.core.errors import ConfigError, DraftTreeError, ModelError
from drafttree.drafters import (
    LOOKUPS,
    AssistantDrafter,
    Drafter,
    LanguageModelDrafter,
    MixedDrafter,
    OtherTokenizerDrafter,
    SuffixDrafter,
)
from drafttree.drafters.assistant import ASSISTANTS
from drafttree.drafters.base import ShownBySize
from drafttree.drafters.formats import (
    ASSISTANT,
    LANGUAGE_MODEL,
    PUBLISHED,
    block,
    download,
    mtp,
    read_weights,
    unsupported_kind,
)
from drafttree.loading import zoo
from drafttree.loading.drafter_methods import DRAFTER_CLASSES, head_formats, missing_parts
from drafttree.loading.folders import find_folder, local_folder
from drafttree.loading.gguf.reader import SUFFIX
from drafttree.loading.model_files import FoundModel, ModelFiles
from drafttree.loading.names import model_name
from drafttree.loading.pretrained import (
    ModelSource,
    quiet,
    read_model,
    tokenizer_beside,
    unwrap,
)
from drafttree.loading.specs import split_spec
from drafttree.loading.target_options import BY_DEFAULT
from drafttree.loading.vocabularies import check_tokenizers, map_vocabularies
from drafttree.models import Model, TargetModel, choose_backend

logger = logging.getLogger("drafttree")
DrafterSource = ModelSource | Drafter | type[Drafter]
MIXED = "mixed:"
MTP = "mtp"
"""The name of the drafter that runs the MTP layers in the target's own checkpoint."""
OWN_LAYERS = f"{MIXED}{MTP}"
"""What "auto" chooses if the checkpoint has such layers."""
WORDS = {"true": True, "false": False}


class Choice(NamedTuple):
    """A drafter's name and the reason for choosing it."""

    name: str
    reason: str


def choose_drafter(target: ModelSource | ModelFiles) -> Choice:
    """The drafter for "auto": the target's own MTP layers, else a head known for the target, else lookup."""
    name = _name_of(target)
    if name == "embedded":
        return Choice("mixed:embedded-eagle3", "its head was trained for the embedded target")
    if _has_mtp_layers(target, name):
        return Choice(OWN_LAYERS, f"{name} comes with MTP layers of its own")
    head = PUBLISHED.get(name.lower())
    if head is None:
        reason = f"no model is known to draft for {name or 'this target'}; it drafts what the text repeats"
        return Choice("lookup", reason)
    try:
        download(head)
    except ModelError as error:
        return Choice("lookup", f"{head} was published for it, but: {error}")
    return Choice(head, f"it was published for {name}")


def _name_of(target: ModelSource | ModelFiles) -> str:
    if isinstance(target, ModelFiles):
        return _name_of(target.source)
    source = str(target.name_or_path if isinstance(target, PreTrainedModel) else target)
    return zoo.name_of(Path(source)) or source


def _has_mtp_layers(target: ModelSource | ModelFiles, name: str) -> bool:
    """Whether a target's checkpoint is on this machine and has MTP layers that drafttree runs."""
    folder = local_folder(name)
    if folder is None:
        return False
    try:
        config = target.config if isinstance(target, FoundModel) else ModelFiles(name, folder).config
        return mtp.is_tried(config) and bool(mtp.own_names(folder, config))
    except (DraftTreeError, OSError, ValueError):  # loading reports what is wrong
        return False


def _own_mtp(target: PreTrainedModel) -> Drafter:
    """The drafter that runs the MTP layers in a target's own checkpoint.

    Raises:
        ModelError: the checkpoint is unknown, is a GGUF file or has no MTP layers, the layers cannot be run, or the
            target's weights are not in memory.
    """
    if not target.name_or_path:
        raise ModelError(f"{MTP!r} drafts with layers in the target's files, and this loaded model does not name any")
    if target.name_or_path.endswith(SUFFIX):
        raise ModelError(f"{MTP!r} drafts with layers of the target, and those of a GGUF file are not read")
    _check_not_meta(target, f"{MTP!r} is a head")
    try:
        with quiet():
            return mtp.load_own(find_folder(target.name_or_path), target)
    except ModelError as error:
        raise ModelError(f"cannot load drafter {MTP!r}: {error}") from error


def find_or_choose(
    source: DrafterSource | None,
    named: FoundModel,
    target: TargetModel,
    tokenizer: PreTrainedTokenizerBase | None,
    quantize: str | None = BY_DEFAULT,
    files: ModelFiles | None = None,
    held: MutableMapping[str, Drafter] | None = None,
) -> Drafter | None:
    """What `find_drafter` finds; for "auto", the drafter that `choose_drafter` chooses, which is logged.

    If "auto" chooses the MTP layers of the target's checkpoint and they cannot be run, the drafter is lookup.

    Args:
        source: what `drafttree.load` takes as drafter.
        named: the model that the user gave as target, or the files that the target was loaded from.
        target: the model to draft for; further arguments and errors are those of `find_drafter`.
    """
    if not isinstance(source, str) or source != "auto":
        return find_drafter(source, target, tokenizer, quantize, files, held)
    name, reason = choose_drafter(named)
    logger.log(logging.WARNING if name in LOOKUPS else logging.INFO, "drafter: %s (%s)", name, reason)
    try:
        return find_drafter(name, target, tokenizer, quantize, held=held)
    except ModelError as error:
        if name != OWN_LAYERS:
            raise
        logger.warning("drafter: lookup (%s)", error)
        return find_drafter("lookup", target, tokenizer)


def find_drafter(
    source: DrafterSource | None,
    target: TargetModel,
    tokenizer: PreTrainedTokenizerBase | None,
    quantize: str | None = BY_DEFAULT,
    files: ModelFiles | None = None,
    held: MutableMapping[str, Drafter] | None = None,
) -> Drafter | None:
    """The drafter of a source for a target, in its dtype and on its device; None for plain decoding.

    Args:
        source: what `drafttree.load` takes as drafter, "auto" excepted.
        target: the model to draft for.
        tokenizer: the target's.
        quantize: how to quantise a language model that drafts; None for not at all, `BY_DEFAULT` for what is fastest.
        files: what `check_drafter_exists` returned for the source; None to find the files here.
        held: language models that already draft for this target, by path; a newly loaded one is added.

    Raises:
        ConfigError: the class is no drafter, or does not take these parameters.
        ModelError: the model or head cannot be loaded, or does not fit the target.
        TokenizerMismatch: a language model has less than a third of the target's tokens.
    """

    def load_drafter(source: ModelSource) -> Drafter:
        if source == MTP:
            return _own_mtp(target.module)
        origin = source if isinstance(source, PreTrainedModel) else files or ModelFiles.of_drafter(source)
        is_loaded = isinstance(origin, PreTrainedModel)
        head = made_for(origin, target.module) if is_loaded else load_head(origin, target.module)
        if head:
            if isinstance(head, AssistantDrafter):
                check_tokenizers(tokenizer, tokenizer_beside(origin))
            return head
        if held and not is_loaded and origin.path in held:
            return held[origin.path]
        model = origin if is_loaded else read_model(origin, target.dtype, target.device, quantize, drafts=True)
        _warn_of_size(model, target.module)
        vocabulary = map_vocabularies(target, tokenizer, model, tokenizer_beside(origin))
        draft_model = TargetModel(model, choose_backend)
        language_drafter = (
            OtherTokenizerDrafter(draft_model, vocabulary) if vocabulary else LanguageModelDrafter(draft_model)
        )
        if held is not None and not is_loaded:
            held[origin.path] = language_drafter
        return language_drafter

    drafter = make_drafter(source, target, tokenizer, load_drafter)
    if isinstance(source, str | Path) and isinstance(drafter, ShownBySize):
        drafter.name = _shown_name(str(source))
    return drafter


def check_quantizable(source: DrafterSource | None, files: ModelFiles | None, quantize: str) -> None:
    """Refuse to quantise a drafter that is no language model, before the target's weights are read.

    Args:
        source: what `drafttree.load` takes as drafter, "auto" excepted.
        files: what `check_drafter_exists` returned for it.
        quantize: the quantisation, for the message.

    Raises:
        ConfigError: the files are of no language model, or there are none.
    """
    if files is None or files.kind != LANGUAGE_MODEL:
        raise _not_quantised(source, quantize)


def check_quantized(drafter: Drafter | None, source: DrafterSource | None, quantize: str) -> None:
    """Refuse `quantize_drafter` for a loaded drafter that is no language model.

    Raises:
        ConfigError: the drafter is no language model.
    """
    draft_model = drafter.model if isinstance(drafter, MixedDrafter) else drafter
    if not isinstance(draft_model, LanguageModelDrafter | OtherTokenizerDrafter):
        raise _not_quantised(source, quantize)


def _not_quantised(source: DrafterSource | None, quantize: str) -> ConfigError:
    name = source if isinstance(source, str | Path | None) else type(source).__name__
    return ConfigError(f"quantize_drafter={quantize!r} is for a language model that drafts, not {str(name)!r}")


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


def _shown_name(source: str) -> str:
    """A drafter's source as users read it: of a folder's path, only the last part."""
    mixed_prefix = MIXED if source.startswith(MIXED) else ""
    return mixed_prefix + model_name(source.removeprefix(mixed_prefix))


def make_drafter(
    source: DrafterSource | None,
    target: Model,
    tokenizer: PreTrainedTokenizerBase | None,
    load_drafter: Callable[[ModelSource], Drafter],
) -> Drafter | None:
    """The drafter that a source stands for; None for plain decoding.

    Args:
        source: what `drafttree.load` takes as drafter, "auto" excepted.
        target: the model whose vocabulary and device the drafter gets.
        tokenizer: the target's.
        load_drafter: makes a drafter from a model's name, its folder, or a loaded model.

    Raises:
        ConfigError: the class is no drafter, or does not take these parameters.
    """
    source = unwrap(source)
    if isinstance(source, Path | PreTrainedModel):
        return load_drafter(source)
    if isinstance(source, type):
        return _construct(source, {}, target, tokenizer)
    if not isinstance(source, str):
        return source
    if source == "none":
        return None
    if source.startswith(MIXED):
        model = source.removeprefix(MIXED)
        drafter = None if _is_lookup(model) else make_drafter(model, target, tokenizer, load_drafter)
        return MixedDrafter(SuffixDrafter(target.vocab_size, target.device), drafter or load_drafter(model))
    if method := named_method(source):
        return _construct(*method, target, tokenizer)
    return load_drafter(source)


def check_drafter(source: object) -> None:
    """Refuse an object that is neither a drafter nor what `make_drafter` makes one from.

    Raises:
        ConfigError: the object is neither; the message says what it lacks.
    """
    source = unwrap(source)
    if isinstance(source, type):
        DRAFTER_CLASSES.check(source, source.__name__)
    elif source is not None and not isinstance(source, str | Path | PreTrainedModel):
        _check_parts(source)


def check_drafter_exists(source: object) -> ModelFiles | None:
    """Find a drafter's files or its class, before the target's weights are read.

    Returns:
        The files; None for a drafter without files of its own.

    Raises:
        ConfigError: the source is no drafter, or its class cannot be imported.
        ModelError: the files do not exist.
    """
    check_drafter(source)
    if not isinstance(source, str | Path) or source in ("none", MTP, OWN_LAYERS):
        return None
    model = str(source).removeprefix(MIXED)
    mixed_lookup = model != str(source) and _is_lookup(model)
    has_files = isinstance(source, Path) or mixed_lookup or not named_method(model)
    return ModelFiles.of_drafter(model) if has_files else None


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


def _check_not_meta(target: PreTrainedModel, what: str) -> None:
    """Refuse a head if the target's weights, which it reads, are not in memory."""
    if target.device.type == "meta":
        reason = "reads the target's weights, which accelerate keeps elsewhere"
        raise ModelError(f"{what}, which {reason}; use a language model or 'lookup' to draft")


def named_method(source: str) -> tuple[type[Drafter], dict[str, str | None]] | None:
    """The class and parameters that a drafter's name stands for; None if it names a model or a folder.

    Raises:
        ConfigError: the class cannot be imported or is no drafter, or a parameter has no value.
    """
    name = source.partition(":")[0]
    is_file = Path(source).exists() or source.endswith(SUFFIX)
    if not _is_lookup(source) and (name in zoo.NAMES or is_file or "/" in name):
        return None
    drafter_class = DRAFTER_CLASSES.get(name)
    return (drafter_class, split_spec("drafter", source)[1]) if drafter_class else None


def _is_lookup(source: str) -> bool:
    return source.partition(":")[0] in LOOKUPS


def _construct(
    drafter: type[Drafter],
    parameters: Mapping[str, str | None],
    target: Model,
    tokenizer: PreTrainedTokenizerBase | None,
) -> Drafter:
    for_target: Any = getattr(drafter, "for_target", None)
    factory: Any = for_target or drafter
    arguments = (target, tokenizer) if for_target else (target.vocab_size, target.device)
    options = {name: _value(text) for name, text in parameters.items()}
    try:
        inspect.signature(factory).bind(*arguments, **options)
    except TypeError as error:
        parameter_names = [*inspect.signature(factory).parameters][len(arguments) :]
        advice = f"its parameters: {', '.join(parameter_names)}" if parameter_names else "pass an object of the class"
        if options and not parameter_names:
            advice = "it has no parameters"
        raise ConfigError(f"drafter {drafter.__name__} cannot be made by its class: {error}; {advice}") from None
    try:
        instance = factory(*arguments, **options)
    except DraftTreeError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"drafter {drafter.__name__} cannot be made ({reason})") from error
    return _check_parts(instance)


def _check_parts(drafter: Any) -> Drafter:
    if missing_members := missing_parts(drafter):
        raise ConfigError(
            f"the drafter is of type {type(drafter).__name__} and lacks {', '.join(missing_members)}; give a name, a "
            "folder, a loaded model or an object of the protocol drafttree.drafters.Drafter"
        )
    return drafter


def _value(text: str | None) -> Any:
    """A parameter's value: None, a boolean, a number, or else the string itself."""
    if text is None or text.lower() in WORDS:
        return text and WORDS[text.lower()]
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return text
