"""Describes what the decoders of the known families compute.

`describe` reads a module of transformers; draft heads, which begin in another way (`Entry`), describe themselves.
Torch's fused layers (`drafttree.models.fused`) and drafttree-native (`drafttree.models.native`) run the description.
To add a family: name it in `LLAMAS` if its layers have the parts of Llama's, or write a function for `BLOCKS`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from drafttree.models.cache.kv_cache import CacheLayout, LayerShape
from drafttree.models.module.long_rope import long_frequencies_of, ropes, short_frequencies_of
from drafttree.models.module.module_checks import decoder_of
from drafttree.models.module.mtp_embedding import MtpEmbedding
from drafttree.models.norms import Norm
from drafttree.models.quantization.linear_experts import LinearExperts
from drafttree.models.windows import EVERYTHING, Span, span_of

LLAMAS = {
    "gemma3_text",
    "gemma4_text",
    "granite",
    "llama",
    "mistral",
    "olmo2",
    "olmo3",
    "phi3",
    "qwen2",
    "qwen2_5_vl_text",
    "qwen2_vl_text",
    "qwen3",
    "qwen3_moe",
    "qwen3_vl_moe_text",
    "qwen3_vl_text",
    "smollm3",
}
NEOX = "gpt_neox"
STATIC_ROPES = {"default", "linear", "llama3", "proportional", "yarn"}
ROPES = STATIC_ROPES | {"longrope"}


class LayerKind(NamedTuple):
    """A kind of layers, which share rotary angles and masks in a pass.

    Attributes:
        layer_type: transformers' name of the type, None if all layers are alike.
        span: how far back the layers attend.
        groups: query heads that share a key head.
    """

    layer_type: str | None
    span: Span
    groups: int

    @classmethod
    def of(cls, attention: Any) -> "LayerKind":
        """The kind of an attention layer."""
        types = getattr(attention.config, "layer_types", None)
        layer_type = types[attention.layer_idx] if types else None
        return cls(layer_type, span_of(attention), attention.num_key_value_groups)


class Stacked(NamedTuple):
    """A weight that is not of a linear layer: a router's, or those of all experts of a layer, `[experts, out, in]`.

    Attributes:
        owner: the module that has the weight.
        name: name of the weight in the module.
        out_features: number of rows of all its matrices.
    """

    owner: Any
    name: str
    out_features: int
    bias = None

    @classmethod
    def of(cls, owner: Any, name: str) -> "Stacked":
        return cls(owner, name, getattr(owner, name).shape[:-1].numel())


@dataclass(frozen=True)
class Attention:
    """Attention of a decoder layer.

    Attributes:
        qkv: linear layers of one input, whose outputs are the query heads, the key heads and the value heads.
        out: linear layer of the result of attention.
        key_heads: number of key heads, each with a value head.
        width: width of a head.
        kind: kind of the layer.
        scale: factor of the scores.
        is_rotated: whether queries and keys are rotated by position, which some layers of SmolLM3 leave out (NoPE).
        projected: number of projections for each key head: 2 for key and value, 1 for a key that is the value too. 0 if
            the layer reads another layer's rows (Gemma 4).
        interleaved: whether each head's query, key and value are next to each other in the outputs (GPT-NeoX).
        query_norm: norm of every query head, or of all together (OLMo); None for none.
        key_norm: the same for keys.
        value_norm: norm of every value head.
    """

    qkv: Sequence[Any]
    out: Any
    key_heads: int
    width: int
    kind: LayerKind
    scale: float
    is_rotated: bool = True
    projected: int = 2
    interleaved: bool = False
    query_norm: Any = None
    key_norm: Any = None
    value_norm: Any = None

    @property
    def query_heads(self) -> int:
        """Number of query heads."""
        return self.key_heads * self.kind.groups


@dataclass(frozen=True)
class Mlp:
    """The MLP of a decoder layer.

    Attributes:
        gate_up: linear layers of one input; their outputs are the gates, then the gated values. Without gates, one.
        down: linear layer of the intermediate activations.
        activation: activation function of the gates or, without gates, of the output of `gate_up`.
        gated: whether there are gates.
    """

    gate_up: Sequence[Any]
    down: Any
    activation: Any
    gated: bool = True


class StackedExperts(NamedTuple):
    """The weights of all experts of a layer in two tensors.

    Attributes:
        gate_up: for each expert, the weight of its gates, then that of the gated values.
        down: for each expert the weight of its output projection.
    """

    gate_up: Stacked
    down: Stacked


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in place of an MLP, or beside one.

    Attributes:
        mix: the module's own computation: maps the residual stream `[nodes, hidden]` and the normed stream, which the
            experts read, to their weighted sum.
        router: linear layer of the experts' scores.
        weights: weights of the experts, stacked or each with linear layers of its own.
        count: number of experts.
        chosen: number of experts that compute a token.
        rescaled: whether the weights of these experts are rescaled to add up to 1.
        activation: activation function of the gates.
        before_router: norm of the router's input.
        before: norm of the experts' input.
        scales: float32 `[experts]` factors of the experts' outputs, None for 1.
        after_mlp: norm of the output of the MLP beside the experts; None if there is no MLP.
        after: norm of the experts' sum, None for none.
    """

    mix: Callable[[Tensor, Tensor], Tensor]
    router: Any
    weights: StackedExperts | Sequence[Mlp]
    count: int
    chosen: int
    rescaled: bool
    activation: Any
    before_router: Any
    before: Any
    scales: Tensor | None = None
    after_mlp: Any = None
    after: Any = None


@dataclass(frozen=True)
class BlockInputs:
    """A layer's last step in Gemma 4: it adds its own part of `LayerInputs` to the residual stream.

    Attributes:
        gate: linear layer of the residual stream, whose activations gate the inputs.
        projection: linear layer of the gated inputs.
        after: norm of the projection's output.
    """

    gate: Any
    projection: Any
    after: Any


@dataclass(frozen=True)
class Block:
    """A decoder layer.

    Attributes:
        attention: its attention.
        mlp: its MLP, None if it has experts instead.
        experts: its experts, None for none.
        before_attention: norm of attention's input; each norm may be None.
        after_attention: norm of attention's output.
        before_mlp: norm of the MLP's input.
        after_mlp: norm of the output of MLP and experts.
        parallel: whether the MLP reads the residual stream from before attention (GPT-NeoX).
        multiplier: factor of all that is added to the residual stream.
        scalar: factor of the residual stream after the layer.
        inputs: how it reads its own part of `LayerInputs`, None if it does not.
    """

    attention: Attention
    mlp: Mlp | None
    experts: Experts | None
    before_attention: Any
    after_attention: Any
    before_mlp: Any
    after_mlp: Any
    parallel: bool = False
    multiplier: float = 1.0
    scalar: float = 1.0
    inputs: BlockInputs | None = None


@dataclass(frozen=True)
class LayerInputs:
    """Further inputs of every layer for each token, beside the residual stream (Gemma 4).

    Attributes:
        decoder: the module that computes them.
        embedding: embedding of the tokens; a row has the parts of all layers, one after the other.
        projection: linear layer of the first residual stream; an output has the parts of all layers too.
        norm: norm of a layer's part of the projection.
        projection_scale: factor of the projection.
        sum_scale: factor of the sum of embedding and projection.
    """

    decoder: Any
    embedding: Any
    projection: Any
    norm: Any
    projection_scale: float
    sum_scale: float


@dataclass(frozen=True)
class Entry:
    """The beginning of a draft head, which reads a token and a state of the target or of its own.

    Attributes:
        token_norm: norm of embeddings, None for none.
        state_norm: norm of states, None for none.
        projection: linear layer of the concatenated embedding and state; its output is the first residual stream. None
            if the first layer's attention reads the pair, and the state is the first residual stream (EAGLE-3).
        states_first: whether states come before embeddings in the concatenation.
        normed_residual: without `projection`, whether the first residual stream is the normed state.
    """

    token_norm: Any
    state_norm: Any
    projection: Any
    states_first: bool = False
    normed_residual: bool = False


class Rotary(NamedTuple):
    """The frequencies of a rotary embedding.

    Attributes:
        frequencies: `[pairs]`; for LongRoPE, the short ones.
        long_frequencies: `[pairs]` for texts beyond LongRoPE's original context; None without LongRoPE.
        scaling: factor of cosines and sines.
    """

    frequencies: Tensor
    long_frequencies: Tensor | None
    scaling: float

    @classmethod
    def of(cls, rotary: Any, layer_type: str | None = None) -> "Rotary":
        """The frequencies of a rotary embedding of transformers.

        Args:
            rotary: the embedding.
            layer_type: type of the layers, for an embedding that has frequencies for several (Gemma 3).
        """
        prefix = f"{layer_type}_" if hasattr(rotary, f"{layer_type}_inv_freq") else ""
        scaling = float(getattr(rotary, f"{prefix}attention_scaling"))
        return cls(short_frequencies_of(rotary, layer_type), long_frequencies_of(rotary), scaling)


@dataclass(frozen=True)
class Architecture:
    """All that a decoder computes, in terms of its modules.

    Attributes:
        embedding: embedding of the tokens.
        blocks: the decoder layers.
        owners: for each layer, the index of the layer whose keys and values it attends to; usually the layer itself.
        rotaries: the rotary embeddings by `LayerKind.layer_type`.
        norm: the last norm, None for none.
        head: the output projection.
        layout: layout of the KV caches.
        embedding_multiplier: factor of embeddings (Granite), None for the embedding's own.
        entry: the beginning of a draft head, None for a model.
        layer_inputs: what layers read beside the residual stream, None for nothing.
        logits_divisor: number by which logits are divided (Granite).
        logits_cap: bound of logits, as cap * tanh(logit / cap) (Gemma 4); None for none.
    """

    embedding: Any
    blocks: Sequence[Block]
    owners: Sequence[int]
    rotaries: Mapping[str | None, Rotary]
    norm: Any
    head: Any
    layout: CacheLayout
    embedding_multiplier: float | None = None
    entry: Entry | None = None
    layer_inputs: LayerInputs | None = None
    logits_divisor: float = 1.0
    logits_cap: float | None = None

    @property
    def spans(self) -> tuple[Span, ...]:
        """The different spans of the layers."""
        return tuple({block.attention.kind.span for block in self.blocks})

    @property
    def has_long_rope(self) -> bool:
        """Whether rotary embeddings have other frequencies beyond the original context."""
        return any(rotary.long_frequencies is not None for rotary in self.rotaries.values())


def describe(module: Any) -> Architecture:
    """Describe what a module computes.

    Args:
        module: a model of transformers whose config passes `why_not_known`, or a draft head, which describes itself.

    Raises:
        AttributeError: a layer is not like those of its family.
    """
    if not isinstance(module, PreTrainedModel):
        return module.architecture()
    decoder: Any = decoder_of(module)
    config = decoder.config
    describe_block = BLOCKS.get(config.model_type, llama_block)
    blocks = [describe_block(block, config) for block in decoder.layers]
    owners = _key_owners(decoder.layers, blocks)
    embedding: Any = module.get_input_embeddings()
    entry = None
    if isinstance(embedding, MtpEmbedding):
        entry = Entry(embedding.enorm, embedding.hnorm, embedding.eh_proj, embedding.states_first)
        embedding = embedding.embed_tokens
    multiplier = getattr(decoder, "embedding_multiplier", None)
    return Architecture(
        embedding=embedding,
        blocks=blocks,
        owners=owners,
        rotaries=rotaries_of(blocks, decoder.rotary_emb),
        norm=decoder.final_layer_norm if config.model_type == NEOX else decoder.norm,
        head=module.get_output_embeddings(),
        layout=_layout_of(blocks, owners),
        embedding_multiplier=None if multiplier is None else float(multiplier),
        entry=entry,
        layer_inputs=_layer_inputs(decoder),
        logits_divisor=float(config.logits_scaling) if config.model_type == "granite" else 1.0,
        logits_cap=getattr(config, "final_logit_softcapping", None),
    )


def why_not_known(config: PreTrainedConfig) -> str | None:
    """Why models of a config cannot be described, None if they can."""
    config = config.get_text_config()  # that of the language part, if the model reads images too
    if config.model_type not in LLAMAS | {NEOX}:
        return f"layers of the family {config.model_type} are not known"
    if getattr(config, "attn_logit_softcapping", None):
        return "its config has attn_logit_softcapping"
    if foreign_types := {str(rope.get("rope_type")) for rope in ropes(config)} - ROPES:
        return f"rotary embeddings of the type {min(foreign_types)} are not known"
    return None


def llama_block(block: Any, config: PreTrainedConfig) -> Block:
    """A layer with rotary grouped-query attention, a gated MLP, and RMS norms before or after them or both.

    Families differ in where norms are: before (Llama, Mistral, Qwen, Phi-3, Granite, SmolLM3), after (OLMo 2 and 3), or
    on both sides (Gemma 3). Qwen3 and Gemma 3 norm every query and key head, OLMo all heads together.
    """
    experts = mlp = None
    before_attention, after_attention, before_mlp, after_mlp = _norms(block)
    if hasattr(block.mlp, "experts"):
        experts = _qwen3_experts(block.mlp, before_mlp)
        before_mlp = None
    else:
        mlp = _gated_mlp(block.mlp)
    return Block(
        _llama_attention(block.self_attn),
        mlp,
        experts,
        before_attention,
        after_attention,
        before_mlp,
        after_mlp,
        multiplier=float(getattr(block, "residual_multiplier", 1.0)),
    )


def gemma4_block(block: Any, config: PreTrainedConfig) -> Block:
    """A layer of Gemma 4, which reads more of a token than the residual stream and may have experts beside an MLP.

    Values are normed. Some layers have wider heads than others, use keys as values too, or read another layer's keys.
    """
    inputs = None
    if block.hidden_size_per_layer_input:
        inputs = BlockInputs(
            block.per_layer_input_gate, block.per_layer_projection, after=block.post_per_layer_input_norm
        )
    experts = _gemma4_experts(block) if block.enable_moe_block else None
    return replace(llama_block(block, config), experts=experts, scalar=float(block.layer_scalar), inputs=inputs)


def neox_block(block: Any, config: PreTrainedConfig) -> Block:
    """A layer of GPT-NeoX: layer norms, no gates, attention and MLP in parallel or in sequence."""
    attention = block.attention
    mlp = block.mlp
    return Block(
        Attention(
            qkv=[attention.query_key_value],
            out=attention.dense,
            key_heads=config.num_attention_heads,
            width=attention.head_size,
            kind=LayerKind(None, EVERYTHING, groups=1),
            scale=float(attention.scaling),
            interleaved=True,
        ),
        Mlp([mlp.dense_h_to_4h], mlp.dense_4h_to_h, mlp.act, gated=False),
        experts=None,
        before_attention=block.input_layernorm,
        after_attention=None,
        before_mlp=block.post_attention_layernorm,
        after_mlp=None,
        parallel=block.use_parallel_residual,
    )


BLOCKS: dict[str, Callable[[Any, PreTrainedConfig], Block]] = {"gemma4_text": gemma4_block, NEOX: neox_block}
"""Functions that describe a layer, for families unlike Llama."""


def rotaries_of(blocks: Iterable[Block], rotary: Any) -> dict[str | None, Rotary]:
    """The rotary embeddings by type of layer, read from transformers' single module for all types."""
    types = dict.fromkeys(block.attention.kind.layer_type for block in blocks)
    return {layer_type: Rotary.of(rotary, layer_type) for layer_type in types}


def _llama_attention(attention: Any) -> Attention:
    layer_kind = LayerKind.of(attention)
    width = attention.head_dim
    projected = _projected(attention)
    names = ("q_proj", "k_proj", "v_proj")[: 1 + projected]
    qkv = _joined(attention, "qkv_proj", *names)
    return Attention(
        qkv=qkv,
        out=attention.o_proj,
        key_heads=sum(layer.out_features for layer in qkv) // width // (projected + layer_kind.groups),
        width=width,
        kind=layer_kind,
        scale=float(attention.scaling),
        is_rotated=bool(getattr(attention, "use_rope", True)),
        projected=projected,
        query_norm=getattr(attention, "q_norm", None),
        key_norm=getattr(attention, "k_norm", None),
        value_norm=getattr(attention, "v_norm", None),
    )


def _projected(attention: Any) -> int:
    """The number of projections for each key head, as of `Attention.projected`."""
    if getattr(attention, "is_kv_shared_layer", False):
        return 0
    return 1 if getattr(attention, "v_proj", attention) is None else 2


def _gated_mlp(mlp: Any) -> Mlp:
    return Mlp(_joined(mlp, "gate_up_proj", "gate_proj", "up_proj"), mlp.down_proj, _activation(mlp))


def _activation(mlp_or_experts: Any) -> Any:
    return mlp_or_experts.act_fn if hasattr(mlp_or_experts, "act_fn") else mlp_or_experts.activation_fn


def _qwen3_experts(mlp: Any, input_norm: Any) -> Experts:
    """The experts of Qwen3, chosen by a softmax over all scores. Qwen3-VL always rescales their weights."""
    router = mlp.gate
    experts = mlp.experts
    return Experts(
        mix=lambda _, normed: mlp(normed[None])[0],
        router=Stacked.of(router, "weight"),
        weights=_expert_weights(experts),
        count=router.num_experts,
        chosen=router.top_k,
        rescaled=bool(getattr(router, "norm_topk_prob", True)),
        activation=_activation(experts),
        before_router=input_norm,
        before=input_norm,
    )


def _expert_weights(experts: Any) -> StackedExperts | Sequence[Mlp]:
    if not isinstance(experts, LinearExperts):
        return StackedExperts(Stacked.of(experts, "gate_up_proj"), Stacked.of(experts, "down_proj"))
    projections = zip(experts.gate_proj, experts.up_proj, experts.down_proj, strict=True)
    return [Mlp([gate, up], down, experts.act_fn) for gate, up, down in projections]


def _gemma4_experts(block: Any) -> Experts:
    router = block.router
    experts = block.experts

    def mix(x: Tensor, normed: Tensor) -> Tensor:
        _, shares, selected_experts = router(x)
        return experts(normed, selected_experts, shares)

    scales = router.per_expert_scale.detach().float()
    return Experts(
        mix=mix,
        router=router.proj,
        weights=_expert_weights(experts),
        count=len(scales),
        chosen=router.config.top_k_experts,
        rescaled=True,
        activation=_activation(block.mlp),
        before_router=Norm(router.scale.detach().float() * router.scalar_root_size, None, float(router.eps), False),
        before=block.pre_feedforward_layernorm_2,
        scales=scales,
        after_mlp=block.post_feedforward_layernorm_1,
        after=block.post_feedforward_layernorm_2,
    )


def _norms(block: Any) -> tuple[Any, Any, Any, Any]:
    """The norms before and after attention, and before and after the MLP. Some names in transformers mislead."""
    post_attention_norm = block.post_attention_layernorm
    if not hasattr(block, "post_feedforward_layernorm"):
        return block.input_layernorm, None, post_attention_norm, None
    post_feedforward_norm = block.post_feedforward_layernorm
    if not hasattr(block, "pre_feedforward_layernorm"):
        return None, post_attention_norm, None, post_feedforward_norm
    return block.input_layernorm, post_attention_norm, block.pre_feedforward_layernorm, post_feedforward_norm


def _joined(submodule: Any, joined_name: str, *names: str) -> list[Any]:
    """The linear layers that read the same input: `joined_name` if the family has it (Phi-3), else those of `names`."""
    if hasattr(submodule, joined_name):
        return [getattr(submodule, joined_name)]
    return [getattr(submodule, name) for name in names]


def _layer_inputs(decoder: Any) -> LayerInputs | None:
    if not getattr(decoder, "hidden_size_per_layer_input", None):
        return None
    return LayerInputs(
        decoder,
        embedding=decoder.embed_tokens_per_layer,
        projection=decoder.per_layer_model_projection,
        norm=decoder.per_layer_projection_norm,
        projection_scale=float(decoder.per_layer_model_projection_scale),
        sum_scale=float(decoder.per_layer_input_scale),
    )


def _key_owners(layers: Iterable[nn.Module], blocks: Sequence[Block]) -> list[int]:
    """For each layer, the index of the layer whose keys and values it attends to.

    Raises:
        AttributeError: no earlier layer has the keys and values that a layer shares.
    """
    owners = list[int]()
    owner_by_type = dict[str, int]()
    for index, (layer, block) in enumerate(zip(layers, blocks, strict=True)):
        attention: Any = getattr(layer, "self_attn", layer)
        owners.append(index if block.attention.projected else owner_by_type.get(attention.layer_type, -1))
        if owners[-1] < 0:
            raise AttributeError(f"there are no keys that layer {index} could share")
        if getattr(attention, "store_full_length_kv", False):
            owner_by_type[attention.layer_type] = index
    return owners


def _layout_of(blocks: Sequence[Block], owners: Sequence[int]) -> CacheLayout:
    """The layout of KV caches.

    Raises:
        AttributeError: the heads of a layer differ in shape from the keys that it shares.
    """
    shapes = [(block.attention.key_heads, block.attention.width) for block in blocks]
    for shape, owner in zip(shapes, owners, strict=True):
        if shape != shapes[owner]:
            raise AttributeError("layers with heads of several shapes share keys")
    return CacheLayout({index: LayerShape(*shapes[index], shapes[index][1]) for index in sorted({*owners})})
