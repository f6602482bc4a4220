"""A radix tree over token ids: which of many texts share the longest beginning with a prompt.

A node stands for the beginning at which a text ends or several part, and the edge that leads to it for the tokens after
its parent's. So a prompt is compared once with every token that it shares, however many texts share it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(eq=False)
class _Node(Generic[T]):
    """A beginning of texts.

    Attributes:
        tokens: tokens of the edge that leads here.
        parent: the node of the next shorter beginning; the root, which stands for no tokens, has none.
        children: nodes of longer beginnings, by the first token of their edge.
        items: the texts that end here.
    """

    tokens: list[int]
    parent: "_Node[T] | None" = None
    children: "dict[int, _Node[T]]" = field(default_factory=dict)
    items: list[T] = field(default_factory=list)


class PrefixTree(Generic[T]):
    """Items, each under the tokens of its text and in it once, the least recently used first."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node([])
        self._ends: dict[T, _Node[T]] = {}
        self._used: dict[T, int] = {}
        self._clock = count()

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[T]:
        """All items, the least recently used first."""
        return iter(self._ends)

    def add(self, tokens: Sequence[int], item: T) -> None:
        """Add an item, which counts as used now."""
        node, depth = self._root, 0
        while depth < len(tokens):
            child = node.children.get(tokens[depth])
            if child is None:
                child = node.children[tokens[depth]] = _Node([*tokens[depth:]], node)
            shared = _shared(child.tokens, tokens, depth)
            node = _split(child, shared) if shared < len(child.tokens) else child
            depth += shared
        node.items.append(item)
        self._ends[item] = node
        self.use(item)

    def use(self, item: T) -> None:
        """Note that an item is used now."""
        self._ends[item] = self._ends.pop(item)
        self._used[item] = next(self._clock)

    def remove(self, item: T) -> None:
        """Remove an item."""
        node = self._ends.pop(item)
        del self._used[item]
        node.items.remove(item)
        while node.parent and not node.items and not node.children:
            del node.parent.children[node.tokens[0]]
            node = node.parent
        if node.parent and not node.items and len(node.children) == 1:
            _join(node)

    def matches(self, tokens: Sequence[int]) -> Iterator[tuple[int, T]]:
        """The items that share a beginning with a text, with how many tokens they share.

        The longest come first, and of equal ones those used last.
        """
        below: _Node[T] | None = None
        for node, shared in reversed(self._path(tokens)):
            found = [item for each in _tree(node, below) for item in each.items]
            yield from ((shared, item) for item in sorted(found, key=self._used.__getitem__, reverse=True))
            below = node

    def beginnings(self, tokens: Sequence[int]) -> list[T]:
        """The items whose whole text is the beginning of another, or the same."""
        path, depth, found = self._path(tokens), 0, list[T]()
        for node, shared in path:
            depth += len(node.tokens)
            if shared == depth:
                found += node.items
        return found

    def _path(self, tokens: Sequence[int]) -> list[tuple[_Node[T], int]]:
        """The nodes that share tokens with a text, with how many they share; the last may share a part of its edge."""
        node, depth, path = self._root, 0, list[tuple[_Node[T], int]]()
        while depth < len(tokens) and (child := node.children.get(tokens[depth])):
            shared = _shared(child.tokens, tokens, depth)
            depth += shared
            path.append((child, depth))
            if shared < len(child.tokens):
                break
            node = child
        return path


def _shared(edge: list[int], tokens: Sequence[int], begin: int) -> int:
    """How many tokens an edge and a text from a place on begin with in common."""
    part = tokens[begin : begin + len(edge)]
    if edge == part:
        return len(edge)
    pairs = enumerate(zip(edge, part, strict=False))
    return next((place for place, (ours, theirs) in pairs if ours != theirs), min(len(edge), len(part)))


def _split(node: _Node[T], at: int) -> _Node[T]:
    """Put a node in the middle of the edge that leads to another; the new one."""
    parent = node.parent
    assert parent
    upper = parent.children[node.tokens[0]] = _Node(node.tokens[:at], parent, {node.tokens[at]: node})
    node.tokens, node.parent = node.tokens[at:], upper
    return upper


def _join(node: _Node[T]) -> None:
    """Take a node that has one child and no items out of the edge that leads to that child."""
    (child,) = node.children.values()
    assert node.parent
    child.tokens, child.parent = [*node.tokens, *child.tokens], node.parent
    node.parent.children[child.tokens[0]] = child


def _tree(node: _Node[T], without: _Node[T] | None) -> Iterator[_Node[T]]:
    """A node and all below it, without the tree of one of them."""
    nodes = [node]
    while nodes:
        each = nodes.pop()
        yield each
        nodes += (child for child in each.children.values() if child is not without)
