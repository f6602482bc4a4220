"""Models that people have: whether their texts are right, and how fast they are beside other programs.

The models are GGUF files in a folder. Speeds are of texts that all ways write by turns, in bfloat16 and int8, prompts
included; llama.cpp reads the file as it is. Texts in float32 are compared with those of transformers, token for token.
"""

import hashlib
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from drafttree_lab.speed_rows import make_rows, speed_ratio

if TYPE_CHECKING:
    from drafttree.loading.gguf.reader import GGUFFile
    from drafttree.measure.driver import Cell

VARIABLE = "DRAFTTREE_REAL_MODELS"
HOW_TO_FILL = "give a folder with GGUF files of models"
SPEEDS = (AS_STORED, "bfloat16", "int8")
TEXTS = "float32"
CODE = ("drafttree", "drafttree_native")
PACKAGES = ("drafttree", "drafttree-native", "torch", "transformers", "llama-cpp-python")
SPEED_COLUMNS = {"method": "", "tokens/s": ".1f", "R": ".2f", "R law": ".2f", "over transformers": ".2f"}
SPEED_COLUMNS |= {"over llama.cpp": ".2f", "tau": ".2f", "c": ".2f", "v": ".2f", "h": ".3f", "same text": ">", "": ""}
TEXT_COLUMNS = {"model": "", "method": "", "equal to transformers'": ">", "": ""}
ALONE = ", without transformers"
"""Behind the name of a group of prompts that transformers, which is slow, does not answer."""
UNFINISHED = "not run yet"
BLOCK = 1 << 24
"""Bytes of a file that are read at a time."""


@grouped
def bench(
    context: typer.Context,
    results: ResultOptions,
    folder: Annotated[Path, typer.Argument(help="Folder with GGUF files.", envvar=VARIABLE)],
    models: Annotated[list[str] | None, typer.Option("--model", help="Take this file alone. May be repeated.")] = None,
    precisions: Annotated[
        list[str] | None, typer.Option("--precision", help=f"Of {', '.join((*SPEEDS, TEXTS))}. May be repeated.")
    ] = None,
    prompts: Files = None,
    limit: Annotated[int, typer.Option(min=1, help="Prompts where speeds count.")] = 6,
    timed: Annotated[int, typer.Option(min=1, help="Of these, prompts that transformers answers too.")] = 2,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="New tokens of a text where speeds count.")] = 64,
    texts: Annotated[int, typer.Option(min=1, help="Prompts in float32.")] = 20,
    text_tokens: Annotated[int, typer.Option(min=1, help="New tokens of a text in float32.")] = 16,
) -> None:
    """Measure real models beside transformers and llama.cpp."""
    from drafttree.engine.generation import Generation

    files, other_files = find_files(folder, models)
    run_precisions = precisions or [*SPEEDS, TEXTS]
    if unknown_precision := next((name for name in run_precisions if name not in (*SPEEDS, TEXTS)), None):
        raise unknown("precision", unknown_precision, (*SPEEDS, TEXTS))
    draft_model = draft_models(files, other_files)
    timed_runs = [
        RealModel(path, draft_model[path], precision, max_new_tokens)
        for path in files
        for precision in run_precisions
        if precision != TEXTS
    ]
    text_runs = [RealModel(path, draft_model[path], TEXTS, text_tokens) for path in files if TEXTS in run_precisions]
    timed_prompts = _examples(prompts, limit)
    text_prompts = _examples(prompts, texts)
    digests = {path.name: digest(path) for path in files}
    measured_with = {**_versions(), **describe_machine(), "code": code_digest()}
    store = results.open_store(context, timed_prompts, text_prompts, digests, measured_with)
    writers = Writers()
    ways = dict(writers.ways([*timed_runs, *text_runs]))
    grouped_prompts = [
        (run.name if index < timed else f"{run.name}{ALONE}", prompt)
        for run in timed_runs
        for index, prompt in enumerate(timed_prompts)
    ]
    grouped_prompts += [(run.name, prompt) for run in text_runs for prompt in text_prompts]

    def runs_in(way: str, group: str) -> bool:
        model, _, name = way.partition(": ")
        return model == group.removesuffix(ALONE) and not (group.endswith(ALONE) and name in OF_TRANSFORMERS)

    with progress(sum(runs_in(way, group) for group, _ in grouped_prompts for way in ways)) as advance:
        result_type = Generation | measure.ReferenceRun | Failure
        cells = measure.race(ways, grouped_prompts, result_type, runs=runs_in, store=store, progress=advance)

    def difference(run: RealModel, plain: "Cell", other: "Cell") -> Any:
        _, prompt = grouped_prompts[plain.prompt]
        return writers.opened(run).find_difference(prompt, plain.result.tokens, other.result.tokens)

    speeds = [row for run in timed_runs for row in speed_rows(run, _cells_of(run, cells), partial(difference, run))]
    report = {
        "machine": describe_machine(),
        "versions": _versions(),
        "files": [describe_file(path, digests[path.name]) for path in files],
        "source": [str(path) for path in prompts or []] or "shipped",
        "prompts": {
            "speeds": len(timed_prompts),
            "transformers": min(timed, len(timed_prompts)),
            "texts": len(text_prompts) if text_runs else 0,
        },
        "new tokens": {"speeds": max_new_tokens, "texts": text_tokens},
        "speeds": speeds,
        "texts": [row for run in text_runs for row in text_rows(run, _cells_of(run, cells))],
    }
    results.finish(store, measure.to_json(report), lambda: show(report))


def find_files(folder: Path, names: Sequence[str] | None) -> tuple[list[Path], list[Path]]:
    """The GGUF files of a folder that are models, the smallest first, and those that are not named, which may draft.

    What is no whole model is left out, with a line that says why.

    Args:
        folder: the folder.
        names: names of files, with or without their ending; None for all.

    Raises:
        InputError: there is none, or one of the names is missing.
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
    other_files = [path for name, path in by_name.items() if name not in model_names]
    return [path for name, path in by_name.items() if name in model_names], other_files


def _why_no_model(path: Path) -> str | None:
    from drafttree.loading.gguf.reader import GGUFFile

    try:
        file = GGUFFile(path)
    except ModelError as error:
        return str(error)
    return None if "tokenizer.ggml.tokens" in file.metadata else "it has no tokenizer"


def draft_models(files: Sequence[Path], others: Sequence[Path] = ()) -> dict[Path, Path | None]:
    """For each file the largest one of the same vocabulary, of these and others, that has half its weights at most."""
    from drafttree.loading.gguf.reader import GGUFFile

    gguf_files = {path: GGUFFile(path) for path in (*files, *others)}
    weights = {path: _weights_by_kind(file).total() for path, file in gguf_files.items()}
    vocabularies = {path: file.metadata["tokenizer.ggml.tokens"] for path, file in gguf_files.items()}

    def fits(target: Path, other: Path) -> bool:
        return 2 * weights[other] <= weights[target] and vocabularies[other] == vocabularies[target]

    return {
        target: max(
            (candidate for candidate in gguf_files if fits(target, candidate)), key=weights.__getitem__, default=None
        )
        for target in files
    }


def speed_rows(run: RealModel, cells: Sequence["Cell"], find: Any) -> Iterator[dict[str, Any]]:
    """A row for every way of a model: its speed, the terms of the law, whose texts are plain decoding's.

    Args:
        run: the model in its precision.
        cells: its texts, of one group.
        find: the first difference between plain decoding's text and another.
    """
    labels = {"model": run.target.stem, "precision": run.precision}
    failures = _failures(cells)
    text_cells = [cell for cell in cells if cell.way not in failures]
    table_rows = (
        [] if PLAIN in failures else make_rows(text_cells, seeded=[PLAIN, *run.methods].__contains__, find=find)
    )
    rows = {row["method"]: row for row in table_rows if row["group"] == run.name}
    by_way = {way: {cell.prompt: cell for cell in text_cells if cell.way == way} for way in rows}
    for way in run.ways:
        if way not in rows:
            without_plain = f"not compared: {PLAIN} decoding failed" if PLAIN in failures else UNFINISHED
            yield {**labels, "method": way, "failure": failures.get(way, without_plain)}
            continue
        row = {**labels, **{name: value for name, value in rows[way].items() if name != "group"}}
        for peer, column in ((TRANSFORMERS, "over transformers"), (LLAMA_CPP, "over llama.cpp")):
            if peer in by_way and way != peer:
                shared_prompts = sorted(by_way[way].keys() & by_way[peer].keys())
                row[column] = speed_ratio(
                    *([by_way[name][prompt] for prompt in shared_prompts] for name in (way, peer))
                )
        yield row
    if LLAMA_CPP not in run.ways:
        yield {**labels, "method": LLAMA_CPP, "failure": NO_LLAMA_CPP}


def text_rows(run: RealModel, cells: Sequence["Cell"]) -> Iterator[dict[str, Any]]:
    """A row for every way of drafttree: how many of its texts are those of transformers."""
    failures = _failures(cells)
    texts_by_way = {way: {cell.prompt: cell.result for cell in cells if cell.way == way} for way in run.ways}
    references = texts_by_way[TRANSFORMERS]
    for way in [PLAIN, *run.methods]:
        row = {"model": run.target.stem, "method": way}
        if failure := failures.get(way) or failures.get(TRANSFORMERS) or (None if references else UNFINISHED):
            yield {**row, "failure": failure}
            continue
        texts = texts_by_way[way]
        equal_count = sum(texts[prompt].tokens == reference.tokens for prompt, reference in references.items())
        yield {**row, "equal": equal_count, "texts": len(references)}


def describe_file(path: Path, sha256: str) -> dict[str, Any]:
    """A model's file: its bytes, its digest, and how its weights are packed."""
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
    """A digest of the code that is measured, so that no speed of other code is told as one of this."""
    hashed = hashlib.sha256()
    for package in CODE:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for path in sorted(Path(folder).rglob("*")):
                if path.suffix in (".py", ".so", ".pyd"):
                    hashed.update(path.read_bytes())
    return hashed.hexdigest()


def describe_machine() -> dict[str, Any]:
    """The processor and its threads, and what instructions torch takes it to have."""
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
        kind_shares = ", ".join(
            f"{tensor_kind} {share:.0%}" for tensor_kind, share in file["kinds"].items() if share > 0.005
        )
        size = f"{file['bytes'] / 1e6:,.0f} MB, {file['weights'] / 1e6:,.0f} M weights ({kind_shares})"
        print(f"{file['file']}: {file['name']}, {size}, sha256 {file['sha256'][:16]}")
    keys = dict.fromkeys((row["model"], row["precision"]) for row in report["speeds"])
    for model, precision in keys:
        rows = [row for row in report["speeds"] if (row["model"], row["precision"]) == (model, precision)]
        table_rows = [{**row, "": row.get("failure") or row.get("doubt")} for row in rows]
        console.print(measure.to_table(f"{model}, {precision}", table_rows, SPEED_COLUMNS))
    table_rows = [{**row, "equal to transformers'": _share(row), "": row.get("failure")} for row in report["texts"]]
    console.print(measure.to_table("texts in float32", table_rows, TEXT_COLUMNS))
    print("tokens/s: all tokens over all seconds, prompts included; R: that over plain decoding's [95 %, by jackknife]")
    print("R law = tau (1 + h0) / (v + c*delta + h), without prompts; same text: of plain decoding in that precision")
    print(", ".join(f"{name} {number}" for name, number in report["versions"].items()))


def _share(row: Mapping[str, Any]) -> str | None:
    return f"{row['equal']}/{row['texts']}" if "texts" in row else None


def _examples(prompts: Sequence[Path] | None, limit: int) -> list[Example]:
    """The prompts of files, or chat and code in turns of those that ship."""
    if prompts:
        return spread_examples(prompts, limit)

    from importlib.resources import as_file, files

    with as_file(files("drafttree.measure") / "data" / "prompts") as data:
        examples = spread_examples([data / "mt_bench.jsonl", data / "humaneval.jsonl"], limit + limit % 2)
    chat, code = examples[: len(examples) // 2], examples[len(examples) // 2 :]
    return [example for turn in zip(chat, code, strict=True) for example in turn][:limit]


def _cells_of(run: RealModel, cells: Sequence["Cell"]) -> list["Cell"]:
    """The texts of a model, as ways of one group."""
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
