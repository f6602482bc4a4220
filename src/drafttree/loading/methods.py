"""Policies, verifiers and drafters by name, those of a user's own included.

A method has one of three kinds of names:

- the name it has in drafttree, such as "talon";
- the name of an entry point that an installed package declares in one of the groups `drafttree.policies`,
  `drafttree.verifiers` and `drafttree.drafters`;
- the dotted name of a class, such as "mypackage.trees.Widest".

An entry point of `drafttree.drafters` may also be a `HeadFormat`: then folders of that format can be named as drafters.
"""

import functools
import importlib
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from drafttree.core.errors import ConfigError, unknown
from drafttree.drafters import LOOKUPS, Drafter
from drafttree.drafters.formats import FORMATS, HeadFormat
from drafttree.policies import POLICIES, TreePolicy
from drafttree.verifiers import VERIFIERS, Verifier
from drafttree.verifiers.base import SamplingVerifier

DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
DRAFTER_PARTS = (*Drafter.__annotations__, "start")
Method = TypeVar("Method")
logger = logging.getLogger("drafttree")


@dataclass(frozen=True)
class Methods(Generic[Method]):
    """The methods of one kind, by name.

    Attributes:
        kind: "policy", "verifier" or "drafter", for messages.
        group: the group of entry points that adds to them.
        shipped: those of drafttree.
        lack: what an object lacks to be one, in words; empty for a method.
    """

    kind: str
    group: str
    shipped: Mapping[str, type[Method]]
    lack: Callable[[object], str]

    def find(self, name: str) -> type[Method]:
        """The class of a name.

        Raises:
            ConfigError: there is none of that name, it cannot be imported, or it is no method of this kind.
        """
        if found := self.get(name):
            return found
        raise unknown(self.kind, name, [*self.shipped, *entry_points(group=self.group).names])

    def get(self, name: str) -> type[Method] | None:
        """The class of a name, None where no method has it.

        Raises:
            ConfigError: the class cannot be imported, or is no method of this kind.
        """
        if name in self.shipped:
            return self.shipped[name]
        if DOTTED.fullmatch(name):
            return self.check(_imported(name, self.kind), name)
        points = entry_points(group=self.group, name=name)
        return next((self.check(_loaded(point, self.kind), name) for point in points), None)

    def all(self) -> dict[str, type[Method]]:
        """Every method of drafttree and of entry points; those that cannot be used are logged and skipped."""
        return {**self.shipped, **self.installed(self.check)}

    def installed(self, check: Callable[[Any, str], Any]) -> dict[str, Any]:
        """The objects of the group's entry points, by name.

        Args:
            check: returns an object of a name, or raises a `ConfigError`: it is then logged once, and skipped.
        """
        found = {}
        for point in entry_points(group=self.group):
            try:
                if point.name in self.shipped:
                    raise ConfigError(f"{self.kind} {point.name!r} is drafttree's own; give {point.value} another name")
                found[point.name] = check(_loaded(point, self.kind), point.name)
            except ConfigError as error:
                _warn_once(f"entry point {point.name!r} of {self.group} is skipped: {error}")
        return found

    def check(self, found: Any, name: str) -> type[Method]:
        """The object, if it is a method of this kind.

        Raises:
            ConfigError: it is none; the message says what it lacks.
        """
        if lack := self.lack(found):
            raise ConfigError(f"{name!r} is no {self.kind}: {lack}")
        return found

    def name_of(self, method: type[Method]) -> str:
        """The name of a method in drafttree, or the dotted name of its class."""
        return next((name for name, known in self.shipped.items() if known is method), _dotted(method))


def head_formats() -> dict[str, HeadFormat]:
    """The formats of trained heads by kind: those of drafttree and those of entry points."""
    installed = DRAFTER_CLASSES.installed(_check_kind).values()
    return FORMATS | {found.kind: found for found in installed if isinstance(found, HeadFormat)}


def missing_parts(drafter: object) -> list[str]:
    """The parts of the `Drafter` protocol that an object lacks."""
    return [part for part in DRAFTER_PARTS if not hasattr(drafter, part)]


def _check_kind(found: Any, name: str) -> Any:
    if isinstance(found, HeadFormat) and found.kind in FORMATS:
        raise ConfigError(f"head format {found.kind!r} is drafttree's own; give the format {name!r} another kind")
    return found


def _policy_lack(found: object) -> str:
    return _class_lack(found, {TreePolicy: "keep"})


def _verifier_lack(found: object) -> str:
    return _class_lack(found, {Verifier: "verify", SamplingVerifier: "judge"})


def _class_lack(found: object, methods: Mapping[type, str]) -> str:
    """The base class, or a method that the bases leave open, that a class lacks; empty if it lacks nothing."""
    base = next(iter(methods))
    if not isinstance(found, type) or not issubclass(found, base):
        return f"it is no subclass of {base.__module__.removesuffix('.base')}.{base.__name__}"
    open_ = (
        name
        for each, name in methods.items()
        if issubclass(found, each) and getattr(found, name) is getattr(each, name)
    )
    return next((f"it lacks the method {name}; docs/writing.md shows one" for name in open_), "")


def _drafter_lack(found: object) -> str:
    if isinstance(found, HeadFormat):
        return "it is a format of files; give a folder that holds such a head"
    if not isinstance(found, type):
        return f"it is of type {type(found).__name__}, not a class"
    return "" if hasattr(found, "start") else "it lacks the method start of drafttree.drafters.Drafter"


def _imported(name: str, kind: str) -> Any:
    """The object of a dotted name."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"cannot import {kind} {name!r} ({_reason(error)}); give module.Class") from error


def _loaded(point: EntryPoint, kind: str) -> Any:
    """The object of an entry point."""
    try:
        return point.load()
    except (Exception, SystemExit) as error:
        raise ConfigError(f"cannot import {kind} {point.name!r} from {point.value} ({_reason(error)})") from error


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _dotted(method: type) -> str:
    return f"{method.__module__}.{method.__qualname__}"


@functools.cache
def _warn_once(message: str) -> None:
    logger.warning("%s", message)


POLICY_CLASSES: Methods[TreePolicy] = Methods("policy", "drafttree.policies", POLICIES, _policy_lack)
VERIFIER_CLASSES: Methods[Verifier] = Methods("verifier", "drafttree.verifiers", VERIFIERS, _verifier_lack)
DRAFTER_CLASSES: Methods[Drafter] = Methods("drafter", "drafttree.drafters", LOOKUPS, _drafter_lack)
