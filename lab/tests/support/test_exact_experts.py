"""With exact_text mixtures of experts compute a token the same in passes of any size, all that transformers has.

`tests/models/test_exact_experts.py` fails for the same fault in three families.
"""

import itertools
from collections import Counter
from functools import partial

import pytest
import torch
from torch import Tensor

from drafttree.errors import ModelError
from drafttree.models import Segment, TargetModel
from drafttree.models.backend_choice import Wants, choose_backend
from drafttree.models.base import append
from drafttree_lab.support.random_models import architectures, random_model
from drafttree_lab.support.small_configs import VOCAB, small_config

PROMPT, TEXT = 20, 60
SIZES = ((1,), (3, 5, 2), (17,))
"""Tokens of the passes, by turns."""


def mixtures() -> list[str]:
    """The architectures whose configs speak of experts."""
    return [name for name in architectures() if _has_experts(name)]


def _has_experts(name: str) -> bool:
    try:
        config = small_config(name)
    except Exception:  # of any kind: transformers cannot make it
        return False
    return any("expert" in field for field in config.to_dict())


@torch.inference_mode()
def logits(model: TargetModel, text: list[int], sizes: tuple[int, ...]) -> Tensor:
    """The logits behind every token of a text that is read in passes of these sizes."""
    cache = model.new_cache(len(text))
    append(model, cache, text[:PROMPT])
    rows, turns = [], itertools.cycle(sizes)
    while cache.length < len(text):
        tokens = text[cache.length : cache.length + next(turns)]
        segment = Segment.of_text(cache, tokens)._replace(wanted=slice(None))
        rows.append(model.forward([segment])[0].logits[0])
        cache.commit(range(len(tokens)))
    return torch.cat(rows)


def outcome(name: str) -> str:
    """What became of an architecture: "same", "another", or why it was not run."""
    try:
        module = random_model(name).bfloat16()
    except Exception:  # of any kind, from transformers
        return "not built"
    try:
        model = TargetModel(module, partial(choose_backend, wants=Wants(exact_text=True)))
    except ModelError:
        return "refused"
    text = torch.randint(VOCAB, (PROMPT + TEXT,), generator=torch.Generator().manual_seed(0)).tolist()
    alone, *together = (logits(model, text, sizes) for sizes in SIZES)
    return "same" if all(torch.equal(alone, rows) for rows in together) else "another"


@pytest.mark.slow
def test_a_token_has_the_same_bits_in_passes_of_any_size():
    outcomes = {name: outcome(name) for name in mixtures()}
    assert not [name for name, result in outcomes.items() if result == "another"]
    assert Counter(outcomes.values())["same"] > 30
