"""The one driver of experiments: ways x prompts x repeats, by turns, kept as they are run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

from drafttree.core.errors import ConfigError
from drafttree.measure.run_store import NothingFinished, RunStore

Way = Callable[[Any], Any]
"""Makes a result of a prompt, or of whatever the experiment is about."""


class Cell(NamedTuple):
    """What a way has made of a prompt in a repeat."""

    way: str
    group: str
    prompt: int
    repeat: int
    result: Any


def by_turns(names: Sequence[str], turns: int, first: int = 0) -> Iterator[tuple[int, str]]:
    """The number of each turn with every name; every turn begins with another name.

    A machine slows down and recovers, so what always ran first would be measured at another speed.

    Args:
        names: the names of what is measured.
        turns: the number of turns.
        first: index of the name that the first turn begins with.
    """
    for turn in range(turns):
        start = (first + turn) % len(names)
        yield from ((turn, name) for name in (*names[start:], *names[:start]))


def race(
    ways: Mapping[str, Way],
    prompts: Sequence[tuple[str, Any]],
    kind: Any,
    *,
    repeats: int = 1,
    warm_up: Any = None,
    runs: Callable[[str, str], bool] = lambda way, group: True,
    store: RunStore | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Cell]:
    """What every way makes of every prompt in every repeat.

    After an interruption, whole turns of whole repeats, or of the first one if it was not finished. What decides a cell
    is its key, (repeat, prompt, way), and the command of the store.

    Args:
        ways: by name.
        prompts: each with the name of its group.
        kind: the type of a result, as for `RunStore.run`.
        repeats: how often everything runs.
        warm_up: what every way first makes something of that is not kept; None for nothing.
        runs: whether a way runs in a group.
        store: keeps finished cells; by default none.
        progress: called after every cell with its way.

    Raises:
        ConfigError: there is no prompt or no way.
        NothingFinished: no turn is.
    """
    for name, inputs in {"prompt": prompts, "way": ways}.items():
        if not inputs:
            raise ConfigError(f"there is no {name} to measure; give at least one")
    store = store or RunStore()
    cells = list[Cell]()
    turn_cells = list[Cell]()

    warm = cache(lambda name: None if warm_up is None else ways[name](warm_up))

    def run(name: str, prompt: Any) -> Any:
        warm(name)
        return ways[name](prompt)

    with store.interruptible():
        for repeat in range(repeats):
            for number, (group, prompt) in enumerate(prompts):
                turn_cells = []
                for _, name in by_turns([name for name in ways if runs(name, group)], 1, repeat + number):
                    result = store.run((repeat, number, name), kind, partial(run, name, prompt))
                    turn_cells.append(Cell(name, group, number, repeat, result))
                    progress(name)
                cells += sorted(turn_cells, key=lambda cell: [*ways].index(cell.way))
    if not cells:
        raise NothingFinished(store)
    finished_repeats = cells[-1].repeat + (cells[-1].prompt == len(prompts) - 1)
    return [cell for cell in cells if cell.repeat < max(finished_repeats, 1)]
