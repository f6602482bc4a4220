"""Block drafters on disk: of z-lab (DFlash, DFlash2), JetFlow (once JetSpec), DeepSpec, speculators, transformers.

They have the same layers. They differ in where the configuration keeps its fields, in how the target's hidden states
are counted, and in which rows of a block predict.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, PreTrainedModel, Qwen3Config

from drafttree.core.errors import ModelError
from drafttree.drafters.base import Drafter
from drafttree.drafters.block import BlockDrafter
from drafttree.drafters.block_layers import SELECTOR, BlockConfig, BlockLayers
from drafttree.drafters.formats.config import (
    SLIDING,
    Count,
    DecoderLayers,
    Flag,
    Labels,
    Layers,
    Number,
    Object,
    Size,
    Text,
    Texts,
    absent,
    written_layers,
)
from drafttree.drafters.formats.format import (
    ADVICE,
    EMBEDDING,
    HEAD,
    Checkpoint,
    HeadFormat,
    any_name,
    counts,
    renamed,
    usual_rows,
    with_layers,
)
from drafttree.drafters.target_parts import embedding, logits_scaling, own_bytes
from drafttree.drafters.transitions import TRANSITIONS

DSPARK = "Qwen3DSparkModel"
OWN_MASK = "mask_embedding"
RENAMED = {
    "logit_head.": "",
    "encoder.fc.": "fc.",
    "encoder.output_norm_enc.": "hidden_norm.",
    "candidate_selector.predecessor_codebook": "markov_head.predecessor_codebook.weight",
    "candidate_selector.successor_codebook": "markov_head.successor_codebook.weight",
    "candidate_selector.": "markov_head.",
    "mask_embedding.weight": OWN_MASK,
}
"""Our prefixes of tensor names, by those of SpecForge's DSpark, transformers' assistants and DFlash2."""
LEFT_OUT = r"verifier_norm\.|confidence_head\.|rotary_emb\."
"""Tensors that only training needs, and the unused confidence head."""
SUPPORTED_VALUES = {"is_neox_style": True, "rope_is_neox_style": True, "use_gemma_norm": False}
"""Fields of SGLang and vLLM with their only supported values."""
ASSISTANTS = ("muse_glimmer_assistant",)
"""Model types of transformers that are block drafters."""


class BlockParts(Labels):
    """Fields at the top of a config.json, and objects in it with further fields."""

    transformer_layer_config: Object
    dflash_config: Object


class BlockFields(Labels):
    """The fields of a block drafter, besides those of its decoder layers."""

    block_size: Size
    projector_type: Text = ""
    aux_hidden_state_layer_ids: Layers
    target_layer_ids: Layers
    num_hidden_layers: Size | None = None
    num_target_layers: Size | None = None
    base_num_hidden_layers: Size | None = None
    draft_vocab_size: Size | None = None
    target_hidden_size: Size | None = None
    mask_token_id: Count | None = None
    sample_from_anchor: Flag | None = None
    draft_shift: Flag = False
    causal: Flag | None = None
    causal_head: Flag | None = None
    is_causal: Flag | None = None
    sliding_window_non_causal: Flag | None = None
    layer_types: Texts
    use_swa: Flag = False
    swa_window_size: Size | None = None
    attention_sink_bias: Flag = False
    add_swa_attention_sink_bias: Flag = False
    attention_value_scale: Number = 1.0
    is_neox_style: Flag = True
    rope_is_neox_style: Flag = True
    use_gemma_norm: Flag = False
    conv_kernel_size: Count = 0
    conv_group_size: Size = 1
    input_embedding_scale: Number = 1.0
    output_multiplier: Number = 1.0
    final_logit_softcapping: Number | None = None
    selector_rank: Count = 0
    selector_top_k: Size | None = None
    markov_rank: Count = 0
    markov_head_type: Text | None = None

    @classmethod
    def of_file(cls, config: Mapping[str, Any]) -> tuple["BlockFields", DecoderLayers]:
        """Read the fields of a config.json, also those in `dflash_config`, and the fields of its decoder layers.

        Layers have a window if `layer_types` says so. If it names none, `use_swa` (MiMo) gives a window to all layers.
        transformers omits fields with default values, and its window reaches one token farther back.
        """
        top_fields = BlockParts.read(config)
        options = {**top_fields.transformer_layer_config, **config, **top_fields.dflash_config}
        if top_fields.model_type in ASSISTANTS:
            try:
                assistant_config: Any = CONFIG_MAPPING[top_fields.model_type](**config)
            except Exception as error:
                reason = " ".join(str(error).split()) or type(error).__name__
                raise ModelError(
                    f"config.json makes no configuration of transformers' {top_fields.model_type} ({reason})"
                ) from error
            options = {
                "vocab_size": assistant_config.mask_token_id + 1,
                **assistant_config.to_dict(),
                "sliding_window": assistant_config.sliding_window + 1,
            }
        fields = cls.read(options)
        if fields.swa_window_size:
            options["sliding_window"] = fields.swa_window_size
        if SLIDING not in fields.layer_types and not fields.use_swa:
            return fields, DecoderLayers.read({**options, "sliding_window": None})
        options["use_sliding_window"] = True
        if SLIDING not in fields.layer_types:
            if fields.num_hidden_layers is None:
                raise absent("num_hidden_layers")
            options["layer_types"] = [SLIDING] * fields.num_hidden_layers
            fields = cls.read({**options, "sliding_window_non_causal": True})
        return fields, DecoderLayers.read(options)

    def states_read(self) -> tuple[int, ...]:
        """The numbers of the target's hidden states that are read, counted as transformers counts `hidden_states`.

        speculators' `aux_hidden_state_layer_ids` are such numbers. The `target_layer_ids` of z-lab, DeepSpec and
        transformers are one less: they number the layers whose outputs are read, with -1 for the embeddings. Without
        either field, the states are spread over the target as in z-lab's code.
        """
        if self.aux_hidden_state_layer_ids:
            return tuple(self.aux_hidden_state_layer_ids)
        if layers := self.target_layer_ids:
            if min(layers) < -1:
                raise ModelError(f"config.json gives target_layer_ids as {layers}; they are counted from 0")
            return tuple(layer + 1 for layer in layers)
        count = self.num_hidden_layers
        depth = self.num_target_layers
        if count is None or depth is None or (count > 1 and depth < 5):
            raise ModelError("config.json gives no target_layer_ids; it must name the target's layers that are read")
        if count == 1:
            return (depth // 2 + 1,)
        return tuple(round(1 + index * (depth - 4) / (count - 1)) + 1 for index in range(count))

    def mask_token(self, vocab: int) -> int:
        """The id of the mask token, the placeholder of tokens to be drafted.

        Raises:
            ModelError: If the file gives none, or it is outside the vocabulary.
        """
        mask_token = self.mask_token_id
        if mask_token is None or mask_token >= vocab:
            raise ModelError(
                f"config.json gives mask_token_id as {mask_token}; it must be one of {vocab} token ids, the one the "
                "drafter was trained with"
            )
        return mask_token

    def drafts_from_root(self) -> bool:
        """Whether the root's row drafts the first level. The default is True for DSpark only."""
        if self.sample_from_anchor is not None:
            return self.sample_from_anchor
        names = [*self.architectures, self.projector_type, self.speculators_model_type]
        return any("dspark" in name.lower() for name in names)

    def transition(self, tensors: Mapping[str, Tensor], vocab: int) -> tuple[str | None, int, int]:
        """The kind of the transition (None without one), its rank, and its candidates per level (0 for all).

        speculators omits default kinds and ranks. The tensors then determine them.
        """
        if self.selector_rank:
            if self.selector_top_k is None:
                raise absent("selector_top_k")
            if self.selector_top_k > vocab:
                raise ModelError(
                    f"config.json gives selector_top_k as {self.selector_top_k}; the vocabulary has {vocab} tokens"
                )
            return SELECTOR, self.selector_rank, self.selector_top_k
        table = tensors.get("markov_head.markov_w1.weight")
        table_rank = table.shape[-1] if table is not None and table.ndim else 0
        if "markov_head.joint_proj.weight" in tensors:
            default_type = "rnn"
        elif "markov_head.gate_proj.weight" in tensors:
            default_type = "gated"
        else:
            default_type = "vanilla"
        rank = self.markov_rank or table_rank
        head_type = self.markov_head_type or default_type
        if rank and head_type not in TRANSITIONS:
            raise ModelError(
                f"config.json gives markov_head_type as {head_type!r}; drafttree knows {', '.join(TRANSITIONS)}"
            )
        return (head_type, rank, 0) if rank else (None, 0, 0)

    def causal_layers(self, layer: Qwen3Config) -> tuple[bool, ...]:
        """Whether each layer is causal within a block.

        A field for all layers decides: vLLM's `is_causal`, else `causal` or `causal_head`, as in JetFlow's files.
        Otherwise layers without a window are not causal. Whether layers with a window are causal depends on who trained
        them:

        - transformers' assistants, and files with `use_swa` (MiMo): not causal;
        - speculators: causal, except with `sliding_window_non_causal`, which is the default of DFlash2;
        - z-lab, SpecForge and DeepSpec: causal, as vLLM reads them.
        """
        is_sliding = tuple(layer_type == SLIDING for layer_type in layer.layer_types or ())
        for is_causal in (self.is_causal, self.causal, self.causal_head):
            if is_causal is not None:
                return (is_causal,) * len(is_sliding)
        non_causal = self.sliding_window_non_causal
        if non_causal is None:
            non_causal = self.speculators_model_type == "dflash2" or self.model_type in ASSISTANTS
        return (False,) * len(is_sliding) if non_causal else is_sliding


def parse(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any], target: PreTrainedModel | None = None
) -> Checkpoint[BlockLayers]:
    """Read a block drafter of any of these formats; `target` is not used."""
    if not config:
        raise ModelError("config.json is missing or empty; a block drafter needs the one it was published with")
    fields, layer_fields = BlockFields.of_file(config)
    block_tensors, spelled = renamed(tensors, RENAMED, LEFT_OUT)
    if OWN_MASK in block_tensors:
        block_tensors[OWN_MASK] = block_tensors[OWN_MASK].flatten()
    has_confidence_head = any(name.endswith("confidence_head.proj.weight") for name in tensors)
    layers = fields.states_read()
    block_config = _config(fields, layer_fields, block_tensors, len(layers))
    with torch.device("meta"):
        block = BlockLayers(block_config)
    borrowable = {EMBEDDING} | (set() if "d2t" in block_tensors else {HEAD})
    depth = fields.num_target_layers or fields.base_num_hidden_layers
    details = {
        "drafted levels": block_config.levels,
        "attention in a block": ", ".join("causal" if is_causal else "whole" for is_causal in block_config.causal),
        "transition": block_config.transition or "none: drafts do not depend on their path",
        "confidence head": "there, but not used" if has_confidence_head else "none",
    }
    return with_layers(block, block_tensors, spelled, block_config.target_hidden, borrowable, layers, depth, **details)


def public_config(config: BlockConfig, layer_ids: Sequence[int]) -> dict[str, Any]:
    """The `config.json` in DeepSpec's format of a drafter with the target's embedding and output projection."""
    return {
        "architectures": [DSPARK],
        "model_type": "qwen3",
        **written_layers(config.layer),
        "vocab_size": config.vocab,
        "block_size": config.block,
        "mask_token_id": config.mask_token,
        "target_layer_ids": [*layer_ids],
        "markov_rank": config.rank,
        "markov_head_type": config.transition,
        "enable_confidence_head": False,
        "tie_word_embeddings": False,
        "shared_lm_head": True,
    }


def _config(
    fields: BlockFields, layer_fields: DecoderLayers, tensors: Mapping[str, Tensor], states: int
) -> BlockConfig:
    """The configuration of a block drafter that reads this number of the target's hidden states."""
    layer = layer_fields.config(tensors, max(fields.num_hidden_layers or 0, counts(r"layers\.(\d+)\.", tensors)[0]))
    if not isinstance(layer, Qwen3Config):
        raise ModelError(
            "the decoder layers have no q and k norms; drafttree runs block drafters with layers of Qwen 3"
        )
    for name, supported_value in SUPPORTED_VALUES.items():
        if getattr(fields, name) is not supported_value:
            raise ModelError(
                f"config.json gives {name} as {not supported_value}, which drafttree does not support; {ADVICE}"
            )
    vocab = layer_fields.vocab_size
    hidden_size = layer_fields.hidden_size
    block = fields.block_size
    mask_token = fields.mask_token(vocab)
    from_root = fields.drafts_from_root()
    if block < 2 and not from_root:
        raise ModelError(
            f"config.json gives block_size as {block}; the first row drafts nothing, so it must be at least 2"
        )
    if hidden_size % fields.conv_group_size:
        raise ModelError(
            f"config.json gives conv_group_size as {fields.conv_group_size}, which does not divide a width of "
            f"{hidden_size}"
        )
    head_type, rank, candidates = fields.transition(tensors, vocab)
    fusion_weight = tensors.get("fc.weight")
    state_width = fusion_weight.shape[1] // states if fusion_weight is not None and fusion_weight.ndim == 2 else None
    return BlockConfig(
        layer=layer,
        vocab=vocab,
        draft_vocab=fields.draft_vocab_size or usual_rows(r"lm_head\.weight", tensors) or vocab,
        target_hidden=fields.target_hidden_size or state_width or hidden_size,
        states=states,
        block=block,
        mask_token=mask_token,
        levels=block if from_root else block - 1,
        from_root=from_root or fields.draft_shift,
        causal=fields.causal_layers(layer),
        sinks=fields.attention_sink_bias or fields.add_swa_attention_sink_bias,
        value_scale=float(fields.attention_value_scale),
        own_mask=OWN_MASK in tensors,
        transition=head_type,
        rank=rank,
        candidates=candidates,
        convolution=fields.conv_kernel_size,
        group=fields.conv_group_size,
        input_scale=float(fields.input_embedding_scale),
        output_scale=float(fields.output_multiplier),
        softcap=fields.final_logit_softcapping,
    )


def _build(checkpoint: Checkpoint[BlockLayers], target: PreTrainedModel) -> Drafter:
    """Make the drafter. Embedding and logits are scaled as in the target if it borrows the target's layers."""
    block = checkpoint.heads
    borrowed = checkpoint.borrowed()
    if EMBEDDING in borrowed:
        scale = float(getattr(embedding(target), "embed_scale", 1.0))
        block.config = replace(block.config, input_scale=block.config.input_scale * scale)
    if HEAD in borrowed and block.config.output_scale == 1 and block.config.softcap is None:
        scale, bound = logits_scaling(target)
        block.config = replace(block.config, output_scale=scale, softcap=bound)
    checkpoint.filled(target)
    if block.config.value_scale != 1:
        for name, parameter in block.named_parameters():
            if ".v_proj." in name:
                parameter.data = parameter.data * block.config.value_scale
    return BlockDrafter(block, checkpoint.hidden_layers(target), own_bytes(block, target))


FORMAT = HeadFormat(
    "block",
    "block",
    any_name(r"(model\.)?(hidden_norm\.weight$|encoder\.output_norm_enc\.|markov_head\.|candidate_selector\.)"),
    parse,
    _build,
)
