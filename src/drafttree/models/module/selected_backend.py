"""The backend of a module, selected anew when the module has changed."""

from collections.abc import Callable
from typing import Generic, TypeVar

from torch import nn

from drafttree.models.module.fingerprint import Fingerprint

ModuleT = TypeVar("ModuleT", bound=nn.Module)
BackendT = TypeVar("BackendT")


class SelectedBackend(Generic[ModuleT, BackendT]):
    """Holds a backend and compares its module with a fingerprint.

    Args:
        module: the weights and what is computed with them.
        select: makes a backend for the module.

    Attributes:
        backend: for the module as it was at the last `refresh`.
    """

    def __init__(self, module: ModuleT, select: Callable[[ModuleT], BackendT]) -> None:
        self._module = module
        self._select = select
        self._make()

    def refresh(self) -> bool:
        """Select a backend anew if the module has changed since the last time, and return whether it had.

        Raises:
            ModelError: no backend serves the module any more.
        """
        if hasattr(self, "backend") and self._fingerprint.matches():
            return False
        vars(self).pop("backend", None)  # its copies of the weights go before new ones are made
        self._make()
        return True

    def _make(self) -> None:
        self.backend = self._select(self._module)
        self._fingerprint = Fingerprint(self._module)
