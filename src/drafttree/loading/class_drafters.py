"""Drafters that are made by a class: the lookup drafters, and a user's own.

Users can give a class of their own, as its dotted name or as an entry point of the group `drafttree.drafters`, with
parameters behind it: "mypackage.Guesser:width=3". The drafter is made by

- `Class.for_target(target, tokenizer, **parameters)` if it has that class method, where `target` is a
  `drafttree.models.Model` and `tokenizer` the target's, or None;
- `Class(vocab_size, device, **parameters)` otherwise, as the lookup drafters are.

A parameter's value is passed as None, a boolean or a number if it reads like one, else as a string. The result must
have every member of the protocol `drafttree.drafters.Drafter`.
"""

import inspect
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drafttree.core.errors import ConfigError, DraftTreeError
from drafttree.drafters import LOOKUPS, Drafter
from drafttree.loading import zoo
from drafttree.loading.drafter_methods import DRAFTER_CLASSES, missing_members
from drafttree.loading.drafter_spec import DrafterSpec, named
from drafttree.loading.gguf.reader import SUFFIX
from drafttree.loading.specs import split_spec
from drafttree.loading.targets import LoadedTarget

WORDS = {"true": True, "false": False}


@dataclass(frozen=True)
class ClassDrafter(DrafterSpec):
    """A drafter that is made by a class.

    Attributes:
        made_by: the class.
        parameters: its parameters, by name, as they are written.
        name: what the drafter is shown as; empty if the class itself was given.
    """

    made_by: type[Drafter]
    parameters: Mapping[str, str | None] = field(default_factory=dict)
    name: str = ""

    @classmethod
    def named(cls, source: str) -> "ClassDrafter | None":
        """The class and parameters of a drafter's name; None if it names a model or a folder.

        Raises:
            ConfigError: the class cannot be imported or is not a drafter class, or a parameter has no value.
        """
        name = source.partition(":")[0]
        is_file = Path(source).exists() or source.endswith(SUFFIX)
        if not is_lookup(source) and (name in zoo.NAMES or is_file or "/" in name):
            return None
        drafter_class = DRAFTER_CLASSES.get(name)
        return cls(source, drafter_class, split_spec("drafter", source)[1], source) if drafter_class else None

    @classmethod
    def given(cls, drafter_class: type) -> "ClassDrafter":
        """The drafter of a class that is given itself, not by its name.

        Raises:
            ConfigError: it is not a drafter class.
        """
        return cls(drafter_class.__name__, DRAFTER_CLASSES.check(drafter_class, drafter_class.__name__))

    @property
    def drafter_class(self) -> type[Drafter]:
        return self.made_by

    def build(self, target: LoadedTarget) -> Drafter:
        for_target: Any = getattr(self.made_by, "for_target", None)
        factory: Any = for_target or self.made_by
        model = target.model
        arguments = (model, target.tokenizer) if for_target else (model.vocab_size, model.device)
        options = {name: _value(text) for name, text in self.parameters.items()}
        class_name = self.made_by.__name__
        try:
            inspect.signature(factory).bind(*arguments, **options)
        except TypeError as error:
            parameter_names = [*inspect.signature(factory).parameters][len(arguments) :]
            advice = (
                f"its parameters: {', '.join(parameter_names)}" if parameter_names else "pass an object of the class"
            )
            if options and not parameter_names:
                advice = "it has no parameters"
            raise ConfigError(f"drafter {class_name} cannot be made by its class: {error}; {advice}") from None
        try:
            instance = factory(*arguments, **options)
        except DraftTreeError:
            raise
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise ConfigError(f"drafter {class_name} cannot be made ({reason})") from error
        drafter = check_members(instance)
        return named(drafter, self.name) if self.name else drafter


def is_lookup(source: str) -> bool:
    """Whether a source names a lookup drafter, with or without parameters."""
    return source.partition(":")[0] in LOOKUPS


def check_members(drafter: Any) -> Drafter:
    """The drafter, if it has every member of the protocol.

    Raises:
        ConfigError: a member is missing; the message names it.
    """
    if missing_names := missing_members(drafter):
        raise ConfigError(
            f"the drafter is of type {type(drafter).__name__} and lacks {', '.join(missing_names)}; give a name, a "
            "folder, a loaded model or an object of the protocol drafttree.drafters.Drafter"
        )
    return drafter


def _value(text: str | None) -> Any:
    """A parameter's value: None, a boolean, a number, or else the string itself."""
    if text is None or text.lower() in WORDS:
        return text and WORDS[text.lower()]
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return text
