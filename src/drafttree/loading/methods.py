"""Policies, verifiers and drafters by name, including a user's own.

A method is named in one of three ways:

- by its name in drafttree, such as "talon";
- by the name of an entry point that an installed package declares in one of the groups `drafttree.policies`,
  `drafttree.verifiers` and `drafttree.drafters`;
- by the dotted name of its class, such as "mypackage.trees.Widest".

Drafters, which need torch, are in `drafttree.loading.drafter_methods`.
"""

import functools
import importlib
import logging
import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, Generic, TypeVar

from drafttree.core.errors import ConfigError, unknown
from drafttree.policies import POLICIES, TreePolicy
from drafttree.verifiers import VERIFIERS, Verifier
from drafttree.verifiers.base import SamplingVerifier

DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
Kind = TypeVar("Kind")
logger = logging.getLogger("drafttree")


@dataclass(frozen=True)
class Methods(Generic[Kind]):
    """The methods of one kind, by name.

    Attributes:
        kind: "policy", "verifier" or "drafter", for messages.
        group: the group of entry points that add methods.
        shipped: drafttree's own methods by name.
        lack: says what an object lacks to be a method of this kind; empty if it is one.
        reserved: further names that no entry point may have, since drafttree gives them a meaning.
    """

    kind: str
    group: str
    shipped: Mapping[str, type[Kind]]
    lack: Callable[[object], str]
    reserved: Collection[str] = ()

    def find(self, name: str) -> type[Kind]:
        """The class of a name.

        Raises:
            ConfigError: no method has the name, or its class cannot be imported or is not a method of this kind.
        """
        if method := self.get(name):
            return method
        raise unknown(self.kind, name, self.names())

    def names(self) -> list[str]:
        """The names of drafttree's methods and of entry points, which are not loaded."""
        return [*self.shipped, *sorted(point.name for point in self.points())]

    def points(self) -> list[EntryPoint]:
        """The entry points of the group, without those whose name drafttree uses itself."""
        return [point for point in entry_points(group=self.group) if not self._is_own(point.name)]

    def get(self, name: str) -> type[Kind] | None:
        """The class of a name; None if no method has it.

        An entry point cannot take over a name that drafttree uses itself: it is skipped and logged once.

        Raises:
            ConfigError: the class cannot be imported, or is not a method of this kind.
        """
        if self._is_own(name):
            for point in _namesakes(self.group, name, tuple(sys.path)):
                _warn_once(self._refusal(point, self._name_error(point)))
            return self.shipped.get(name)
        if DOTTED.fullmatch(name):
            return self.check(_imported(name, self.kind), name)
        points = entry_points(group=self.group, name=name)
        return next((self.check(_loaded(point, self.kind), name) for point in points), None)

    def all(self) -> dict[str, type[Kind]]:
        """All methods of drafttree and of entry points by name; unusable entry points are logged and skipped."""
        return {**self.shipped, **self.installed(self.check)}

    def installed(self, check: Callable[[Any, str], Any]) -> dict[str, Any]:
        """The objects of the group's entry points by name; unusable ones are logged once and skipped.

        Args:
            check: takes an object and its name, and returns the object, or raises `ConfigError` if it is unusable.
        """
        methods, refusals = self.sort_points(check)
        for reason in refusals:
            _warn_once(reason)
        return methods

    def sort_points(self, check: Callable[[Any, str], Any]) -> tuple[dict[str, Any], list[str]]:
        """The usable objects as `installed` returns them, and the reason for each unusable entry point."""
        methods: dict[str, Any] = {}
        refusals: list[str] = []
        for point in entry_points(group=self.group):
            try:
                if self._is_own(point.name):
                    raise self._name_error(point)
                methods[point.name] = check(_loaded(point, self.kind), point.name)
            except ConfigError as error:
                refusals.append(self._refusal(point, error))
        return methods, refusals

    def _is_own(self, name: str) -> bool:
        return name in self.shipped or name in self.reserved

    def _name_error(self, point: EntryPoint) -> ConfigError:
        """The error for an entry point whose name drafttree uses itself."""
        return ConfigError(f"{self.kind} {point.name!r} is drafttree's own; give {point.value} another name")

    def _refusal(self, point: EntryPoint, error: ConfigError) -> str:
        return f"entry point {point.name!r} of {self.group} is skipped: {error}"

    def check(self, candidate: Any, name: str) -> type[Kind]:
        """Return the object if it is a method of this kind.

        Raises:
            ConfigError: the object is not such a method; the message says what it lacks.
        """
        if lack := self.lack(candidate):
            raise ConfigError(f"{name!r} is not a {self.kind}: {lack}")
        return candidate

    def name_of(self, method: type[Kind]) -> str:
        """A method's name in drafttree, else the dotted name of its class."""
        dotted_name = f"{method.__module__}.{method.__qualname__}"
        return next((name for name, shipped_method in self.shipped.items() if shipped_method is method), dotted_name)


def _class_lack(candidate: object, methods: Mapping[type, str]) -> str:
    """What a class lacks: the base class, which comes first in `methods`, or an override; empty if nothing.

    Args:
        candidate: the object of an entry point or a dotted name.
        methods: by base class, the method that its subclasses must override.
    """
    base = next(iter(methods))
    if not isinstance(candidate, type) or not issubclass(candidate, base):
        return f"it is not a subclass of {base.__module__.removesuffix('.base')}.{base.__name__}"
    for declaring_class, name in methods.items():
        if issubclass(candidate, declaring_class) and getattr(candidate, name) is getattr(declaring_class, name):
            return f"it lacks the method {name}; docs/writing.md shows one"
    return ""


def _imported(name: str, method_kind: str) -> Any:
    """The object of a dotted name."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"cannot import {method_kind} {name!r} ({_reason(error)}); give module.Class") from error


def _loaded(point: EntryPoint, method_kind: str) -> Any:
    """The object of an entry point."""
    try:
        return point.load()
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"cannot import {method_kind} {point.name!r} from {point.value} ({_reason(error)})"
        ) from error


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


@functools.cache
def _namesakes(group: str, name: str, path: tuple[str, ...]) -> EntryPoints:
    """Entry points whose name drafttree uses itself; cached, since listing them takes milliseconds."""
    return entry_points(group=group, name=name)


@functools.cache
def _warn_once(message: str) -> None:
    logger.warning("%s", message)


POLICY_CLASSES: Methods[TreePolicy] = Methods(
    "policy",
    "drafttree.policies",
    POLICIES,
    lambda candidate: _class_lack(candidate, {TreePolicy: "keep"}),
    reserved=("all",),
)
VERIFIER_CLASSES: Methods[Verifier] = Methods(
    "verifier",
    "drafttree.verifiers",
    VERIFIERS,
    lambda candidate: _class_lack(candidate, {Verifier: "verify", SamplingVerifier: "judge"}),
    reserved=("auto", "all"),
)
