from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from drafttree.core.errors import ConfigError
from drafttree.measure.run_store import NothingFinished, RunStore

Key = tuple[str | int | float, ...]
Result = TypeVar("Result")


def check_given(**parts: Collection[object]) -> None:
    """Refuse to measure nothing.

    Args:
        **parts: the parts of an experiment, by what one of them is called.

    Raises:
        ConfigError: one has no members, or an empty one.
    """
    for name, members in parts.items():
        if not members or any(isinstance(each, Collection) and not each for each in members):
            raise ConfigError(f"there is no {name} to measure; give at least one")


def run_cells(
    cells: Mapping[Key, Callable[[], Result]],
    kind: Any,
    *,
    progress: Callable[[str], None] = lambda _: None,
    store: RunStore | None = None,
) -> dict[Key, Result]:
    """What each cell of an experiment measures; after an interruption, those that are finished.

    Args:
        cells: the work by its key, in the order in which it is done.
        kind: the type of a result, as for `RunStore.run`.
        progress: called after every cell with its key in words.
        store: keeps finished cells; by default none.

    Raises:
        NothingFinished: no cell is.
    """
    store = store or RunStore()
    found: dict[Key, Result] = {}
    with store.interruptible():
        for key, work in cells.items():
            found[key] = store.run(key, kind, work)
            progress(", ".join(map(str, key)))
    if not found:
        raise NothingFinished(store)
    return found
