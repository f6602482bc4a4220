"""The parsed source of a drafter, as `drafttree.loading.drafters.parse_drafter` returns it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from drafttree.core.errors import ConfigError
from drafttree.drafters import Drafter
from drafttree.drafters.base import ShownBySize
from drafttree.loading.target_options import KINDS
from drafttree.loading.targets import LoadedTarget, TargetSpec


@dataclass(frozen=True)
class DrafterSpec(ABC):
    """A drafter that is not loaded yet.

    Attributes:
        source: the source as messages name it.
    """

    source: str | Path

    @property
    def drafter_class(self) -> type[Drafter] | None:
        """The class that the source names; None if it names something else."""
        return None

    @property
    def is_language_model(self) -> bool:
        """Whether the drafter is a language model in files, which can be quantised."""
        return False

    def check(self, target: TargetSpec | None = None, quantize: str | None = None) -> None:
        """Find the drafter's files, and refuse what can be refused without weights.

        Args:
            target: the target, of which no weights are read; None if it is not known.
            quantize: the `quantize` of `LoadedTarget`.

        Raises:
            ConfigError: the drafter cannot be quantised as asked.
            ModelError: the files do not exist or hold no drafter, or the drafter is not for this target.
        """
        if quantize in KINDS and not self.is_language_model:
            raise ConfigError(
                f"quantize_drafter={quantize!r} is for a language model that drafts, not {str(self.source)!r}"
            )

    @abstractmethod
    def build(self, target: LoadedTarget) -> Drafter | None:
        """The drafter for a loaded target; None for plain decoding.

        Raises:
            ConfigError: the drafter's class does not take these parameters, or the target does not fit this drafter.
            ModelError: the model or head cannot be loaded, or does not fit the target.
            TokenizerMismatch: a language model has less than a third of the target's tokens.
        """


def named(drafter: Drafter, name: str) -> Drafter:
    """The drafter, which keeps the name it was loaded by if it can."""
    if isinstance(drafter, ShownBySize):
        drafter.name = name
    return drafter
