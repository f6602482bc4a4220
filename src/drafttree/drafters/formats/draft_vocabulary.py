"""The smaller vocabularies of heads, and their maps to the target's: `d2t` and `t2d`."""

from collections.abc import Mapping

import torch
from torch import Tensor

from drafttree.drafters.formats.head_checkpoint import misshapen

IDS = (torch.int64, torch.int32, torch.int16)


def check_maps(vocab: int, draft_vocab: int, maps: Mapping[str, Tensor]) -> list[str]:
    """The problems of the maps between the two vocabularies, one phrase each."""
    if "d2t" not in maps:
        same = draft_vocab == vocab
        return [] if same else [f"missing d2t, for {draft_vocab} of {vocab} token ids"]
    d2t, t2d = maps["d2t"], maps.get("t2d")
    sizes = {"d2t": draft_vocab, "t2d": vocab}
    if wrong := [flaw for name, ids in maps.items() for flaw in misshapen(name, ids.shape, [sizes[name]])]:
        return wrong
    if d2t.dtype not in IDS:
        return [f"d2t is {str(d2t.dtype).removeprefix('torch.')} and should be int64"]
    ids = (d2t.long() + torch.arange(len(d2t))).sort().values
    if not (ids.diff() > 0).all() or int(ids[0]) < 0 or int(ids[-1]) >= vocab:
        return [f"d2t does not lead to different token ids below {vocab}"]
    if t2d is not None and t2d.nonzero().flatten().tolist() != ids.tolist():
        return ["t2d and d2t name different token ids"]
    return []


def target_ids(maps: Mapping[str, Tensor]) -> Tensor | None:
    """The target's id of every id of the draft vocabulary, None where there is no map."""
    return maps["d2t"].long() + torch.arange(len(maps["d2t"])) if "d2t" in maps else None
