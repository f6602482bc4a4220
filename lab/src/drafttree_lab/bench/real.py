"""Real models: whether their texts are right, and how fast they are compared with other programs.

The models are GGUF files in a folder. Speeds are of texts that all ways write alternately, in bfloat16 and int8,
prompts included; llama.cpp reads the file as stored. Texts in float32 are compared with those of transformers.
"""

import hashlib
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import chain, product
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from drafttree import measure
from drafttree.core.errors import InputError, ModelError, unknown
from drafttree.core.lazy import torch
from drafttree.interfaces.cli.option_groups import grouped
from drafttree.interfaces.cli.options import Files
from drafttree.interfaces.cli.results import ResultOptions
from drafttree.interfaces.console import make_console, progress
from drafttree.measure.method import PLAIN
from drafttree.measure.prompts import Example, spread_examples
from drafttree_lab.real_model_run import (
    AS_STORED,
    LLAMA_CPP,
    NO_LLAMA_CPP,
    OF_TRANSFORMERS,
    TRANSFORMERS,
    Failure,
    RealModel,
    Writers,
)
from drafttree_lab.speed_rows import group_by, make_rows, speed_ratio

if TYPE_CHECKING:
    from drafttree.loading.gguf.reader import GGUFFile
    from drafttree.measure.driver import Cell
    from drafttree.measure.run_store import RunStore

VARIABLE = "DRAFTTREE_REAL_MODELS"
HOW_TO_FILL = "give a folder with GGUF files of models"
SPEEDS = (AS_STORED, "bfloat16", "int8")
TEXTS = "float32"
CODE = ("drafttree", "drafttree_native")
PACKAGES = ("drafttree", "drafttree-native", "torch", "transformers", "llama-cpp-python")
SPEED_COLUMNS = {"method": "", "tokens/s": ".1f", "R": ".2f", "R law": ".2f", "over transformers": ".2f"}
SPEED_COLUMNS |= {"over llama.cpp": ".2f", "tau": ".2f", "c": ".2f", "v": ".2f", "h": ".3f", "same text": ">", "": ""}
PEER_COLUMNS = {TRANSFORMERS: "over transformers", LLAMA_CPP: "over llama.cpp"}
TEXT_COLUMNS = {"model": "", "method": "", "equal to transformers'": ">", "": ""}
ALONE = ", without transformers"
"""Suffix of the names of prompt groups that transformers does not answer, because it is slow."""
UNFINISHED = "not run yet"
BLOCK = 1 << 24
"""Bytes of a file that are read at a time."""


@dataclass(frozen=True)
class RealPlan:
    """Which models write which prompts.

    Attributes:
        timed_runs: the models in the precisions whose speed is measured.
        text_runs: the models in float32, whose texts are compared.
        timed_prompts: the prompts of `timed_runs`.
        text_prompts: the prompts of `text_runs`.
        timed: number of `timed_prompts` that transformers answers, too.
    """

    timed_runs: Sequence[RealModel]
    text_runs: Sequence[RealModel]
    timed_prompts: Sequence[Example]
    text_prompts: Sequence[Example]
    timed: int

    @property
    def prompts(self) -> list[tuple[str, Example]]:
        """The prompts of all models, each with its group, in the form of `race`'s prompts."""
        prompts: list[tuple[str, Example]] = []
        for run in self.timed_runs:
            prompts += product([run.name], self.timed_prompts[: self.timed])
            prompts += product([f"{run.name}{ALONE}"], self.timed_prompts[self.timed :])
        for run in self.text_runs:
            prompts += product([run.name], self.text_prompts)
        return prompts

    @property
    def counts(self) -> dict[str, int]:
        """The number of prompts of each kind."""
        return {
            "speeds": len(self.timed_prompts),
            "transformers": min(self.timed, len(self.timed_prompts)),
            "texts": len(self.text_prompts) if self.text_runs else 0,
        }


@dataclass(frozen=True)
class RealOptions:
    """Which models write which prompts, by options."""

    models: Annotated[
        list[str] | None,
        typer.Option("--model", help="Measure only this model: a file's name without .gguf. May be repeated."),
    ] = None
    precisions: Annotated[
        list[str] | None,
        typer.Option(
            "--precision", help=f"Measure only this precision: {', '.join((*SPEEDS, TEXTS))}. May be repeated."
        ),
    ] = None
    prompts: Files = None
    limit: Annotated[int, typer.Option(min=1, help="Number of prompts for the speeds.")] = 6
    timed: Annotated[int, typer.Option(min=1, help="How many of these prompts transformers answers too.")] = 2
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Number of new tokens per text for the speeds.")] = 64
    texts: Annotated[int, typer.Option(min=1, help="Number of prompts for the comparison of texts in float32.")] = 20
    text_tokens: Annotated[int, typer.Option(min=1, help="Number of new tokens per text in float32.")] = 16

    def plan(self, files: Sequence[Path], other_files: Sequence[Path]) -> RealPlan:
        """The plan for some files.

        Args:
            files: files of the models that are measured.
            other_files: files of models that may draft.

        Raises:
            ConfigError: a precision is unknown.
        """
        precisions = self.precisions or [*SPEEDS, TEXTS]
        if unknown_precision := next((name for name in precisions if name not in (*SPEEDS, TEXTS)), None):
            raise unknown("precision", unknown_precision, (*SPEEDS, TEXTS))
        timed_runs: list[RealModel] = []
        text_runs: list[RealModel] = []
        drafts = draft_models(files, other_files)
        for path, precision in product(files, precisions):
            if precision != TEXTS:
                timed_runs.append(RealModel(path, drafts[path], precision, self.max_new_tokens))
        if TEXTS in precisions:
            text_runs += [RealModel(path, drafts[path], TEXTS, self.text_tokens) for path in files]
        timed_prompts = _examples(self.prompts, self.limit)
        text_prompts = _examples(self.prompts, self.texts)
        return RealPlan(timed_runs, text_runs, timed_prompts, text_prompts, self.timed)


@grouped
def bench(
    context: typer.Context,
    results: ResultOptions,
    folder: Annotated[Path, typer.Argument(help="Folder with GGUF files.", envvar=VARIABLE)],
    options: RealOptions,
) -> None:
    """Measure real models beside transformers and llama.cpp."""
    files, other_files = find_files(folder, options.models)
    plan = options.plan(files, other_files)
    digests = {path.name: digest(path) for path in files}
    measured_with = {**_versions(), **describe_machine(), "code": code_digest()}
    store = results.open_store(context, plan.timed_prompts, plan.text_prompts, digests, measured_with)
    writers = Writers()
    cells = _race(plan, writers, store)
    speeds: list[dict[str, Any]] = []
    for run in plan.timed_runs:
        speeds += speed_rows(run, _cells_of(run, cells), partial(_find_difference, plan, writers, run))
    texts: list[dict[str, Any]] = []
    for run in plan.text_runs:
        texts += text_rows(run, _cells_of(run, cells))
    report = {
        "machine": describe_machine(),
        "versions": _versions(),
        "files": [describe_file(path, digests[path.name]) for path in files],
        "source": list(map(str, options.prompts or ())) or "shipped",
        "prompts": plan.counts,
        "new tokens": {"speeds": options.max_new_tokens, "texts": options.text_tokens},
        "speeds": speeds,
        "texts": texts,
    }
    results.finish(store, measure.to_json(report), lambda: show(report))


def _race(plan: RealPlan, writers: Writers, store: "RunStore") -> "list[Cell]":
    """Let all models answer their prompts in all ways, alternately."""
    from drafttree.engine.generation import Generation

    ways = dict(writers.ways([*plan.timed_runs, *plan.text_runs]))
    prompts = plan.prompts
    text_count = sum(_runs_in(way, group) for way, (group, _) in product(ways, prompts))
    with progress(text_count) as advance:
        result_type = Generation | measure.ReferenceRun | Failure
        return measure.race(ways, prompts, result_type, runs=_runs_in, store=store, progress=advance)


def _runs_in(way: str, group: str) -> bool:
    """Whether a way, named "model: way", answers a group of prompts."""
    model, _, name = way.partition(": ")
    return model == group.removesuffix(ALONE) and not (group.endswith(ALONE) and name in OF_TRANSFORMERS)


def _find_difference(plan: RealPlan, writers: Writers, run: RealModel, plain: "Cell", drafted: "Cell") -> Any:
    """The first difference of a model's text from plain decoding's."""
    _, prompt = plan.prompts[plain.prompt]
    return writers.opened(run).find_difference(prompt, plain.result.tokens, drafted.result.tokens)


def find_files(folder: Path, names: Sequence[str] | None) -> tuple[list[Path], list[Path]]:
    """The GGUF files of a folder that are named, and the others, which may draft; each the smallest first.

    A file that is not a complete model is left out, and a line on standard error says why.

    Args:
        folder: the folder.
        names: names of files, with or without their ending; None for all.

    Raises:
        InputError: the folder has no model, or lacks one of the names.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is {'a file' if folder.exists() else 'missing'}; {HOW_TO_FILL}")
    by_name = {path.stem: path for path in sorted(folder.glob("*.gguf"), key=lambda path: path.stat().st_size)}
    for name, path in [*by_name.items()]:
        if problem := _why_no_model(path):
            print(f"drafttree: {path.name} is left out: {problem}", file=sys.stderr)
            del by_name[name]
    if not by_name:
        raise InputError(f"{folder} has no GGUF file of a model; {HOW_TO_FILL}, or set {VARIABLE} to one")
    model_names = [name.removesuffix(".gguf") for name in names] if names else [*by_name]
    if absent_name := next((name for name in model_names if name not in by_name), None):
        raise InputError(f"{folder} has no {absent_name}.gguf; it has {', '.join(by_name)}")
    files: list[Path] = []
    other_files: list[Path] = []
    for name, path in by_name.items():
        (files if name in model_names else other_files).append(path)
    return files, other_files


def _why_no_model(path: Path) -> str | None:
    from drafttree.loading.gguf.reader import GGUFFile

    try:
        file = GGUFFile(path)
    except ModelError as error:
        return str(error)
    return None if "tokenizer.ggml.tokens" in file.metadata else "it has no tokenizer"


class ModelFile(NamedTuple):
    """The size and vocabulary of a model.

    Attributes:
        path: file of the model.
        weights: number of weights.
        vocabulary: tokens as the file has them.
    """

    path: Path
    weights: int
    vocabulary: Any

    @classmethod
    def read(cls, path: Path) -> "ModelFile":
        """Read the head of a file."""
        from drafttree.loading.gguf.reader import GGUFFile

        file = GGUFFile(path)
        return cls(path, _weights_by_kind(file).total(), file.metadata["tokenizer.ggml.tokens"])

    def drafts_for(self, target: "ModelFile") -> bool:
        """Whether it has the target's vocabulary and at most half its weights."""
        return 2 * self.weights <= target.weights and self.vocabulary == target.vocabulary


def draft_models(files: Sequence[Path], other_files: Sequence[Path] = ()) -> dict[Path, Path | None]:
    """The draft model of each file: the largest of all files with its vocabulary and at most half its weights."""
    model_files = list(map(ModelFile.read, (*files, *other_files)))
    draft_paths: dict[Path, Path | None] = {}
    for target in model_files[: len(files)]:
        candidates = [file for file in model_files if file.drafts_for(target)]
        largest = max(candidates, key=attrgetter("weights"), default=None)
        draft_paths[target.path] = largest.path if largest else None
    return draft_paths


def speed_rows(run: RealModel, cells: Sequence["Cell"], find: Any) -> Iterator[dict[str, Any]]:
    """A row for every way of a model: its speed, the terms of the law, and how many texts equal plain decoding's.

    Args:
        run: the model in its precision.
        cells: its texts, all in one group.
        find: finds the first difference between plain decoding's text and another.
    """
    labels = {"model": run.target.stem, "precision": run.precision}
    failures = _failures(cells)
    text_cells = [cell for cell in cells if cell.way not in failures]
    cells_by_way = group_by(text_cells, attrgetter("way"))
    rows = {} if PLAIN in failures else _law_rows(run, text_cells, find)
    for way in run.ways:
        if way in rows:
            yield {**labels, **rows[way], **_peer_ratios(way, cells_by_way)}
        else:
            without_plain = f"not compared: {PLAIN} decoding failed" if PLAIN in failures else UNFINISHED
            yield {**labels, "method": way, "failure": failures.get(way, without_plain)}
    if LLAMA_CPP not in run.ways:
        yield {**labels, "method": LLAMA_CPP, "failure": NO_LLAMA_CPP}


def _law_rows(run: RealModel, cells: Sequence["Cell"], find: Any) -> dict[str, dict[str, Any]]:
    """The rows of `make_rows` over all prompts, by way."""
    rows: dict[str, dict[str, Any]] = {}
    for row in make_rows(cells, seeded=[PLAIN, *run.methods].__contains__, find=find):
        if row.pop("group") == run.name:
            rows[row["method"]] = row
    return rows


def _peer_ratios(way: str, cells: Mapping[str, Sequence["Cell"]]) -> "dict[str, measure.Interval]":
    """The speed of a way over that of each other program, on the prompts that both have answered."""
    ratios: dict[str, measure.Interval] = {}
    way_cells = _by_prompt(cells[way])
    for peer, column in PEER_COLUMNS.items():
        if peer in cells and way != peer:
            peer_cells = _by_prompt(cells[peer])
            prompts = sorted(way_cells.keys() & peer_cells.keys())
            ratios[column] = speed_ratio(map(way_cells.__getitem__, prompts), map(peer_cells.__getitem__, prompts))
    return ratios


def _by_prompt(cells: Iterable["Cell"]) -> dict[int, "Cell"]:
    return {cell.prompt: cell for cell in cells}


def text_rows(run: RealModel, cells: Sequence["Cell"]) -> Iterator[dict[str, Any]]:
    """A row for every way of drafttree: how many of its texts equal those of transformers."""
    failures = _failures(cells)
    cells_by_way = group_by(cells, attrgetter("way"))
    references = cells_by_way.get(TRANSFORMERS, [])
    for way in [PLAIN, *run.methods]:
        row = {"model": run.target.stem, "method": way}
        if failure := failures.get(way) or failures.get(TRANSFORMERS) or (None if references else UNFINISHED):
            yield {**row, "failure": failure}
            continue
        texts = _by_prompt(cells_by_way[way])
        equal_count = sum(texts[cell.prompt].result.tokens == cell.result.tokens for cell in references)
        yield {**row, "equal": equal_count, "texts": len(references)}


def describe_file(path: Path, sha256: str) -> dict[str, Any]:
    """Size, digest and weight formats of a model's file."""
    from drafttree.loading.gguf.reader import GGUFFile

    file = GGUFFile(path)
    weights = _weights_by_kind(file)
    total = weights.total()
    return {
        "file": path.name,
        "name": str(file.metadata.get("general.name", path.stem)),
        "sha256": sha256,
        "bytes": path.stat().st_size,
        "weights": total,
        "kinds": {tensor_kind: count / total for tensor_kind, count in weights.most_common()},
    }


def _weights_by_kind(file: "GGUFFile") -> Counter[str]:
    weights: Counter[str] = Counter()
    for tensor in file.tensors.values():
        weights[tensor.kind] += tensor.rows * tensor.shape[-1]
    return weights


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    hashed = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            hashed.update(block)
    return hashed.hexdigest()


def code_digest() -> str:
    """A digest of the measured code, so that stored speeds of other code are not reused."""
    hashed = hashlib.sha256()
    for package in CODE:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for path in sorted(Path(folder).rglob("*")):
                if path.suffix in (".py", ".so", ".pyd"):
                    hashed.update(path.read_bytes())
    return hashed.hexdigest()


def describe_machine() -> dict[str, Any]:
    """The processor, its threads, and the instruction set that torch detects."""
    import platform

    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def show(report: Mapping[str, Any]) -> None:
    """Print the tables."""
    console = make_console()
    machine = report["machine"]
    print(f"{machine['processor']}, {machine['instructions']}, {machine['threads']} threads")
    for file in report["files"]:
        _show_file(file)
    for (model, precision), rows in group_by(report["speeds"], itemgetter("model", "precision")).items():
        table_rows = [{**row, "": row.get("failure") or row.get("doubt")} for row in rows]
        console.print(measure.to_table(f"{model}, {precision}", table_rows, SPEED_COLUMNS))
    table_rows = [{**row, "equal to transformers'": _share(row), "": row.get("failure")} for row in report["texts"]]
    console.print(measure.to_table("texts in float32", table_rows, TEXT_COLUMNS))
    print(
        "tokens/s: all tokens over all seconds, including the time for prompts; R: tokens/s over plain decoding's "
        "[95 % interval by jackknife]"
    )
    print(
        "R law = tau (1 + h0) / (v + c*delta + h), without the time in which prompts are read; same text: texts that "
        "equal plain decoding's in that precision"
    )
    print(", ".join(map(" ".join, report["versions"].items())))


def _show_file(file: Mapping[str, Any]) -> None:
    """Print a line about a model's file."""
    shares = [f"{tensor_kind} {share:.0%}" for tensor_kind, share in file["kinds"].items() if share > 0.005]
    size = f"{file['bytes'] / 1e6:,.0f} MB, {file['weights'] / 1e6:,.0f} M weights ({', '.join(shares)})"
    print(f"{file['file']}: {file['name']}, {size}, sha256 {file['sha256'][:16]}")


def _share(row: Mapping[str, Any]) -> str | None:
    return f"{row['equal']}/{row['texts']}" if "texts" in row else None


def _examples(prompts: Sequence[Path] | None, limit: int) -> list[Example]:
    """The prompts of files; without files, the shipped prompts of chat and code alternately."""
    if prompts:
        return spread_examples(prompts, limit)

    from importlib.resources import as_file, files

    with as_file(files("drafttree.measure") / "data" / "prompts") as data:
        examples = spread_examples([data / "mt_bench.jsonl", data / "humaneval.jsonl"], limit + limit % 2)
    chat = examples[: len(examples) // 2]
    code = examples[len(examples) // 2 :]
    return list(chain.from_iterable(zip(chat, code, strict=True)))[:limit]


def _cells_of(run: RealModel, cells: Sequence["Cell"]) -> list["Cell"]:
    """The texts of a model, all in one group and without the model in the names of ways."""
    prefix = f"{run.name}: "
    return [
        cell._replace(way=cell.way.removeprefix(prefix), group=run.name)
        for cell in cells
        if cell.way.startswith(prefix)
    ]


def _failures(cells: Sequence["Cell"]) -> dict[str, str]:
    return {cell.way: cell.result.failure for cell in cells if isinstance(cell.result, Failure)}


def _versions() -> dict[str, str]:
    versions: dict[str, str] = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
