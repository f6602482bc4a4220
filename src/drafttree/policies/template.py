from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import ClassVar, Self

from pydantic import Field, field_validator, model_validator

from drafttree.core.lazy import Array, np
from drafttree.core.tree import Layer
from drafttree.policies.base import TreePolicy

Path = tuple[int, ...]

MOST_CHILDREN = 4096
SHIPPED = {
    "eagle-sparse": "4 0:3 1:2 2:2 3:1 0.0:3 0.1:2 0.2:2 1.0:1 0.0.0:3 0.0.0.0:2",
    "medusa-63": "10 0:10 1:7 2:3 3:2 4:1 5:1 6:1 7:1 8:1 9:1 "
    "0.0:10 0.1:3 0.2:2 0.3:1 0.4:1 0.5:1 0.6:1 0.7:1 1.0:2 2.0:1 0.0.0:2",
    "vicuna-7b-stage2": "10 0:10 1:5 2:2 3:2 4:1 5:1 6:1 7:1 "
    "0.0:9 0.1:4 0.2:2 0.3:1 0.4:1 0.5:1 1.0:3 1.1:1 2.0:1 0.0.0:4 0.0.1:1 0.0.2:1 0.1.0:1",
    "vicuna-13b-stage1": "10 0:10 1:7 2:4 3:2 4:2 5:1 6:1 7:1 8:1 "
    "0.0:10 0.1:4 0.2:2 0.3:1 0.4:1 0.5:1 1.0:2 1.1:1 2.0:1 0.0.0:1",
    "vicuna-13b-stage2": "10 0:10 1:4 2:2 3:1 4:1 5:1 "
    "0.0:10 0.1:4 0.2:2 0.3:1 0.4:1 0.5:1 1.0:3 1.1:1 2.0:1 3.0:1 0.0.0:4 0.0.1:2 0.0.2:1 0.1.0:1 1.0.0:1",
}
"""Trees as numbers of children: the root's, then path:number for each other node that has any."""


class Template(TreePolicy):
    """The same tree every round: any list of paths of child ranks.

    A path such as `0.2.1` goes to the root's best child, to that child's third best child, and to its second best.
    The parent of each path must be in the list. Shipped under `tree`: `eagle-sparse` (EAGLE-1's 25 choices), Medusa's
    four trees, and `binary-D` for any depth D.
    """

    source: ClassVar[str] = "EAGLE-1 and Medusa choices; binary trees of Traversal Verification"

    tree: str = Field(default="eagle-sparse", description=f"{', '.join(SHIPPED)} or binary-D; ignored with paths")
    paths: tuple[Path, ...] | None = Field(default=None, description="own tree, such as 0+1+0.0+0.1+0.0.0")
    budget: int = Field(default=4096, ge=1, le=4096, description="maximum number of nodes, root included")

    @field_validator("paths", mode="before")
    @classmethod
    def _read(cls, value: object) -> object:
        return [_path(text) for text in value.split("+")] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check(self) -> Self:
        known_paths = {(), *self._sorted}
        for path in self._sorted:
            if path and max(path) >= MOST_CHILDREN:
                raise ValueError(f"child ranks below {MOST_CHILDREN}, not {max(path)}")
            if not path or min(path) < 0 or path[:-1] not in known_paths:
                raise ValueError(f"path {'.'.join(map(str, path))!r} has no parent in the list")
        if not self._sorted:
            raise ValueError("a template needs at least one path")
        return self

    @cached_property
    def _sorted(self) -> tuple[Path, ...]:
        paths = set(_shipped(self.tree) if self.paths is None else self.paths)
        return tuple(sorted(paths, key=lambda path: (len(path), path)))

    def candidates(self, depth: int) -> int:
        return 1 + max(path[-1] for path in self._sorted)

    def levels(self) -> int:
        return len(self._sorted[-1])

    def label(self, layer: Layer) -> Array:
        """The index of each candidate in the list of paths, the root's being 0; -1 for one that is not in the list."""
        return self._of(layer, self._tables.children)

    def keep(self, layer: Layer) -> Array:
        return self._of(layer, self._tables.kept)

    def expand(self, layer: Layer) -> Array:
        return self._of(layer, self._tables.expanded)

    def _of(self, layer: Layer, table: Array) -> Array:
        """The rows of a table for the nodes of the frontier."""
        rows = table[:1] if layer.labels is None else table.take(layer.labels, axis=0)
        return rows[:, : layer.logprobs.shape[1]]

    @cached_property
    def _tables(self) -> "_Tables":
        index = {(): 0} | {path: node for node, path in enumerate(self._sorted, start=1)}
        children = np.full((len(index), self.candidates(1)), -1)
        for path in self._sorted:
            children[index[path[:-1]], path[-1]] = index[path]
        child_mask = children >= 0
        return _Tables(children, child_mask, np.any(child_mask, axis=1)[children.clip(0)])


@dataclass(eq=False)
class _Tables:
    """A template's decisions by path, the root's first, and child rank, `[1 + paths, children]`.

    Policies are compared by all they hold, so this is not a tuple: comparing its arrays would give arrays.

    Attributes:
        children: the index of the child in the list of paths; -1 for none.
        kept: whether there is such a child.
        expanded: whether that child has children.
    """

    children: Array
    kept: Array
    expanded: Array


def _path(text: str) -> Path:
    if not all(rank.isdigit() for rank in text.split(".")):
        raise ValueError(f"a path of child ranks such as 0.2.1, not {text!r}")
    return tuple(int(rank) for rank in text.split("."))


def _shipped(name: str) -> list[Path]:
    family, _, depth = name.partition("-")
    if family == "binary" and depth.isdigit() and 1 <= int(depth) <= 11:
        return [path for level in range(1, int(depth) + 1) for path in product((0, 1), repeat=level)]
    if name not in SHIPPED:
        raise ValueError(f"one of {', '.join(SHIPPED)} or binary-1 to binary-11, not {name!r}")
    nodes = (node.rpartition(":") for node in SHIPPED[name].split())
    return [(*(_path(parent) if parent else ()), rank) for parent, _, count in nodes for rank in range(int(count))]
