"""Ways x prompts x repeats, by turns: which go first, what is kept, and what an interruption leaves."""

import pytest

from drafttree.errors import ConfigError
from drafttree.measure import race
from drafttree.measure.run_store import RUNS, NothingFinished, RunStore
from testing.interrupts import interrupt_after

PROMPTS = [("a", 1), ("a", 2), ("b", 3)]


def ways(seen, names=("x", "y")):
    """Ways that note what they are asked for."""
    return {name: lambda prompt, name=name: seen.append((name, prompt)) or 10 * prompt for name in names}


def test_every_turn_begins_with_another_way_and_each_is_warmed_up_once():
    seen = []
    cells = race(ways(seen), PROMPTS, int, repeats=2, warm_up=7)
    assert seen[:6] == [("x", 7), ("x", 1), ("y", 7), ("y", 1), ("y", 2), ("x", 2)]
    assert len(seen) == 2 + 12
    assert {(cell.way, cell.prompt, cell.repeat): cell.result for cell in cells}["y", 2, 1] == 30
    assert [cell.group for cell in cells[:6]] == ["a"] * 4 + ["b"] * 2


def test_a_way_runs_only_in_its_groups():
    seen = []
    race(ways(seen), PROMPTS, int, runs=lambda way, group: way == "x" or group == "b")
    assert seen == [("x", 1), ("x", 2), ("x", 3), ("y", 3)]


def test_an_interrupted_race_gives_whole_turns_and_goes_on(tmp_path):
    def measure(progress, partial=True):
        return race(ways(seen), PROMPTS, int, repeats=2, store=RunStore(tmp_path, partial=partial), progress=progress)

    seen = []
    assert [cell.prompt for cell in measure(interrupt_after(5))] == [0, 0, 1, 1]
    kept = (tmp_path / RUNS).read_text().splitlines()
    assert {cell.repeat for cell in measure(interrupt_after(9))} == {0}
    whole = measure(seen.append)
    assert (len(whole), [*filter(lambda each: isinstance(each, tuple), seen)].count(("x", 1))) == (12, 2)
    assert (tmp_path / RUNS).read_text().splitlines()[: len(kept)] == kept
    assert measure(lambda _: None) == whole


def test_an_interruption_is_raised_where_nothing_is_finished_or_nobody_wants_parts():
    with pytest.raises(KeyboardInterrupt):
        race(ways([]), PROMPTS, int, progress=interrupt_after(3))
    with pytest.raises(NothingFinished, match="nothing is finished"):
        race(ways([]), PROMPTS, int, store=RunStore(partial=True), progress=interrupt_after(1))


@pytest.mark.parametrize(("given", "lacking"), [(({}, PROMPTS), "way"), ((ways([]), []), "prompt")])
def test_nothing_to_measure_is_said(given, lacking):
    with pytest.raises(ConfigError, match=f"there is no {lacking} to measure"):
        race(*given, int)
