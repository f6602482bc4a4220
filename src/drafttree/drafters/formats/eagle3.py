"""EAGLE-3 heads on disk: the formats of SafeAILab, SpecForge, AngelSlim, vLLM speculators and DeepSpec.

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
from transformers import PreTrainedModel

from drafttree.core.errors import ModelError
from drafttree.drafters.eagle import Eagle3Config, Eagle3Head, eagle_drafter
from drafttree.drafters.formats.checkpoints import FLAG, entry
from drafttree.drafters.formats.draft_vocabulary import check_maps, target_ids
from drafttree.drafters.formats.eagle3_config import (
    DEPTH,
    SPECFORGE,
    format_of,
    hidden_states_read,
    read_config,
    reads_states,
)
from drafttree.drafters.formats.head_checkpoint import (
    SHARED_LM_HEAD,
    Checkpoint,
    HeadFormat,
    counts,
    fill,
    flaws,
    nearest,
)
from drafttree.drafters.formats.unsupported import ADVICE
from drafttree.drafters.fused_eagle3 import select_backend
from drafttree.drafters.head import HeadDrafter
from drafttree.drafters.heads import embedding, own_bytes, projection
from drafttree.models.tensor_parallel import whole

KIND = "EAGLE-3"
FIRST, FIRST_ELSEWHERE = "layers.0.", "midlayer."
MODEL = "model."
"""A prefix of all names but the output layer's in checkpoints saved from a wrapper, as TensorRT-LLM's are."""
EMBEDDING, HEAD, FUSION = "embed_tokens.weight", "lm_head.weight", "fc.weight"


@dataclass(frozen=True)
class Eagle3Checkpoint(Checkpoint[Eagle3Head]):
    """A head as it was found.

    Attributes:
        format: the name of its format.
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
            ModelError: the target is shallower than the head needs, or the head reads the output of its last layer.
        """
        layers = self.layers or (2, depth // 2, depth - 3)
        if self.layers and max(layers) == depth:
            raise ModelError(
                f"this EAGLE-3 head reads the output of the target's last layer, number {depth - 1}, which is not "
                f"supported: drafttree runs those that read what goes into layers; {ADVICE}"
            )
        if min(layers) < 0 or max(layers) >= depth:
            read = ", ".join(map(str, layers))
            raise ModelError(
                f"this EAGLE-3 head reads the hidden states {read} of a target, which has {depth} layers and so the "
                f"states 0 to {depth - 1}; use it with the model it was trained on"
            )
        return layers

    def check(self, target: PreTrainedModel) -> None:
        """Compare with the target the head is to draft for.

        Raises:
            ModelError: the head was made for another target, has problems, or is not as wide as the parts of the target
                that it uses.
        """
        super().check(target)
        width = target.config.get_text_config().hidden_size
        borrowed = [name for name in (EMBEDDING, HEAD) if name not in self.tensors]
        if borrowed and self.config.hidden != width:
            raise ModelError(
                f"this EAGLE-3 head is {self.config.hidden} wide and has no {borrowed[0]} of its own; the target's is "
                f"{width} wide"
            )


def load(tensors: Mapping[str, Tensor], config: Mapping[str, Any], target: PreTrainedModel) -> HeadDrafter:
    """A drafter from an EAGLE-3 checkpoint of any format, in the target's dtype and on its device.

    The target's embedding, and its output layer where the checkpoint refers to it, are shared, not copied, if the
    target's weights are laid out as `load_model` does.

    Args:
        tensors: tensors of the checkpoint, by name.
        config: its `config.json`.
        target: the model it drafts for.

    Raises:
        ModelError: the checkpoint is incomplete, or the head was made for another target.
    """
    checkpoint = parse(tensors, config)
    checkpoint.check(target)
    hidden_layers = checkpoint.hidden_layers(target.config.get_text_config().num_hidden_layers)
    head, ids = checkpoint.heads, target_ids(checkpoint.maps)
    fill(head, _complete(checkpoint, target, ids), target)
    head.rotary = type(head.rotary)(head.rotary.config).to(target.device).eval()
    head.target_ids = None if ids is None else ids.to(target.device)
    return eagle_drafter(head, hidden_layers, own_bytes(head, target), select_backend)


def parse(found: Mapping[str, Tensor], raw: Mapping[str, Any]) -> Eagle3Checkpoint:
    """Understand a checkpoint and list what is wrong with it, without a target.

    Args:
        found: its tensors, by name.
        raw: its `config.json`.

    Raises:
        ModelError: the configuration is missing, lacks a size, gives a field as what it cannot be, or asks for what a
            tree pass does not reproduce; or the head reads none of the hidden states between the target's layers.
    """
    if not raw:
        raise ModelError("config.json is missing or empty; an EAGLE-3 head needs the one it was published with")
    tensors = {name.removeprefix(MODEL): each for name, each in found.items() if not name.endswith(".inv_freq")}
    if len(tensors) < sum(not name.endswith(".inv_freq") for name in found):
        raise ModelError(f"tensors have the same name with and without {MODEL!r} before it; leave one of each pair")
    first = any(name.startswith(FIRST) for name in tensors)
    tensors = {name.replace(FIRST_ELSEWHERE, FIRST): tensor for name, tensor in tensors.items()}
    maps = {name: tensors.pop(name) for name in ("d2t", "t2d") if name in tensors}
    if entry(raw, "tie_word_embeddings", FLAG) and HEAD not in tensors and EMBEDDING in tensors:
        tensors[HEAD] = tensors[EMBEDDING]
    add_output_biases(tensors)
    layers, depth = hidden_states_read(raw)
    head = _empty(raw, tensors, len(layers or (0, 0, 0)))
    borrowed = {EMBEDDING} | ({HEAD} if entry(raw, SHARED_LM_HEAD, FLAG) else set())
    lacks_fusion = layers is None and head.state_dict().keys() - tensors.keys() - borrowed == {FUSION}
    if lacks_fusion or not reads_states(raw):
        sign = f"it has no {FUSION}" if lacks_fusion else "use_aux_hidden_state is false"
        raise ModelError(
            f"this EAGLE-3 head reads no hidden states from between the target's layers ({sign}), which is not "
            f"supported; {ADVICE}"
        )
    problems = flaws(head, tensors, borrowed, str if first else _public) + check_maps(
        head.config.vocab, head.config.draft_vocab, maps
    )
    made_for = {"hidden size": head.config.target_hidden, "vocabulary": head.config.vocab}
    made_for |= {"number of layers": depth} if depth else {}
    return Eagle3Checkpoint(KIND, head, tensors, made_for, tuple(problems), format_of(raw, first), maps, layers)


def save(head: Eagle3Head, folder: Path, depth: int, *, own_lm_head: bool, dtype: torch.dtype) -> None:
    """Write a head in SpecForge's format, whose tensors SafeAILab's shares, without the target's embedding.

    SafeAILab's `cnets.py` reads the target's embedding only if there is no `target_hidden_size`, so that is left out
    where it says nothing. SGLang and vLLM use the target's embedding where there is no other, but not its output layer.

    Args:
        head: the head to write, without variants that the format does not know.
        folder: made if it does not exist.
        depth: the target's number of layers.
        own_lm_head: False where the output layer's rows are the target's own and are to be referred to, not stored:
            only drafttree loads such a file.
        dtype: dtype of the stored weights.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config, layer = head.config, head.config.layer
    rope: Any = layer.rope_parameters
    weights = {_public(name): tensor.to(dtype).contiguous() for name, tensor in head.state_dict().items()}
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
        "tie_word_embeddings": False,
        **({"target_hidden_size": config.target_hidden} if config.target_hidden != config.hidden else {}),
        DEPTH: depth,
        SHARED_LM_HEAD: not own_lm_head,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    (folder / "config.json").write_text(json.dumps(written, indent=2) + "\n")
    partial = folder / "model.safetensors.partial"
    save_file(weights, partial, {"format": "pt"})
    partial.chmod(0o644)
    partial.replace(folder / "model.safetensors")


def add_output_biases(tensors: dict[str, Tensor]) -> None:
    """Add zeros as bias to output projections that have none beside queries that do; transformers' layers have both."""
    for name in [name for name in tensors if name.endswith("self_attn.q_proj.bias")]:
        weight = tensors.get(name.replace("q_proj.bias", "o_proj.weight"))
        if weight is not None and weight.ndim:
            tensors.setdefault(name.replace("q_proj", "o_proj"), weight.new_zeros(len(weight)))


def _empty(raw: Mapping[str, Any], tensors: dict[str, Tensor], states: int) -> Eagle3Head:
    """The head without values, with as many decoder layers as the names tell."""
    with torch.device("meta"):
        return nearest(
            tensors,
            (
                Eagle3Head(read_config(raw, tensors, states, layers))
                for layers in counts(r"layers\.(\d+)\.(?:self_attn|mlp)\.", tensors)
            ),
        )


def _complete(checkpoint: Eagle3Checkpoint, target: PreTrainedModel, ids: Tensor | None) -> dict[str, Tensor]:
    """The head's tensors with those it borrows from the target."""
    tensors = dict(checkpoint.tensors)
    tensors.setdefault(EMBEDDING, whole(embedding(target).weight.detach())[: checkpoint.config.vocab])
    if HEAD not in tensors:
        weight = whole(projection(target).weight.detach())
        tensors[HEAD] = weight if ids is None else weight[ids.to(weight.device)]
    return tensors


def _public(name: str) -> str:
    """A tensor's name as the formats have it that call the first layer `midlayer`."""
    return name.replace(FIRST, FIRST_ELSEWHERE)


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


NAMES = re.compile(r"(model\.)?(midlayer\.|layers\.0\.hidden_norm\.|[dt]2[td]$)")
FORMAT = HeadFormat("eagle3", KIND, NAMES, parse, load, _described)
