"""EAGLE-3 heads on disk: the formats of SafeAILab, SpecForge and AngelSlim, and vLLM speculators.

They differ in the names of the first layer, in where the configuration keeps its fields, and in how the target's
hidden states are counted. Here they become one configuration and one set of names; sizes that configurations get
wrong are taken from the tensors, and every tensor that is missing, unexpected or of another shape is told at once.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel, Qwen3Config
from transformers.activations import ACT2FN

from drafttree.drafters.eagle3 import Eagle3Config, Eagle3Drafter, Eagle3Head
from drafttree.drafters.heads import SHARED_LM_HEAD, embedding, fill, own_bytes, projection
from drafttree.drafters.lean_eagle3 import lean
from drafttree.errors import ModelError

FIRST, FIRST_ELSEWHERE = "layers.0.", "midlayer."
ATTENTION = "layers.0.self_attn."
SPECFORGE, SPECULATORS = "LlamaForCausalLMEagle3", "vLLM speculators"
DEFAULT_THETA = 10000.0
GROWING_ROPES = {"dynamic", "longrope"}
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
DEPTH, STATES = "target_num_hidden_layers", "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class Eagle3Checkpoint:
    """A head as it was found.

    Attributes:
        format: whose format it is in.
        config: of the head.
        tensors: of the head by its module's names, `d2t` and `t2d` not among them.
        maps: `d2t` and `t2d`, where they are there.
        layers: the target's hidden states it reads, None for the default of the target's depth.
        depth: number of layers of the target it was made for, None where it does not say.
        problems: what keeps it from being loaded, one phrase each.
    """

    format: str
    config: Eagle3Config
    tensors: dict[str, Tensor]
    maps: dict[str, Tensor]
    layers: tuple[int, ...] | None
    depth: int | None
    problems: tuple[str, ...]

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

    def check(self, hidden: int, vocab: int, depth: int) -> None:
        """Compare with a target's sizes.

        Raises:
            ModelError: the head was made for another target; the message has both numbers.
        """
        config = self.config
        sizes = [("hidden size", config.target_hidden, hidden), ("vocabulary", config.vocab, vocab)]
        sizes.append(("number of layers", self.depth or depth, depth))
        for name, made_for, found in sizes:
            if made_for != found:
                raise ModelError(
                    f"this EAGLE-3 head was made for a target with a {name} of {made_for}, this target's is {found}; "
                    "use it with the model it was trained on"
                )
        borrowed = [name for name in (EMBEDDING, HEAD) if name not in self.tensors]
        if borrowed and config.hidden != hidden:
            raise ModelError(
                f"this EAGLE-3 head is {config.hidden} wide and has no {borrowed[0]} of its own; the target's is "
                f"{hidden} wide"
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
    text = target.config.get_text_config()
    checkpoint.check(text.hidden_size, len(projection(target).weight), text.num_hidden_layers)
    if checkpoint.problems:
        raise ModelError(f"the tensors do not make an EAGLE-3 head: {'; '.join(checkpoint.problems)}")
    hidden_layers = checkpoint.hidden_layers(text.num_hidden_layers)
    with torch.device("meta"):
        head = Eagle3Head(checkpoint.config)
    ids = _target_ids(checkpoint.maps)
    fill("EAGLE-3", head, _complete(checkpoint, target, ids), target)
    head.rotary = type(head.rotary)(head.rotary.config).to(target.device)
    head.target_ids = None if ids is None else ids.to(target.device)
    return Eagle3Drafter(lean(head), hidden_layers, own_bytes(head, target))


def parse(found: Mapping[str, Tensor], raw: Mapping[str, Any]) -> Eagle3Checkpoint:
    """Understand a checkpoint and list what is wrong with it, without a target.

    Args:
        found: its tensors, by name.
        raw: its `config.json`.

    Raises:
        ModelError: the configuration lacks a size, or asks for what a tree pass does not reproduce.
    """
    format_ = _format(raw, found)
    tensors = {name.replace(FIRST_ELSEWHERE, FIRST): tensor for name, tensor in found.items()}
    tensors = {name: tensor for name, tensor in tensors.items() if not name.endswith("rotary_emb.inv_freq")}
    maps = {name: tensors.pop(name) for name in ("d2t", "t2d") if name in tensors}
    if raw.get("tie_word_embeddings") and HEAD not in tensors and EMBEDDING in tensors:
        tensors[HEAD] = tensors[EMBEDDING]
    layers, depth = _states(raw, format_)
    config = _config(raw, tensors, len(layers or (0, 0, 0)))
    borrowed = {EMBEDDING} | ({HEAD} if raw.get(SHARED_LM_HEAD) else set())
    problems = _compare(config, tensors, borrowed, format_) + _check_maps(config, maps)
    return Eagle3Checkpoint(format_, config, tensors, maps, layers, depth, tuple(problems))


def save(head: Eagle3Head, folder: Path, depth: int, *, own_lm_head: bool, dtype: torch.dtype) -> None:
    """Write a head in SafeAILab's format, without the target's embedding.

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
    architectures = raw.get("architectures") or [""]
    if "transformer_layer_config" in raw or any(name.startswith(FIRST) for name in names):
        return SPECULATORS
    if architectures[0] == "Eagle3LlamaForCausalLM":
        return "AngelSlim"
    return "SpecForge" if architectures[0] == SPECFORGE or "eagle_config" in raw else "SafeAILab"


def _states(raw: Mapping[str, Any], format_: str) -> tuple[tuple[int, ...] | None, int | None]:
    """The target's hidden states to read and the depth of the target, where the configuration tells.

    SpecForge names layers whose output is read, speculators the place among transformers' hidden states.
    """
    given, depth = _nested(raw).get(STATES, raw.get(STATES)), raw.get(DEPTH)
    if given is not None and not (isinstance(given, list) and given and all(isinstance(layer, int) for layer in given)):
        raise ModelError(f"config.json gives {STATES} as {given!r}; it must be a list of layers")
    layers = tuple(layer + (format_ != SPECULATORS) for layer in given) if given else None
    if layers and depth is None and layers[:2] == (2, (layers[-1] + 3) // 2):
        depth = layers[-1] + 3
    return layers, depth


def _nested(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """SpecForge's fields of its own."""
    nested = raw.get("eagle_config") or {}
    if not isinstance(nested, dict):
        raise ModelError(f"config.json gives eagle_config as {nested!r}; it must be an object")
    return nested


def _config(raw: Mapping[str, Any], tensors: dict[str, Tensor], states: int) -> Eagle3Config:
    layer = raw.get("transformer_layer_config") or raw
    options = {**_nested(raw), **raw}
    hidden, vocab = (_size(layer, name) for name in ("hidden_size", "vocab_size"))
    return Eagle3Config(
        layer=_layer(layer, tensors),
        vocab=vocab,
        draft_vocab=raw.get("draft_vocab_size") or (len(tensors[HEAD]) if HEAD in tensors else vocab),
        target_hidden=raw.get("target_hidden_size") or hidden,
        states=states,
        normed_residual=bool(options.get("norm_before_residual")),
        normed_input=bool(options.get("norm_before_fc")) or "input_norm.weight" in tensors,
        normed_states=bool(options.get("fc_norm")) or any(name.startswith("fc_norm.") for name in tensors),
        normed_output=bool(options.get("norm_output")),
    )


def _layer(raw: Mapping[str, Any], tensors: dict[str, Tensor]) -> LlamaConfig | Qwen3Config:
    """The decoder layers' configuration; q and k norms are what tells Qwen3's layers from Llama's."""
    hidden, heads = (_size(raw, name) for name in ("hidden_size", "num_attention_heads"))
    q_proj, gate = tensors.get(f"{ATTENTION}q_proj.weight"), tensors.get("layers.0.mlp.gate_proj.weight")
    width = raw.get("head_dim") or hidden // heads
    if q_proj is not None and q_proj.ndim and len(q_proj) % (2 * heads) == 0:
        width = len(q_proj) // heads
    groups, activation = raw.get("num_key_value_heads") or heads, raw.get("hidden_act") or "silu"
    if heads % groups or activation not in ACT2FN:
        raise ModelError(f"config.json gives {groups} key heads for {heads} and the activation {activation!r}")
    make = Qwen3Config if any(f"{ATTENTION}{name}_norm.weight" in tensors for name in "qk") else LlamaConfig
    return make(
        vocab_size=_size(raw, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=raw.get("intermediate_size") or (4 * hidden if gate is None else len(gate)),
        num_hidden_layers=1 + max(int(name.split(".")[1]) for name in [*tensors, FIRST] if name.startswith("layers.")),
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=width,
        hidden_act=activation,
        max_position_embeddings=raw.get("max_position_embeddings") or 2048,
        rms_norm_eps=raw.get("rms_norm_eps") or 1e-6,
        rope_parameters=_rope(raw),
    )


def _rope(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of the head's own rotary embedding, never the target's; without a base it is 10000."""
    rope = {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind in GROWING_ROPES:
        raise ModelError(f"this EAGLE-3 head has rotary embeddings that change with the length (rope_type {kind!r})")
    return {**rope, "rope_type": kind, "rope_theta": rope.get("rope_theta") or raw.get("rope_theta") or DEFAULT_THETA}


def _size(raw: Mapping[str, Any], name: str) -> int:
    value = raw.get(name)
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"config.json gives {name} as {value!r}; it must be the size the head was trained with")
    return value


def _compare(config: Eagle3Config, tensors: dict[str, Tensor], borrowed: set[str], format_: str) -> list[str]:
    """What of the head's tensors is missing, unexpected, or of another shape."""
    with torch.device("meta"):
        expected = {name: list(tensor.shape) for name, tensor in Eagle3Head(config).state_dict().items()}
    found = {name: list(tensor.shape) for name, tensor in tensors.items()}
    missing = [name for name in expected if name not in found and name not in borrowed]
    unexpected = [name for name in found if name not in expected]
    problems = [
        f"{word} {', '.join(_public(name, format_) for name in sorted(names))}"
        for word, names in (("missing", missing), ("unexpected", unexpected))
        if names
    ]
    return problems + [
        f"{_public(name, format_)} is {found[name]} and should be {shape}"
        for name, shape in expected.items()
        if found.get(name, shape) != shape
    ]


def _check_maps(config: Eagle3Config, maps: dict[str, Tensor]) -> list[str]:
    """What is wrong with the maps between the two vocabularies."""
    if "d2t" not in maps:
        same = config.draft_vocab == config.vocab
        return [] if same else [f"missing d2t, for {config.draft_vocab} of {config.vocab} token ids"]
    d2t, t2d = maps["d2t"], maps.get("t2d")
    if d2t.shape != (config.draft_vocab,):
        return [f"d2t has length {d2t.numel()} and should have {config.draft_vocab}"]
    if t2d is not None and t2d.shape != (config.vocab,):
        return [f"t2d has length {t2d.numel()} and should have {config.vocab}"]
    if d2t.is_floating_point() or d2t.dtype is torch.bool:
        return [f"d2t is {d2t.dtype} and should be int64"]
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
