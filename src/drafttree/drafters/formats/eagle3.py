"""EAGLE-3 heads on disk: the formats of SafeAILab, SpecForge, AngelSlim, vLLM speculators and DeepSpec.

They differ in the names of the first layer, in where the configuration keeps its fields, and in how the target's
hidden states are counted. Here they become one configuration and one set of names. Some configurations have wrong
sizes, so the tensors decide. One error lists all tensors that are missing, unexpected or of another shape.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from drafttree.core.errors import ModelError
from drafttree.drafters.base import Drafter
from drafttree.drafters.eagle import Eagle3Config, Eagle3Head, eagle_drafter
from drafttree.drafters.formats.config import DecoderLayers, Fields, Flag, Layers, Object, Size, Texts, written_layers
from drafttree.drafters.formats.format import (
    ADVICE,
    DECODER_LAYER,
    EMBEDDING,
    HEAD,
    Checkpoint,
    HeadFormat,
    add_output_biases,
    any_name,
    counts,
    nearest,
    renamed,
    usual_rows,
    with_layers,
)
from drafttree.drafters.head_backend import choose_head_backend
from drafttree.drafters.target_parts import own_bytes

FIRST, FIRST_ELSEWHERE = "layers.0.", "midlayer."
FUSION = "fc.weight"
SPECFORGE = "LlamaForCausalLMEagle3"
logger = logging.getLogger("drafttree")


class Eagle3Fields(Fields):
    """The fields of a head besides those of its decoder layers. SpecForge keeps some of them in `eagle_config`."""

    architectures: Texts
    eagle_config: Object
    transformer_layer_config: Object
    draft_vocab_size: Size | None = None
    target_hidden_size: Size | None = None
    target_num_hidden_layers: Size | None = None
    num_target_layers: Size | None = None
    eagle_aux_hidden_state_layer_ids: Layers
    target_layer_ids: Layers
    aux_hidden_states_layer_ids: Layers
    use_aux_hidden_state: Flag = True
    tie_word_embeddings: Flag = False
    shared_lm_head: Flag = False
    norm_before_residual: Flag = False
    norm_before_fc: Flag = False
    fc_norm: Flag = False
    norm_output: Flag | None = None
    return_hidden_post_norm: Flag = False

    @property
    def is_specforge(self) -> bool:
        """Whether SpecForge wrote it."""
        return SPECFORGE in self.architectures

    def format(self, names_first_layer: bool) -> str:
        """The name of the format, for `drafttree inspect`.

        Args:
            names_first_layer: whether the first layer is called `layers.0.` in the file.
        """
        if self.target_layer_ids:
            return "DeepSpec"
        if "transformer_layer_config" in self.model_fields_set or names_first_layer:
            return "vLLM speculators"
        if self.architectures[:1] == ["Eagle3LlamaForCausalLM"]:
            return "AngelSlim"
        ours = self.architectures[:1] == [SPECFORGE] or "eagle_config" in self.model_fields_set
        return "SpecForge" if ours else "SafeAILab"

    def states_read(self, nested: "Eagle3Fields") -> tuple[int, ...] | None:
        """The target's hidden states that the head reads; None for the default.

        States are counted as transformers counts `hidden_states`: number i is the input of layer i. At the top of the
        configuration, `eagle_aux_hidden_state_layer_ids` are such numbers: vLLM (`LlamaModel.forward`) keeps the
        residual stream before these layers, and vLLM speculators trains with it. Other fields number the layers whose
        output is read, which is one less: the same field in `eagle_config` (SpecForge, and SGLang's
        `set_eagle3_layers_to_capture`), DeepSpec's `target_layer_ids` (`extract_eagle3_context_feature`) and
        AngelSlim's `aux_hidden_states_layer_ids`. An empty list means the default.

        Args:
            nested: the fields in `eagle_config`.

        Raises:
            ModelError: If the fields name different states.
        """
        name = "eagle_aux_hidden_state_layer_ids"
        states_by_field = {
            name: self.eagle_aux_hidden_state_layer_ids,
            f"eagle_config.{name}": [layer + 1 for layer in nested.eagle_aux_hidden_state_layer_ids],
            "target_layer_ids": [layer + 1 for layer in self.target_layer_ids],
            "aux_hidden_states_layer_ids": [layer + 1 for layer in self.aux_hidden_states_layer_ids],
        }
        named_states = {field: tuple(states) for field, states in states_by_field.items() if states}
        if len(set(named_states.values())) > 1:
            meanings = " and ".join(f"{field} means {list(states)}" for field, states in named_states.items())
            raise ModelError(
                f"config.json names different hidden states of the target: {meanings}; keep only one of them"
            )
        return next(iter(named_states.values()), None)

    def target_depth(self) -> int | None:
        """The target's number of layers; None if it is not known.

        It also follows from `eagle_aux_hidden_state_layer_ids`, if these are vLLM's default for L layers: 2, L/2 and
        L - 3.
        """
        depth = self.target_num_hidden_layers or self.num_target_layers
        layer_ids = self.eagle_aux_hidden_state_layer_ids
        if layer_ids and depth is None and layer_ids[:2] == [2, (layer_ids[-1] + 3) // 2]:
            return layer_ids[-1] + 3
        return depth

    def normed_output(self) -> bool:
        """Whether the next level reads the state after the final norm ("norm_output", EAGLE-3.1).

        TensorRT-LLM calls the field `return_hidden_post_norm`. vLLM, SGLang, and SpecForge since its pull request 879
        (September 2026) read "norm_output" so. Earlier versions of SpecForge trained heads with "norm_output" to read
        the state before the norm, like heads without the field. Files do not say which version wrote them.
        """
        if self.norm_output and self.is_specforge and not self.return_hidden_post_norm:
            logger.warning(
                "norm_output: drafted tokens read states after the final norm, as vLLM and SGLang serve this head; if "
                "few drafts are accepted and SpecForge before its pull request 879 trained it, remove norm_output from "
                "its config.json"
            )
        return bool(self.norm_output) or self.return_hidden_post_norm

    def normed_logits(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether the logits are computed from states after the final norm.

        Before its pull request 879, SpecForge wrote "norm_output" as false for heads without a final norm. In vLLM,
        SGLang and later versions, false means EAGLE-3, which has the norm. An unused norm has its initial weights, all
        ones; these tell such files from others.
        """
        norm = tensors.get("norm.weight")
        unused = self.norm_output is False and self.is_specforge
        if not unused or norm is None or not bool((norm == 1).all()):
            return True
        logger.info("norm_output is false and the final norm was not trained: logits are of states before it")
        return False


def parse(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any], target: PreTrainedModel | None = None
) -> Checkpoint[Eagle3Head]:
    """Read a head of any of these formats; `target` is not used."""
    if not config:
        raise ModelError("config.json is missing or empty; an EAGLE-3 head needs the one it was published with")
    fields = Eagle3Fields.read(config)
    nested = Eagle3Fields.read(fields.eagle_config)
    options = Eagle3Fields.read({**fields.eagle_config, **fields.model_dump(exclude_unset=True)})
    layer_fields = DecoderLayers.read(fields.transformer_layer_config or config)
    head_tensors, spelled = renamed(tensors, {FIRST_ELSEWHERE: FIRST}, r".*\.inv_freq$")
    has_layer_0 = any(spelled(name).endswith(name) for name in head_tensors if name.startswith(FIRST))
    if fields.tie_word_embeddings and EMBEDDING in head_tensors:
        head_tensors.setdefault(HEAD, head_tensors[EMBEDDING])
    add_output_biases(head_tensors)
    layers = fields.states_read(nested)
    head = _nearest_head(fields, options, layer_fields, head_tensors, len(layers or (0, 0, 0)))
    borrowable = {EMBEDDING} | ({HEAD} if fields.shared_lm_head else set())
    if layers is None and head.state_dict().keys() - head_tensors.keys() - borrowable == {FUSION}:
        raise _reads_no_inner_states(f"it has no {FUSION}")
    if not (fields.use_aux_hidden_state and nested.use_aux_hidden_state):
        raise _reads_no_inner_states("use_aux_hidden_state is false")
    details = {"format": fields.format(has_layer_0), "width": head.config.hidden}
    return with_layers(
        head, head_tensors, spelled, head.config.target_hidden, borrowable, layers, fields.target_depth(), **details
    )


def _nearest_head(
    fields: Eagle3Fields, options: Eagle3Fields, layer_fields: DecoderLayers, tensors: Mapping[str, Tensor], states: int
) -> Eagle3Head:
    """Build the head, without values, with the number of decoder layers that fits the tensors' names best.

    Args:
        fields: the fields at the top of config.json.
        options: these fields, completed by those in `eagle_config`.
        layer_fields: the fields of the decoder layers.
        tensors: the head's tensors by our names.
        states: number of the target's hidden states that the head reads.
    """
    vocab = layer_fields.vocab_size
    normed_output = options.normed_output()
    normed_logits = options.normed_logits(tensors)
    configs = (
        Eagle3Config(
            layer=layer_fields.config(tensors, count),
            vocab=vocab,
            draft_vocab=fields.draft_vocab_size or usual_rows(r"lm_head\.weight", tensors) or vocab,
            target_hidden=fields.target_hidden_size or layer_fields.hidden_size,
            states=states,
            normed_residual=options.norm_before_residual,
            normed_input=options.norm_before_fc or "input_norm.weight" in tensors,
            normed_states=options.fc_norm or any(name.startswith("fc_norm.") for name in tensors),
            normed_output=normed_output,
            normed_logits=normed_logits,
        )
        for count in counts(DECODER_LAYER, tensors)
    )
    return nearest(tensors, map(Eagle3Head, configs))


def _reads_no_inner_states(sign: str) -> ModelError:
    return ModelError(
        f"this EAGLE-3 head reads no hidden states from between the target's layers ({sign}), which is not "
        f"supported; {ADVICE}"
    )


def save(head: Eagle3Head, folder: Path, depth: int, *, own_lm_head: bool, dtype: torch.dtype) -> None:
    """Write a head in SpecForge's format, without the target's embedding. SafeAILab's format has the same tensors.

    SafeAILab's `cnets.py` reads the target's embedding only without `target_hidden_size`, so this field is written only
    if it differs from the head's width. SGLang and vLLM use the target's embedding if the file has none, but not the
    target's output layer. So only drafttree loads a file without an output layer, which means the target's.

    Args:
        head: the head to write. It must not have variants that the format lacks.
        folder: the folder; made if it does not exist.
        depth: the target's number of layers.
        own_lm_head: whether to store the output layer.
        dtype: dtype of the stored weights.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = head.config
    left_out = {EMBEDDING} if own_lm_head else {EMBEDDING, HEAD}
    weights = dict[str, Tensor]()
    for name, tensor in head.state_dict().items():
        if name not in left_out:
            weights[name.replace(FIRST, FIRST_ELSEWHERE)] = tensor.to(dtype).contiguous()
    if head.target_ids is not None:
        ids = head.target_ids.cpu()
        weights["d2t"] = ids - torch.arange(len(ids))
        weights["t2d"] = torch.zeros(config.vocab, dtype=torch.bool).index_fill_(0, ids, True)
    fields = {
        "architectures": [SPECFORGE],
        "model_type": "llama",
        **written_layers(config.layer),
        "vocab_size": config.vocab,
        "draft_vocab_size": config.draft_vocab,
        "tie_word_embeddings": False,
        **({"target_hidden_size": config.target_hidden} if config.target_hidden != config.hidden else {}),
        "target_num_hidden_layers": depth,
        "shared_lm_head": not own_lm_head,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
    partial = folder / "model.safetensors.partial"
    save_file(weights, partial, {"format": "pt"})
    partial.chmod(0o644)
    partial.replace(folder / "model.safetensors")


def _build(checkpoint: Checkpoint[Eagle3Head], target: PreTrainedModel) -> Drafter:
    head = checkpoint.filled(target)
    layers = checkpoint.hidden_layers(target)
    return eagle_drafter(head, layers, own_bytes(head, target), choose_head_backend)


FORMAT = HeadFormat(
    "eagle3",
    "EAGLE-3",
    any_name(r"(model\.)?(midlayer\.|layers\.0\.hidden_norm\.|[dt]2[td]$)"),
    parse,
    _build,
)
