"""Loads models and tokenizers of transformers from embedded names, folders, GGUF files and hub names."""

import logging
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import torch
from huggingface_hub import constants
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    __version__,
)
from transformers.utils import logging as transformers_logging

from drafttree.core.counts import is_token_ids
from drafttree.core.errors import DraftTreeError, ModelError
from drafttree.core.stages import stage
from drafttree.drafters.assistant import ASSISTANTS
from drafttree.drafters.formats import INDICES, LANGUAGE_MODEL, UnsupportedDrafter, read_json
from drafttree.loading import zoo
from drafttree.loading.folders import find_folder
from drafttree.loading.gguf.architectures import weights_of
from drafttree.loading.gguf.reader import SUFFIX
from drafttree.loading.gguf.tokenizers import generation_config_of, tokenizer_of
from drafttree.loading.int4.folder import BITS as INT4_BITS
from drafttree.loading.int4.folder import Int4Folder
from drafttree.loading.memory import check_memory
from drafttree.loading.model_files import ModelFiles
from drafttree.loading.quantized.quantized_folder import holds_safetensors, weights_in
from drafttree.loading.stored_blocks import (
    StoredWeight,
    kept_weights,
    put_blocks,
    why_not_multiplied,
    with_placeholders,
)
from drafttree.loading.stored_shapes import stored_problems
from drafttree.loading.target_options import (
    AS_STORED,
    BY_DEFAULT,
    INT4,
    KINDS,
    apply_quantization,
    check_shares,
    check_unquantized,
    choose_quantization,
    sharding_options,
)
from drafttree.loading.unused_tensors import LAYER_COUNT, check_unused, refuse_changing, refuse_unscaled, shortened
from drafttree.models.module.adapters import acts_by_call
from drafttree.models.module.module_backend import lay_out_for_cpu
from drafttree.models.quantization.block_linear import BlockLinear
from drafttree.models.quantization.quantize import quantize_head

logger = logging.getLogger("drafttree")
MAX_LAYERS = 1000
GENERATION_CONFIG = "generation_config.json"
LOADERS: dict[Any, Any] = {
    AutoModelForCausalLM: MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForImageTextToText: MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
}
"""The auto classes of models with a language-model head, and the model classes that each loads, by config class."""
ModelSource = str | Path | PreTrainedModel
"""An embedded name, a folder, a hub name or a loaded model."""


def unwrap(source: Any) -> Any:
    """The model inside wrappers of `torch.compile` and peft; anything else passes as it is.

    Adapters stay active, since they are part of the model's layers.

    Raises:
        ModelError: an adapter is not in the layers, since it trains a prompt, or acts by arguments or hooks of a call.
    """
    if isinstance(source, PreTrainedModel) or not isinstance(source, nn.Module):
        return source
    if isinstance(original_module := getattr(source, "_orig_mod", None), nn.Module):
        return unwrap(original_module)
    if not hasattr(source, "get_base_model"):
        return source
    wrapper: Any = source
    adapter = wrapper.active_peft_config
    unusable_adapter = (
        f"an adapter that trains a prompt ({adapter.peft_type.value})" if adapter.is_prompt_learning else None
    )
    if not unusable_adapter and acts_by_call(type(wrapper.base_model)):
        unusable_adapter = f"an adapter that acts by what peft's wrapper does in each call ({adapter.peft_type.value})"
    if unusable_adapter:
        raise ModelError(
            f"{unusable_adapter} is not in the model's layers and cannot be used; pass the model without it"
        )
    return unwrap(wrapper.get_base_model())


def refuse_assistant(model: PreTrainedModel) -> None:
    """Refuse a loaded assistant as a target.

    Raises:
        ModelError: the model is an assistant.
    """
    if model.config.model_type in ASSISTANTS:
        raise ModelError(
            f"{type(model).__name__} is a drafter (an assistant), not a model; give it as the drafter, and the model "
            "it is made for as the target"
        )


def load_model(
    source: str | Path | ModelFiles,
    dtype: torch.dtype,
    device: torch.device,
    quantize: str | None = None,
    tensor_parallel_size: int = 1,
) -> PreTrainedModel:
    """A transformers model from an embedded name, a folder, a hub name or files.

    A model of images and text is loaded whole, although it is used on text only. Arguments are those of `read_model`.

    Raises:
        ModelError: the model does not exist, or is not a decoder-only language model; or its weights are missing,
            truncated, of another shape, too large for memory, or cannot be quantised or sharded.
        ConfigError: the model is to be sharded, and the device is not the machine's accelerator.
    """
    files = source if isinstance(source, ModelFiles) else ModelFiles.of_model(source)
    _refuse_head(files)
    return read_model(files, dtype, device, quantize, tensor_parallel_size)


@stage("weights")
def read_model(
    files: ModelFiles,
    dtype: torch.dtype,
    device: torch.device,
    quantize: str | None = None,
    tensor_parallel_size: int = 1,
    *,
    drafts: bool = False,
) -> PreTrainedModel:
    """The model in files: a language model or an assistant, whose class transformers lists among language models.

    Args:
        files: the files of the model.
        dtype: dtype to load it in.
        device: device to load it on.
        quantize: one of `KINDS`, `AS_STORED` or `BY_DEFAULT`; None to keep no stored blocks. `BY_DEFAULT` keeps the
            stored blocks if the files have any, else it quantises as `choose_quantization` says.
        tensor_parallel_size: number of processes to shard it over.
        drafts: whether the model drafts, so that its head may be quantised too.

    Raises:
        ModelError: the model cannot be loaded, as in `load_model`.
    """
    check_files(files, quantize)
    if quantize == INT4:
        files = _rounded_files(files)
    try:
        loaded_model = _load_unchecked(files, dtype, device, quantize, tensor_parallel_size)
    except DraftTreeError:
        raise
    except Exception as error:
        raise _loading_error(files, error) from error
    loaded_model.check(files)
    model = loaded_model.model.to(device).eval()
    quantization = choose_quantization(model) if quantize == BY_DEFAULT else quantize
    if quantization == INT4 and loaded_model.keeps_blocks:
        quantize_head(model)
    elif quantization in KINDS:
        with stage("quantise"):
            tokenizer = tokenizer_beside(files) if quantization == INT4 else None
            apply_quantization(model, quantization, files.source, tokenizer, head=drafts)
    if device.type == "cpu" and tensor_parallel_size == 1:
        _copy_what_stays(model)
        if dtype == torch.float32:
            lay_out_for_cpu(model)
            model.register_state_dict_post_hook(_make_contiguous)
    return model


def check_files(files: ModelFiles, quantize: str | None) -> None:
    """Refuse files that no model can be loaded from, without reading their weights.

    Args:
        files: the files of the model.
        quantize: the argument of `read_model`.

    Raises:
        ModelError: config.json or the index of the weights cannot be used; the model is not a decoder-only language
            model; or its weights are quantised already, so they cannot be quantised as asked.
    """
    _check_index(files)
    settings = _settings_of(files)
    try:
        check_layer_counts(settings)
        if quantize == INT4:
            _check_four_bits(files)
        elif quantize in KINDS:
            check_unquantized(files.source, settings)
        _check_kind(files)
    except DraftTreeError:
        raise
    except Exception as error:
        raise _loading_error(files, error) from error


def _check_four_bits(files: ModelFiles) -> None:
    """Refuse files whose weights are quantised, unless to four bits.

    Raises:
        ModelError: the weights are quantised to another number of bits, or in a GGUF file.
    """
    _refuse_gguf(files)
    if files.layout is None:
        check_unquantized(files.source, files.settings)
    elif any(scheme.bits != INT4_BITS for scheme in files.layout.schemes("")):
        raise ModelError(f"{str(files.source)!r} is quantised already ({files.layout.method}); leave out quantize")


class _LoadedModel(NamedTuple):
    """A model as transformers has loaded it.

    Attributes:
        model: the model.
        info: transformers' `loading_info`: which tensors are missing, unexpected, or of another shape.
        keeps_blocks: whether weights stay in their stored blocks.
    """

    model: Any
    info: Mapping[str, Any]
    keeps_blocks: bool

    def check(self, files: ModelFiles) -> None:
        """Refuse a model whose tensors do not match those in its files; harmless leftovers cause a warning at most.

        Raises:
            ModelError: a tensor that matters is left out, missing or misshapen; the message names it.
        """
        unused = self.info["unexpected_keys"]
        refuse_changing(files, self.model, unused)
        refuse_unscaled(files, unused)
        _check_weights(files, self.info)
        check_unused(files, self.model, unused)


def _load_unchecked(
    files: ModelFiles, dtype: torch.dtype, device: torch.device, quantize: str | None, tensor_parallel_size: int
) -> _LoadedModel:
    """Load a model without comparing its tensors with those in its files; arguments are those of `read_model`.

    Raises:
        ModelError: the model is not a decoder-only language model, needs more memory than is free, or cannot be
            sharded.
        Exception: transformers or a reader of files fails, with whatever error it raises.
    """
    loader = _check_kind(files)
    is_sharded = tensor_parallel_size > 1
    stored_weights = None if is_sharded and not files.gguf else _stored_weights(files, dtype, device)
    reason = why_not_kept(files, device, quantize)
    keeps_blocks = not is_sharded and stored_weights is not None and reason is None
    if stored_weights is not None and reason:
        logger.info(
            "%s: weights are unpacked, since they cannot be multiplied as they are stored: %s", files.source, reason
        )
    if is_sharded:
        check_shares(files.source, files.config, tensor_parallel_size, device)
    else:
        check_memory(files, dtype, device, stored_weights, keeps_blocks=keeps_blocks)
    if (settings_file := Path(files.path) / GENERATION_CONFIG).is_file():
        _check_settings(settings_file)
    options = _attention(files.config) | sharding_options(tensor_parallel_size)
    options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
    with quiet():
        if stored_weights is not None:
            model, info = _from_stored(files, stored_weights, dtype, options, keeps_blocks=keeps_blocks)
        else:
            model, info = loader.from_pretrained(
                files.path, config=files.config, dtype=dtype, trust_remote_code=False, **options
            )
    return _LoadedModel(model, info, keeps_blocks)


def _loading_error(files: ModelFiles, error: Exception) -> ModelError:
    """The error to raise in place of one of transformers or of a reader of files."""
    source = str(files.source)
    if isinstance(error, SafetensorError | EOFError | struct.error):
        reason = f"truncated or damaged ({_first_lines(error)}); download or copy them again"
        return ModelError(f"the weights of {source!r} are {reason}")
    if isinstance(error, UnpicklingError):  # torch's message advises to disable the check
        reason = "code or objects, which are not run, or are damaged; save the tensors alone, best as safetensors"
        return ModelError(f"the weights of {source!r} are a pickle that holds {reason}")
    return ModelError(f"cannot load model {source!r}: {_reason(error, files)}")


def _rounded_files(files: ModelFiles) -> ModelFiles:
    """The files to load a model in four bits from.

    These are what `drafttree quantize` has written for `files`; without that, `files` themselves, whose weights may be
    in four bits already.
    """
    if files.layout:
        return files
    folder = Int4Folder(files_to_round(files))
    if not folder.is_whole:
        return files
    logger.info("%s: its weights in four bits are in %s", files.source, folder.path)
    return ModelFiles(files.source, folder.path)


def files_to_round(files: ModelFiles) -> ModelFiles:
    """The files of a model that is to be rounded to four bits, downloaded if they are on the hub.

    Raises:
        ModelError: the weights are quantised already.
    """
    _refuse_gguf(files)
    local_copy = local_files(files)
    if local_copy.layout:
        raise ModelError(
            f"{str(files.source)!r} is quantised already ({local_copy.layout.method}); load it as it is, without int4"
        )
    check_unquantized(files.source, local_copy.settings)
    return local_copy


def _refuse_gguf(files: ModelFiles) -> None:
    """Refuse to round a GGUF file to four bits."""
    if files.gguf:
        reason = "is a GGUF file, whose weights are in few bits already"
        raise ModelError(f"{str(files.source)!r} {reason}; load it as it is, without int4")


def local_files(files: ModelFiles) -> ModelFiles:
    """The same files on this machine, downloaded if they are on the hub."""
    return files if files.gguf or files.is_local else ModelFiles(files.source, find_folder(files.path))


def why_not_kept(files: ModelFiles, device: torch.device, quantize: str | None) -> str | None:
    """Why weights do not stay in the few bits of their files; None if they do.

    Args:
        files: the files of a model.
        device: device it runs on.
        quantize: the argument of `read_model`.
    """
    if files.gguf is None and files.layout is None:
        return "they are not in few bits, or in a way that is not known"
    if quantize not in (AS_STORED, BY_DEFAULT, INT4):
        return f"quantize is {quantize}" if quantize else "quantize or lossy_window asks for it"
    return why_not_multiplied(files.config, device)


def stays_as_stored(files: ModelFiles, device: torch.device, quantize: str | None) -> bool:
    """Whether weights stay in few bits (see `why_not_kept`); False if files cannot be read, which loading reports."""
    try:
        return why_not_kept(files, device, quantize) is None
    except (ModelError, OSError, ValueError):
        return False


def _stored_weights(files: ModelFiles, dtype: torch.dtype, device: torch.device) -> Mapping[str, StoredWeight] | None:
    """The weights of files that drafttree reads one by one; None for files that transformers reads itself.

    On devices other than CPUs, transformers has kernels for quantised weights, except for MLX's.
    """
    if files.gguf:
        return weights_of(files.gguf, files.settings, dtype)
    if files.layout is None or (device.type != "cpu" and not files.layout.is_of_mlx):
        return None
    folder = Path(local_files(files).path)
    return weights_in(folder, files.layout, dtype) if holds_safetensors(folder) else None


def _from_stored(
    files: ModelFiles,
    weights: Mapping[str, StoredWeight],
    dtype: torch.dtype,
    options: Mapping[str, Any],
    *,
    keeps_blocks: bool,
) -> tuple[Any, Any]:
    """A model from weights that drafttree reads itself, with transformers' `loading_info`.

    Args:
        files: the files of the model.
        weights: its weights by the names of transformers.
        dtype: dtype to load it in.
        options: further options of `from_pretrained`.
        keeps_blocks: whether weights stay in their stored blocks, if they can.

    Raises:
        ModelError: a weight has another shape than in the model.
    """
    config: Any = files.unquantized_config
    model_class: Any = class_of(config)
    if problem := next(stored_problems(weights, model_class, config), None):
        raise ModelError(f"the weights of {str(files.source)!r} do not fit its config.json: {problem}")
    block_weights = kept_weights(weights) if keeps_blocks else {}
    state_dict = with_placeholders(weights, block_weights, dtype)
    model, info = model_class.from_pretrained(None, config=config, state_dict=state_dict, dtype=dtype, **options)
    put_blocks(model, block_weights)
    if keeps_blocks:
        _tell_kept(files, weights, block_weights, dtype)
    model.name_or_path = model.config.name_or_path = files.path
    if files.gguf:
        model.generation_config = generation_config_of(files.gguf)
    elif (Path(files.path) / GENERATION_CONFIG).is_file():
        model.generation_config = GenerationConfig.from_pretrained(files.path)
    return model, info


def _tell_kept(
    files: ModelFiles,
    weights: Mapping[str, StoredWeight],
    block_weights: Mapping[str, StoredWeight],
    dtype: torch.dtype,
) -> None:
    """Log which quantised weights stay in few bits, and which are unpacked."""
    forms = ", ".join(sorted({weight.form for weight in block_weights.values()})) or "none"
    logger.info("%s: %d weights stay as they are stored (%s)", files.source, len(block_weights), forms)
    if unpacked_names := [name for name, weight in weights.items() if weight.is_packed and name not in block_weights]:
        logger.info(
            "%s: %d quantised weights are unpacked to %s, since no kernel multiplies them as they are stored: %s",
            *(files.source, len(unpacked_names), str(dtype).removeprefix("torch."), shortened(unpacked_names)),
        )


def _settings_of(files: ModelFiles) -> dict[str, Any]:
    """The contents of a model's config.json, with errors that name the model.

    Raises:
        ModelError: config.json cannot be read.
    """
    try:
        return files.settings
    except (ModelError, OSError) as error:
        raise ModelError(f"cannot load model {str(files.source)!r}: {_first_lines(error)}") from error


def _copy_what_stays(model: PreTrainedModel) -> None:
    """Copy the weights that layers do not release, since a view of a mapped file keeps the whole file in memory."""
    linear_ids = {id(submodule.weight) for submodule in model.modules() if type(submodule) is nn.Linear}
    released_ids = linear_ids | {
        id(submodule.quantized) for submodule in model.modules() if isinstance(submodule, BlockLinear)
    }
    for parameter in model.parameters():
        if id(parameter) not in released_ids:
            parameter.data = parameter.data.clone()


def class_of(config: PreTrainedConfig) -> type[PreTrainedModel] | None:
    """The model class with a language-model head for a config; None if there is none. It may read images too."""
    loader = _loader_of(config)
    return LOADERS[loader][type(config)] if loader else None


def _loader_of(config: PreTrainedConfig) -> Any:
    """The auto class of `LOADERS` for a config; None if there is none, or for an encoder-decoder model."""
    loaders = (loader for loader, classes in LOADERS.items() if type(config) in classes)
    return None if config.is_encoder_decoder else next(loaders, None)


@stage("tokenizer")
def load_tokenizer(source: ModelSource | ModelFiles) -> PreTrainedTokenizerBase | None:
    """The tokenizer beside a model; None for a loaded model that does not say where it was loaded from.

    Raises:
        ModelError: the model has no tokenizer beside it, or it cannot be loaded.
    """
    if isinstance(source, PreTrainedModel):
        return load_tokenizer(source.name_or_path) if source.name_or_path else None
    name = source.source if isinstance(source, ModelFiles) else source
    try:
        files = source if isinstance(source, ModelFiles) else ModelFiles.of_model(source)
        if files.gguf:
            return tokenizer_of(files.gguf)
        folder = zoo.tokenizer_folder(files.path)
        config = {"config": files.config} if folder == files.path and files.names_model else {}
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, **config)
    except Exception as error:
        reason = _first_lines(error).rstrip(":.")
        if reason.startswith("Couldn't instantiate"):  # transformers lists three ways on many lines
            reason = "there are no files of one beside it, or not all of them (tokenizer.json)"
        save_advice = "" if str(name).endswith(SUFFIX) else "save one beside the model (tokenizer.save_pretrained) or "
        advice = f"{save_advice}pass tokenizer="
        raise ModelError(f"cannot load the tokenizer of {str(name)!r}: {reason}; {advice}") from error


def tokenizer_beside(source: ModelSource | ModelFiles) -> PreTrainedTokenizerBase | None:
    """The tokenizer beside a drafter; None if none can be loaded."""
    try:
        return load_tokenizer(source)
    except ModelError:
        return None


def eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> tuple[int, ...]:
    """The token ids that end a text, from the generation config, else from the tokenizer; empty without any.

    Raises:
        ModelError: the eos_token_id is neither a token id nor a list of token ids.
    """
    settings = getattr(model, "generation_config", None)
    eos = settings.eos_token_id if settings else None
    if eos is None and tokenizer is not None:
        eos = tokenizer.eos_token_id
    if eos is None:
        return ()
    ids = eos if isinstance(eos, list | tuple) else [eos]
    if not is_token_ids(ids):
        raise ModelError(f"the model's eos_token_id is {eos!r}; its generation config must have a token id or a list")
    return tuple(int(token) for token in ids)


def _check_index(files: ModelFiles) -> None:
    """Refuse an index of shards that transformers could not read."""
    folder = Path(files.path)
    for index in filter(Path.is_file, (folder / name for name in INDICES)):
        if lost_keys := {"metadata", "weight_map"} - read_json(index).keys():
            raise ModelError(f"{index} has no {min(lost_keys)!r}; download it again, or save the model anew")


def check_layer_counts(config: Mapping[str, Any]) -> None:
    """Refuse absurd layer counts, for which transformers would fill memory before it looks at weights.

    Args:
        config: the contents of a config.json.

    Raises:
        ModelError: a layer count is not between 0 and `MAX_LAYERS`; the message names the field.
    """
    for name, value in config.items():
        if isinstance(value, dict):
            check_layer_counts(value)
        elif LAYER_COUNT.fullmatch(name) and isinstance(value, int) and not 0 <= value <= MAX_LAYERS:
            raise ModelError(f"config.json gives {name} as {value}; it must be between 0 and {MAX_LAYERS}")


def _check_settings(path: Path) -> None:
    """Refuse a generation config that transformers cannot read."""
    try:
        GenerationConfig.from_dict(read_json(path))
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{path} is not a generation config ({_first_lines(error)}); fix or remove it") from error


def _refuse_head(files: ModelFiles) -> None:
    """Refuse a head where a language model is needed; transformers reports other unusable folders."""
    if not files.is_local:
        return
    try:
        model_kind = files.kind
    except UnsupportedDrafter as error:
        raise ModelError(f"{error}; give it as the drafter, and the model it is made for as the target") from None
    except ModelError:  # transformers reports other folders in more detail
        return
    if model_kind != LANGUAGE_MODEL:
        raise ModelError(
            f"{str(files.source)!r} is a drafter ({model_kind}), not a model; give it as the drafter, and the model "
            "it is made for as the target"
        )


def _attention(config: PreTrainedConfig) -> dict[str, Any]:
    """Options of the attention: eager for soft-capped scores, since transformers 5.17 loads Gemma 2 without a cap."""
    softcap = getattr(config.get_text_config(), "attn_logit_softcapping", None)
    return {"attn_implementation": "eager"} if softcap else {}


def _check_kind(files: ModelFiles) -> Any:
    """The auto class that loads a model.

    Raises:
        ModelError: the model is not a decoder-only language model, which is checked before its weights are read.
    """
    source = str(files.source)
    config = files.config
    if config.is_encoder_decoder:
        raise ModelError(f"{source} cannot be verified in a tree: it has encoder-decoder (cross-attention) layers")
    if not (loader := _loader_of(config)):
        raise ModelError(f"{source!r} is not a language model ({config.model_type}); give a decoder-only one")
    return loader


def _check_weights(files: ModelFiles, info: Mapping[str, Any]) -> None:
    """Refuse missing and misshapen tensors, which transformers would silently draw at random."""
    for key, stored_shape, model_shape in sorted(info["mismatched_keys"]):
        shapes = f"{key} is {list(stored_shape)} and should be {list(model_shape)}"
        raise ModelError(f"the weights of {str(files.source)!r} do not fit its config.json: {shapes}")
    if missing_keys := sorted(info["missing_keys"]):
        more_keys = f" and {len(missing_keys) - 1} more" if len(missing_keys) > 1 else ""
        raise ModelError(f"the weights of {str(files.source)!r} are incomplete: {missing_keys[0]}{more_keys} missing")


def _make_contiguous(_: nn.Module, state: dict[str, Tensor], *__: object) -> None:
    """State dict hook: copy tensors that are laid out input-major, which `save_pretrained` cannot write."""
    copies: dict[tuple[int, torch.Size], Tensor] = {}  # tied weights stay one tensor
    for name, tensor in state.items():
        key = tensor.data_ptr(), tensor.shape
        if not tensor.is_contiguous():
            state[name] = copies[key] = copies[key] if key in copies else tensor.contiguous()


@contextmanager
def quiet() -> Iterator[None]:
    """Context manager: silence transformers' report on weights and its progress bars.

    `_check_weights` reports weights in one line instead. Bars stay if the user asks transformers for them, by
    `HF_HUB_DISABLE_PROGRESS_BARS=0` or verbosity "info"; those of downloads belong to the hub's client, and stay too.
    """
    verbosity = transformers_logging.get_verbosity()
    has_bars = transformers_logging._tqdm_active
    shows_bars = constants.HF_HUB_DISABLE_PROGRESS_BARS is False or verbosity <= logging.INFO
    transformers_logging.set_verbosity_error()
    transformers_logging._tqdm_active = has_bars and shows_bars
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        transformers_logging._tqdm_active = has_bars


def _reason(error: Exception, files: ModelFiles) -> str:
    """Why transformers cannot load a model, with advice for adapters, own code and newer versions."""
    if (Path(files.path) / "adapter_config.json").is_file():
        return "it is an adapter; load it with its model by peft, and pass the loaded model"
    if "trust_remote_code" in str(error):
        return (
            "it needs code of its own; load it by transformers with trust_remote_code=True, and pass the loaded model"
        )
    reason = f"{error} in its config.json is not known" if isinstance(error, KeyError) else _first_lines(error)
    with suppress(Exception):
        saved_version = str(files.settings["transformers_version"])
        if _release(saved_version) > _release(__version__):
            reason += f" (it was saved by transformers {saved_version}, newer than {__version__}; update transformers)"
    return reason


def _release(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]


def _first_lines(error: Exception) -> str:
    """The first lines of an error's message, without the pages of advice that may follow."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:3]) or type(error).__name__
