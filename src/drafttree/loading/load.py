"""From names and paths to a decoder: `load`, and the parsing of policy specifications."""

import difflib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from drafttree.core.errors import ConfigError, DraftTreeError, ModelError, TokenizerMismatch, unknown
from drafttree.drafters import (
    LOOKUPS,
    Drafter,
    LanguageModelDrafter,
    MixedDrafter,
    SuffixDrafter,
)
from drafttree.drafters.formats import eagle3, hydra, medusa
from drafttree.drafters.formats.checkpoints import (
    LANGUAGE_MODEL,
    download,
    read_config,
    read_json,
    read_tensors,
    recognise,
)
from drafttree.drafters.formats.published import PUBLISHED
from drafttree.engine import compatibility
from drafttree.engine.decoder import Decoder
from drafttree.loading import zoo
from drafttree.models import Model, TargetModel, lay_out_for_cpu, select_backend
from drafttree.policies import POLICIES, TreePolicy
from drafttree.verifiers import VERIFIERS, Verifier

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DEFAULT_POLICY = "dynatree"
MIXED = "mixed:"
DRAFTERS = [*zoo.NAMES, *LOOKUPS, "none", "auto"]
HEADS = {"eagle3": eagle3.load, "medusa": medusa.load, "hydra": hydra.load}
Source = str | Path | PreTrainedModel
logger = logging.getLogger("drafttree")


def load(
    target: Source = "embedded",
    drafter: Source | None = "auto",
    policy: str | TreePolicy = DEFAULT_POLICY,
    verifier: str | type[Verifier] | None = "auto",
    *,
    dtype: str | torch.dtype = "auto",
    device: str = "auto",
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Decoder:
    """A decoder from names, paths or loaded models.

    Args:
        target: "embedded", a folder, a hub name, or a loaded transformers model.
        drafter: "embedded-draft", a folder or a hub name (a language model or an EAGLE-3, Medusa or Hydra head), a
            loaded model; "lookup" or "suffix", which propose what followed before and need no model; "mixed:" and a
            model, for lookup with that model to fall back to; or "none" for plain decoding. "auto" takes what
            `choose_drafter` says; the logger "drafttree" says which and why, as a warning where it is lookup.
        policy: a policy or its specification, such as "talon:budget=60,margin=0.03".
        verifier: a name or class of `drafttree.verifiers.VERIFIERS`, or "auto": greedy at temperature 0, coupled where
            a seed is given, else what accepts most on the policy's trees.
        dtype: "float32", "bfloat16", "float16", or "auto": bfloat16 where the device multiplies it fast, else float32.
        device: "cpu", "cuda", ... or "auto": cuda where there is one.
        tokenizer: the target's; by default the one in its folder.

    A loaded target keeps its dtype and device, and attends to trees from then on: its own `generate` works again after
    `decoder.target.release()`.

    Raises:
        ConfigError: a policy, verifier, parameter, dtype or device that does not exist.
        ModelError: a model or head that cannot be loaded, does not fit the target, or cannot be verified in a tree.
        TokenizerMismatch: target and drafter do not share a vocabulary.
    """
    chosen_policy, chosen_verifier = make_policy(policy), find_verifier(verifier)
    if chosen_verifier:
        compatibility.check(chosen_policy, chosen_verifier)
    on, kind = _place(target, dtype, device)
    if isinstance(drafter, str) and drafter == "auto":
        drafter, reason = choose_drafter(target)
        logger.log(logging.WARNING if drafter in LOOKUPS else logging.INFO, "drafter: %s (%s)", drafter, reason)
    _check_drafter(drafter)
    model = load_model(target, kind, on)
    tokenizer = tokenizer or load_tokenizer(target)
    wrapped = TargetModel(model, select_backend)
    try:
        drafting = find_drafter(drafter, wrapped, tokenizer)
    except DraftTreeError:
        wrapped.release()
        raise
    return Decoder(wrapped, drafting, chosen_policy, chosen_verifier, tokenizer, eos_ids(model, tokenizer))


def find_drafter(
    source: Source | None, target: TargetModel, tokenizer: PreTrainedTokenizerBase | None
) -> Drafter | None:
    """The drafter of a name, folder or model for a target, in its dtype and on its device; None for plain decoding.

    Args:
        source: as for `load`, "auto" excepted.
        target: to draft for.
        tokenizer: the target's.

    Raises:
        ModelError: a model or head that cannot be loaded or does not fit the target.
        TokenizerMismatch: target and drafter do not share a vocabulary.
    """

    def load_drafter(source: Source) -> Drafter:
        where = source if isinstance(source, PreTrainedModel) else find_folder(source)
        if isinstance(where, Path) and (head := load_head(where, target.module)):
            return head
        model = load_model(where, target.dtype, target.device)
        check_tokenizers(tokenizer, tokenizer_beside(where))
        return LanguageModelDrafter(TargetModel(model, select_backend))

    return make_drafter(source, target, load_drafter)


def make_drafter(source: Source | None, target: Model, load_drafter: Callable[[Source], Drafter]) -> Drafter | None:
    """The drafter a source stands for; None for plain decoding.

    Args:
        source: as for `load`, "auto" excepted.
        target: for its vocabulary and device.
        load_drafter: makes a drafter of a model's name, folder or object.
    """
    if source is None or not isinstance(source, str):
        return source and load_drafter(source)
    if source == "none":
        return None
    if source in LOOKUPS:
        return LOOKUPS[source](target.vocab_size, target.device)
    if source.startswith(MIXED):
        lookup = SuffixDrafter(target.vocab_size, target.device)
        return MixedDrafter(lookup, load_drafter(source.removeprefix(MIXED)))
    return load_drafter(source)


class Choice(NamedTuple):
    """A drafter's name and why it was taken."""

    name: str
    reason: str


def choose_drafter(target: Source) -> Choice:
    """The drafter that "auto" stands for: the one known for the target if it can be had, else lookup."""
    name = str(target.name_or_path if isinstance(target, PreTrainedModel) else target)
    if name == "embedded":
        return Choice("embedded-draft", "it was trained for the embedded target")
    head = PUBLISHED.get(name.lower())
    if head is None:
        reason = f"no model is known to draft for {name or 'this target'}; it drafts what the text repeats"
        return Choice("lookup", reason)
    try:
        download(head)
    except ModelError as error:
        return Choice("lookup", f"{head} was published for it, but: {error}")
    return Choice(head, f"it was published for {name}")


def find_folder(source: str | Path) -> Path:
    """The folder of an embedded name, a path or a hub name.

    Raises:
        ModelError: there is none.
    """
    path = Path(_resolve(source, DRAFTERS))
    return path if path.is_dir() else download(str(source))


def load_head(source: Path, target: PreTrainedModel) -> Drafter | None:
    """The drafter of a folder with a trained head; None for a language model.

    Raises:
        ModelError: the files are damaged or of no known kind, or the head does not fit the target.
    """
    if (kind := recognise(source)) == LANGUAGE_MODEL:
        return None
    try:
        return HEADS[kind](read_tensors(source), read_config(source), target)
    except ModelError as error:
        raise ModelError(f"cannot load drafter {str(source)!r}: {error}") from error


def make_policy(spec: str | TreePolicy) -> TreePolicy:
    """A policy from a specification such as "talon" or "talon:budget=60,margin=0.03".

    Raises:
        ConfigError: no such policy or parameter, or a value out of range.
    """
    if isinstance(spec, TreePolicy):
        return spec
    if not isinstance(spec, str):
        raise ConfigError(f"a policy is a specification or a TreePolicy object, not {spec!r}")
    name, _, rest = spec.partition(":")
    if name not in POLICIES:
        raise unknown("policy", name, POLICIES)
    parameters = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"{part!r} in policy {spec!r} is not of the form parameter=value")
        if key.strip() in parameters:
            raise ConfigError(f"policy {spec!r} gives {key.strip()} twice")
        parameters[key.strip()] = None if value.strip().lower() == "none" else value.strip()
    return POLICIES[name](**parameters)


def find_verifier(name: str | type[Verifier] | None) -> type[Verifier] | None:
    """The verifier of a name, or the class itself; None for "auto".

    Raises:
        ConfigError: there is no such verifier.
    """
    if name in (None, "auto"):
        return None
    if isinstance(name, type) and issubclass(name, Verifier):
        return name
    if not isinstance(name, str) or name not in VERIFIERS:
        raise unknown("verifier", name, [*VERIFIERS, "auto"])
    return VERIFIERS[name]


def find_device(name: str) -> torch.device:
    """The device of a name.

    Raises:
        ConfigError: there is no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).tolist()
    except (RuntimeError, AssertionError, NotImplementedError, TypeError):
        here = ", ".join(["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))])
        raise ConfigError(f"device {name!r} is not available; here there is: {here}") from None
    return device


def find_dtype(name: str | torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype of a name; "auto" is bfloat16 where the device multiplies it fast, else float32.

    Raises:
        ConfigError: there is no such dtype, or the device cannot compute in it.
    """
    if name == "auto":
        fast = device.type != "cpu" or torch.cpu._is_amx_tile_supported()
        return torch.bfloat16 if fast else torch.float32
    name = next((known for known, dtype in DTYPES.items() if dtype is name), name)
    if not isinstance(name, str) or name not in DTYPES:
        raise unknown("dtype", name, [*DTYPES, "auto"])
    if device.type == "cuda" and name == "bfloat16" and not torch.cuda.is_bf16_supported():
        raise ConfigError(f"{torch.cuda.get_device_name(device)} has no bfloat16; use float16")
    return DTYPES[name]


def load_model(source: Source, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """A transformers model from an embedded name, a folder or a hub name; a loaded model passes as it is.

    Raises:
        ModelError: there is none, or its weights are missing, truncated or of another shape.
    """
    if isinstance(source, PreTrainedModel):
        return source.eval()
    path = _resolve(source)
    _refuse_head(source, Path(path))
    try:
        _check_kind(source, AutoConfig.from_pretrained(path))
        if (settings := Path(path) / "generation_config.json").is_file():
            read_json(settings)
        with _quiet():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                path, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True
            )
    except ModelError:
        raise
    except SafetensorError as error:
        reason = f"truncated or damaged ({_first_lines(error)}); download or copy them again"
        raise ModelError(f"the weights of {str(source)!r} are {reason}") from error
    except Exception as error:
        raise ModelError(f"cannot load model {str(source)!r}: {_first_lines(error)}") from error
    model, info = loaded
    _check_weights(source, info)
    model = model.to(device).eval()
    if device.type == "cpu" and dtype == torch.float32:
        lay_out_for_cpu(model)
    return model


def load_tokenizer(source: Source) -> PreTrainedTokenizerBase | None:
    """The tokenizer beside a model; None for a loaded model that names no source.

    Raises:
        ModelError: the folder has none.
    """
    name = source.name_or_path if isinstance(source, PreTrainedModel) else source
    if not name:
        return None
    try:
        return AutoTokenizer.from_pretrained(_resolve(name))
    except Exception as error:
        reason = f"{_first_lines(error).rstrip(':.')}; save one beside the model or pass tokenizer="
        raise ModelError(f"cannot load the tokenizer of {str(name)!r}: {reason}") from error


def tokenizer_beside(source: Source) -> PreTrainedTokenizerBase | None:
    """The tokenizer beside a drafter, None where there is none to compare."""
    try:
        return load_tokenizer(source)
    except ModelError:
        return None


def check_tokenizers(target: PreTrainedTokenizerBase | None, draft: PreTrainedTokenizerBase | None) -> None:
    """Compare two vocabularies where both have tokens; ids only one of them has are padding.

    Raises:
        TokenizerMismatch: some id means different tokens; the message shows the first.
    """
    if target is None or draft is None:
        return
    ours = {index: token for token, index in target.get_vocab().items()}
    theirs = {index: token for token, index in draft.get_vocab().items()}
    for index in sorted(ours.keys() & theirs.keys()):
        if ours[index] != theirs[index]:
            raise TokenizerMismatch(
                f"target and drafter have different tokenizers: token {index} is {ours[index]!r} for the target and "
                f"{theirs[index]!r} for the drafter; use a drafter of the target's model family"
            )


def eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> tuple[int, ...]:
    """The token ids that end a text, from the generation config or else the tokenizer."""
    eos = model.generation_config.eos_token_id if model.generation_config else None
    if eos is None and tokenizer is not None:
        eos = tokenizer.eos_token_id
    if eos is None:
        return ()
    return (eos,) if isinstance(eos, int) else tuple(int(token) for token in eos)


def _place(target: Source, dtype: str | torch.dtype, device: str) -> tuple[torch.device, torch.dtype]:
    """The device and dtype to load with, which are a loaded target's own.

    Raises:
        ConfigError: there are none of that name, or a loaded target has others.
    """
    if not isinstance(target, PreTrainedModel):
        on = find_device(device)
        return on, find_dtype(dtype, on)
    if device != "auto" and find_device(device).type != target.device.type:
        raise ConfigError(f"the target is on {target.device}, not on {device!r}; move it there, or leave out device")
    if dtype != "auto" and find_dtype(dtype, target.device) != target.dtype:
        raise ConfigError(f"the target is in {target.dtype}, not in {dtype!r}; convert it, or leave out dtype")
    return target.device, target.dtype


def _check_drafter(source: Source | None) -> None:
    """Find a drafter's files before the target's weights are read.

    Raises:
        ConfigError: it is no name, path, model or None.
        ModelError: there are none.
    """
    if source is not None and not isinstance(source, str | Path | PreTrainedModel):
        raise ConfigError(f"the drafter is a {type(source).__name__}; give a name, a folder or a loaded model")
    if isinstance(source, str | Path) and source not in ("none", *LOOKUPS):
        find_folder(str(source).removeprefix(MIXED))


def _resolve(source: str | Path, known: Iterable[str] = zoo.NAMES) -> str:
    """The folder of an embedded model or a local path; anything else is a hub name, unless it looks like a path."""
    name = str(source)
    if not name or source == Path():
        raise ModelError("the name of a model is empty; give an embedded name, a folder or a hub name")
    if name in zoo.NAMES:
        return str(zoo.folder(name))
    if Path(name).is_dir():
        return name
    if name in known:
        raise ModelError(f"{name!r} is no model; give an embedded name, a folder or a hub name")
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or name.startswith("."):
        raise ModelError(f"model folder {name!r} does not exist")
    if difflib.get_close_matches(name, known, n=1, cutoff=0.7):
        raise ModelError(f"{unknown('model', name, known)} (or give a folder or a hub name)")
    return name


def _refuse_head(source: str | Path, path: Path) -> None:
    """Refuse a head where a language model is wanted; other folders are left to transformers.

    Raises:
        ModelError: it is one.
    """
    kind = LANGUAGE_MODEL
    with suppress(ModelError):
        kind = recognise(path) if path.is_dir() else kind
    if kind != LANGUAGE_MODEL:
        raise ModelError(f"{str(source)!r} is a head ({kind}), which drafts; as target give the model it is for")


def _check_kind(source: str | Path, config: PreTrainedConfig) -> None:
    """Refuse what is not a decoder-only language model before its weights are read."""
    if config.is_encoder_decoder:
        raise ModelError(f"{source} cannot be verified in a tree: it has encoder-decoder (cross-attention) layers")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelError(f"{str(source)!r} is not a language model ({config.model_type}); give a decoder-only one")


def _check_weights(source: str | Path, info: Mapping[str, Any]) -> None:
    """Refuse tensors that transformers would silently draw at random."""
    for key, found, expected in sorted(info["mismatched_keys"]):
        shapes = f"{key} is {list(found)} and should be {list(expected)}"
        raise ModelError(f"the weights of {str(source)!r} do not fit its config.json: {shapes}")
    if missing := sorted(info["missing_keys"]):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(f"the weights of {str(source)!r} are incomplete: {missing[0]}{more} missing")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' report on weights, which `_check_weights` puts in one line."""
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(before)


def _first_lines(error: Exception) -> str:
    """What an error says, without the pages of advice that may follow."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:3]) or type(error).__name__
