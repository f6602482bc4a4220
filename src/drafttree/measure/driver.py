"""The driver of all experiments: runs ways x prompts x repeats alternately, and stores each result at once."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from functools import cache, partial
from typing import Any, NamedTuple

from drafttree.core.errors import ConfigError
from drafttree.measure.run_store import NothingFinished, RunStore

Way = Callable[[Any], Any]
"""Makes a result of a prompt, or of another input of the experiment."""


class Cell(NamedTuple):
    """The result of a way on a prompt in a repeat.

    Attributes:
        way: the name of the way.
        group: the group of the prompt.
        prompt: the number of the prompt.
        repeat: the number of the repeat.
        result: what the way made of the prompt.
    """

    way: str
    group: str
    prompt: int
    repeat: int
    result: Any


def by_turns(names: Sequence[str], turns: int, first_index: int = 0) -> Iterator[tuple[int, str]]:
    """Yield every name in every turn, with the number of the turn; each turn begins with the next name.

    Machines slow down and recover, so a name that always ran first would be measured at another speed.

    Args:
        names: names of what is measured.
        turns: the number of turns.
        first_index: the index of the name that begins the first turn.
    """
    for turn in range(turns):
        start = (first_index + turn) % len(names)
        yield from ((turn, name) for name in (*names[start:], *names[:start]))


def race(
    ways: Mapping[str, Way],
    prompts: Sequence[tuple[str, Any]],
    result_type: Any,
    *,
    repeats: int = 1,
    warm_up: Any = None,
    runs: Callable[[str, str], bool] = lambda way, group: True,
    store: RunStore | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Cell]:
    """Run every way on every prompt in every repeat.

    A result is stored under its key, (repeat, prompt, way), in the store of one command.

    Args:
        ways: the ways by name.
        prompts: the prompts, each after the name of its group.
        result_type: the type of a result, as for `RunStore.run`.
        repeats: how often everything runs.
        warm_up: a prompt that every way runs on first, whose result is dropped; None for none.
        runs: whether a way runs in a group.
        store: keeps finished cells; by default none.
        progress: called after every cell with its way.

    Returns:
        All cells, those of a turn in the order of `ways`. After an interruption: the cells of finished repeats or, if
        the first repeat was not finished, those of its finished turns.

    Raises:
        ConfigError: there is no prompt or no way.
        NothingFinished: no turn was finished.
    """
    _check_not_empty("prompt", prompts)
    _check_not_empty("way", ways)
    store = store or RunStore()
    warmed_ways = {name: _warmed(way, warm_up) for name, way in ways.items()}
    cells = list[Cell]()
    with store.interruptible():
        for repeat in range(repeats):
            for number, (group, prompt) in enumerate(prompts):
                results = {}
                for _, name in by_turns([name for name in ways if runs(name, group)], 1, repeat + number):
                    results[name] = store.run((repeat, number, name), result_type, partial(warmed_ways[name], prompt))
                    progress(name)
                cells += [Cell(name, group, number, repeat, results[name]) for name in ways if name in results]
    if not cells:
        raise NothingFinished(store)
    return _whole_repeats(cells, len(prompts))


def _check_not_empty(name: str, inputs: Sized) -> None:
    if not inputs:
        raise ConfigError(f"there is no {name} to measure; give at least one")


def _warmed(way: Way, warm_up: Any) -> Way:
    """The same way, which runs on `warm_up` before its first prompt unless that is None."""
    warm = cache(lambda: None if warm_up is None else way(warm_up))

    def run(prompt: Any) -> Any:
        warm()
        return way(prompt)

    return run


def _whole_repeats(cells: list[Cell], prompt_count: int) -> list[Cell]:
    """The cells of finished repeats, or all those of the first repeat if it was not finished."""
    finished_repeats = cells[-1].repeat + (cells[-1].prompt == prompt_count - 1)
    return [cell for cell in cells if cell.repeat < max(finished_repeats, 1)]
