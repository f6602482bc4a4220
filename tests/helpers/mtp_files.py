"""Checkpoints of small random targets with MTP layers, under the names by which families publish them.

What the layers compute is given by transformers' own unchanged layers, which read a text token by token.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Cache, PreTrainedConfig, PreTrainedModel

from testing import families, tiny

PARTS = ("enorm", "hnorm", "eh_proj", "post_norm")


@dataclass(frozen=True)
class Kind:
    """How a family publishes MTP layers.

    Attributes:
        config: of the target.
        layer: what the config of a model with the layers of one MTP layer changes.
        parts: names of `PARTS`, with the layer's number for braces.
        block: the name before a tensor of a decoder layer, with its number for braces.
        behind: whether layers are numbered on behind the target's.
        renamed: what a decoder layer calls otherwise, by the name in the file.
        blocks: decoder layers that make one MTP layer.
    """

    config: PreTrainedConfig
    layer: Mapping[str, Any]
    parts: Sequence[str]
    block: str
    behind: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)
    blocks: int = 1


QWEN = ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm")
MIMO = tuple(f"model.mtp.layers.{{}}.{part}" for part in ("enorm", "hnorm", "eh_proj", "final_layernorm"))
DEEPSEEK = tuple(f"model.layers.{{}}.{part}" for part in ("enorm", "hnorm", "eh_proj", "shared_head.norm"))
FULL = {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
DENSE = {"mlp_layer_types": ["dense"]}
SIZES = {**tiny.GROUPED, "head_dim": 8, "moe_intermediate_size": 16, "num_experts_per_tok": 2}
WINDOWS = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": tiny.WINDOW}
SPARSE = {"mlp_layer_types": ["dense", "sparse", "sparse"]}


def _kind(config: str, options: Mapping[str, Any], *others: Any, **more: Any) -> Callable[[], Kind]:
    return lambda: Kind(getattr(transformers, config)(**options), *others, **more)


def _family(name: str, *others: Any, **more: Any) -> Callable[[], Kind]:
    return lambda: Kind(families.config(name), *others, **more)


GLM = {**SIZES, "n_routed_experts": 4, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
EXAONE = {**SIZES, **WINDOWS, **SPARSE, "num_experts": 4, "n_group": 1, "topk_group": 1}
MELLUM = {**SIZES, **WINDOWS, "num_experts": 4, "num_nextn_predict_layers": 1}
KINDS: dict[str, Callable[[], Kind]] = {
    "llama": _kind("LlamaConfig", tiny.GROUPED, {"num_hidden_layers": 1}, QWEN, "mtp.layers.{}."),
    "qwen3_5": _family("qwen3_5", FULL, QWEN, "mtp.layers.{}."),
    "qwen3_next": _family("qwen3_next", FULL, QWEN, "mtp.layers.{}."),
    "exaone_moe": _kind("ExaoneMoeConfig", EXAONE, FULL | DENSE, QWEN, "mtp.layers.{}."),
    "mellum": _kind(
        "MellumConfig",
        MELLUM,
        {**FULL, "layer_types": ["sliding_attention"], "mlp_layer_types": ["sparse"]},
        QWEN,
        "mtp.layers.{}.",
    ),
    "mimo_v2_flash": _family(
        "mimo_v2_flash",
        {"num_hidden_layers": 1, "layer_types": ["sliding_attention"], **DENSE},
        MIMO,
        "model.mtp.layers.{}.",
        renamed={"pre_mlp_layernorm": "post_attention_layernorm"},
    ),
    "deepseek_v3": _family(
        "deepseek_v3", {"num_hidden_layers": 1, "first_k_dense_replace": 0}, DEEPSEEK, "model.layers.{}.", behind=True
    ),
    "bailing_hybrid": _kind(
        "BailingHybridConfig",
        {
            **{
                key: tiny.SIZES[key]
                for key in ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads")
            },
            **{"num_hidden_layers": 3, "num_key_value_heads": 4, "moe_intermediate_size": 16, "pad_token_id": None},
            **{"kv_lora_rank": 16, "q_lora_rank": None, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8},
            **{"num_experts": 4, "num_experts_per_token": 2, "num_expert_group": 1, "topk_group": 1, "head_dim": 8},
            **{"layer_types": ["linear_attention", "linear_attention", "full_attention"], "eos_token_id": None},
            **{"mlp_layer_types": ["dense", "sparse", "sparse"], "num_nextn_predict_layers": 1},
        },
        {**FULL, "mlp_layer_types": ["sparse"]},
        tuple(f"model.layers.{{}}.{part}" for part in ("enorm", "hnorm", "eh_proj", "final_layernorm")),
        "model.layers.{}.",
        behind=True,
    ),
    "glm4_moe": _kind(
        "Glm4MoeConfig",
        GLM,
        {"num_hidden_layers": 1, "first_k_dense_replace": 0},
        DEEPSEEK,
        "model.layers.{}.",
        behind=True,
    ),
    "nemotron_h": _kind(
        "NemotronHConfig",
        {
            **{**tiny.GROUPED, "num_hidden_layers": 4, "layers_block_type": ["mamba", "attention", "mlp", "mamba"]},
            **{"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 8, "chunk_size": 8, "n_groups": 2},
            **{"head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
            **{"moe_shared_expert_intermediate_size": 16, "num_nextn_predict_layers": 1},
            "mtp_layers_block_type": ["attention", "moe"],
        },
        {"num_hidden_layers": 2, "layer_types": ["full_attention", "moe"]},
        ("mtp.layers.0.enorm", "mtp.layers.0.hnorm", "mtp.layers.0.eh_proj", "mtp.layers.1.final_layernorm"),
        "mtp.layers.{}.",
        blocks=2,
    ),
}
"""By model type."""


def known() -> list[str]:
    """The families that the installed transformers has."""
    newer = {"qwen3_5", "qwen3_next", "nemotron_h", "mellum", "exaone_moe", "mimo_v2_flash", "bailing_hybrid"}
    return [name for name in KINDS if name not in newer or hasattr(Cache, "get_conv_state")]


class Layer(NamedTuple):
    """An MTP layer: an unchanged model with its decoder layer and norm, and the parts before it."""

    model: PreTrainedModel
    parts: dict[str, Tensor]


def write(folder: Path, kind: Kind, layers: int = 1, seed: int = 0) -> tuple[PreTrainedModel, list[Layer]]:
    """Write a target's checkpoint with MTP layers; the target as it was, and the layers."""
    target = tiny.from_config(kind.config, seed)
    target.save_pretrained(folder)
    tensors, made = load_file(folder / "model.safetensors"), list[Layer]()
    first = kind.config.num_hidden_layers if kind.behind else 0
    for index in range(layers):
        layer = make_layer(kind, target, seed + 1 + index)
        if made and "{" not in kind.parts[0]:  # all layers share the parts
            final_norm(layer.model).weight.data = final_norm(made[0].model).weight.data
            layer = Layer(layer.model, made[0].parts)
        made.append(layer)
        tensors |= published(kind, layer, first + index, folder / "layer")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return target, made


def make_layer(kind: Kind, target: PreTrainedModel, seed: int) -> Layer:
    """A random MTP layer."""
    config = deepcopy(kind.config)
    for name, value in kind.layer.items():
        setattr(config, name, value)
    model = tiny.from_config(config, seed)
    norm = final_norm(model)
    norm.weight.data += 0.3 * torch.randn_like(norm.weight)
    hidden = kind.config.hidden_size
    shapes = {"enorm": (hidden,), "hnorm": (hidden,), "eh_proj": (hidden, 2 * hidden)}
    parts = {name: norm.weight.data.mean() + 0.3 * torch.randn(shape) for name, shape in shapes.items()}
    parts["eh_proj"] = torch.randn(shapes["eh_proj"]) / hidden**0.5
    return Layer(model, parts)


def published(kind: Kind, layer: Layer, number: int, folder: Path) -> dict[str, Tensor]:
    """The tensors of a layer by the names in a checkpoint."""
    layer.model.save_pretrained(folder)
    saved, found = load_file(folder / "model.safetensors"), dict[str, Tensor]()
    for name, tensor in saved.items():
        if match := re.search(r"layers\.(\d+)\.(.+)", name):
            part = match[2]
            for other, own in kind.renamed.items():
                part = part.replace(own, other)
            found[kind.block.format(number * kind.blocks + int(match[1])) + part] = tensor
    parts = layer.parts | {"post_norm": final_norm(layer.model).weight.data}
    return found | {name.format(number) + ".weight": parts[part] for part, name in zip(PARTS, kind.parts, strict=True)}


def final_norm(model: PreTrainedModel) -> Any:
    decoder = model.get_decoder()
    return next(part for name, part in decoder.named_children() if name in ("norm", "norm_f"))


@torch.no_grad()
def path_logits(
    target: PreTrainedModel, layers: Sequence[Layer], text: Sequence[int], path: Sequence[int], state: Tensor
) -> list[Tensor]:
    """The logits `[vocab]` after the last token of a text and after every token drafted behind it.

    Args:
        target: the model that the layers belong to.
        layers: its MTP layers.
        text: committed tokens.
        path: drafted tokens.
        state: `[tokens, hidden]` the target's last hidden states of all tokens of the text but the last.
    """
    tokens, last = [*text, *path], len(text) - 1
    outputs, found = {-1: {at: state[at] for at in range(last)}}, list[Tensor]()
    for index, layer in enumerate(layers):  # layer k reads what layer k - 1 made of the token before
        ends = range(index + 1, min(last + index + 1, len(tokens)))
        outputs[index] = _run(target, layer, tokens, [*ends], outputs[index - 1])
    found = [_head(target, outputs[depth][last + depth]) for depth in range(min(len(layers), len(path) + 1))]
    deepest = outputs[len(layers) - 1]
    for at in range(last + len(layers), len(tokens)):  # the last layer goes on with its own outputs
        states = outputs[len(layers) - 2] | {place: deepest[place] for place in range(last + len(layers) - 1, at)}
        deepest = _run(target, layers[-1], tokens, [*range(len(layers), at + 1)], states)
        found.append(_head(target, deepest[at]))
    return found


def _run(
    target: PreTrainedModel, layer: Layer, tokens: Sequence[int], places: Sequence[int], states: Mapping[int, Tensor]
) -> dict[int, Tensor]:
    """The outputs of a layer at some places of a text, each of which reads the state at the place before."""
    if not places:
        return {}
    ids = torch.tensor([[tokens[at] for at in places]])
    embedded, given = target.get_input_embeddings()(ids), torch.stack([states[at - 1] for at in places])[None]
    pair = [_normed(layer, layer.parts[name], each) for name, each in (("enorm", embedded), ("hnorm", given))]
    inputs = torch.cat(pair, -1) @ layer.parts["eh_proj"].T
    decoder = layer.model.get_decoder()
    out = decoder(inputs_embeds=inputs, position_ids=torch.arange(len(places))[None], use_cache=False)
    return dict(zip(places, out.last_hidden_state[0], strict=True))


def _normed(layer: Layer, weight: Tensor, states: Tensor) -> Tensor:
    norm = deepcopy(final_norm(layer.model))
    norm.weight.data = weight.to(states.dtype)
    return norm(states)


def _head(target: PreTrainedModel, state: Tensor) -> Tensor:
    return target.get_output_embeddings()(state)
