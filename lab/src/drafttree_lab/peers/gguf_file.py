"""Writes a Llama model as a GGUF file, which llama.cpp and OpenVINO GenAI read."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from drafttree.core.errors import ConfigError

KINDS = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0"}
"""Types of weights, with GGUF's names of the file types; norms are float32 in all."""


@torch.no_grad()
def write_gguf(model: PreTrainedModel, tokenizer: Any, path: Path, file_type: str) -> None:
    """Write a model with its tokenizer.

    Args:
        model: a Llama model without biases, whose rotary embedding is unscaled.
        tokenizer: a byte-level BPE tokenizer, like GPT-2's.
        path: path of the file.
        file_type: one of `KINDS`.

    Raises:
        ConfigError: the model or the tokenizer is of another type.
    """
    gguf = import_module("gguf")
    config = model.config
    _check(config)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(gguf.LlamaFileType[KINDS[file_type]])
    _add_tokenizer(gguf, writer, tokenizer, config.vocab_size)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            weight = interleaved(weight, config.head_dim)
        tensor_type = gguf.GGMLQuantizationType[file_type.upper() if weight.ndim == 2 else "F32"]
        data = gguf.quants.quantize(weight.float().numpy(), tensor_type)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), data, raw_dtype=tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleaved(weight: Tensor, head_dim: int) -> Tensor:
    """A query or key projection with rotary pairs in adjacent rows, as llama.cpp expects them.

    transformers pairs the dimensions i and i + head_dim / 2 of a head; llama.cpp pairs 2 i and 2 i + 1.
    """
    return weight.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).reshape(weight.shape)


def _add_tokenizer(gguf: Any, writer: Any, tokenizer: Any, vocab_size: int) -> None:
    """Add the tokens in the order of their ids, the merges, and the types of tokens; unused ids get unique names."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    description = json.loads(backend.to_str()) if backend else {"model": {"type": type(tokenizer).__name__}}
    model_type = description["model"]["type"]
    steps = description.get("pre_tokenizer") or {}
    if model_type != "BPE" or "ByteLevel" not in json.dumps(steps):
        raise ConfigError(f"only tokenizers that merge bytes can be written as GGUF, not one of type {model_type}")
    by_id = {index: token for token, index in tokenizer.get_vocab().items()}
    special_ids = set(tokenizer.all_special_ids)
    types = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([by_id.get(index, f"<unused {index}>") for index in range(vocab_size)])
    writer.add_token_types(
        [
            types.CONTROL if index in special_ids else types.NORMAL if index in by_id else types.UNUSED
            for index in range(vocab_size)
        ]
    )
    writer.add_token_merges(
        [merge if isinstance(merge, str) else " ".join(merge) for merge in description["model"]["merges"]]
    )
    writer.add_add_bos_token(False)
    for name in ("bos", "eos", "pad"):
        if (index := getattr(tokenizer, f"{name}_token_id")) is not None:
            getattr(writer, f"add_{name}_token_id")(index)


def _check(config: Any) -> None:
    if config.model_type != "llama" or config.attention_bias or config.mlp_bias:
        raise ConfigError(f"only Llama models without biases can be written as GGUF, not {config.model_type}")
    if (rope := config.rope_parameters["rope_type"]) != "default":
        raise ConfigError(f"only an unscaled rotary embedding can be written as GGUF, not rope_type {rope!r}")
