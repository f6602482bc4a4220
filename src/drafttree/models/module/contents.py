"""All values, tensors, containers and objects that can be reached from a module."""

from collections.abc import Iterable
from functools import partial
from itertools import chain
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as torch_modules

from drafttree.models.module.released import Release, ReleasedWeight, stand_in
from drafttree.models.module.unseen_state import (
    LONGEST,
    UNREAD,
    VALUES,
    foreign_classes,
    global_hooks,
    is_code_of_class,
    is_read,
    own_hooks,
)


class Contents:
    """What a module holds, found by a walk that visits each object once and in a fixed order.

    Args:
        module: the module.

    Attributes:
        facts: the type of each visited value, followed by a fact that tells it from others of this type. That is a
            plain value itself, a container's length, the names of an object's attributes, or a module's `forward` and
            hooks. For an object that was visited before, it is the index of that visit; for one whose contents are not
            compared, its id. If the facts of two walks are equal, only their tensors can differ.
        tensors: the tensors in the order of their visits, without those that every pass overwrites. A released weight
            is represented by its `Release`.
        dicts: the dicts, including those of attributes and of hooks.
        collections: the lists and sets.
        owners: the modules and other objects whose attributes are compared.
        foreign_types: classes of owners from outside of known libraries; their attributes are compared too.
    """

    def __init__(self, module: nn.Module) -> None:
        self.facts: list[object] = [*map(id, global_hooks())]
        self.tensors: list[Tensor | Release] = []
        self.dicts: list[dict] = [torch_modules._global_forward_pre_hooks, torch_modules._global_forward_hooks]
        self.collections: list[Iterable] = []
        self.owners: list[object] = []
        self.foreign_types: list[type] = []
        self._overwritten_ids = set[int]()
        self._walk(module)
        submodules = [owner for owner in self.owners if isinstance(owner, nn.Module)]
        self._module_classes: list[Any] = [*{type(submodule) for submodule in submodules}]

    def members(self) -> list[object]:
        """The current contents and classes of the visited objects, and the `forward` of every module class."""
        dicts = [*filter(None, self.dicts)]
        classes = map(type, self.owners)
        class_members = (vars(cls).values() for cls in self.foreign_types)
        forwards = (cls.forward for cls in self._module_classes)
        members = chain(*map(dict.values, dicts), *dicts, *self.collections, classes, *class_members, forwards)
        return list(map(stand_in, members))

    def _walk(self, module: nn.Module) -> None:
        facts = self.facts
        indices = dict[int, int]()
        pending: list[object] = [module]
        while pending:
            value = pending.pop()
            cls = type(value)
            facts.append(nn.Parameter if cls is ReleasedWeight else cls)
            if cls in VALUES:
                facts.append(value)
            elif id(value) in indices:
                facts.append(indices[id(value)])
            elif visit := self._visit(value):
                indices[id(value)] = len(indices)
                own_facts, members = visit
                facts += own_facts
                pending += members
            else:
                facts.append(id(value))

    def _visit(self, value: Any) -> tuple[list[object], Iterable[object]] | None:
        """Visit an object: add it to the list of its kind.

        Returns:
            Facts about the object, and its members; None if it is compared by identity only.
        """
        match value:
            case Tensor():
                tensor: Any = stand_in(value)
                if id(value) not in self._overwritten_ids:
                    self.tensors.append(tensor)
                return [], ()
            case dict() if len(value) <= LONGEST:
                self.dicts.append(value)
                return [len(value)], [*value, *value.values()]
            case list() | set() | frozenset() if len(value) <= LONGEST:
                self.collections.append(value)
                return [len(value)], value
            case tuple() if len(value) <= LONGEST:
                return [len(value)], value
            case partial():
                return [], (value.func, value.args, value.keywords)
            case _ if is_read(value):
                return self._visit_owner(value)
            case _:
                return None

    def _visit_owner(self, owner: Any) -> tuple[list[object], list[object]]:
        attributes = {name: attribute for name, attribute in vars(owner).items() if name not in UNREAD}
        facts: list[object] = [[*attributes]]
        members: list[object] = [*attributes.values()]
        self.owners.append(owner)
        self.dicts.append(vars(owner))
        for cls in foreign_classes(owner):
            if cls not in self.foreign_types:
                self.foreign_types.append(cls)
                members += [attribute for attribute in vars(cls).values() if not is_code_of_class(attribute)]
        if isinstance(owner, nn.Module):
            facts.append([*map(id, (type(owner).forward, *own_hooks(owner)))])
            self.dicts += owner._forward_pre_hooks, owner._forward_hooks
            self._overwritten_ids.update(map(id, _overwritten_buffers(owner)))
        return facts, members


def _overwritten_buffers(module: nn.Module) -> list[Tensor]:
    """Buffers of LongRoPE that every pass overwrites, with values of other buffers."""
    buffers = []
    for name, buffer in module._buffers.items():
        is_current_frequencies = name.endswith("inv_freq") and "original" not in name
        if buffer is not None and is_current_frequencies and "longrope" in str(getattr(module, "rope_type", "")):
            buffers.append(buffer)
    return buffers
