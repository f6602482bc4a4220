"""`drafttree bench peers`: drafttree beside the programs that people pick, on the same weights."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from drafttree.interfaces.cli.option_groups import grouped
from drafttree.interfaces.cli.options import Inflate, Length, Repeats, Target, parse_numbers, split_names
from drafttree.interfaces.cli.results import ResultOptions
from drafttree.interfaces.console import progress
from drafttree.measure.method import parse_methods
from drafttree.measure.shapes import find_shape
from drafttree_lab.commands.option_groups import PromptOptions
from drafttree_lab.peers.packages import LLAMA_CPP, PEERS, TRANSFORMERS, check_installed, versions

if TYPE_CHECKING:
    from drafttree.engine.decoder import Decoder

DRAFTERS = ("lookup", "embedded-eagle3", "embedded-mtp", "mixed:embedded-eagle3")
POLICIES = ("chain:depth=5", "talon:budget=16,width=4", "auto")
METHODS = ";".join(f"{drafter}|{policy}" for drafter in DRAFTERS for policy in POLICIES)
DTYPES = "float32,bfloat16,int8"


@grouped
def bench_peers_(
    context: typer.Context,
    prompts: PromptOptions,
    results: ResultOptions,
    peers: Annotated[str, typer.Option(help="Programs to compare with.")] = ",".join(PEERS),
    dtypes: Annotated[str, typer.Option(help="Weights to compare; the first ones are the baseline.")] = DTYPES,
    methods: Annotated[
        str, typer.Option(help='Our methods besides plain decoding, as "DRAFTER|POLICY", separated by semicolons.')
    ] = METHODS,
    target: Target = "embedded",
    inflated: Inflate = None,
    max_new_tokens: Length = 64,
    repeats: Repeats = 1,
    passes: Annotated[str | None, typer.Option(help='Also time passes over so many rows, such as "1,4,16,64".')] = None,
    streams: Annotated[str | None, typer.Option(help='Also time so many texts at once, such as "1,4,16".')] = None,
) -> None:
    """Compare with llama.cpp, transformers and OpenVINO GenAI.

    On the CPU, with the same weights, threads and prompts, greedily and by turns. The weights are written as GGUF files
    to a temporary folder, of which TMPDIR names the place.
    """
    programs, kinds, chosen = split_names(peers), split_names(dtypes), [*parse_methods([methods]).values()]
    rows = parse_numbers(passes, "--passes", 1) if passes else ()
    at_once = parse_numbers(streams, "--streams", 1) if streams else ()
    check_installed(programs)
    if inflated:
        find_shape(inflated)

    from drafttree.measure.inflation import drafters_for_inflated
    from drafttree_lab.display.peers import show_peers
    from drafttree_lab.peers.bench import FLOAT32, INT8, bench_peers, check_dtypes, write_files

    check_dtypes(kinds)
    float32 = _load(target, inflated, FLOAT32)
    texts = prompts.token_ids(float32, max_new_tokens)
    store = results.open_store(context, texts, versions(programs))
    with TemporaryDirectory(prefix="drafttree-peers-") as folder:
        files = write_files(float32, programs, kinds, Path(folder))
        decoders = {kind: float32 if kind == FLOAT32 else _load(target, inflated, kind) for kind in kinds}
        del float32  # where it is not measured, its memory is free again
        names = [method.drafter for method in chosen if method.drafter]
        sources = {
            kind: drafters_for_inflated(each, target, names) if inflated else {} for kind, each in decoders.items()
        }
        ours, beside = 1 + len(chosen), LLAMA_CPP in programs
        runs = (
            repeats * len(texts) * (len(kinds) * (ours + len(programs)) - (TRANSFORMERS in programs and INT8 in kinds))
        )
        runs += repeats * len(kinds) * (1 + beside) if rows else 0
        runs += (1 + repeats) * len(kinds) * (ours + beside) * len(at_once)
        with progress(runs) as advance:
            result = bench_peers(
                decoders,
                chosen,
                texts,
                drafters=sources,
                peers=programs,
                files=files,
                max_new_tokens=max_new_tokens,
                repeats=repeats,
                passes=rows,
                streams=at_once,
                progress=advance,
                store=store,
            )
    results.finish(store, result.summary(), lambda: show_peers(result))


def _load(target: str, shape: str | None, dtype: str) -> "Decoder":
    """A decoder without a drafter, on the CPU."""
    from drafttree.interfaces.cli.decoders import load_named
    from drafttree.measure.inflation import load_inflated

    weights, quantize = ("float32", "int8") if dtype == "int8" else (dtype, None)
    if shape:
        return load_inflated(target, "none", shape, weights, "cpu", quantize)
    return load_named(target, "none", dtype=weights, device="cpu", quantize=quantize)
