"""Rows of a table of speeds: terms of the speed-up law, speed-ups over plain decoding, and equal texts."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import chain, starmap
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

from drafttree import measure
from drafttree.measure.method import PLAIN

if TYPE_CHECKING:
    from drafttree.engine.metrics import Metrics
    from drafttree.measure.driver import Cell

Item = TypeVar("Item")
Key = TypeVar("Key")
EXACT = " with exact_text"
PARTS = ("growth", "mask", "verify", "commit", "text")
"""The parts of a round outside the two models' passes; `TextRound` has their seconds as `growth_seconds` and so on."""
TIMES = ("v", "c", "h", "h0", "R law", "R", "R decoding", "at h = 0", "over its chain")
"""Figures that are left out if other programs disturbed the times."""
SECONDS = {name: f"{name}_seconds" for name in ("target", "draft", *PARTS)} | {"round": "seconds"}
"""The columns of rounds that are averaged, by the name that a row has for them."""


def group_by(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Items grouped by a key; groups are in the order of their first items."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


class TextIndex:
    """Finds the texts of a way by prompt and repeat.

    Args:
        cells: the cells of `race`.
    """

    def __init__(self, cells: Iterable["Cell"]) -> None:
        self._cells = {(cell.way, cell.prompt, cell.repeat): cell for cell in cells}

    def beside(self, cells: Iterable["Cell"], way: str) -> list["Cell"]:
        """The texts of a way for the prompts and repeats of other texts."""
        return [self._cells[way, cell.prompt, cell.repeat] for cell in cells]


def make_rows(
    cells: Sequence["Cell"],
    chains: Mapping[str, str] = {},
    seeded: Callable[[str], bool] = lambda way: True,
    find: Callable[["Cell", "Cell"], Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """A row for every group of prompts and way.

    Terms of the law are medians over the repeats; speeds are over all texts. A way that lacks prompts is compared with
    plain decoding on the prompts that it has.

    Args:
        cells: the cells of `race`.
        chains: by way, the chain that it is compared with.
        seeded: whether a way must write plain decoding's text.
        find: finds the first difference between plain decoding's text and another.
    """
    index = TextIndex(cells)
    cells_by_way = group_by(cells, attrgetter("way"))
    for group, prompts in _prompts_by_group(cells).items():
        for way, way_cells in cells_by_way.items():
            group_cells = [cell for cell in way_cells if cell.prompt in prompts]
            if not group_cells:
                continue
            plain_cells = index.beside(group_cells, PLAIN)
            row: dict[str, Any] = {
                "group": group,
                "method": way,
                "prompts": len(set(map(attrgetter("prompt"), group_cells))),
                "R": speed_ratio(group_cells, plain_cells),
                "tokens/s": measure.total_speed(map(_run, group_cells)),
            }
            row |= _figures(group_cells, plain_cells)
            if way in chains and row.get("doubt") is None:
                row["over its chain"] = speed_ratio(group_cells, index.beside(group_cells, chains[way]))
            if seeded(way):
                reference = PLAIN + EXACT if way.endswith(EXACT) else PLAIN
                row |= _compare(group_cells, index.beside(group_cells, reference), find)
            yield row


def _prompts_by_group(cells: Sequence["Cell"]) -> dict[str, set[int]]:
    """The prompts of each group. A single group is also split by whether texts end in a loop, if it has both kinds."""
    prompts: dict[str, set[int]] = {}
    for cell in cells:
        prompts.setdefault(cell.group, set()).add(cell.prompt)
    if len(prompts) == 1:
        (all_prompts,) = prompts.values()
        loop_prompts = looping_prompts(cells)
        if 0 < len(loop_prompts) < len(all_prompts):
            prompts |= {"looping": loop_prompts, "not looping": all_prompts - loop_prompts}
    return prompts


def _figures(cells: Sequence["Cell"], plain_cells: Sequence["Cell"]) -> dict[str, Any]:
    """The figures that follow from a way's rounds, as medians over the repeats; empty for other programs."""
    if isinstance(cells[0].result, measure.ReferenceRun):
        return {}
    repeats = _metrics_by_repeat(cells)
    laws = list(map(measure.SpeedupLaw.of, repeats, _metrics_by_repeat(plain_cells)))
    law = measure.SpeedupLaw(**{term.name: _median(laws, term.name) for term in fields(measure.SpeedupLaw)})
    total_metrics = _total(cells)
    figures = {"tau": law.tau, "delta": law.delta, "v": law.v, "c": law.c, "h": law.h, "h0": law.h0}
    figures |= {"R law": law.predicted, "R decoding": law.decoding, "at h = 0": law.without_host}
    figures |= {
        "of nodes": _median(repeats, "acceptance_rate"),
        "of levels": _median(repeats, "level_acceptance"),
        "nodes": _median(repeats, "mean_nodes"),
    }
    figures |= {
        "ms a draft pass": 1e3 * total_metrics.draft_pass,
        "weights, MB": total_metrics.draft_weight_bytes / 1e6,
        "cache, MB": total_metrics.draft_cache_bytes / 1e6,
    }
    figures |= _parts(cells)
    if cells[0].way != PLAIN and (doubt := measure.Speedup(total_metrics, _total(plain_cells)).doubt):
        return {**figures, **dict.fromkeys(TIMES), "doubt": doubt}
    return figures


def _metrics_by_repeat(cells: Iterable["Cell"]) -> "list[Metrics]":
    """The metrics of all texts of each repeat, in order."""
    return list(map(_total, _by_repeat(cells)))


def _by_repeat(cells: Iterable["Cell"]) -> list[list["Cell"]]:
    """The texts of each repeat, in order."""
    return [repeat_cells for _, repeat_cells in sorted(group_by(cells, attrgetter("repeat")).items())]


def _total(cells: Iterable["Cell"]) -> "Metrics":
    """The metrics of texts together."""
    from drafttree.engine.metrics import Metrics

    return Metrics.total(map(attrgetter("result.metrics"), cells))


def _median(records: Iterable[object], name: str) -> float:
    """The median of an attribute."""
    return statistics.median(map(attrgetter(name), records))


def _parts(cells: Iterable["Cell"]) -> dict[str, float]:
    """Mean microseconds of each part of a round, in the repeat with the median time outside the two models' passes."""
    repeat_parts = sorted(map(_repeat_parts, _by_repeat(cells)), key=itemgetter("outside"))
    return repeat_parts[len(repeat_parts) // 2]


def _repeat_parts(cells: Iterable["Cell"]) -> dict[str, float]:
    """Mean microseconds of a round by part, in one repeat.

    The first round of a text, in which the drafter reads the prompt, is left out.
    """
    rounds = measure.columns(chain.from_iterable(cell.result.metrics.rounds[1:] for cell in cells))
    means: dict[str, float] = {}
    for name, column in SECONDS.items():
        means[name] = float(1e6 * rounds[column].mean()) if len(rounds) else 0.0
    means["outside"] = means["round"] - means["target"] - means["draft"]
    means["other"] = means["outside"] - sum(means[part_name] for part_name in PARTS)
    return means


def _run(cell: "Cell") -> tuple[float, float]:
    """Tokens and seconds of a text, the prompt included."""
    metrics = getattr(cell.result, "metrics", None)
    return (metrics.tokens, metrics.seconds) if metrics else (len(cell.result.tokens), cell.result.seconds)


def speed_ratio(cells: Iterable["Cell"], base_cells: Iterable["Cell"]) -> "measure.Interval":
    """The speed of one way over that of another, with its interval over the texts."""
    return measure.Interval.of_speeds_by_jackknife([*map(_run, cells)], [*map(_run, base_cells)])


def _compare(
    cells: Sequence["Cell"], plain_cells: Sequence["Cell"], find: Callable[["Cell", "Cell"], Any] | None
) -> dict[str, Any]:
    """How many texts equal plain decoding's; of the others, how many differ by a tie, and the largest gap in scores."""
    differing_pairs: list[tuple[Cell, Cell]] = []
    for plain_cell, cell in zip(plain_cells, cells, strict=True):
        if plain_cell.result.tokens != cell.result.tokens:
            differing_pairs.append((plain_cell, cell))
    row: dict[str, Any] = {"same text": f"{len(cells) - len(differing_pairs)}/{len(cells)}"}
    if differing_pairs and find:
        differences = list(starmap(find, differing_pairs))
        row["ties"] = sum(map(attrgetter("is_tie"), differences))
        row["gap"] = max(map(attrgetter("gap"), differences))
    return row


def looping_prompts(cells: Sequence["Cell"]) -> set[int]:
    """The prompts whose plain-decoding text ends in a loop."""
    prompts: set[int] = set()
    for cell in cells:
        if cell.way == PLAIN and cell.repeat == 0 and measure.loops(cell.result.tokens):
            prompts.add(cell.prompt)
    return prompts
