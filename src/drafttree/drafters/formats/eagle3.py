"""EAGLE-3 heads on disk: the formats of SafeAILab, SpecForge and AngelSlim, and vLLM speculators.

They differ in the names of the first layer, in where the configuration keeps its fields, and in how the target's
hidden states are counted. Here they become one configuration and one set of names; sizes that configurations get
wrong are taken from the tensors, and every tensor that is missing, unexpected or of another shape is told at once.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel, Qwen3Config
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from drafttree.core.errors import ModelError
from drafttree.drafters.eagle3 import Eagle3Config, Eagle3Drafter, Eagle3Head
from drafttree.drafters.formats.checkpoints import FLAG, NUMBER, OBJECT, SIZE, TEXT, TEXTS, Wanted, entry
from drafttree.drafters.formats.head_checkpoint import (
    SHARED_LM_HEAD,
    Checkpoint,
    counts,
    fill,
    flaws,
    misshapen,
    nearest,
    usual_rows,
)
from drafttree.drafters.formats.head_format import HeadFormat
from drafttree.drafters.fused_eagle3 import select_backend
from drafttree.drafters.heads import embedding, own_bytes, projection

KIND = "EAGLE-3"
FIRST, FIRST_ELSEWHERE = "layers.0.", "midlayer."
ATTENTION = "layers.0.self_attn."
SPECFORGE, SPECULATORS = "LlamaForCausalLMEagle3", "vLLM speculators"
DEFAULT_THETA = 10000.0
ROPES = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings of one table: those that change with the length would turn a tree's rows differently."""
ROPE_NUMBERS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
IDS = (torch.int64, torch.int32, torch.int16)
LAYERS = Wanted(
    "a list of layers",
    lambda value: isinstance(value, list) and len(value) > 0 and all(type(layer) is int for layer in value),
)
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
DEPTH, STATES = "target_num_hidden_layers", "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class Eagle3Checkpoint(Checkpoint[Eagle3Head]):
    """A head as it was found.

    Attributes:
        format: whose format it is in.
        maps: `d2t` and `t2d`, where they are there.
        layers: the target's hidden states it reads, None for the default of the target's depth.
    """

    format: str
    maps: dict[str, Tensor]
    layers: tuple[int, ...] | None

    @property
    def config(self) -> Eagle3Config:
        """The configuration of the head."""
        return self.heads.config

    @property
    def tied(self) -> bool:
        """True if embedding and output layer are one tensor."""
        pair = [self.tensors[name].data_ptr() for name in (EMBEDDING, HEAD) if name in self.tensors]
        return len(pair) == 2 and pair[0] == pair[1]

    def hidden_layers(self, depth: int) -> tuple[int, ...]:
        """The hidden states read from a target of so many layers, counted as `Model.forward` does.

        Raises:
            ModelError: the target is shallower than the head needs.
        """
        layers = self.layers or (2, depth // 2, depth - 3)
        if min(layers) < 0 or max(layers) > depth:
            read = ", ".join(map(str, layers))
            raise ModelError(f"this EAGLE-3 head reads the hidden states {read} of a target, which has {depth} layers")
        return layers

    def check(self, target: PreTrainedModel) -> None:
        """Compare with the target the head is to draft for.

        Raises:
            ModelError: as for any heads; or it has not the width of the parts of the target it uses.
        """
        super().check(target)
        width = target.config.get_text_config().hidden_size
        borrowed = [name for name in (EMBEDDING, HEAD) if name not in self.tensors]
        if borrowed and self.config.hidden != width:
            raise ModelError(
                f"this EAGLE-3 head is {self.config.hidden} wide and has no {borrowed[0]} of its own; the target's is "
                f"{width} wide"
            )


def load(tensors: Mapping[str, Tensor], config: Mapping[str, Any], target: PreTrainedModel) -> Eagle3Drafter:
    """A drafter from an EAGLE-3 checkpoint of any format, in the target's dtype and on its device.

    The target's embedding, and its output layer where the checkpoint refers to it, are shared, not copied, if the
    target's weights are laid out as `load_model` does.

    Args:
        tensors: of the checkpoint, by name.
        config: its `config.json`.
        target: the model it drafts for.

    Raises:
        ModelError: the checkpoint is incomplete, or the head was made for another target.
    """
    checkpoint = parse(tensors, config)
    checkpoint.check(target)
    hidden_layers = checkpoint.hidden_layers(target.config.get_text_config().num_hidden_layers)
    head, ids = checkpoint.heads, _target_ids(checkpoint.maps)
    fill(head, _complete(checkpoint, target, ids), target)
    head.rotary = type(head.rotary)(head.rotary.config).to(target.device).eval()
    head.target_ids = None if ids is None else ids.to(target.device)
    return Eagle3Drafter(head, hidden_layers, own_bytes(head, target), select_backend)


def parse(found: Mapping[str, Tensor], raw: Mapping[str, Any]) -> Eagle3Checkpoint:
    """Understand a checkpoint and list what is wrong with it, without a target.

    Args:
        found: its tensors, by name.
        raw: its `config.json`.

    Raises:
        ModelError: the configuration is missing, lacks a size, gives a field as what it cannot be, or asks for what a
            tree pass does not reproduce.
    """
    if not raw:
        raise ModelError("config.json is missing or empty; an EAGLE-3 head needs the one it was published with")
    format_ = _format(raw, found)
    tensors = {name.replace(FIRST_ELSEWHERE, FIRST): tensor for name, tensor in found.items()}
    tensors = {name: tensor for name, tensor in tensors.items() if not name.endswith("rotary_emb.inv_freq")}
    maps = {name: tensors.pop(name) for name in ("d2t", "t2d") if name in tensors}
    if entry(raw, "tie_word_embeddings", FLAG) and HEAD not in tensors and EMBEDDING in tensors:
        tensors[HEAD] = tensors[EMBEDDING]
    layers, depth = _states(raw, format_)
    head = _empty(raw, tensors, len(layers or (0, 0, 0)))
    borrowed = {EMBEDDING} | ({HEAD} if entry(raw, SHARED_LM_HEAD, FLAG) else set())
    problems = flaws(head, tensors, borrowed, lambda name: _public(name, format_)) + _check_maps(head.config, maps)
    made_for = {"hidden size": head.config.target_hidden, "vocabulary": head.config.vocab}
    made_for |= {"number of layers": depth} if depth else {}
    return Eagle3Checkpoint(KIND, head, tensors, made_for, tuple(problems), format_, maps, layers)


def save(head: Eagle3Head, folder: Path, depth: int, *, own_lm_head: bool, dtype: torch.dtype) -> None:
    """Write a head in SpecForge's format, whose tensors SafeAILab's shares, without the target's embedding.

    Args:
        head: with none of the variants that format does not know.
        folder: made if it does not exist.
        depth: the target's number of layers.
        own_lm_head: False where the output layer's rows are the target's own: they are then referred to, not stored.
        dtype: of the stored weights.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config, layer = head.config, head.config.layer
    rope: Any = layer.rope_parameters
    weights = {_public(name, ""): tensor.to(dtype).contiguous() for name, tensor in head.state_dict().items()}
    weights = {name: tensor for name, tensor in weights.items() if name != EMBEDDING and (own_lm_head or name != HEAD)}
    if head.target_ids is not None:
        ids = head.target_ids.cpu()
        weights["d2t"] = ids - torch.arange(len(ids))
        weights["t2d"] = torch.zeros(config.vocab, dtype=torch.bool).index_fill_(0, ids, True)
    fields = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    fields += ("num_hidden_layers", "rms_norm_eps", "hidden_act", "max_position_embeddings")
    written = {
        "architectures": [SPECFORGE],
        "model_type": "llama",
        **{field: getattr(layer, field) for field in fields},
        "rope_theta": rope["rope_theta"],
        "vocab_size": config.vocab,
        "draft_vocab_size": config.draft_vocab,
        "target_hidden_size": config.target_hidden,
        DEPTH: depth,
        SHARED_LM_HEAD: not own_lm_head,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    (folder / "config.json").write_text(json.dumps(written, indent=2) + "\n")
    partial = folder / "model.safetensors.partial"
    save_file(weights, partial, {"format": "pt"})
    partial.chmod(0o644)
    partial.replace(folder / "model.safetensors")


def _format(raw: Mapping[str, Any], names: Mapping[str, Tensor]) -> str:
    architectures = entry(raw, "architectures", TEXTS) or [""]
    if "transformer_layer_config" in raw or any(name.startswith(FIRST) for name in names):
        return SPECULATORS
    if architectures[0] == "Eagle3LlamaForCausalLM":
        return "AngelSlim"
    return "SpecForge" if architectures[0] == SPECFORGE or "eagle_config" in raw else "SafeAILab"


def _states(raw: Mapping[str, Any], format_: str) -> tuple[tuple[int, ...] | None, int | None]:
    """The target's hidden states to read and the depth of the target, where the configuration tells.

    SpecForge names layers whose output is read, speculators the place among transformers' hidden states.
    """
    given, depth = entry({**raw, **_nested(raw)}, STATES, LAYERS), entry(raw, DEPTH, SIZE)
    layers = tuple(layer + (format_ != SPECULATORS) for layer in given) if given else None
    if layers and depth is None and layers[:2] == (2, (layers[-1] + 3) // 2):
        depth = layers[-1] + 3
    return layers, depth


def _nested(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """SpecForge's fields of its own."""
    return entry(raw, "eagle_config", OBJECT) or {}


def _empty(raw: Mapping[str, Any], tensors: dict[str, Tensor], states: int) -> Eagle3Head:
    """The head without values, with as many decoder layers as the names tell."""
    with torch.device("meta"):
        return nearest(
            tensors,
            (
                Eagle3Head(_config(raw, tensors, states, layers))
                for layers in counts(r"layers\.(\d+)\.(?:self_attn|mlp)\.", tensors)
            ),
        )


def _config(raw: Mapping[str, Any], tensors: dict[str, Tensor], states: int, layers: int) -> Eagle3Config:
    layer = entry(raw, "transformer_layer_config", OBJECT) or raw
    options = {**_nested(raw), **raw}
    hidden, vocab = (_size(layer, name) for name in ("hidden_size", "vocab_size"))
    return Eagle3Config(
        layer=_layer(layer, tensors, layers),
        vocab=vocab,
        draft_vocab=entry(raw, "draft_vocab_size", SIZE) or usual_rows(HEAD, tensors) or vocab,
        target_hidden=entry(raw, "target_hidden_size", SIZE) or hidden,
        states=states,
        normed_residual=bool(entry(options, "norm_before_residual", FLAG)),
        normed_input=bool(entry(options, "norm_before_fc", FLAG)) or "input_norm.weight" in tensors,
        normed_states=bool(entry(options, "fc_norm", FLAG)) or any(name.startswith("fc_norm.") for name in tensors),
        normed_output=bool(entry(options, "norm_output", FLAG)),
    )


def _layer(raw: Mapping[str, Any], tensors: dict[str, Tensor], layers: int) -> LlamaConfig | Qwen3Config:
    """The configuration of the decoder layers; Qwen3's are recognised by their q and k norms."""
    hidden, heads = (_size(raw, name) for name in ("hidden_size", "num_attention_heads"))
    groups, activation = entry(raw, "num_key_value_heads", SIZE) or heads, entry(raw, "hidden_act", TEXT) or "silu"
    normed = any(f"{ATTENTION}{name}_norm.weight" in tensors for name in "qk")
    if hidden % heads and not normed:
        raise ModelError(f"config.json gives num_attention_heads as {heads}, which does not divide a width of {hidden}")
    if heads % groups:
        raise ModelError(f"config.json gives num_key_value_heads as {groups}, which does not divide {heads} heads")
    if activation not in ACT2FN:
        raise ModelError(f"config.json gives hidden_act as {activation!r}, which transformers does not know")
    queries, width = usual_rows(f"{ATTENTION}q_proj.weight", tensors), entry(raw, "head_dim", SIZE) or hidden // heads
    width = queries // heads if queries and queries % (2 * heads) == 0 else width
    mlp = entry(raw, "intermediate_size", SIZE) or usual_rows("layers.0.mlp.gate_proj.weight", tensors)
    fields = {
        "vocab_size": _size(raw, "vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": mlp or 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": width,
        "hidden_act": activation,
        "max_position_embeddings": entry(raw, "max_position_embeddings", SIZE) or 2048,
        "rms_norm_eps": float(entry(raw, "rms_norm_eps", NUMBER) or 1e-6),
    }
    return _rotated(Qwen3Config if normed else LlamaConfig, fields, _rope(raw))


def _rope(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of the head's own rotary embedding, never the target's; without a base it is 10000.

    Raises:
        ModelError: it changes with the length, or a parameter is what it cannot be.
    """
    rope = {**(entry(raw, "rope_scaling", OBJECT) or {}), **(entry(raw, "rope_parameters", OBJECT) or {})}
    kind = entry(rope, "rope_type", TEXT) or entry(rope, "type", TEXT) or "default"
    theta = entry(rope, "rope_theta", NUMBER) or entry(raw, "rope_theta", NUMBER) or DEFAULT_THETA
    if kind not in ROPES:
        raise ModelError(
            f"config.json gives rope_type as {kind!r}; drafttree knows those that do not change with the length: "
            f"{', '.join(ROPES)}"
        )
    for name in ROPE_NUMBERS:
        entry(rope, name, NUMBER)
    return {**rope, "rope_type": kind, "rope_theta": float(theta)}


def _rotated(
    make: type[LlamaConfig | Qwen3Config], fields: dict[str, Any], rope: dict[str, Any]
) -> LlamaConfig | Qwen3Config:
    """The configuration with its rotary embedding.

    Raises:
        ModelError: transformers cannot make one of these parameters.
    """
    try:
        config = make(**fields, rope_parameters=dict(rope))
        LlamaRotaryEmbedding(config)  # pyright: ignore[reportArgumentType]
    except Exception as error:
        reason = (str(error).splitlines() or [""])[-1].strip() or type(error).__name__
        raise ModelError(
            f"config.json gives a rotary embedding that cannot be made for heads of {fields['head_dim']}: {rope} "
            f"({reason})"
        ) from error
    return config


def _size(raw: Mapping[str, Any], name: str) -> int:
    """A size that no head can do without."""
    if size := entry(raw, name, SIZE):
        return size
    raise ModelError(f"config.json gives no {name}; it must be the size the head was trained with")


def _check_maps(config: Eagle3Config, maps: dict[str, Tensor]) -> list[str]:
    """The problems of the maps between the two vocabularies, one phrase each."""
    if "d2t" not in maps:
        same = config.draft_vocab == config.vocab
        return [] if same else [f"missing d2t, for {config.draft_vocab} of {config.vocab} token ids"]
    d2t, t2d = maps["d2t"], maps.get("t2d")
    sizes = {"d2t": config.draft_vocab, "t2d": config.vocab}
    if wrong := [flaw for name, ids in maps.items() for flaw in misshapen(name, ids.shape, [sizes[name]])]:
        return wrong
    if d2t.dtype not in IDS:
        return [f"d2t is {str(d2t.dtype).removeprefix('torch.')} and should be int64"]
    ids = d2t.long() + torch.arange(len(d2t))
    if not (ids.diff() > 0).all() or int(ids[0]) < 0 or int(ids[-1]) >= config.vocab:
        return [f"d2t does not lead to rising token ids below {config.vocab}"]
    if t2d is not None and t2d.nonzero().flatten().tolist() != ids.tolist():
        return ["t2d and d2t name different token ids"]
    return []


def _target_ids(maps: dict[str, Tensor]) -> Tensor | None:
    """The target's id of every id of the draft vocabulary, None where there is no map."""
    return maps["d2t"].long() + torch.arange(len(maps["d2t"])) if "d2t" in maps else None


def _complete(checkpoint: Eagle3Checkpoint, target: PreTrainedModel, ids: Tensor | None) -> dict[str, Tensor]:
    """The head's tensors with those it borrows from the target."""
    tensors = dict(checkpoint.tensors)
    tensors.setdefault(EMBEDDING, embedding(target).weight.detach()[: checkpoint.config.vocab])
    if HEAD not in tensors:
        weight = projection(target).weight.detach()
        tensors[HEAD] = weight if ids is None else weight[ids.to(weight.device)]
    return tensors


def _public(name: str, format_: str) -> str:
    """A tensor's name as a format has it."""
    return name if format_ == SPECULATORS else name.replace(FIRST, FIRST_ELSEWHERE)


def _described(found: Eagle3Checkpoint) -> dict[str, object]:
    """The facts of a head that `drafttree inspect` prints."""
    head, own = found.config, found.tensors
    parts = ["own" if name in own else "the target's" for name in (EMBEDDING, HEAD)]
    return {
        "format": found.format,
        "hidden states read": ", ".join(map(str, found.layers)) if found.layers else "2, L/2 and L - 3 of L layers",
        "draft vocabulary": head.draft_vocab if "d2t" in found.maps else f"{head.draft_vocab} (all)",
        "width": head.hidden,
        "decoder layers": head.layer.num_hidden_layers,
        "attention": f"{head.layer.num_attention_heads} heads of {head.layer.head_dim}",
        "embedding": parts[0],
        "output layer": "the embedding" if found.tied else parts[1],
    }


NAMES = re.compile(r"midlayer\.|(layers\.0\.)?hidden_norm\.|[dt]2[td]$")
FORMAT = HeadFormat("eagle3", KIND, NAMES, parse, load, _described)
