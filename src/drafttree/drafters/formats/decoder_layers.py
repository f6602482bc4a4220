"""The configuration of a head's decoder layers, read from the config.json of every format.

What a file does not say is taken from the tensors.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers import LlamaConfig, Qwen3Config
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from drafttree.core.errors import ModelError
from drafttree.drafters.formats.checkpoints import COUNT, FLAG, NUMBER, OBJECT, SIZE, TEXT, TEXTS, Wanted, entry
from drafttree.drafters.formats.head_checkpoint import usual_rows

ATTENTION = "layers.0.self_attn."
DEFAULT_THETA = 10000.0
ROPES = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings of one table: those that change with the length would turn a tree's rows differently."""
ROPE_NUMBERS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
LAYERS = Wanted(
    "a list of layers", lambda value: isinstance(value, list) and all(type(layer) is int for layer in value)
)
FULL, SLIDING = "full_attention", "sliding_attention"


def layer_config(raw: Mapping[str, Any], tensors: dict[str, Tensor], layers: int) -> LlamaConfig | Qwen3Config:
    """The configuration of decoder layers; Qwen3's are recognised by their q and k norms.

    Args:
        raw: the fields of `config.json` that are about them.
        tensors: tensors of the checkpoint, those of the first layer under `layers.0.`.
        layers: how many there are.

    Raises:
        ModelError: a size is missing, a field is what it cannot be, or a tree pass does not reproduce what it asks for.
    """
    hidden, heads = (size_of(raw, name) for name in ("hidden_size", "num_attention_heads"))
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
        "vocab_size": size_of(raw, "vocab_size"),
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


def size_of(raw: Mapping[str, Any], name: str) -> int:
    """A size that no head can do without.

    Raises:
        ModelError: there is none.
    """
    if size := entry(raw, name, SIZE):
        return size
    raise ModelError(f"config.json gives no {name}; it must be the size the head was trained with")
