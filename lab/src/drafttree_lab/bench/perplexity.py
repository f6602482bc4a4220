"""What quantising weights costs: the perplexity of a text, and the share of best tokens that stay the same.

The text is cut into parts of equal length, and each is scored by itself. Quantised and unquantised weights are compared
token by token, so the standard error of the difference is far below that of a perplexity.
"""

import gzip
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, product, starmap
from operator import attrgetter, eq, itemgetter, sub
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drafttree import measure
from drafttree.core.errors import InputError, unknown
from drafttree.core.lazy import torch
from drafttree.interfaces.cli.option_groups import grouped
from drafttree.interfaces.cli.options import Dtype
from drafttree.interfaces.cli.results import ResultOptions
from drafttree.interfaces.console import make_console, progress
from drafttree_lab.speed_rows import group_by

if TYPE_CHECKING:
    from drafttree.measure.driver import Cell
    from drafttree.models import TargetModel

BASE = "unpacked"
WAYS = {
    "int8": "int8, head as it is",
    "int8-head": "int8, head too",
    "int4": "int4, head in int8",
    "as-stored": "as the file has them",
}
"""The ways to quantise weights, with their names in the table."""
COLUMNS = {"weights": "", "tokens": ",", "perplexity": ".3f", "change": "", "best tokens unchanged": ".2%"}
AT_ONCE = 64
"""Tokens of a pass; few, since every token needs logits of up to 150,000 values and more."""

Scores = dict[str, list[Any]]
"""For each token of a part after the first, its log-probability (`logprobs`), and the likeliest token (`best`)."""


@grouped
def bench(
    context: typer.Context,
    results: ResultOptions,
    model: Annotated[str, typer.Argument(help="Folder, GGUF file, hub name or embedded name.")],
    text: Annotated[Path, typer.Option(help="The text, plain or as .gz.", exists=True, dir_okay=False)],
    tokens: Annotated[int, typer.Option(min=2, help="Number of tokens, from the beginning of the text.")] = 70_000,
    length: Annotated[int, typer.Option(min=2, help="Number of tokens of each part of the text.")] = 512,
    quantize: Annotated[
        list[str] | None,
        typer.Option(
            help=f"How to round the weights: {', '.join(WAYS)}. May be repeated. Without it, int8 and int8-head."
        ),
    ] = None,
    dtype: Dtype = "auto",
) -> None:
    """Measure what rounding weights costs in perplexity.

    "as-stored" multiplies the weights of a GGUF file or a quantised folder as they are stored, and rounds its inputs to
    eight bits. Everything is compared with the unpacked weights.
    """
    from drafttree.loading.pretrained import load_tokenizer

    quantizations = quantize or ["int8", "int8-head"]
    _check_quantizations(quantizations)
    text_parts = read_parts(text, load_tokenizer(model), tokens, length)
    store = results.open_store(context, text_parts)
    ways = {name: Way(name, model, dtype) for name in (BASE, *quantizations)}
    with progress(len(ways) * len(text_parts)) as advance:
        prompts = list(product(["all"], text_parts))
        cells = measure.race(ways, prompts, Scores, store=store, progress=advance)
    rows = make_rows(cells)
    results.finish(
        store, {"rows": rows}, lambda: make_console().print(measure.to_table("", map(_shown, rows), COLUMNS))
    )


def _check_quantizations(names: Iterable[str]) -> None:
    """Refuse a name that is not among `WAYS`.

    Raises:
        ConfigError: a name is not among them.
    """
    for name in names:
        if name not in WAYS:
            raise unknown("--quantize", name, WAYS)


def make_rows(cells: Iterable["Cell"]) -> list[dict[str, Any]]:
    """A row for every way, compared with the weights as they are unpacked."""
    scores: dict[str, list[Scores]] = {}
    for name, way_cells in group_by(cells, attrgetter("way")).items():
        scores[name] = list(map(attrgetter("result"), way_cells))
    return [compare(name, own_scores, scores[BASE]) for name, own_scores in scores.items()]


def read_parts(path: Path, tokenizer: Any, tokens: int, length: int) -> list[list[int]]:
    """The token ids of the parts of a text, each after the tokenizer's prefix, such as BOS.

    Raises:
        InputError: the text is too short for one part.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        ids = tokenizer(file.read(tokens * 16), add_special_tokens=False, verbose=False)["input_ids"][:tokens]
    prefix_ids = tokenizer("")["input_ids"]
    part_count = len(ids) // length
    if not part_count:
        raise InputError(f"{path} has {len(ids)} tokens, and a part has {length}; give a longer text or --length")
    return [[*prefix_ids, *ids[index * length : (index + 1) * length]] for index in range(part_count)]


class Way:
    """Scores parts with a model whose weights are quantised in one way; loads it for the first part."""

    def __init__(self, name: str, model: str, dtype: str) -> None:
        self._name = name
        self._model = model
        self._dtype = dtype
        self._target: TargetModel | None = None

    def __call__(self, token_ids: list[int]) -> Scores:
        if self._target is None:
            self._target = self._load()
        return score(self._target, token_ids)

    def _load(self) -> "TargetModel":
        from drafttree.loading.placement import find_placement
        from drafttree.loading.pretrained import load_model
        from drafttree.loading.target_options import AS_STORED
        from drafttree.models import TargetModel
        from drafttree.models.backend_choice import choose_backend
        from drafttree.models.quantization.quantize import quantize_int8

        device, dtype = find_placement(self._dtype, "auto")
        quantization = {"int4": "int4", "as-stored": AS_STORED}.get(self._name)
        module = load_model(self._model, dtype, device, quantization)
        if self._name in ("int8", "int8-head"):
            quantize_int8(module, head=self._name == "int8-head")
        return TargetModel(module, choose_backend)


def score(target: "TargetModel", token_ids: Sequence[int]) -> Scores:
    """Score the tokens of a part."""
    from drafttree.models.segment import Segment

    cache = target.new_cache(len(token_ids))
    scores = Scores(logprobs=[], best=[])
    for start in range(0, len(token_ids) - 1, AT_ONCE):
        ids = list(token_ids[start : start + AT_ONCE])
        segment = Segment.of_text(cache, ids)._replace(wanted=slice(None))
        logits = target.forward([segment])[0].logits[0].float()
        cache.commit(range(len(ids)))
        next_ids = torch.tensor(token_ids[start + 1 : start + 1 + AT_ONCE], device=logits.device)
        scored_logits = logits[: len(next_ids)]
        logprobs = scored_logits.gather(1, next_ids[:, None])[:, 0] - scored_logits.logsumexp(1)
        scores["logprobs"] += logprobs.tolist()
        scores["best"] += scored_logits.argmax(1).tolist()
    return scores


def compare(name: str, scores: Sequence[Scores], base_scores: Sequence[Scores]) -> dict[str, Any]:
    """A row: the perplexity, its change from that of the base, and the standard error of the change."""
    logprobs = list(chain.from_iterable(map(itemgetter("logprobs"), scores)))
    differences = list(starmap(_mean_difference, zip(scores, base_scores, strict=True)))
    best_tokens = chain.from_iterable(map(itemgetter("best"), scores))
    base_tokens = chain.from_iterable(map(itemgetter("best"), base_scores))
    mean = statistics.fmean(differences)
    error = statistics.stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else None
    return {
        "weights": WAYS.get(name, name),
        "tokens": len(logprobs),
        "perplexity": math.exp(-statistics.fmean(logprobs)),
        "change_percent": 100 * math.expm1(mean),
        "error_percent": None if error is None else 100 * error,
        "best_tokens_unchanged": statistics.fmean(starmap(eq, zip(best_tokens, base_tokens, strict=True))),
    }


def _mean_difference(scores: Scores, base_scores: Scores) -> float:
    """The mean loss of log-probability of a part's tokens, compared with the weights of the base."""
    return statistics.fmean(starmap(sub, zip(base_scores["logprobs"], scores["logprobs"], strict=True)))


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    error = "" if row["error_percent"] is None else f" +- {row['error_percent']:.3f}"
    change = "" if row["weights"] == BASE else f"{row['change_percent']:+.3f}{error} %"
    columns = {name: row[name] for name in ("weights", "tokens", "perplexity")}
    return {**columns, "change": change, "best tokens unchanged": row["best_tokens_unchanged"]}
