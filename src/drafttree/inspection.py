"""What a folder of weights is, which targets it fits, how large it is, and what it lacks; no target is needed."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from drafttree.drafters import eagle3_format
from drafttree.drafters.checkpoints import LANGUAGE_MODEL, read_config, read_tensors, recognise
from drafttree.drafters.heads import SHARED_LM_HEAD
from drafttree.errors import ModelError
from drafttree.loading import HEADS, find_folder

HIDDEN = {"medusa": r"(medusa_heads?\.)?\d+\.\d+\.linear\.weight", "hydra": r"hydra_mlp\.0\.\d+\.linear\.weight"}
VOCAB = {
    "medusa": r"(medusa_heads?\.)?\d+\.\d+\.weight",
    "hydra": r"(hydra_lm_head\.\d+\.(\d+\.)?|input_embed_fn\.)weight",
}
COUNT = {"medusa": r"(?:medusa_heads?\.)?(\d+)\.", "hydra": r"hydra_mlp\.(\d+)\."}
PREFIX_LAYER = "prefix_embeding_layer.layers.0."
UNKNOWN = "not said"


@dataclass(frozen=True)
class Inspection:
    """What was found in a folder.

    Attributes:
        kind: as `recognise` has it.
        fits: what a target must be like.
        details: of this kind.
        parameters: stored numbers, those stored twice counted once.
        megabytes: they take, in units of a million bytes.
        dtypes: they are stored in.
        problems: what keeps it from being loaded, all of it.
    """

    kind: str
    fits: dict[str, object]
    details: dict[str, object] = field(default_factory=dict)
    parameters: int = 0
    megabytes: float = 0.0
    dtypes: str = ""
    problems: tuple[str, ...] = ()


def inspect(source: str) -> Inspection:
    """Look at a folder or hub name.

    Raises:
        ModelError: there is none, its files are damaged, or it is no drafter known here.
    """
    folder = find_folder(source)
    kind, config, tensors = recognise(folder), read_config(folder), read_tensors(folder)
    look = {LANGUAGE_MODEL: _language_model, "eagle3": _eagle3}.get(kind)
    fits, details, problems = look(config, tensors) if look else _heads(kind, config, tensors)
    stored = list({tensor.data_ptr(): tensor for tensor in tensors.values()}.values())
    return Inspection(
        kind=kind,
        fits=fits,
        details=details,
        parameters=sum(tensor.numel() for tensor in stored if tensor.is_floating_point()),
        megabytes=sum(tensor.nbytes for tensor in stored) / 1e6,
        dtypes=", ".join(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in stored})),
        problems=tuple(problems),
    )


Looked = tuple[dict[str, object], dict[str, object], Iterable[str]]


def _language_model(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Looked:
    text = config.get("text_config") or config
    fits = {"tokenizer": "the same as its own", "vocabulary": text.get("vocab_size", UNKNOWN)}
    names = ("hidden_size", "num_hidden_layers", "max_position_embeddings")
    details = {
        "architecture": config["model_type"],
        **{name.replace("_", " "): text.get(name, UNKNOWN) for name in names},
    }
    return fits, details, ()


def _eagle3(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Looked:
    found = eagle3_format.parse(tensors, config)
    head, ids = found.config, found.maps.get("d2t")
    states = "2, L/2 and L - 3 of L layers" if found.layers is None else ", ".join(map(str, found.layers))
    fits = {"hidden size": head.target_hidden, "vocabulary": head.vocab, "layers": found.depth or UNKNOWN}
    own = {
        name: "own" if name in found.tensors else "the target's" for name in ("embed_tokens.weight", "lm_head.weight")
    }
    details = {
        "format": found.format,
        "hidden states read": states,
        "draft vocabulary": head.draft_vocab if ids is not None else f"{head.draft_vocab} (all)",
        "width": head.hidden,
        "decoder layers": head.layer.num_hidden_layers,
        "attention": f"{head.layer.num_attention_heads} heads of {head.layer.head_dim}",
        "embedding": own["embed_tokens.weight"],
        "output layer": own["lm_head.weight"],
    }
    return fits, details, found.problems


def _heads(kind: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Looked:
    """Medusa and Hydra heads: their loader says what is missing, given a target of the sizes they tell."""
    hidden, vocab = (_rows(patterns[kind], tensors) for patterns in (HIDDEN, VOCAB))
    heads = {match[1] for name in tensors if (match := re.match(COUNT[kind], name))}
    shared = "the target's" if config.get(SHARED_LM_HEAD) or vocab is None else "own"
    details: dict[str, object] = {"heads": len(heads), "output layers": shared}
    problems = []
    needed = {name: tensor for name, tensor in tensors.items() if not name.startswith("input_embed_fn.")}
    try:
        HEADS[kind](needed, config, _stand_in(hidden or 1, vocab or 1, tensors))
    except ModelError as error:
        problems.append(str(error))
    base = config.get("base_model_name_or_path")
    fits: dict[str, object] = {"hidden size": hidden or UNKNOWN, "vocabulary": vocab or UNKNOWN}
    fits |= {"trained on": base} if base else {}
    return fits, details, problems


def _rows(pattern: str, tensors: Mapping[str, Tensor]) -> int | None:
    """Rows of the first tensor with such a name."""
    return next((len(tensor) for name, tensor in tensors.items() if re.fullmatch(pattern, name)), None)


def _stand_in(hidden: int, vocab: int, tensors: Mapping[str, Tensor]) -> LlamaForCausalLM:
    """A target without values; where heads have an attention layer like the target's, its shapes are theirs."""
    shapes = {
        name: tensors.get(f"{PREFIX_LAYER}{name}_proj.weight") for name in ("self_attn.q", "self_attn.k", "mlp.gate")
    }
    queries, keys, mlp = (hidden if weight is None else len(weight) for weight in shapes.values())
    width = math.gcd(queries, keys)
    with torch.device("meta"):
        return LlamaForCausalLM(
            LlamaConfig(
                hidden_size=hidden,
                vocab_size=vocab,
                intermediate_size=mlp,
                num_hidden_layers=1,
                num_attention_heads=queries // width,
                num_key_value_heads=keys // width,
                head_dim=width,
            )
        )
