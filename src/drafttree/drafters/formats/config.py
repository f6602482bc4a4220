"""Pydantic models for fields of a config.json, and the decoder layers that the fields describe."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, LiteralString, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WrapValidator, model_validator
from pydantic_core import PydanticCustomError
from torch import Tensor
from transformers import LlamaConfig, Qwen3Config
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from drafttree.core.errors import ModelError
from drafttree.drafters.formats.format import ADVICE, SIZES, usual_rows

ATTENTION = "layers.0.self_attn."
ROPES = ("default", "linear", "llama3", "yarn")
"""Supported rotary embeddings. Those that depend on the text's length would rotate rows of one tree differently."""
FULL, SLIDING = "full_attention", "sliding_attention"


def must_be(words: LiteralString) -> WrapValidator:
    """Return a validator whose message says what a field must be."""

    def checked(value: Any, check: Any) -> Any:
        try:
            return check(value)
        except ValueError:
            raise PydanticCustomError("field", words) from None

    return WrapValidator(checked)


Size = Annotated[int, Field(gt=0, lt=10**8), must_be("a positive integer of at most 8 digits")]
Count = Annotated[int, Field(ge=0, lt=10**8), must_be("a number of layers")]
Number = Annotated[
    Annotated[int, Field(gt=0)] | Annotated[float, Field(gt=0, lt=math.inf)], must_be("a positive number")
]
Flag = Annotated[bool, must_be("true or false")]
Text = Annotated[str, must_be("a string")]
Texts = Annotated[list[str], Field(default_factory=list), must_be("a list of strings")]
Layers = Annotated[list[int], Field(default_factory=list), must_be("a list of layers")]
Object = Annotated[dict[str, Any], Field(default_factory=dict), must_be("an object")]
"""Missing lists and objects are empty."""


def absent(name: object) -> ModelError:
    """The error for a missing size."""
    return ModelError(f"config.json gives no {name}; it must be the size the head was trained with")


class Fields(BaseModel):
    """Base of models for some fields of a config.json. Null counts as missing; other fields are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _given(cls, raw: Any) -> Any:
        return {name: value for name, value in raw.items() if value is not None} if isinstance(raw, dict) else raw

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Self:
        """The fields of a config.json.

        Raises:
            ModelError: If a field is missing or invalid. The message has its name and value.
        """
        try:
            return cls.model_validate(dict(raw))
        except ValidationError as error:
            problem = error.errors()[0]
        name = problem["loc"][-1]
        words = "an object" if problem["type"] == "model_type" else problem["msg"]
        if problem["type"] == "missing":
            raise absent(name)
        raise ModelError(f"config.json gives {name} as {problem['input']!r}; it must be {words}")


class Labels(Fields):
    """Fields that name the kind of model."""

    architectures: Texts
    speculators_model_type: Text = ""
    model_type: Text = ""


class TargetSizes(Fields):
    """Sizes of the target that heads were made for."""

    hidden_size: Size | None = None
    vocab_size: Size | None = None
    base_num_hidden_layers: Size | None = None

    def made_for(self, tensor_sizes: Mapping[str, int | None]) -> dict[str, int]:
        """The known sizes by their names in messages: from the fields, else from the tensors."""
        sizes = {name: getattr(self, field) or tensor_sizes.get(name) for name, field in SIZES.items()}
        return {name: size for name, size in sizes.items() if size}


class Rope(Fields):
    """Parameters of a rotary embedding. transformers gets further ones unchanged."""

    model_config = ConfigDict(extra="allow")

    rope_type: Text | None = None
    type: Text | None = None
    rope_theta: Number | None = None
    factor: Number | None = None
    low_freq_factor: Number | None = None
    high_freq_factor: Number | None = None
    original_max_position_embeddings: Number | None = None


class DecoderLayers(Fields):
    """The fields about a head's decoder layers, the same in every format."""

    hidden_size: Size
    vocab_size: Size
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    intermediate_size: Size | None = None
    hidden_act: Text = "silu"
    max_position_embeddings: Size = 2048
    rms_norm_eps: Number = 1e-6
    attention_bias: Flag = False
    sliding_window: Size | None = None
    use_sliding_window: Flag = True
    max_window_layers: Count = 0
    layer_types: Texts
    rope_scaling: Rope = Rope()
    rope_parameters: Rope = Rope()
    rope_theta: Number = 10000.0

    def config(self, tensors: Mapping[str, Tensor], layers: int) -> LlamaConfig | Qwen3Config:
        """The configuration of `layers` decoder layers, of Qwen 3 if they have q and k norms.

        Where fields are missing, the tensors named `layers.0.` tell the sizes.
        """
        if f"{ATTENTION}kv_a_proj_with_mqa.weight" in tensors:
            raise ModelError(
                "the head's layers have multi-head latent attention (MLA: kv_a_proj_with_mqa), as heads trained with "
                f"DeepSeek's or Kimi's layers do; drafttree runs heads with Llama's and Qwen3's layers; {ADVICE}"
            )
        hidden_size = self.hidden_size
        heads = self.num_attention_heads
        groups = self.num_key_value_heads or heads
        normed = any(f"{ATTENTION}{name}_norm.weight" in tensors for name in "qk")
        if hidden_size % heads and not normed:
            raise ModelError(
                f"config.json gives num_attention_heads as {heads}, which does not divide a width of {hidden_size}"
            )
        if heads % groups:
            raise ModelError(f"config.json gives num_key_value_heads as {groups}, which does not divide {heads} heads")
        if self.hidden_act not in ACT2FN:
            raise ModelError(f"config.json gives hidden_act as {self.hidden_act!r}, which transformers does not know")
        queries = usual_rows(f"{ATTENTION}q_proj.weight", tensors)
        width = self.head_dim or hidden_size // heads
        width = queries // heads if queries and queries % (2 * heads) == 0 else width
        mlp = self.intermediate_size or usual_rows("layers.0.mlp.gate_proj.weight", tensors) or 4 * hidden_size
        make = Qwen3Config if normed else LlamaConfig
        rope = self._rope()
        try:
            config = make(
                vocab_size=self.vocab_size,
                hidden_size=hidden_size,
                intermediate_size=mlp,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                num_key_value_heads=groups,
                head_dim=width,
                hidden_act=self.hidden_act,
                max_position_embeddings=self.max_position_embeddings,
                rms_norm_eps=float(self.rms_norm_eps),
                attention_bias=self.attention_bias or f"{ATTENTION}q_proj.bias" in tensors,
                rope_parameters=dict(rope),
                **self._windows(layers),
            )
            LlamaRotaryEmbedding(config)  # pyright: ignore[reportArgumentType]
        except ModelError:
            raise
        except Exception as error:
            reason = (str(error).splitlines() or [""])[-1].strip() or type(error).__name__
            raise ModelError(
                f"config.json gives a rotary embedding that cannot be made for heads of {width}: {rope} ({reason})"
            ) from error
        return config

    def _windows(self, layers: int) -> dict[str, Any]:
        """The fields about the sliding window, for a transformers configuration.

        Without `layer_types`, all layers from `max_window_layers` on have the window, as in Qwen's configurations.
        """
        window = self.sliding_window
        first_layer = self.max_window_layers
        types = self.layer_types or [SLIDING if window and i >= first_layer else FULL for i in range(layers)]
        if len(types) < layers or not {*types[:layers]} <= {FULL, SLIDING}:
            raise ModelError(
                f"config.json gives layer_types as {types}; the tensors make {layers} layers, each of which must be "
                f"{FULL} or {SLIDING}"
            )
        if not self.use_sliding_window or SLIDING not in types[:layers]:
            return {"layer_types": [FULL] * layers, "sliding_window": None}
        if window is None:
            raise ModelError(
                f"config.json gives {SLIDING} in layer_types and no sliding_window; add its length in tokens"
            )
        return {"layer_types": types[:layers], "sliding_window": window, "use_sliding_window": True}

    def _rope(self) -> dict[str, Any]:
        """Parameters of the head's own rotary embedding, which need not be the target's."""
        rope = {
            **self.rope_scaling.model_dump(exclude_unset=True),
            **self.rope_parameters.model_dump(exclude_unset=True),
        }
        rope_type = rope.get("rope_type") or rope.get("type") or "default"
        if rope_type not in ROPES:
            raise ModelError(
                f"config.json gives rope_type as {rope_type!r}; drafttree supports only those that do not "
                f"depend on the length of the text: {', '.join(ROPES)}"
            )
        return {**rope, "rope_type": rope_type, "rope_theta": float(rope.get("rope_theta") or self.rope_theta)}


def written_layers(layer: Any) -> dict[str, Any]:
    """The fields of a config.json that describe decoder layers."""
    fields = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    fields += ("head_dim", "rms_norm_eps", "hidden_act", "max_position_embeddings")
    return {field: getattr(layer, field) for field in fields} | {"rope_theta": layer.rope_parameters["rope_theta"]}


class Parts(Fields):
    """The field with the language part of a multimodal model."""

    text_config: Object


def text_fields(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a multimodal model's language part; all fields of other models."""
    return Parts.read(config).text_config or config
