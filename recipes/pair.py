"""Builds the embedded target and draft model, deepens the target, and exports both in Hugging Face format."""

import copy
import shutil
from pathlib import Path

import torch
from torch import nn
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from disk import atomic_folder

CONTEXT = 2048
DEPTH = 12


def target_model(layers: int = DEPTH) -> LlamaForCausalLM:
    """Build the target: ten million parameters at twelve layers, deep and narrow so that its passes take long."""
    return LlamaForCausalLM(
        _config(
            hidden_size=256,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
            intermediate_size=608,
            tie_word_embeddings=False,
        )
    )


def draft_model() -> LlamaForCausalLM:
    """Build the draft model: one million parameters, one layer, most of them the embedding tied to its head."""
    return LlamaForCausalLM(
        _config(
            hidden_size=160,
            num_hidden_layers=1,
            num_attention_heads=5,
            num_key_value_heads=5,
            head_dim=32,
            intermediate_size=640,
            tie_word_embeddings=True,
        )
    )


def grow(target: LlamaForCausalLM, layers: int) -> None:
    """Repeat every block in place until there are `layers`, without changing the function.

    A copy keeps the projections its original has learnt and starts with zero output projections, so the
    residual stream is untouched at first (progressive stacking, Gong et al. 2019; Du et al. 2024).
    """
    times, remainder = divmod(layers, len(target.model.layers))
    if remainder:
        raise ValueError(f"cannot grow {len(target.model.layers)} layers to {layers}: not a multiple")
    blocks = [block for layer in target.model.layers for block in (layer, *map(_identity_copy, [layer] * (times - 1)))]
    for index, block in enumerate(blocks):
        block.self_attn.layer_idx = index
    target.model.layers = nn.ModuleList(blocks)
    target.config.num_hidden_layers = layers


def export(target: LlamaForCausalLM, draft: LlamaForCausalLM, tokenizer_files: Path, folder: Path) -> None:
    """Write `folder/target` and `folder/draft` in bfloat16, the target at full depth; replaced as a whole."""
    full = copy.deepcopy(target)
    grow(full, DEPTH)
    with atomic_folder(folder) as partial:
        for name, model in (("target", full), ("draft", copy.deepcopy(draft))):
            model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=0, pad_token_id=0)
            model.to(torch.bfloat16).save_pretrained(partial / name)
            (partial / name / "model.safetensors").chmod(0o644)
            shutil.copytree(tokenizer_files, partial / name, dirs_exist_ok=True)


def _config(**sizes) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=4096,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        **sizes,
    )


def _identity_copy(layer: nn.Module) -> nn.Module:
    """Copy a layer with output projections of zero, so that it leaves the residual stream unchanged."""
    twin = copy.deepcopy(layer)
    nn.init.zeros_(twin.self_attn.o_proj.weight)
    nn.init.zeros_(twin.mlp.down_proj.weight)
    return twin
