"""Whether a backend computes a token's logits the same, bit for bit, in whatever pass the token is.

The same tokens are scored one by one, as nodes of trees, and behind a prompt that was read in parts, after keys and
values of random numbers.
"""

import itertools

import torch
from torch import Tensor

from drafttree.models.base import Backend, append
from drafttree.models.cache.kv_cache import TreeCache
from drafttree.models.segment import Segment

PREFIX = 600
"""Random rows of the KV cache: more than a block of the CPU's attention kernel."""
PARTS = (1, 2, 3, 5, 8, 13)
"""Tokens of the passes in which the rest of the prompt is read."""
PATH = 16
"""Tokens compared."""
SMALL, LARGE = 2, 5
"""Branches of every level of the trees they are nodes of."""


@torch.inference_mode()
def has_uniform_rows(backend: Backend, dtype: torch.dtype, vocab: int, context: int | None) -> bool:
    """Whether plain decoding, trees, and prompts read in parts give the same logits.

    Args:
        backend: under test.
        dtype: of its KV cache.
        vocab: tokens there are.
        context: positions there are, None for no limit.
    """
    prompt = sum(PARTS)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocab, (prompt + PATH,), generator=generator).tolist()
    others = torch.randint(vocab, (PATH * LARGE,), generator=generator).tolist()
    prefix = max(0, min(PREFIX, (context or PREFIX + len(tokens)) - len(tokens)))
    text, path = tokens[:prompt], tokens[prompt:]

    def read(*parts: int) -> TreeCache:
        cache = _random_cache(backend, dtype, prefix, prefix + len(tokens) + len(others))
        for start, end in itertools.pairwise(itertools.accumulate(parts, initial=0)):
            append(backend, cache, text[start:end])
        return cache

    cache = read(prompt)
    own = torch.cat([append(backend, cache, [token]).logits[0] for token in path])
    cache = read(*PARTS)
    half = PATH // 2
    found = [
        _tree_logits(backend, read(prompt), path, others, LARGE),
        _tree_logits(backend, cache, path[:half], others, SMALL),
        _tree_logits(backend, cache, path[half:], others, 1),
    ]
    return torch.equal(found[0], own) and torch.equal(torch.cat(found[1:]), own)


def _random_cache(backend: Backend, dtype: torch.dtype, rows: int, capacity: int) -> TreeCache:
    cache = backend.new_cache(capacity)
    generator = torch.Generator(backend.device).manual_seed(0)
    for both in cache.rows(torch.empty(0, dtype=dtype, device=backend.device), rows):
        for states in both:
            states.normal_(generator=generator)
    cache.grow(torch.arange(rows, device=backend.device)[None])
    cache.commit(range(rows))
    return cache


def _tree_logits(backend: Backend, cache: TreeCache, path: list[int], others: list[int], branches: int) -> Tensor:
    """`[path, vocab]` of a path in a tree with so many nodes on every level but the first; the path is committed.

    The path is at another place on every level, and the other nodes have the same parent as its node.
    """
    nodes, parents, places = [path[0]], [-1], [0]
    for level, token in enumerate(path[1:], start=1):
        siblings = others[level * branches : (level + 1) * branches]
        siblings[level % branches] = token
        parents += [places[-1]] * branches
        places.append(len(nodes) + level % branches)
        nodes += siblings
    visible = torch.eye(len(nodes), dtype=torch.bool, device=backend.device)
    for node, parent in enumerate(parents[1:], start=1):
        visible[node] |= visible[parent]
    positions = visible.sum(1)[None] - 1 + cache.length
    ids = torch.tensor([nodes], device=backend.device)
    (output,) = backend.forward([Segment(cache, ids, positions, visible[None])])
    cache.commit(places)
    return output.logits[0, places]
