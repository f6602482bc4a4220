"""The description of one kind of trained heads on disk."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from drafttree.drafters.base import Drafter
from drafttree.drafters.formats.head_checkpoint import Checkpoint


@dataclass(frozen=True)
class HeadFormat:
    """One kind of trained heads, told from others by the names of its tensors.

    Attributes:
        kind: its name, such as "medusa".
        title: the same for messages, such as "Medusa".
        names: matches the beginning of the name of at least one of its tensors, and of none of other kinds.
        parse: from a checkpoint's tensors and config.json, what was found and what is wrong with it; no target needed.
        load: the drafter of a checkpoint's tensors and config.json for a target; raises `ModelError`.
        describe: the facts of a checkpoint that `drafttree inspect` prints besides the target's sizes.
    """

    kind: str
    title: str
    names: re.Pattern[str]
    parse: Callable[[Mapping[str, Tensor], Mapping[str, Any]], Checkpoint[Any]]
    load: Callable[[Mapping[str, Tensor], Mapping[str, Any], PreTrainedModel], Drafter]
    describe: Callable[[Any], dict[str, object]]
