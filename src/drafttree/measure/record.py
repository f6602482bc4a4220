"""Records of texts: their rounds in columns, from which counts, times and the law follow."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

import numpy as np

from drafttree.engine.metrics import EngineRound, Metrics, TextRound

LISTED = ("committed", "accepted", "nodes", "levels", "draft_passes", "ranks")
TAIL, PERIOD = 48, 16


def columns(rounds: Iterable[TextRound] | Iterable[EngineRound]) -> np.recarray:
    """Rounds of one class as rows, with a column for each number of the class; NaN means None."""
    rows = list(rounds)
    round_class = type(rows[0]) if rows else TextRound
    names = [field.name for field in fields(round_class) if field.type in (int, float, float | None)]
    numbers = np.array([attrgetter(*names)(row) for row in rows], float).reshape(-1, len(names))
    return from_lists(dict(zip(names, numbers.T, strict=True)))


def from_lists(lists: Mapping[str, Any]) -> np.recarray:
    """A record array of columns, given as in files: lists of numbers by name."""
    return np.rec.fromarrays(
        [np.asarray(column, float) for column in lists.values()], dtype=[(name, float) for name in lists]
    )


def describe(metrics: Metrics) -> dict[str, object]:
    """The figures of one text, for JSON; lists have one entry per round."""
    return {
        "tokens": metrics.tokens,
        "seconds": metrics.seconds,
        "ttft": metrics.time_to_first_token,
        "tpot": metrics.time_per_output_token,
        "mean_path_length": metrics.mean_path_length,
        **{name: [getattr(round_, name) for round_ in metrics.rounds] for name in LISTED},
    }


def loops(tokens: Sequence[int]) -> bool:
    """Whether the last 48 tokens repeat with a period of at most 16; every drafter predicts such a text."""
    tail = tokens[-TAIL:]
    return len(tail) == TAIL and any(tail[period:] == tail[:-period] for period in range(1, PERIOD + 1))
