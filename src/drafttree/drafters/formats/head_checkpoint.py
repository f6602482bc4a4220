"""What the formats of trained heads share: `HeadFormat` describes one, `Checkpoint` is what was found in a folder.

A checkpoint's tensors are compared with those its heads need: missing, unexpected, misshapen and unusable ones.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mode
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from drafttree.core.errors import ModelError
from drafttree.drafters.base import Drafter
from drafttree.drafters.formats.checkpoints import SIZE, entry
from drafttree.drafters.heads import last_layer, projection
from drafttree.models import lay_out_for_cpu

SHARED_LM_HEAD = "shared_lm_head"
"""Key of a head's config: true where its vocabulary projections are the target's own and therefore not stored."""
SIZES = {"hidden size": "hidden_size", "vocabulary": "vocab_size", "number of layers": "base_num_hidden_layers"}
"""Sizes of the target that a config may give, and their keys; the tensors do not always show them."""
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
Heads = TypeVar("Heads", bound=nn.Module)


@dataclass(frozen=True)
class Checkpoint(Generic[Heads]):
    """Heads as they were found, compared with what they should be.

    Attributes:
        kind: kind of head, for messages.
        heads: without values, of the sizes the checkpoint tells.
        tensors: their values, by name.
        made_for: the sizes of their target, as far as they are known.
        problems: what keeps them from being loaded, one phrase each.
    """

    kind: str
    heads: Heads
    tensors: dict[str, Tensor]
    made_for: dict[str, int]
    problems: tuple[str, ...]

    def check(self, target: PreTrainedModel) -> None:
        """Compare with the target the heads are to draft for.

        Raises:
            ModelError: they were made for another one, and the message has both numbers; or they have problems, all
                of which are listed.
        """
        hidden = target.config.get_text_config().hidden_size
        sizes = dict(zip(SIZES, (hidden, len(projection(target).weight), last_layer(target)), strict=True))
        for name, size in self.made_for.items():
            if size != sizes[name]:
                raise ModelError(
                    f"this {self.kind} head was made for a target with a {name} of {size}, this target's is "
                    f"{sizes[name]}; use it with the model it was trained on"
                )
        if self.problems:
            raise ModelError(f"the tensors make no {self.kind} head: {'; '.join(self.problems)}")


def describe_heads(found: Checkpoint[Any]) -> dict[str, object]:
    """Describe the number of heads, and whether they share the target's vocabulary projection."""
    return {"heads": found.heads.count, "output layers": "the target's" if found.heads.shared else "own"}


def target_sizes(config: Mapping[str, Any], told: Mapping[str, int | None]) -> dict[str, int]:
    """The sizes of the target that heads were made for: those its config says, else those its tensors tell.

    Raises:
        ModelError: the config gives one as something else than a positive integer.
    """
    sizes = {name: entry(config, key, SIZE) or told.get(name) for name, key in SIZES.items()}
    return {name: size for name, size in sizes.items() if size}


def usual_rows(pattern: str, tensors: Mapping[str, Tensor]) -> int | None:
    """The number of rows that most of the tensors of such names have, None where none has any."""
    rows = [len(tensor) for name, tensor in tensors.items() if re.fullmatch(pattern, name) and tensor.ndim]
    return mode(filter(None, rows)) if any(rows) else None


def counts(pattern: str, names: Collection[str]) -> list[int]:
    """Possible counts of the parts that the pattern's group numbers, largest first: each number found, plus one.

    Numbers larger than the names are many are slips, and not counted.
    """
    found = {1 + int(match[1]) for name in names if (match := re.match(pattern, name))}
    return sorted((count for count in found if count <= len(names)), reverse=True) or [1]


def nearest(names: Collection[str], made: Iterable[Heads]) -> Heads:
    """The first of several heads whose tensors have these names, or else the one with the fewest differences."""
    tried: dict[int, Heads] = {}
    for heads in made:
        differences = len(heads.state_dict().keys() ^ set(names))
        tried.setdefault(differences, heads)
        if not differences:
            break
    return tried[min(tried)]


def flaws(
    heads: nn.Module,
    tensors: Mapping[str, Tensor],
    borrowed: Collection[str] = (),
    spelled: Callable[[str], str] = str,
) -> list[str]:
    """Everything in which a checkpoint differs from what heads need, one phrase each.

    Args:
        heads: without values.
        tensors: tensors of the checkpoint, by name.
        borrowed: names that may be missing.
        spelled: a name as the checkpoint has it.
    """
    needed = {name: tensor.shape for name, tensor in heads.state_dict().items()}
    known = sorted(needed.keys() & tensors.keys(), key=_natural)
    return [
        *listed("missing", map(spelled, needed.keys() - tensors.keys() - set(borrowed))),
        *listed("unexpected", map(spelled, tensors.keys() - needed.keys())),
        *(flaw for name in known for flaw in misshapen(spelled(name), tensors[name].shape, needed[name])),
        *(flaw for name in known for flaw in unusable(spelled(name), tensors[name])),
    ]


def listed(word: str, names: Iterable[str]) -> list[str]:
    """One phrase with all names, none where there are none."""
    found = sorted(names, key=_natural)
    return [f"{word} {', '.join(found)}"] if found else []


def misshapen(name: str, found: Sequence[int], needed: Sequence[int]) -> list[str]:
    """One phrase with both shapes, none where they are the same."""
    return [] if list(found) == list(needed) else [f"{name} is {list(found)} and should be {list(needed)}"]


def unusable(name: str, tensor: Tensor) -> Iterator[str]:
    """One phrase where a tensor's values cannot be used."""
    if tensor.dtype not in FLOATS:
        yield f"{name} is {str(tensor.dtype).removeprefix('torch.')} and should be floating-point"
    elif not tensor.isfinite().all():
        yield f"{name} holds numbers that are not finite"


def fill(heads: nn.Module, tensors: Mapping[str, Tensor], target: PreTrainedModel) -> None:
    """Give heads made on the meta device a checkpoint's tensors, frozen, with the target's dtype and device.

    What is one tensor under several names stays one.
    """
    once: dict[tuple, nn.Parameter] = {}
    fitting = {}
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if place not in once:
            once[place] = nn.Parameter(tensor.to(target.device, target.dtype), requires_grad=False)
        fitting[name] = once[place]
    heads.load_state_dict(fitting, assign=True)
    heads.eval().requires_grad_(False)
    if target.device.type == "cpu" and target.dtype == torch.float32:
        lay_out_for_cpu(heads)


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts head 10 after head 9."""
    return [(int(part or 0), text) for text, part in re.findall(r"(\D+)(\d*)", f".{name}")]


@dataclass(frozen=True)
class HeadFormat:
    """One kind of trained heads, told from others by the names of its tensors.

    Attributes:
        kind: its name, such as "medusa".
        title: the same for messages, such as "Medusa".
        names: matches the beginning of the name of at least one of its tensors, and of none of the kinds behind it.
        parse: says what a checkpoint's tensors and config.json hold and what is wrong with them, without a target.
        load: makes the drafter of a checkpoint's tensors and config.json for a target; raises `ModelError`.
        describe: the facts of a checkpoint that `drafttree inspect` prints besides the target's sizes.
    """

    kind: str
    title: str
    names: re.Pattern[str]
    parse: Callable[[Mapping[str, Tensor], Mapping[str, Any]], Checkpoint[Any]]
    load: Callable[[Mapping[str, Tensor], Mapping[str, Any], PreTrainedModel], Drafter]
    describe: Callable[[Any], dict[str, object]]

    def holds(self, names: Collection[str]) -> bool:
        """Whether a folder whose tensors have these names holds such heads."""
        return any(map(self.names.match, names))
