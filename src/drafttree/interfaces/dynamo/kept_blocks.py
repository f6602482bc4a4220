"""Tells Dynamo's router which prefixes of texts a worker keeps, in blocks of tokens.

A router with `--router-mode kv` sends a request to the worker that keeps most of its prompt. The router
compares tokens. The hash of a block, which depends on all tokens up to the block's end, only identifies it for removal.
"""

from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from itertools import pairwise
from typing import Any

NAME_BITS = 63
"""Bits of a block's hash, so that it is positive as a signed 64-bit number."""


class KeptBlocks:
    """The blocks of all kept texts; see `drafttree.engine.prefixes.KeptTextsObserver`.

    Args:
        publisher: a `KvEventPublisher` of Dynamo.
        size: tokens per block; tokens after the last whole block of a text are not published.
    """

    def __init__(self, publisher: Any, size: int) -> None:
        self._publisher = publisher
        self._size = size
        self._texts: Counter[int] = Counter()

    def kept(self, tokens: list[int]) -> None:
        """Publish the blocks of a text, except those that another kept text shares, which are published already."""
        names = [*self._names(tokens)]
        self._texts.update(names)
        new_blocks = [block for block, name in enumerate(names) if self._texts[name] == 1]
        if new_blocks:
            first_block = new_blocks[0]
            self._publisher.publish_stored(
                token_ids=tokens[first_block * self._size : len(names) * self._size],
                num_block_tokens=[self._size] * len(new_blocks),
                block_hashes=names[first_block:],
                parent_hash=names[first_block - 1] if first_block else None,
            )

    def forgotten(self, tokens: list[int]) -> None:
        """Publish the removal of the blocks of a text that no other kept text has."""
        names = [*self._names(tokens)]
        self._texts.subtract(names)
        removed_names = [name for name in names if not self._texts[name]]
        for name in removed_names:
            del self._texts[name]
        if removed_names:
            self._publisher.publish_removed(block_hashes=removed_names)

    def _names(self, tokens: list[int]) -> Iterator[int]:
        name = 0
        for begin, end in pairwise(range(0, len(tokens) + 1, self._size)):
            block = repr((name, tokens[begin:end])).encode()
            name = int.from_bytes(blake2b(block, digest_size=8).digest()) >> (64 - NAME_BITS)
            yield name
