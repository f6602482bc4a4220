"""Formats of trained heads (`HeadFormat`), and the heads in a folder (`Checkpoint`).

A checkpoint's tensors are compared with those that its heads need, to find missing, unexpected, misshapen and unusable
tensors.

"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mode
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from drafttree.core.errors import ModelError
from drafttree.drafters.base import Drafter
from drafttree.drafters.target_parts import embedding_weight, last_layer, projection_weight
from drafttree.models.module.module_backend import lay_out_for_cpu
from drafttree.models.module.module_checks import logits_width
from drafttree.models.tensor_parallel import whole

ADVICE = "use another head made for the target, a smaller language model, or lookup"
SIZES = {"hidden size": "hidden_size", "vocabulary": "vocab_size", "number of layers": "base_num_hidden_layers"}
"""Sizes of a target: their names in messages, and the fields of a config that may have them."""
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
"""Tensors that a head with decoder layers borrows from its target if the checkpoint lacks them."""
MODEL = "model."
"""Prefix of all names except the output layer's, in checkpoints saved from a wrapper such as TensorRT-LLM's."""
DECODER_LAYER = r"layers\.(\d+)\.(?:self_attn|mlp)\."
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
IDS = (torch.int64, torch.int32, torch.int16)
Heads = TypeVar("Heads")
Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class Checkpoint(Generic[Heads]):
    """The trained heads in a folder.

    Attributes:
        heads: the modules, without values, in the sizes of the checkpoint.
        tensors: the values, by name.
        made_for: the sizes of the heads' target, as far as they are known.
        problems: why the heads cannot be loaded, one phrase each.
        details: facts for `drafttree inspect`, besides the target's sizes.
        layers: the target's hidden states that the heads read, counted as by `Model.forward`; None for EAGLE-3's
            default, which depends on the target's depth.
        maps: the maps `d2t` and `t2d` between the target's vocabulary and a smaller one, if the checkpoint has them.
    """

    heads: Heads
    tensors: dict[str, Tensor]
    made_for: dict[str, int]
    problems: tuple[str, ...]
    details: dict[str, object] = field(default_factory=dict)
    layers: tuple[int, ...] | None = ()
    maps: dict[str, Tensor] = field(default_factory=dict)

    @property
    def target_ids(self) -> Tensor | None:
        """The target's id of each id of the drafted vocabulary; None without a map."""
        return _target_ids(self.maps["d2t"]) if "d2t" in self.maps else None

    def hidden_layers(self, target: PreTrainedModel) -> tuple[int, ...]:
        """The hidden states of a target that the heads read, counted as by `Model.forward`."""
        depth = last_layer(target)
        return (2, depth // 2, depth - 3) if self.layers is None else self.layers

    def check(self, head_kind: str, target: PreTrainedModel) -> None:
        """Check that the heads fit a target.

        Args:
            head_kind: the kind of the heads, for messages.
            target: the target.

        Raises:
            ModelError: If the heads were made for another target, have problems, read hidden states that the target
                does not have, or differ in width from what they borrow.
        """
        depth = last_layer(target)
        width = target.config.get_text_config().hidden_size
        sizes = dict(zip(SIZES, (width, logits_width(target), depth), strict=True))
        for name, size in self.made_for.items():
            if size != sizes[name]:
                raise ModelError(
                    f"this {head_kind} head was made for a target with a {name} of {size}, this target's is "
                    f"{sizes[name]}; use it with the model it was trained on"
                )
        if self.problems:
            raise ModelError(f"the tensors of the {head_kind} head are wrong: {'; '.join(self.problems)}")
        hidden_layers = self.hidden_layers(target)
        if self.layers and max(hidden_layers) == depth:
            raise ModelError(
                f"this {head_kind} head reads the output of the target's last layer, number {depth - 1}, which is "
                f"not supported: drafttree runs heads that read the inputs of layers; {ADVICE}"
            )
        if hidden_layers and (min(hidden_layers) < 0 or max(hidden_layers) >= depth):
            raise ModelError(
                f"this {head_kind} head reads the hidden states {', '.join(map(str, hidden_layers))} of a target, "
                f"which has {depth} layers and so the states 0 to {depth - 1}; use it with the model it was trained on"
            )
        for name, tensor in self.borrowed().items():
            if tensor.shape[-1] != width:
                raise ModelError(
                    f"this {head_kind} head is {tensor.shape[-1]} wide and has no {name} of its own; the target's is "
                    f"{width} wide"
                )

    def borrowed(self) -> dict[str, Tensor]:
        """The parts, without values, that heads with decoder layers borrow from their target, by name."""
        state_dict = self.heads.state_dict() if isinstance(self.heads, nn.Module) else {}
        return {name: state_dict[name] for name in (EMBEDDING, HEAD) if name in state_dict and name not in self.tensors}

    def filled(self, target: PreTrainedModel) -> Heads:
        """Give the heads their tensors and those that they borrow from the target, and return them."""
        heads: Any = self.heads
        tensors = dict(self.tensors)
        borrowed = self.borrowed()
        ids = self.target_ids
        if EMBEDDING in borrowed:
            tensors[EMBEDDING] = whole(embedding_weight(target))[: len(borrowed[EMBEDDING])]
        if HEAD in borrowed:
            weight = whole(projection_weight(target))
            tensors[HEAD] = weight if ids is None else weight[ids.to(weight.device)]
        fill(heads, tensors, target)
        if ids is not None:
            heads.target_ids = ids.to(target.device)
        return heads


@dataclass(frozen=True)
class HeadFormat:
    """One kind of trained heads, recognised by the names of its tensors.

    Attributes:
        kind: its name, such as "medusa".
        title: its name in messages, such as "Medusa".
        holds: whether tensors of these names are such heads. It must be false for all later formats in `FORMATS`.
        parse: makes a checkpoint from tensors and config.json, with or without a target.
        build: makes the drafter from a checkpoint that fits the target.
    """

    kind: str
    title: str
    holds: Callable[[Collection[str]], bool]
    parse: Callable[[Mapping[str, Tensor], Mapping[str, Any], PreTrainedModel | None], Checkpoint[Any]]
    build: Callable[[Checkpoint[Any], PreTrainedModel], Drafter]

    def load(self, tensors: Mapping[str, Tensor], config: Mapping[str, Any], target: PreTrainedModel) -> Drafter:
        """Make the drafter of a checkpoint, in the target's dtype and on its device.

        Weights that equal the target's are shared, not copied, if the target has the layout of `load_model`.

        Raises:
            ModelError: If the configuration is invalid or not supported, tensors are missing, unexpected, misshapen or
                not finite, or the heads were made for another target.
        """
        checkpoint = self.parse(tensors, config, target)
        checkpoint.check(self.title, target)
        return self.build(checkpoint, target)


def with_layers(
    heads: Any,
    tensors: dict[str, Tensor],
    spelled: Callable[[str], str],
    target_hidden: int,
    borrowable: Collection[str],
    layers: tuple[int, ...] | None = (),
    depth: int | None = None,
    **details: object,
) -> Checkpoint[Any]:
    """Make the checkpoint of heads that have decoder layers, an embedding and an output layer.

    Args:
        heads: the modules without values.
        tensors: tensors by our names; `d2t` and `t2d` are removed from it.
        spelled: returns the name in the file for one of our names.
        target_hidden: width of the target.
        borrowable: names of tensors that the heads borrow from the target if the file lacks them.
        layers: as in `Checkpoint`.
        depth: the target's number of layers; None if it is not known.
        **details: further facts for `drafttree inspect`.

    """
    vocab = len(heads.state_dict()[EMBEDDING])
    draft_vocab = len(heads.state_dict()[HEAD])
    maps = {name: tensors.pop(name) for name in ("d2t", "t2d") if name in tensors}
    layer = heads.config.layer
    made_for = {"hidden size": target_hidden, "vocabulary": vocab} | ({"number of layers": depth} if depth else {})
    states_text = "2, L/2 and L - 3 of L layers" if layers is None else ", ".join(map(str, layers))
    owners = {name: "own" if name in tensors else "the target's" for name in (EMBEDDING, HEAD)}
    if {EMBEDDING, HEAD} <= tensors.keys() and tensors[EMBEDDING].data_ptr() == tensors[HEAD].data_ptr():
        owners[HEAD] = "the embedding"
    details = {
        **details,
        "hidden states read": states_text or "after the final norm",
        "draft vocabulary": draft_vocab if "d2t" in maps else f"{draft_vocab} (all)",
        "decoder layers": layer.num_hidden_layers,
        "attention": f"{layer.num_attention_heads} heads of {layer.head_dim}",
        "embedding": owners[EMBEDDING],
        "output layer": owners[HEAD],
    }
    problems = flaws(heads, tensors, borrowable, spelled) + map_flaws(vocab, draft_vocab, maps)
    return Checkpoint(heads, tensors, made_for, tuple(problems), details, layers, maps)


def any_name(pattern: str) -> Callable[[Collection[str]], bool]:
    """Return a function that checks whether a pattern matches the beginning of any name."""
    return lambda names: any(re.match(pattern, name) for name in names)


def renamed(
    tensors: Mapping[str, Tensor], new_prefixes: Mapping[str, str], left_out: str
) -> tuple[dict[str, Tensor], Callable[[str], str]]:
    """Rename tensors to our names, and return them with a function from our names to those in the file.

    Args:
        tensors: tensors by their names in the file, with or without "model." before them.
        new_prefixes: our prefixes, by those in the file.
        left_out: a pattern for our names of tensors to leave out.

    Raises:
        ModelError: If two names differ only in "model.".
    """
    spelled = dict[str, str]()
    bare_names = set[str]()
    # prefixes in the file by ours: first those of whole names, then those that the file has
    file_prefixes = {
        prefix: file_prefix for file_prefix, prefix in new_prefixes.items() if prefix and not prefix.endswith(".")
    }
    for name in tensors:
        bare_name = name.removeprefix(MODEL)
        file_prefix = next((file_prefix for file_prefix in new_prefixes if bare_name.startswith(file_prefix)), None)
        new_name = bare_name if file_prefix is None else new_prefixes[file_prefix] + bare_name.removeprefix(file_prefix)
        if re.match(left_out, new_name):
            continue
        if bare_name in bare_names:
            raise ModelError(
                f"tensors have the same name with and without {MODEL!r} before it; keep only one of each pair"
            )
        bare_names.add(bare_name)
        spelled[new_name] = name
        if file_prefix and new_prefixes[file_prefix]:
            file_prefixes[new_prefixes[file_prefix]] = file_prefix

    def in_file(name: str) -> str:
        file_names = (
            file_prefix + name.removeprefix(prefix)
            for prefix, file_prefix in file_prefixes.items()
            if name.startswith(prefix)
        )
        return spelled.get(name) or next(file_names, name)

    return {new_name: tensors[name] for new_name, name in spelled.items()}, in_file


def add_output_biases(tensors: dict[str, Tensor]) -> None:
    """Add a zero bias to output projections if queries have a bias, since transformers' layers have both or none."""
    for name in [name for name in tensors if name.endswith("self_attn.q_proj.bias")]:
        weight = tensors.get(name.replace("q_proj.bias", "o_proj.weight"))
        if weight is not None and weight.ndim:
            tensors.setdefault(name.replace("q_proj", "o_proj"), weight.new_zeros(len(weight)))


def usual_rows(pattern: str, tensors: Mapping[str, Tensor]) -> int | None:
    """The most frequent number of rows among tensors whose names match; None if there is none."""
    rows = [len(tensor) for name, tensor in tensors.items() if re.fullmatch(pattern, name) and tensor.ndim]
    return mode(filter(None, rows)) if any(rows) else None


def counts(pattern: str, names: Collection[str]) -> list[int]:
    """Possible counts of numbered parts, largest first: one more than each number in the pattern's group.

    Counts larger than the number of names are left out as mistakes.
    """
    candidates = {1 + int(match[1]) for name in names if (match := re.match(pattern, name))}
    return sorted((count for count in candidates if count <= len(names)), reverse=True) or [1]


def nearest(names: Collection[str], candidates: Iterator[Module]) -> Module:
    """Return the first candidate whose tensors have these names, else the one whose names differ least.

    Args:
        names: the names of a checkpoint's tensors.
        candidates: makes heads. They have no values, since they are made here on the meta device.
    """
    attempts: dict[int, Module] = {}
    with torch.device("meta"):
        for heads in candidates:
            differences = len(heads.state_dict().keys() ^ set(names))
            attempts.setdefault(differences, heads)
            if not differences:
                break
    return attempts[min(attempts)]


def flaws(
    heads: nn.Module,
    tensors: Mapping[str, Tensor],
    borrowed: Collection[str] = (),
    spelled: Callable[[str], str] = str,
) -> list[str]:
    """How tensors differ from those that heads need and do not borrow, one phrase for each kind or tensor."""
    shapes = {name: tensor.shape for name, tensor in heads.state_dict().items()}
    common_names = sorted(shapes.keys() & tensors.keys(), key=_natural)
    problems = [
        *listed("missing", map(spelled, shapes.keys() - tensors.keys() - set(borrowed))),
        *listed("unexpected", map(spelled, tensors.keys() - shapes.keys())),
    ]
    for name in common_names:
        problems += misshapen(spelled(name), tensors[name].shape, shapes[name])
    for name in common_names:
        problems += unusable(spelled(name), tensors[name])
    return problems


def listed(word: str, names: Iterable[str]) -> list[str]:
    """One phrase with all names; none if there are no names."""
    sorted_names = sorted(names, key=_natural)
    return [f"{word} {', '.join(sorted_names)}"] if sorted_names else []


def misshapen(name: str, shape: Sequence[int], needed_shape: Sequence[int]) -> list[str]:
    """One phrase with both shapes; none if they are equal."""
    return [] if list(shape) == list(needed_shape) else [f"{name} is {list(shape)} and should be {list(needed_shape)}"]


def unusable(name: str, tensor: Tensor) -> Iterator[str]:
    """One phrase if a tensor's values cannot be used."""
    if tensor.dtype not in FLOATS:
        yield f"{name} is {str(tensor.dtype).removeprefix('torch.')} and should be floating-point"
    elif not tensor.isfinite().all():
        yield f"{name} holds numbers that are not finite"


def map_flaws(vocab: int, draft_vocab: int, maps: Mapping[str, Tensor]) -> list[str]:
    """The problems of the maps between a target's vocabulary and a drafted one, one phrase each."""
    if "d2t" not in maps:
        return [] if draft_vocab == vocab else [f"missing d2t, for {draft_vocab} of {vocab} token ids"]
    d2t, t2d = maps["d2t"], maps.get("t2d")
    sizes = {"d2t": draft_vocab, "t2d": vocab}
    problems = list[str]()
    for name, ids in maps.items():
        problems += misshapen(name, ids.shape, [sizes[name]])
    if problems:
        return problems
    if d2t.dtype not in IDS:
        return [f"d2t is {str(d2t.dtype).removeprefix('torch.')} and should be int64"]
    ids = _target_ids(d2t).sort().values
    if not (ids.diff() > 0).all() or int(ids[0]) < 0 or int(ids[-1]) >= vocab:
        return [f"d2t does not lead to different token ids below {vocab}"]
    if t2d is not None and t2d.nonzero().flatten().tolist() != ids.tolist():
        return ["t2d and d2t name different token ids"]
    return []


def _target_ids(d2t: Tensor) -> Tensor:
    return d2t.long() + torch.arange(len(d2t))


def fill(heads: nn.Module, tensors: Mapping[str, Tensor], target: PreTrainedModel) -> None:
    """Give heads from the meta device a checkpoint's tensors, frozen and in the target's dtype and device.

    A tensor with several names stays one tensor. Rotary embeddings are made anew, since files do not have them.
    """
    parameters: dict[tuple, nn.Parameter] = {}
    state_dict = {}
    for name, tensor in tensors.items():
        identity = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if identity not in parameters:
            parameters[identity] = nn.Parameter(tensor.to(target.device, target.dtype), requires_grad=False)
        state_dict[name] = parameters[identity]
    heads.load_state_dict(state_dict, assign=True)
    for module in [*heads.modules()]:
        for name, child in module.named_children():
            if name.startswith("rotary"):
                setattr(module, name, type(child)(child.config).to(target.device))  # pyright: ignore[reportArgumentType]
    heads.eval().requires_grad_(False)
    if target.device.type == "cpu" and target.dtype == torch.float32:
        lay_out_for_cpu(heads)


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts head 10 after head 9."""
    return [(int(digits or 0), text) for text, digits in re.findall(r"(\D+)(\d*)", f".{name}")]
