"""Rows of a table of speeds: the terms of the law, speeds over plain decoding's, and whose texts are the same."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from drafttree import measure
from drafttree.measure.method import PLAIN

if TYPE_CHECKING:
    from drafttree.measure.driver import Cell

EXACT = " with exact_text"
PARTS = ("growth", "mask", "verify", "commit", "text")
"""The parts of a round outside the two models' passes, by the names that `Round` has for their seconds."""
TIMES = ("v", "c", "h", "h0", "R law", "R", "R decoding", "at h = 0", "over its chain")
"""Figures that disturbed times do not tell."""


def make_rows(
    cells: Sequence["Cell"],
    chains: Mapping[str, str] = {},
    seeded: Callable[[str], bool] = lambda way: True,
    find: Callable[["Cell", "Cell"], Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """A row for every group of prompts and way: terms of the law as medians over the repeats, speeds of all texts.

    A way may lack prompts of plain decoding; it is compared with plain decoding on those that it has.

    Args:
        cells: what `race` gives.
        chains: by way, the chain that it is compared with.
        seeded: whether a way has to write plain decoding's text.
        find: the first difference between plain decoding's text and another.
    """
    cells_by_key = {(cell.way, cell.prompt, cell.repeat): cell for cell in cells}
    names = dict.fromkeys(cell.group for cell in cells)
    groups = {name: {cell.prompt for cell in cells if cell.group == name} for name in names}
    if len(groups) == 1 and 0 < len(looping := looping_prompts(cells)) < len(
        all_prompts := next(iter(groups.values()))
    ):
        groups |= {"looping": looping, "not looping": all_prompts - looping}
    for group, numbers in groups.items():
        for way in dict.fromkeys(cell.way for cell in cells):
            way_cells = [cell for cell in cells if cell.way == way and cell.prompt in numbers]
            if not way_cells:
                continue

            def beside(name: str, own: list["Cell"] = way_cells) -> list["Cell"]:
                return [cells_by_key[name, cell.prompt, cell.repeat] for cell in own]

            row: dict[str, Any] = {
                "group": group,
                "method": way,
                "prompts": len({cell.prompt for cell in way_cells}),
                "R": speed_ratio(way_cells, beside(PLAIN)),
                "tokens/s": measure.total_speed(_runs(way_cells)),
            }
            row |= _figures(way_cells, beside(PLAIN))
            if way in chains and row.get("doubt") is None:
                row["over its chain"] = speed_ratio(way_cells, beside(chains[way]))
            if seeded(way):
                row |= _compare(way_cells, beside(PLAIN + EXACT if way.endswith(EXACT) else PLAIN), find)
            yield row


def _figures(own: Sequence["Cell"], plain: Sequence["Cell"]) -> dict[str, Any]:
    """What the rounds of a way tell, each figure its median over the repeats; nothing of another program."""
    from drafttree.engine.metrics import Metrics

    repeats = sorted({cell.repeat for cell in own})
    if isinstance(own[0].result, measure.ReferenceRun):
        return {}

    def total(cells: Sequence["Cell"], *those: int) -> Metrics:
        return Metrics.total(cell.result.metrics for cell in cells if cell.repeat in those)

    runs = [(total(own, repeat), total(plain, repeat)) for repeat in repeats]
    laws = [measure.SpeedupLaw.of(*metrics_pair) for metrics_pair in runs]
    total_metrics = total(own, *repeats)
    terms = {name: statistics.median(getattr(law, name) for law in laws) for name in asdict(laws[0])}
    law = measure.SpeedupLaw(**terms)
    figures = {name: terms[name] for name in ("tau", "delta", "v", "c", "h", "h0")}
    figures |= {"R law": law.predicted, "R decoding": law.decoding, "at h = 0": law.without_host}
    attributes = {"of nodes": "acceptance_rate", "of levels": "level_acceptance", "nodes": "mean_nodes"}
    figures |= {
        name: statistics.median(getattr(run, attribute) for run, _ in runs) for name, attribute in attributes.items()
    }
    figures |= {
        "ms a draft pass": 1e3 * total_metrics.draft_pass,
        "weights, MB": total_metrics.draft_weight_bytes / 1e6,
    }
    figures |= {"cache, MB": total_metrics.draft_cache_bytes / 1e6} | _parts(own, repeats)
    if own[0].way != PLAIN and (doubt := measure.Speedup(total_metrics, total(plain, *repeats)).doubt):
        figures |= {**dict.fromkeys(TIMES), "doubt": doubt}
    return figures


def _parts(own: Sequence["Cell"], repeats: Sequence[int]) -> dict[str, float]:
    """Mean microseconds of a round by part, in the repeat of median time outside the two models' passes.

    The first round of a text, in which the drafter reads the prompt, is left out.
    """
    means = []
    for repeat in repeats:
        texts = (cell.result.metrics.rounds[1:] for cell in own if cell.repeat == repeat)
        rounds = measure.columns(round_ for text in texts for round_ in text)
        names = {name: f"{name}_seconds" for name in ("target", "draft", *PARTS)} | {"round": "seconds"}
        mean = {name: float(1e6 * rounds[column].mean()) if len(rounds) else 0.0 for name, column in names.items()}
        outside_time = mean["round"] - mean["target"] - mean["draft"]
        means.append(
            mean | {"outside": outside_time, "other": outside_time - sum(mean[part_name] for part_name in PARTS)}
        )
    return sorted(means, key=lambda each: each["outside"])[len(means) // 2]


def _runs(cells: Sequence["Cell"]) -> list[tuple[float, float]]:
    """Tokens and seconds of every text, prompts included."""

    def run(result: Any) -> tuple[float, float]:
        metrics = getattr(result, "metrics", None)
        return (metrics.tokens, metrics.seconds) if metrics else (len(result.tokens), result.seconds)

    return [run(cell.result) for cell in cells]


def speed_ratio(own: Sequence["Cell"], base: Sequence["Cell"]) -> "measure.Interval":
    """The speed of one way over another's, with its interval over the texts."""
    return measure.Interval.of_speeds_by_jackknife(_runs(own), _runs(base))


def _compare(
    own: Sequence["Cell"], plain: Sequence["Cell"], find: Callable[["Cell", "Cell"], Any] | None
) -> dict[str, Any]:
    """How many texts are plain decoding's, and how close the choice was at the first difference of the others."""
    cell_pairs = [*zip(plain, own, strict=True)]
    differing_pairs = [
        cell_pair for cell_pair in cell_pairs if cell_pair[0].result.tokens != cell_pair[1].result.tokens
    ]
    row: dict[str, Any] = {"same text": f"{len(cell_pairs) - len(differing_pairs)}/{len(cell_pairs)}"}
    if differing_pairs and find:
        differences = [find(*cell_pair) for cell_pair in differing_pairs]
        row |= {
            "ties": sum(difference.is_tie for difference in differences),
            "gap": max(difference.gap for difference in differences),
        }
    return row


def looping_prompts(cells: Sequence["Cell"]) -> set[int]:
    """The prompts behind which plain decoding's text ends in a loop."""
    plain_cells = (cell for cell in cells if cell.way == PLAIN and cell.repeat == 0)
    return {cell.prompt for cell in plain_cells if measure.loops(cell.result.tokens)}
