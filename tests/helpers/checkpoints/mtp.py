"""MTP layers of small random targets, by the names under which families publish them.

What the layers compute is given by transformers' own unchanged layers, which read a text token by token.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Cache, PreTrainedConfig, PreTrainedModel

from helpers.checkpoints.formats import Tensors
from testing import families, tiny

PARTS = ("enorm", "hnorm", "eh_proj", "post_norm")


class Layer(NamedTuple):
    """An MTP layer: an unchanged model with its decoder layer and norm, and the parts before it, in their order."""

    model: PreTrainedModel
    parts: Tensors
    states_first: bool


@dataclass(frozen=True)
class MtpFormat:
    """How a family publishes MTP layers; what it shares with `Format` is described there.

    Attributes:
        config: of the target.
        layer: what the config of a model with the layers of one MTP layer changes.
        parts: names of `PARTS`, with the layer's number for braces; without the last one the norm is the target's.
        block: the name before a tensor of a decoder layer, with its number for braces.
        behind: whether layers are numbered on behind the target's.
        renamed: what a decoder layer calls otherwise, by the name in the file.
        blocks: decoder layers that make one MTP layer.
        layers: how many MTP layers there are.
        states_first: whether states stand before embeddings in what a layer reads.
    """

    config: Callable[[], PreTrainedConfig]
    layer: Mapping[str, Any]
    parts: Sequence[str]
    block: str
    behind: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)
    blocks: int = 1
    layers: int = 1
    states_first: bool = False
    kind, levels = "mtp", None

    @cached_property
    def _rounded(self) -> dict[torch.dtype, list[Layer]]:
        return {}

    @property
    def states(self) -> tuple[int, ...]:
        return (self.config().num_hidden_layers,)

    def target(self) -> PreTrainedModel:
        return tiny.from_config(self.config())

    @torch.no_grad()
    def made(self, seed: int = 0) -> list[Layer]:
        """The layers; where names have no number, all of them share the parts."""
        made = list[Layer]()
        for index in range(self.layers):
            config, hidden = self.config(), self.config().hidden_size
            for name, value in self.layer.items():
                setattr(config, name, value)
            model, generator = tiny.from_config(config, seed + 1 + index), torch.Generator().manual_seed(seed + index)
            norm = final_norm(model)
            norm.weight += 0.3 * torch.randn(hidden, generator=generator)
            if len(self.parts) < len(PARTS):
                norm.weight.copy_(final_norm(self.target()).weight)
            noise = {name: 0.3 * torch.randn(hidden, generator=generator) for name in ("enorm", "hnorm")}
            parts = {name: norm.weight.mean() + each for name, each in noise.items()}
            parts["eh_proj"] = torch.randn(hidden, 2 * hidden, generator=generator) / hidden**0.5
            if made and "{" not in self.parts[0]:
                norm.weight.copy_(final_norm(made[0].model).weight)
                parts = made[0].parts
            made.append(Layer(model, parts, self.states_first))
        return made

    def tensors(self, seed: int = 0) -> Tensors:
        found, first = Tensors(), self.config().num_hidden_layers if self.behind else 0
        for number, layer in enumerate(self.made(seed), first):
            with TemporaryDirectory() as folder:
                layer.model.save_pretrained(folder)
                saved = load_file(Path(folder) / "model.safetensors")
            for name, tensor in saved.items():
                if match := re.search(r"layers\.(\d+)\.(.+)", name):
                    part = match[2]
                    for other, own in self.renamed.items():
                        part = part.replace(own, other)
                    found[self.block.format(number * self.blocks + int(match[1])) + part] = tensor
            parts = layer.parts | {"post_norm": final_norm(layer.model).weight.detach()}
            found |= {
                f"{name.format(number)}.weight": parts[each] for each, name in zip(PARTS, self.parts, strict=False)
            }
        return found

    def write(
        self,
        folder: Path,
        tensors: Tensors | None = None,
        *,
        seed: int = 0,
        dtype: Any = None,
        **changes: Any,
    ) -> Path:
        """Write the layers alone, beside the target's config.json."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = self.tensors(seed) if tensors is None else tensors
        if dtype:
            tensors = {name: each.to(dtype) for name, each in tensors.items()}
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        self.target().config.save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))
        return folder

    def write_with_target(self, folder: Path) -> PreTrainedModel:
        """Write the target's checkpoint with the layers in it; the target."""
        target = self.target()
        target.save_pretrained(folder)
        tensors = load_file(folder / "model.safetensors") | self.tensors()
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return target

    @torch.no_grad()
    def logits(
        self,
        tensors: Mapping[str, Tensor],
        target: Any,
        states: Sequence[Tensor],
        tokens: Sequence[int],
        path: Sequence[int],
    ) -> Tensor:
        """As in `Format`, for the tensors that a seed of 0 gives, as exact as these are."""
        (dtype,) = {each.dtype for each in tensors.values()}
        layers = self._rounded.setdefault(dtype, [])
        if not layers:
            layers += self.made()
            for each in (part for layer in layers for part in (*layer.model.parameters(), *layer.parts.values())):
                each.copy_(each.to(dtype))
        given, last = [*tokens, *path], len(tokens) - 1
        above, known = {}, dict(enumerate(states[0].float()))
        for index, layer in enumerate(
            layers[: len(path) + 1]
        ):  # layer k reads what layer k - 1 made of the token before
            above, known = known, _run(target, layer, given, range(index + 1, last + index + 1), known)
        for at in range(last + len(layers), len(given)):  # the last layer goes on with its own outputs
            above[at - 1] = known[at - 1]
            known = _run(target, layers[-1], given, range(len(layers), at + 1), above)
        return target.get_output_embeddings()(known[len(given) - 1])


def final_norm(model: PreTrainedModel) -> Any:
    return next(part for name, part in model.get_decoder().named_children() if name in ("norm", "norm_f"))


def _run(
    target: PreTrainedModel, layer: Layer, tokens: Sequence[int], places: Sequence[int], states: Mapping[int, Tensor]
) -> dict[int, Tensor]:
    """The outputs of a layer at some places of a text, each of which reads the state at the place before."""
    embedded = target.get_input_embeddings()(torch.tensor([[tokens[at] for at in places]]))
    pair = (("enorm", embedded), ("hnorm", torch.stack([states[at - 1] for at in places])[None]))
    read = [_normed(layer, layer.parts[name], each) for name, each in (pair[::-1] if layer.states_first else pair)]
    inputs = torch.cat(read, -1) @ layer.parts["eh_proj"].T
    positions = torch.arange(len(places))[None]
    out = layer.model.get_decoder()(inputs_embeds=inputs, position_ids=positions, use_cache=False)
    return dict(zip(places, out.last_hidden_state[0], strict=True))


def _normed(layer: Layer, weight: Tensor, states: Tensor) -> Tensor:
    norm = deepcopy(final_norm(layer.model))
    norm.weight.data = weight
    return norm(states)


QWEN = ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm")
FULL = {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
DENSE, SPARSE = {"mlp_layer_types": ["dense"]}, {"mlp_layer_types": ["dense", "sparse", "sparse"]}
SIZES = {**tiny.GROUPED, "head_dim": 8, "moe_intermediate_size": 16, "num_experts_per_tok": 2}
WINDOWS = {"layer_types": families.MIXED, "sliding_window": tiny.WINDOW}
ONE_GROUP = {"n_group": 1, "topk_group": 1}


def _parts(prefix: str, last: str) -> tuple[str, ...]:
    return tuple(f"{prefix}{{}}.{part}" for part in ("enorm", "hnorm", "eh_proj", last))


def _format(config: str | Mapping[str, Any], layer: Mapping[str, Any], *names: Any, **more: Any) -> MtpFormat:
    """A family of `testing.families`, or one made from fields, whose class is `config`'s first."""
    if isinstance(config, str):
        return MtpFormat(lambda: families.config(config), layer, *names, **more)
    fields = {name: value for name, value in config.items() if name != "class"}
    return MtpFormat(lambda: getattr(transformers, config["class"])(**fields), layer, *names, **more)


def _qwen(config: str | Mapping[str, Any], layer: Mapping[str, Any]) -> MtpFormat:
    return _format(config, layer, QWEN, "mtp.layers.{}.")


def _deepseek(config: str | Mapping[str, Any], layer: Mapping[str, Any], last: str = "shared_head.norm") -> MtpFormat:
    return _format(config, layer, _parts("model.layers.", last), "model.layers.{}.", behind=True)


BAILING = {
    **{key: value for key, value in SIZES.items() if key not in ("max_position_embeddings", "num_experts_per_tok")},
    **{"class": "BailingHybridConfig", "num_key_value_heads": 4, "q_lora_rank": None, "kv_lora_rank": 16},
    **{"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "num_experts": 4, "num_experts_per_token": 2},
    **{"num_expert_group": 1, "topk_group": 1, "num_nextn_predict_layers": 1, **SPARSE},
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
}
ERNIE = {
    **{**tiny.GROUPED, "class": "Ernie4_5_MoeConfig", "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16},
    "num_nextn_predict_layers": 1,
}
NEMOTRON = {
    **{**SIZES, "class": "NemotronHConfig", "num_hidden_layers": 4, "n_routed_experts": 4},
    **{"layers_block_type": ["mamba", "attention", "mlp", "mamba"], "mtp_layers_block_type": ["attention", "moe"]},
    **{"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 8, "chunk_size": 8, "n_groups": 2},
    **{"moe_shared_expert_intermediate_size": 16, "num_nextn_predict_layers": 1},
}
MTP = {
    "llama": _qwen({"class": "LlamaConfig", **tiny.GROUPED}, {"num_hidden_layers": 1}),
    "qwen3_5": _qwen("qwen3_5", FULL),
    "qwen3_next": _qwen("qwen3_next", FULL),
    "exaone_moe": _qwen(
        {"class": "ExaoneMoeConfig", **SIZES, **WINDOWS, **SPARSE, **ONE_GROUP, "num_experts": 4}, FULL | DENSE
    ),
    "mellum": _qwen(
        {"class": "MellumConfig", **SIZES, **WINDOWS, "num_experts": 4, "num_nextn_predict_layers": 1},
        {"num_hidden_layers": 1, "layer_types": ["sliding_attention"], "mlp_layer_types": ["sparse"]},
    ),
    "mimo_v2_flash": _format(
        "mimo_v2_flash",
        {"num_hidden_layers": 1, "layer_types": ["sliding_attention"], **DENSE},
        _parts("model.mtp.layers.", "final_layernorm"),
        "model.mtp.layers.{}.",
        renamed={"pre_mlp_layernorm": "post_attention_layernorm"},
    ),
    "deepseek_v3": _deepseek("deepseek_v3", {"num_hidden_layers": 1, "first_k_dense_replace": 0}),
    "glm4_moe": _deepseek(
        {"class": "Glm4MoeConfig", **SIZES, **ONE_GROUP, "n_routed_experts": 4, "first_k_dense_replace": 1},
        {"num_hidden_layers": 1, "first_k_dense_replace": 0},
    ),
    "mimo": _format(
        {"class": "Qwen2Config", **tiny.GROUPED, "num_nextn_predict_layers": 1},
        FULL,
        tuple(
            f"model.mtp_layers.{{}}.{part}"
            for part in ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")
        ),
        "model.mtp_layers.{}.",
        states_first=True,
    ),
    "ernie4_5_moe": _format(
        ERNIE,
        {"num_hidden_layers": 1},
        tuple(f"model.mtp_{part}.{{}}" for part in ("emb_norm", "hidden_norm", "linear_proj")),
        "model.mtp_block.{}.",
    ),
    "bailing_hybrid": _deepseek(BAILING, {**FULL, "mlp_layer_types": ["sparse"]}, "final_layernorm"),
    "nemotron_h": _format(
        NEMOTRON,
        {"num_hidden_layers": 2, "layer_types": ["full_attention", "moe"]},
        ("mtp.layers.0.enorm", "mtp.layers.0.hnorm", "mtp.layers.0.eh_proj", "mtp.layers.1.final_layernorm"),
        "mtp.layers.{}.",
        blocks=2,
    ),
}
"""By model type."""
if not hasattr(Cache, "get_conv_state"):  # an older transformers
    MTP = {name: MTP[name] for name in ("llama", "deepseek_v3", "glm4_moe", "mimo", "ernie4_5_moe")}
