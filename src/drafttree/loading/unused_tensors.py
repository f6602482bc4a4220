"""Checks the tensors in a model's files that config.json has no place for, so that transformers leaves them out.

Tensors that change the meaning of weights are refused. Others are named in a warning, unless they cannot affect text.
"""

import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import nn
from transformers import PreTrainedModel

from drafttree.core.errors import ModelError
from drafttree.drafters.formats import mtp, weight_files
from drafttree.loading.model_files import ModelFiles
from drafttree.models.quantization.quantized_linear import quantization_method

logger = logging.getLogger("drafttree")
LAYER_COUNT = re.compile("(n|num)_((hidden|encoder|decoder)_)?layers?|(encoder|decoder)_layers")
SCALES = re.compile(
    r"(^|.*[._])("
    r"\w*scales?(_inv|_\d+)?|\w*zero_points?|\w*zeros|\w*amax"  # float8, int8, compressed-tensors, ModelOpt, MXFP4
    r"|qweight|g_idx|weight_packed|weight_shape|\w*pre_quant\w*"  # GPTQ, AWQ, compressed-tensors
    r"|\w*(smooth|scaling)_factor"  # SmoothQuant and its like
    r"|SCB|weight_format|\w*absmax|\w*quant_map|quant_state\.\w+"  # bitsandbytes
    r")"
)
"""Names of tensors that scale or unpack quantised weights."""
OF_OTHERS = re.compile(r"(.*\.)?(((kv_cache|[qkv]+|prob|output)_(scale|zero_point)|logit_scale)\w*)")
"""Names of scales that are not of weights: those of quantised KV caches, and of comparing texts with images."""
OF_INPUTS = re.compile(r"(.*\.)?(input|activation)_(\w+_)?(scale|zero_point|amax)\w*")
"""Names of scales of rounded activations, which a quantiser of transformers may not need."""
ADAPTERS = re.compile(
    r"(.*[._])?(\w*lora|dora(_\w+)?|loha|lokr|hada|\w*vera|(b|ps)?oft|ia3|hra|hira|road|miss|c3a|shira|fourierft|waveft|base_layer)"
    r"([._].*)?"
)
"""Names of tensors of peft's adapters."""
MODALITIES = re.compile(
    r"(.*\.)?(embed_)?(vision|visual|vit|siglip|image|img|video|audio|speech|multi_?modal|mm|resampler|talker"
    r"|(token|code)2wav)\d*(_(abstractor|adapter|backbone|connector|embed\w*|encoder|head|merger|model|proj(ect\w+)?"
    r"|processor|resampler|tokenizer|tower))?\..*"
)
"""Names of tensors for images, video or audio, which text does not use."""
MTP = re.compile(r"(.*\.)?(mtp|nextn)\w*\..*")
TABLES = re.compile(r"(.*\.)?(masked_bias|causal_mask|position_ids|\w*inv_freq|(cos|sin)_cached|num_batches_tracked)")
"""Names of tensors that models compute themselves, and that older versions saved."""
EIGHT_BITS = {"I8", "U8", "F8_E4M3", "F8_E5M2"}
"""Safetensors' names of eight-bit dtypes, whose codes give weights only with their scales."""
SHOWN = 4
"""The most tensor names that a message shows; names that differ only in numbers count once."""


def refuse_changing(files: ModelFiles, model: PreTrainedModel, unused: Collection[str]) -> None:
    """Refuse scales and adapters among the tensors that a loaded model has left out.

    Args:
        files: the files of the model.
        model: the model.
        unused: names of the tensors left out, except for those that transformers ignores on purpose.

    Raises:
        ModelError: there are such tensors; the message names them.
    """
    names = _deciding(model, unused)
    _refuse_adapters(files, names)
    _refuse_scales(files, model, names)


def refuse_unscaled(files: ModelFiles, unused: Collection[str]) -> None:
    """Refuse weights that are stored in eight bits without scales; transformers would read the codes as weights.

    Weights in pickles are not checked.

    Args:
        files: the files of the model.
        unused: names of the tensors that the loaded model has left out.

    Raises:
        ModelError: there are such weights; the message names them.
    """
    if not files.is_local or files.gguf or quantization_method(files.settings.get("quantization_config")):
        return
    codes: dict[str, str] = {}
    for path in weight_files(Path(files.path)):
        if path.suffix == ".safetensors":
            with safe_open(path, "pt") as file:
                for name in file.keys():  # noqa: SIM118
                    tensor_slice = file.get_slice(name)
                    if (
                        tensor_slice.get_dtype() in EIGHT_BITS
                        and len(tensor_slice.get_shape()) > 1
                        and name not in unused
                    ):
                        codes[name] = tensor_slice.get_dtype()
    if codes:
        dtypes = " and ".join(sorted(set(codes.values())))
        raise ModelError(
            f"the weights of {str(files.source)!r} are stored in eight bits ({dtypes}: {shortened(codes.keys())}), and "
            "neither scales nor a quantization_config say what they mean; take the files that they were published "
            "with, or weights that are not quantised"
        )


def check_unused(files: ModelFiles, model: PreTrainedModel, unused: Collection[str]) -> None:
    """Warn of the tensors that a loaded model has left out, unless they cannot affect text.

    Arguments are those of `refuse_changing`.

    Raises:
        ModelError: the files have more layers or experts than config.json gives.
    """
    _refuse_layers(files, model, unused)
    if names := _deciding(model, unused):
        logger.warning(
            "%s: config.json has no place for the tensors %s, so they are left out; if the model was trained with "
            "them, correct config.json",
            *(files.source, shortened(names)),
        )


def changing(names: Iterable[str]) -> list[str]:
    """The sorted names of scales and adapters among these names; both change the meaning of weights."""
    return sorted(name for name in names if _is_scale(name) or ADAPTERS.fullmatch(name))


def _is_scale(name: str) -> bool:
    return bool(SCALES.fullmatch(name)) and not OF_OTHERS.fullmatch(name)


def _refuse_adapters(files: ModelFiles, names: Iterable[str]) -> None:
    if adapters := [name for name in names if ADAPTERS.fullmatch(name)]:
        advice = (
            "merge it by peft (merge_and_unload) and save the model anew, or load it by peft and pass the loaded model"
        )
        reason = f"hold an adapter beside the weights, which config.json does not name: {shortened(adapters)}"
        raise ModelError(f"the files of {str(files.source)!r} {reason}; {advice}")


def _refuse_scales(files: ModelFiles, model: PreTrainedModel, names: Iterable[str]) -> None:
    """Refuse scales that weights need, but that the loaded model does not use."""
    method = quantization_method(files.settings.get("quantization_config"))
    is_skipped = hasattr(model.config, "quantization_config") and not hasattr(model, "hf_quantizer")
    scales = [name for name in names if _is_scale(name)]
    if method and not is_skipped:
        scales = [name for name in scales if not OF_INPUTS.fullmatch(name)]
    if not scales:
        return
    reason = f"its quantization_config ({method}) leaves them out" if method else "it gives no quantization_config"
    if is_skipped:
        reason = f"transformers does not run {method}, which it gives"
    raise ModelError(
        f"the weights of {str(files.source)!r} are quantised, and config.json has no place for their "
        f"{shortened(scales)}: {reason}; take the config.json that they were published with, or weights that are not "
        "quantised"
    )


def _refuse_layers(files: ModelFiles, model: PreTrainedModel, names: Iterable[str]) -> None:
    """Refuse files with more layers or experts than the config gives, which transformers would leave out.

    MTP layers after the model's own are allowed, since configs do not count them among its layers.
    """
    lengths = _lengths(model)
    extra_entries = _extra_entries(names, lengths)
    if not extra_entries:
        return
    list_name, _ = min(extra_entries)
    length = lengths[list_name]
    entry_count = 1 + max(index for name, index in extra_entries if name == list_name)
    field = _count_field(model, length)
    mismatch = f"{list_name[1:]} has {entry_count} entries in the files, and {field} is {length}"
    advice = "correct it, or save the pruned model again"
    raise ModelError(f"the weights of {str(files.source)!r} do not fit its config.json: {mismatch}; {advice}")


def _extra_entries(names: Iterable[str], lengths: Mapping[str, int]) -> set[tuple[str, int]]:
    """List name and index of each entry with tensors beyond the end of a model's list, except for MTP layers."""
    components_by_entry: dict[tuple[str, int], set[str]] = {}
    for name in names:
        for entry, suffix in _places_behind(name, lengths):
            components_by_entry.setdefault(entry, set()).update(suffix.split("."))
    return {entry for entry, components in components_by_entry.items() if not components & mtp.OWN_PARTS}


def _count_field(model: PreTrainedModel, length: int) -> str:
    """The field of a model's config that gives a list's length, as a message names it."""
    config: Any = model.config.get_text_config()
    for field, value in config.to_dict().items():
        if value == length and (LAYER_COUNT.fullmatch(field) or "experts" in field):
            return field
    return "their number"


def _lengths(model: PreTrainedModel) -> dict[str, int]:
    """The lengths of a model's module lists, by name, with a dot in front."""
    return {
        f".{name}": len(submodule) for name, submodule in model.named_modules() if isinstance(submodule, nn.ModuleList)
    }


def _places_behind(name: str, lists: Mapping[str, int]) -> Iterator[tuple[tuple[str, int], str]]:
    """The entries beyond the end of a module list that a tensor is in: list name, index, and the rest of its name."""
    for number in re.finditer(r"\.(\d+)\.", name):
        list_names = [list_name for list_name in lists if list_name.endswith(f".{name[: number.start()]}")]
        index = int(number[1])
        if len(list_names) == 1 and index >= lists[list_names[0]]:
            yield (list_names[0], index), name[number.end() :]


def _is_within(name: str, lists: Mapping[str, int]) -> bool:
    """Whether a tensor lies in an existing entry of a module list, such as a layer that runs."""
    for number in re.finditer(r"\.(\d+)\.", name):
        prefix = f".{name[: number.start()]}"
        index = int(number[1])
        if any(list_name.endswith(prefix) and index < length for list_name, length in lists.items()):
            return True
    return False


def _deciding(model: PreTrainedModel, names: Iterable[str]) -> list[str]:
    """The names of tensors that may affect text.

    These are all but the tensors of modalities that text does not use, of MTP layers, of extra layers, and tables that
    models compute themselves.
    """
    lists = _lengths(model)
    buffers = [f".{name}" for name, _ in model.named_buffers()]

    def is_harmless(name: str) -> bool:
        if TABLES.fullmatch(name):
            return True
        if not _is_within(name, lists) and (MODALITIES.fullmatch(name) or MTP.fullmatch(name)):
            return True
        return any(buffer.endswith(f".{name}") for buffer in buffers) or any(_places_behind(name, lists))

    return [name for name in names if not is_harmless(name)]


def shortened(names: Collection[str]) -> str:
    """A few of the names, of which no two differ only in numbers, and the count of the rest."""
    names_by_pattern = {re.sub(r"\d+", "*", name): name for name in sorted(names, reverse=True)}
    examples = sorted(names_by_pattern.values())[:SHOWN]
    remainder = f" and {len(names) - len(examples)} more" if len(names) > len(examples) else ""
    return ", ".join(examples) + remainder
