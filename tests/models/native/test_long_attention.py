"""Attention over several splits of positions: a token's bits depend neither on others in its pass nor on threads."""

from typing import Any

import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig

from drafttree.models import TargetModel
from drafttree.models.base import append
from drafttree.models.module.module_backend import ModuleBackend
from drafttree.models.native.native_backend import NativeBackend
from testing import tiny
from testing.marks import needs_native

pytestmark = needs_native
ROWS = (510, 1023, 1500)
"""Ends of prompts: just before the end of a split, at one, and within the third."""
SIZES = {**tiny.GROUPED, "max_position_embeddings": 4096}
CONFIGS = {
    "groups": lambda: LlamaConfig(**SIZES),
    "one key head": lambda: LlamaConfig(**{**SIZES, "num_key_value_heads": 1}),
    "windows": lambda: Gemma3TextConfig(
        **{**SIZES, "num_key_value_heads": 1}, head_dim=12, sliding_window=700, layer_types=LAYERS
    ),
}
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
DTYPES = [torch.float32, torch.bfloat16]


def make(name: str, dtype: torch.dtype) -> Any:
    return tiny.from_config(CONFIGS[name]()).to(dtype)


def read(model: TargetModel, tokens: list[int], step: int) -> Any:
    cache = model.new_cache(len(tokens) + 40)
    for first in range(0, len(tokens), step):
        append(model, cache, tokens[first : first + step])
    return cache


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", CONFIGS)
@torch.inference_mode()
def test_a_node_has_the_bits_of_plain_decoding(name, rows, dtype):
    model = TargetModel(make(name, dtype), NativeBackend)
    prompt, tree = tiny.random_tokens(rows, 1), tiny.random_tree((3, 5, 4, 6, 5), 2)
    cache = read(model, prompt, 300)
    logits = tiny.score(model, cache, tree)[0]
    cache.commit([])
    for path in tiny.leaf_paths(tree)[::3]:
        single = read(model, prompt, 97)
        found = [append(model, single, [int(tree.tokens[node])]).logits[0] for node in path]
        assert torch.equal(torch.cat(found), logits[path])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CONFIGS)
@torch.inference_mode()
def test_a_token_has_the_same_bits_on_any_number_of_threads(name, dtype, threads):
    model = TargetModel(make(name, dtype), NativeBackend)
    prompt, found = tiny.random_tokens(1300, 1), []
    for count in (1, 2, 3, 5):
        threads(count)
        cache = read(model, prompt, 300)
        found.append(append(model, cache, [5]).logits)
    assert all(torch.equal(each, found[0]) for each in found[1:])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CONFIGS)
@torch.inference_mode()
def test_logits_behind_many_rows_are_the_modules(name, dtype):
    module = make(name, dtype)
    prompt = tiny.random_tokens(1300, 1)
    native, own = TargetModel(module, NativeBackend), TargetModel(make(name, dtype), ModuleBackend)
    found, expected = (append(model, model.new_cache(1300), prompt).logits for model in (native, own))
    allowed = 1e-4 if dtype == torch.float32 else 0.1
    assert float((found - expected).abs().max()) <= allowed * max(float(expected.abs().max()), 1.0)
