"""Maps the metadata of GGUF files to fields of a config.json, and their tensors to weights of transformers.

llama.cpp stores some weights differently. Its rotary embedding pairs neighbouring dimensions of a head, where
transformers pairs a dimension of the first half with one of the second. So the rows of queries and keys are
interleaved. And Gemma's norm weights include the 1 that transformers adds at run time. The source of all this is
llama.cpp's converter, https://github.com/ggml-org/llama.cpp/tree/master/conversion.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from drafttree.core.errors import ModelError
from drafttree.drafters.formats.checkpoints import few
from drafttree.loading.gguf.reader import COPY, PLAIN, GGUFFile
from drafttree.models.quantization.blocks import FORMATS

Settings = dict[str, Any]
"""The contents of a config.json."""
OUTSIDE_LAYERS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
GATED_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
NORM_BEFORE_MLP = {"ffn_norm": "post_attention_layernorm"}
NORMS_AFTER = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
NORMS_AROUND = {**NORMS_AFTER, "ffn_norm": "pre_feedforward_layernorm"}
ROUTER = {"ffn_gate_inp": "mlp.gate"}
EXPERTS = {
    "ffn_gate_exps": "mlp.experts.gate_up_proj",
    "ffn_up_exps": "mlp.experts.gate_up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
"""Stacked weights of all experts; transformers joins gate and up projections, gates first."""
ROTARY_TABLES = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that hold scales of rotary frequencies, which a config.json gives as a few numbers."""
COMMON = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
"""Keys that every file has, and the fields of a config.json that they become."""
WITHOUT_EFFECT = frozenset({"vocab_size", "attention.value_length", "rope.scaling.finetuned"})
"""Keys that repeat what tensor shapes or other keys say."""
LLAMA3_CONTEXT = 8192
"""Context, in tokens, that Llama 3.1's scaling of frequencies starts from; files do not give it."""
REQUIRED = object()
"""Marks a key that every file must have, so that it needs no default."""
BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


@dataclass(frozen=True)
class Architecture:
    """How GGUF files store the models of a family.

    Attributes:
        model_type: the family's name in a config.json.
        tensors: transformers' names of a layer's weights, by llama.cpp's.
        describe: returns fields of the config.json beyond those of every family.
        interleaved: whether the rows of queries and keys are interleaved.
        norm_offset: constant that llama.cpp has added to the weights of norms.
    """

    model_type: str
    tensors: Mapping[str, str]
    describe: Callable[["Metadata"], Settings] = field(default=lambda metadata: {})
    interleaved: bool = False
    norm_offset: float = 0.0

    def weight_of(self, name: str) -> str | None:
        """Transformers' name of the weight that a tensor of llama.cpp's name belongs to; None if the model has none."""
        tensor, _, suffix = name.rpartition(".")
        if block := BLOCK.fullmatch(name):
            layer, tensor, suffix = block.groups()
            if tensor not in self.tensors:
                return None
            weight = f"model.layers.{layer}.{self.tensors[tensor]}"
            return weight if tensor in EXPERTS else f"{weight}.{suffix}"
        return f"{OUTSIDE_LAYERS[tensor]}.{suffix}" if tensor in OUTSIDE_LAYERS else None

    def heads(self, name: str, settings: Settings) -> int:
        """The number of heads whose rows are interleaved in a tensor; 0 if rows are in order."""
        counts = {"attn_q": settings["num_attention_heads"], "attn_k": settings["num_key_value_heads"]}
        block = BLOCK.fullmatch(name)
        return counts.get(block[2], 0) if block and self.interleaved else 0

    def offset(self, name: str) -> float:
        """The constant that llama.cpp has added to the values of a tensor."""
        return self.norm_offset if name.endswith("norm.weight") else 0.0


class Metadata:
    """The metadata of a file whose keys begin with its architecture's name. It remembers which keys were read.

    Attributes:
        file: the file.
        architecture: llama.cpp's name of the architecture.
    """

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.architecture = str(file.metadata.get("general.architecture", ""))
        self._read = set(WITHOUT_EFFECT)

    def number(self, key: str, default: Any = REQUIRED) -> Any:
        """The number of a key, without the architecture's name in front; the default if the file lacks the key.

        Raises:
            ModelError: the value is not a number, or the file lacks the key and there is no default.
        """
        return self._value(key, default, "a number", _is_number)

    def text(self, key: str, default: str) -> str:
        """The string of a key; the default if the file lacks the key.

        Raises:
            ModelError: the value is not a string.
        """
        return self._value(key, default, "a word", lambda value: isinstance(value, str))

    def numbers(self, key: str) -> list[Any]:
        """The list of a key.

        Raises:
            ModelError: the file lacks the key, or the value is not a list.
        """
        return self._value(key, REQUIRED, "a list of numbers", lambda value: isinstance(value, list))

    def _value(self, key: str, default: Any, needed_type: str, is_valid: Callable[[Any], bool]) -> Any:
        self._read.add(key)
        value = self.file.metadata.get(f"{self.architecture}.{key}", default)
        if value is default and default is not REQUIRED:
            return default
        if value is REQUIRED:
            value_text = "nothing"
        elif is_valid(value):
            return value
        else:
            value_text = "a number for each layer" if isinstance(value, list) else repr(value)
        raise ModelError(
            f"{self.file.path} gives {value_text} as {self.architecture}.{key}, where drafttree needs {needed_type}; "
            "give the model as a folder of transformers"
        )

    def has(self, name: str) -> bool:
        """Whether the file has a tensor."""
        return name in self.file.tensors

    def unread(self) -> list[str]:
        """The keys of the architecture that were not read, sorted."""
        prefix = f"{self.architecture}."
        keys = (key.removeprefix(prefix) for key in self.file.metadata if key.startswith(prefix))
        return sorted(key for key in keys if key not in self._read)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _biases(metadata: Metadata) -> Settings:
    return {
        "attention_bias": metadata.has("blk.0.attn_q.bias"),
        "mlp_bias": metadata.has("blk.0.ffn_gate.bias"),
    }


def _no_window(metadata: Metadata) -> Settings:
    return {"use_sliding_window": False, "sliding_window": None}


def _experts(metadata: Metadata) -> Settings:
    count = metadata.number("expert_count")
    experts_per_token = metadata.number("expert_used_count")
    if not 1 <= experts_per_token <= count:
        raise ModelError(f"expert_used_count is {experts_per_token}, of {count} experts; {COPY}")
    return {
        "num_experts": count,
        "num_experts_per_tok": experts_per_token,
        "moe_intermediate_size": metadata.number("expert_feed_forward_length"),
        "norm_topk_prob": True,  # files do not give it, and llama.cpp always normalises
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _gemma_scale(metadata: Metadata, layers_of_27b: int) -> int:
    """Gemma's `query_pre_attn_scalar`: the head size; in models of 27 B, the hidden size over the heads."""
    if metadata.number("block_count") == layers_of_27b:
        return metadata.number("embedding_length") // metadata.number("attention.head_count")
    return metadata.number("attention.key_length")


def _gemma2(metadata: Metadata) -> Settings:
    return {
        "attn_logit_softcapping": metadata.number("attn_logit_softcapping", None),
        "final_logit_softcapping": metadata.number("final_logit_softcapping", None),
        "sliding_window": metadata.number("attention.sliding_window"),
        "query_pre_attn_scalar": _gemma_scale(metadata, layers_of_27b=46),
    }


def _gemma3(metadata: Metadata) -> Settings:
    return {
        "final_logit_softcapping": metadata.number("final_logit_softcapping", None),
        "sliding_window": metadata.number("attention.sliding_window"),
        "rope_local_base_freq": metadata.number("rope.freq_base_swa", 10_000.0),
        "query_pre_attn_scalar": _gemma_scale(metadata, layers_of_27b=62),
    }


def _olmo2(metadata: Metadata) -> Settings:
    """Settings of OLMo 2, or of OLMo 3, which has the same architecture name and sliding windows."""
    window = metadata.number("attention.sliding_window", None)
    if window is None:
        return {"attention_bias": False}
    theta = metadata.number("rope.freq_base")
    window_theta = metadata.number("rope.freq_base_swa", None)
    if window_theta not in {None, theta}:
        reason = f"a rotary base of their own ({window_theta}), which drafttree does not support for OLMo 3"
        raise ModelError(f"{metadata.file.path} gives sliding-window layers {reason}")
    window_pattern = metadata.numbers("attention.sliding_window_pattern")
    layer_types = ["sliding_attention" if has_window else "full_attention" for has_window in window_pattern]
    return {"model_type": "olmo3", "attention_bias": False, "sliding_window": window, "layer_types": layer_types}


def _granite(metadata: Metadata) -> Settings:
    return _biases(metadata) | {
        "attention_multiplier": metadata.number("attention.scale"),
        "embedding_multiplier": metadata.number("embedding_scale", 1.0),
        "residual_multiplier": metadata.number("residual_scale", 1.0),
        "logits_scaling": metadata.number("logit_scale", 1.0),
    }


def _phi3(metadata: Metadata) -> Settings:
    context = metadata.number("context_length")
    return {
        "sliding_window": metadata.number("attention.sliding_window", 0) or None,
        "original_max_position_embeddings": metadata.number("rope.scaling.original_context_length", context),
    }


ARCHITECTURES = {
    "gemma2": Architecture("gemma2", ATTENTION | NORMS_AROUND | GATED_MLP, _gemma2, norm_offset=1.0),
    "gemma3": Architecture("gemma3_text", ATTENTION | HEAD_NORMS | NORMS_AROUND | GATED_MLP, _gemma3, norm_offset=1.0),
    "granite": Architecture("granite", ATTENTION | NORM_BEFORE_MLP | GATED_MLP, _granite, interleaved=True),
    "llama": Architecture("llama", ATTENTION | NORM_BEFORE_MLP | GATED_MLP, _biases, interleaved=True),
    "olmo2": Architecture("olmo2", ATTENTION | HEAD_NORMS | NORMS_AFTER | GATED_MLP, _olmo2),
    "phi3": Architecture(
        "phi3",
        ATTENTION
        | NORM_BEFORE_MLP
        | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj"},
        _phi3,
    ),
    "qwen2": Architecture("qwen2", ATTENTION | NORM_BEFORE_MLP | GATED_MLP, _no_window),
    "qwen3": Architecture("qwen3", ATTENTION | HEAD_NORMS | NORM_BEFORE_MLP | GATED_MLP, _no_window),
    "qwen3moe": Architecture("qwen3_moe", ATTENTION | HEAD_NORMS | NORM_BEFORE_MLP | ROUTER | EXPERTS, _experts),
    "smollm3": Architecture("smollm3", ATTENTION | NORM_BEFORE_MLP | GATED_MLP, _biases, interleaved=True),
}
"""Architectures by llama.cpp's names.

Mistral, SmolLM2 and DeepSeek's distilled models are "llama" or "qwen2"; Phi-4 is "phi3".
"""


def architecture_of(file: GGUFFile) -> Architecture:
    """The architecture of a file's model.

    Raises:
        ModelError: the architecture is unknown, or the file holds something other than a model.
    """
    name = str(file.metadata.get("general.architecture", ""))
    file_type = file.metadata.get("general.type", "model")
    if file_type == "model" and name in ARCHITECTURES:
        return ARCHITECTURES[name]
    if file_type != "model":
        content = f"something other than a model ({file_type})"
    else:
        content = f"a model of the architecture {name!r}" if name else "a model without an architecture in its metadata"
    raise ModelError(
        f"{file.path} holds {content}; drafttree reads GGUF files of {', '.join(ARCHITECTURES)}; give others as a "
        "folder of transformers"
    )


def settings_of(file: GGUFFile) -> Settings:
    """The contents of a config.json for the model of a file.

    Raises:
        ModelError: the architecture is unknown, or the metadata lacks a needed key or has an unknown one.
    """
    architecture = architecture_of(file)
    metadata = Metadata(file)
    settings: Settings = {"model_type": architecture.model_type}
    settings |= {name: metadata.number(key) for key, name in COMMON.items()}
    heads = settings["num_attention_heads"]
    head_dim = metadata.number("attention.key_length", settings["hidden_size"] // max(1, heads))
    settings |= {
        "num_key_value_heads": metadata.number("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "vocab_size": _vocab_size(file),
        "tie_word_embeddings": not metadata.has("output.weight"),
        "rope_theta": metadata.number("rope.freq_base", 10_000.0),
        "dtype": "bfloat16",
    }
    if (rotary_dim := metadata.number("rope.dimension_count", head_dim)) != head_dim:
        settings["partial_rotary_factor"] = rotary_dim / head_dim
    settings |= architecture.describe(metadata)
    if scaling := _rope_scaling(metadata, settings, rotary_dim):
        settings["rope_scaling"] = scaling
    if unread_keys := metadata.unread():
        keys = ", ".join(f"{metadata.architecture}.{key}" for key in unread_keys)
        raise ModelError(
            f"{file.path} gives {keys}, which drafttree does not know of this architecture and would ignore; give the "
            "model as a folder of transformers"
        )
    return settings


def _vocab_size(file: GGUFFile) -> int:
    if "token_embd.weight" not in file.tensors:
        raise ModelError(f"{file.path} lacks token_embd.weight, so it holds no whole language model")
    return file.tensors["token_embd.weight"].shape[0]


def _rope_scaling(metadata: Metadata, settings: Settings, rotary_dim: int) -> Settings | None:
    """The `rope_scaling` of a config.json; None if rotary frequencies are not scaled.

    Args:
        metadata: metadata of the file.
        settings: fields of the config.json so far.
        rotary_dim: number of dimensions of a head that rotary embedding turns.

    Raises:
        ModelError: the file scales frequencies in an unknown way.
    """
    # both are read here even if unused below, since a file with unread keys is refused
    scaling_type = metadata.text("rope.scaling.type", "linear")  # llama.cpp's default, if a file gives only a factor
    factor = metadata.number("rope.scaling.factor", None)
    long_table = "rope_factors_long.weight"
    short_table = "rope_factors_short.weight"
    if metadata.has(long_table) and metadata.has(short_table):
        metadata.number("rope.scaling.attn_factor", None)  # transformers computes the same from both contexts
        return {
            "type": "longrope",  # the field's older name, which Phi-3's config checks
            "rope_type": "longrope",
            "long_factor": metadata.file.read(long_table, torch.float32).tolist(),
            "short_factor": metadata.file.read(short_table, torch.float32).tolist(),
        }
    if metadata.has("rope_freqs.weight"):
        return _llama3_scaling(metadata.file, settings["rope_theta"], rotary_dim)
    if scaling_type == "none" or (scaling_type == "linear" and factor in {None, 1.0}):
        return None
    if scaling_type == "linear":
        return {"rope_type": "linear", "factor": factor}
    if scaling_type == "yarn":
        keys = {
            "attention_factor": "rope.scaling.yarn_attn_factor",
            "beta_fast": "rope.scaling.yarn_beta_fast",
            "beta_slow": "rope.scaling.yarn_beta_slow",
            "original_max_position_embeddings": "rope.scaling.original_context_length",
        }
        numbers = {field_name: metadata.number(key, None) for field_name, key in keys.items()}
        yarn_fields = {field_name: number for field_name, number in numbers.items() if number is not None}
        return {"rope_type": "yarn", "factor": metadata.number("rope.scaling.factor"), **yarn_fields}
    raise ModelError(
        f"{metadata.file.path} scales rotary frequencies by {scaling_type!r}, which drafttree does not know"
    )


def _llama3_scaling(file: GGUFFile, theta: float, rotary_dim: int) -> Settings | None:
    """The `rope_scaling` of Llama 3.1 that a file's table of divisors was made from; None if it divides by 1.

    Raises:
        ModelError: the table is not Llama 3.1's.
    """
    table = file.read("rope_freqs.weight", torch.float32)
    factor = table.max().item()
    if factor == 1.0:
        return None
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": LLAMA3_CONTEXT,
    }
    expected_divisors = llama3_divisors(theta, rotary_dim, scaling)
    if table.shape != expected_divisors.shape or not torch.allclose(table, expected_divisors, rtol=1e-4):
        raise ModelError(
            f"{file.path} scales rotary frequencies by a table (rope_freqs.weight) that is not Llama 3.1's, which "
            "drafttree does not know"
        )
    return scaling


def llama3_divisors(theta: float, rotary_dim: int, scaling: Mapping[str, Any]) -> Tensor:
    """The divisors of rotary frequencies in Llama 3.1.

    They are 1 for wavelengths that are short compared with the training context, the factor for long ones, and
    interpolated between.

    Args:
        theta: base of the frequencies.
        rotary_dim: number of dimensions of a head that rotary embedding turns.
        scaling: `rope_scaling` of a config.json.

    Returns:
        float32 `[rotary_dim / 2]`.
    """
    frequencies = theta ** -(torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)
    waves_in_context = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth_factor = ((waves_in_context - low) / (high - low)).clamp(0, 1)
    return 1 / ((1 - smooth_factor) / scaling["factor"] + smooth_factor)


class GGUFWeight:
    """A weight of a GGUF file; implements `drafttree.loading.stored_blocks.StoredWeight`.

    Args:
        file: the file.
        names: llama.cpp's names of its tensors; several are joined along their outputs, in this order.
        dtype: dtype to read it in.
        heads: number of heads whose rows are interleaved; 0 if rows are in order.
        offset: constant to subtract from the stored values.

    Attributes:
        is_left_out: whether to return a placeholder without values instead.
        is_packed: whether the file stores it in few bits.
    """

    def __init__(self, file: GGUFFile, names: list[str], dtype: torch.dtype, heads: int, offset: float) -> None:
        self._file = file
        self._names = names
        self._dtype = dtype
        self._heads = heads
        self._offset = offset
        self.is_left_out = False
        self.is_packed = not {self._file.tensors[name].kind for name in names} <= PLAIN.keys()

    def __getitem__(self, _: object) -> Tensor:
        """The whole weight; transformers materialises weights by `weight[...]`."""
        if self.is_left_out:
            return torch.zeros((), dtype=self._dtype).expand(self.shape)
        if self._offset:
            return (self._file.read(self._names[0], torch.float32) - self._offset).to(self._dtype)
        return self._joined([self._file.read(name, self._dtype) for name in self._names])

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        shapes = [self._file.tensors[name].shape for name in self._names]
        return shapes[0] if len(shapes) == 1 else (*shapes[0][:-2], sum(shape[-2] for shape in shapes), shapes[0][-1])

    @property
    def part_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of its tensors, by llama.cpp's names."""
        return {name: self._file.tensors[name].shape for name in self._names}

    @property
    def form(self) -> str:
        """Name of the blocks it can stay in, from `drafttree.models.quantization.blocks`; empty if it cannot."""
        forms = {self._file.tensors[name].kind.lower() for name in self._names}
        can_stay = len(forms) == 1 and forms <= FORMATS.keys() and not self._offset and len(self.shape) > 1
        return forms.pop() if can_stay else ""

    def blocks(self) -> Tensor:
        """Its blocks, uint8 `[outputs, bytes]`.

        Raises:
            ModelError: scales are not finite.
        """
        return self._joined([self._file.read_blocks(name) for name in self._names])

    def stacks(self) -> list[Tensor]:
        """The blocks of all experts, uint8 `[experts, outputs, bytes]`, for each of its tensors.

        Raises:
            ModelError: scales are not finite.
        """
        stack_shapes = {name: self._file.tensors[name].shape[:-1] for name in self._names}
        return [self._file.read_blocks(name).view(*shape, -1) for name, shape in stack_shapes.items()]

    def _joined(self, tensors: list[Tensor]) -> Tensor:
        """The tensors joined along their outputs, with interleaved rows in transformers' order."""
        weight = tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim=-2)
        if self._heads:
            weight = weight.unflatten(0, (self._heads, -1, 2)).transpose(1, 2).flatten(0, 2)
        return weight


def weights_of(file: GGUFFile, settings: Settings, dtype: torch.dtype) -> dict[str, GGUFWeight]:
    """The weights of a file's model, by the names of transformers; values are read on access.

    Args:
        file: the file.
        settings: result of `settings_of` for the file.
        dtype: dtype to read weights in.

    Raises:
        ModelError: the file has a tensor that the architecture has no place for, or lacks half of a gate and up pair.
    """
    architecture = architecture_of(file)
    tensors_by_weight: dict[str, list[str]] = {}
    unplaced_tensors: list[str] = []
    for name in sorted(file.tensors):
        if weight := architecture.weight_of(name):
            tensors_by_weight.setdefault(weight, []).append(name)
        elif name not in ROTARY_TABLES:
            unplaced_tensors.append(name)
    if unplaced_tensors:
        raise ModelError(
            f"{file.path} holds tensors that a model of its architecture ({file.metadata['general.architecture']}) has "
            f"no place for: {few(unplaced_tensors)}; give the model as a folder of transformers"
        )
    for weight, names in tensors_by_weight.items():
        if weight.endswith("experts.gate_up_proj") and len(names) == 1:
            raise ModelError(f"{file.path} holds {names[0]}, and not both gates and up projections; {COPY}")
    return {
        weight: GGUFWeight(file, names, dtype, architecture.heads(names[0], settings), architecture.offset(names[0]))
        for weight, names in tensors_by_weight.items()
    }
