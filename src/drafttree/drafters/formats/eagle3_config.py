"""The configuration of an EAGLE-3 head, read from the config.json of every format.

They differ in where the fields are, in their names, and in how the target's hidden states are counted. What a file does
not say is taken from the tensors.
"""

import logging
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers import LlamaConfig, Qwen3Config
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from drafttree.core.errors import ModelError
from drafttree.drafters.eagle3 import Eagle3Config
from drafttree.drafters.formats.checkpoints import COUNT, FLAG, NUMBER, OBJECT, SIZE, TEXT, TEXTS, Wanted, entry
from drafttree.drafters.formats.head_checkpoint import usual_rows

ATTENTION, OUTPUT = "layers.0.self_attn.", r"lm_head\.weight"
DEFAULT_THETA = 10000.0
ROPES = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings of one table: those that change with the length would turn a tree's rows differently."""
ROPE_NUMBERS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
LAYERS = Wanted(
    "a list of layers", lambda value: isinstance(value, list) and all(type(layer) is int for layer in value)
)
SPECFORGE = "LlamaForCausalLMEagle3"
DEPTH, STATES = "target_num_hidden_layers", "eagle_aux_hidden_state_layer_ids"
OUTPUTS_READ = ("target_layer_ids", "aux_hidden_states_layer_ids")
FULL, SLIDING = "full_attention", "sliding_attention"
logger = logging.getLogger("drafttree")


def format_of(raw: Mapping[str, Any], first: bool) -> str:
    """Whose format a checkpoint is in.

    Args:
        raw: its `config.json`.
        first: whether its first layer is called `layers.0.`.
    """
    architectures = entry(raw, "architectures", TEXTS) or [""]
    if raw.get("target_layer_ids"):
        return "DeepSpec"
    if "transformer_layer_config" in raw or first:
        return "vLLM speculators"
    if architectures[0] == "Eagle3LlamaForCausalLM":
        return "AngelSlim"
    return "SpecForge" if architectures[0] == SPECFORGE or "eagle_config" in raw else "SafeAILab"


def hidden_states_read(raw: Mapping[str, Any]) -> tuple[tuple[int, ...] | None, int | None]:
    """The target's hidden states to read and the depth of the target, where the configuration tells.

    States are counted as transformers counts `hidden_states`: number i is the input of layer i. At the top of the
    configuration `eagle_aux_hidden_state_layer_ids` are such numbers: vLLM (`LlamaModel.forward`) keeps the residual
    stream before the layers they name, and vLLM speculators trains with them. Within `eagle_config`, as SpecForge and
    SGLang (`set_eagle3_layers_to_capture`) read it, they are layers whose output is read, one less; so are DeepSpec's
    `target_layer_ids` (`extract_eagle3_context_feature`) and AngelSlim's `aux_hidden_states_layer_ids`. An empty list
    stands for the default.

    Raises:
        ModelError: the fields name different states.
    """
    given = {STATES: (raw, STATES, 0), f"eagle_config.{STATES}": (_nested(raw), STATES, 1)}
    given |= {name: (raw, name, 1) for name in OUTPUTS_READ}
    read = {
        place: tuple(layer + shift for layer in layers)
        for place, (config, name, shift) in given.items()
        if (layers := entry(config, name, LAYERS))
    }
    if len(set(read.values())) > 1:
        said = " and ".join(f"{place} means {list(states)}" for place, states in read.items())
        raise ModelError(f"config.json names different hidden states of the target: {said}; leave one of them")
    states = next(iter(read.values()), None)
    depth = entry(raw, DEPTH, SIZE) or entry(raw, "num_target_layers", SIZE)
    if states and depth is None and states[:2] == (2, (states[-1] + 3) // 2):
        depth = states[-1] + 3
    return states, depth


def _nested(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """SpecForge's fields of its own."""
    return entry(raw, "eagle_config", OBJECT) or {}


def read_config(raw: Mapping[str, Any], tensors: dict[str, Tensor], states: int, layers: int) -> Eagle3Config:
    """The configuration of a head.

    Args:
        raw: its `config.json`.
        tensors: tensors of the checkpoint, those of its first layer under `layers.0.`.
        states: number of the target's hidden states it reads.
        layers: number of its decoder layers.

    Raises:
        ModelError: it lacks a size, gives a field as what it cannot be, or asks for what a tree pass does not
            reproduce.
    """
    layer = entry(raw, "transformer_layer_config", OBJECT) or raw
    options = {**_nested(raw), **raw}
    hidden, vocab = (_size(layer, name) for name in ("hidden_size", "vocab_size"))
    return Eagle3Config(
        layer=layer_config(layer, tensors, layers),
        vocab=vocab,
        draft_vocab=entry(raw, "draft_vocab_size", SIZE) or usual_rows(OUTPUT, tensors) or vocab,
        target_hidden=entry(raw, "target_hidden_size", SIZE) or hidden,
        states=states,
        normed_residual=bool(entry(options, "norm_before_residual", FLAG)),
        normed_input=bool(entry(options, "norm_before_fc", FLAG)) or "input_norm.weight" in tensors,
        normed_states=bool(entry(options, "fc_norm", FLAG)) or any(name.startswith("fc_norm.") for name in tensors),
        normed_output=_normed_output(options),
    )


def _normed_output(options: Mapping[str, Any]) -> bool:
    """Whether the state after the final norm is what the next level reads ("norm_output", EAGLE-3.1).

    TensorRT-LLM calls it `return_hidden_post_norm`. SpecForge before its pull request 879 (September 2026) trained
    heads with "norm_output" to read the state before the norm; its files do not say which version wrote them.
    """
    if entry(options, "return_hidden_post_norm", FLAG):
        return True
    normed = bool(entry(options, "norm_output", FLAG))
    if normed and SPECFORGE in (options.get("architectures") or ()):
        logger.warning(
            "norm_output: drafted tokens read states after the final norm, as vLLM and SGLang serve this head; if few "
            "drafts are accepted and SpecForge before its pull request 879 trained it, set norm_output to false"
        )
    return normed


def layer_config(raw: Mapping[str, Any], tensors: dict[str, Tensor], layers: int) -> LlamaConfig | Qwen3Config:
    """The configuration of so many decoder layers; Qwen3's are recognised by their q and k norms.

    Args:
        raw: the part of `config.json` that describes them.
        tensors: tensors of the checkpoint, those of its first layer under `layers.0.`.
        layers: how many there are.

    Raises:
        ModelError: as `read_config`.
    """
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
        "attention_bias": bool(entry(raw, "attention_bias", FLAG)) or f"{ATTENTION}q_proj.bias" in tensors,
    }
    fields |= _windows(raw, layers)
    return _rotated(Qwen3Config if normed else LlamaConfig, fields, _rope(raw))


def _windows(raw: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """The sliding window of the decoder layers, as fields of a transformers configuration.

    Without `layer_types` all layers from `max_window_layers` on have it, as in Qwen's configurations.
    """
    window, used = entry(raw, "sliding_window", SIZE), entry(raw, "use_sliding_window", FLAG)
    first = entry(raw, "max_window_layers", COUNT) or 0
    types = entry(raw, "layer_types", TEXTS) or [SLIDING if window and i >= first else FULL for i in range(layers)]
    if len(types) < layers or not {*types[:layers]} <= {FULL, SLIDING}:
        raise ModelError(
            f"config.json gives layer_types as {types}; the tensors make {layers} layers, each of which must be "
            f"{FULL} or {SLIDING}"
        )
    if used is False or SLIDING not in types[:layers]:
        return {"layer_types": [FULL] * layers, "sliding_window": None}
    if window is None:
        raise ModelError(f"config.json gives {SLIDING} in layer_types and no sliding_window; add its length in tokens")
    return {"layer_types": types[:layers], "sliding_window": window, "use_sliding_window": True}


def _rope(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of the head's own rotary embedding, never the target's; without a base it is 10000."""
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
    """The configuration with its rotary embedding, if transformers can make one of these parameters."""
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
