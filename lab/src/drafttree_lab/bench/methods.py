"""Methods against plain decoding, over the same prompts, by turns in one process.

A base model decoded greedily often ends in a loop, which any drafter predicts; so where all prompts are of one group,
those whose text loops are reported apart from those whose text does not.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drafttree import measure
from drafttree.core.errors import ConfigError
from drafttree.core.lazy import torch
from drafttree.interfaces.cli.option_groups import grouped
from drafttree.interfaces.cli.options import (
    DraftTemperature,
    QuantizeDrafter,
    Repeats,
    VerifierName,
    complete_policy,
    parse_numbers,
    split_names,
)
from drafttree.interfaces.cli.results import ResultOptions
from drafttree.interfaces.console import make_console, progress
from drafttree.loading import find_verifier, parse_policies
from drafttree.measure.method import AUTO, NO_DRAFTER, PLAIN, Method, parse_methods
from drafttree.policies import Chain
from drafttree.verifiers import Coupled
from drafttree_lab.options import DrawOptions, PromptOptions, TargetOptions
from drafttree_lab.peers.programs import LLAMA_CPP, PEERS, TRANSFORMERS, check_installed, open_program, versions
from drafttree_lab.speed_rows import EXACT, PARTS, looping_prompts, make_rows

if TYPE_CHECKING:
    from drafttree.engine.decoder import Decoder
    from drafttree.measure.driver import Cell, Way

POLICIES = "auto;chain;dynatree;talon;eagle;opt-tree"
COPIED = 256 << 20
"""Bytes of an array much larger than any cache."""
LAW = {"method": "", "tau": ".2f", "delta": ".2f", "v": ".2f", "c": ".2f", "h": ".2f", "R law": ".2f", "R": ".2f"}
LAW |= {"over its chain": ".2f", "tokens/s": ".1f", "of nodes": ".1%", "of levels": ".1%", "nodes": ".1f"}
LAW |= {"same text": ">", "ties": ".0f", "gap": ".3f"}
REST = {"method": "", "R decoding": ".2f", "at h = 0": ".2f", "round": ".0f", "outside": ".0f"}
REST |= dict.fromkeys((*PARTS, "other", "operations", "calls"), ".0f")
REST |= {"ms a draft pass": ".2f", "weights, MB": ".2f", "cache, MB": ".2f", "GB/s": ".1f", "of the roofline": ".0%"}


@grouped
def bench(
    context: typer.Context,
    models: TargetOptions,
    draws: DrawOptions,
    results: ResultOptions,
    prompts: PromptOptions,
    drafters: Annotated[
        list[str] | None,
        typer.Option("--drafters", "--drafter", help='Names, folders or hub names; by default what "auto" stands for.'),
    ] = None,
    policies: Annotated[
        list[str] | None,
        typer.Option(
            "--policies",
            "--policy",
            help=f'Specifications or "all", for each drafter; by default "{POLICIES}".',
            autocompletion=complete_policy,
        ),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(help='Instead: "DRAFTER|POLICY|VERIFIER;..." (the last two optional). May be repeated.'),
    ] = None,
    verifier: VerifierName = "auto",
    draft_temperature: DraftTemperature = None,
    quantize_drafter: QuantizeDrafter = "auto",
    exact_text: Annotated[bool, typer.Option("--exact-text", help="Also run every method with exact_text.")] = False,
    peers: Annotated[str | None, typer.Option(help=f"Programs to compare with: {', '.join(PEERS)}.")] = None,
    passes: Annotated[
        str | None, typer.Option(help='Also time passes over so many rows, such as "1,4,16,64", and the memory.')
    ] = None,
    contexts: Annotated[str, typer.Option(help="Tokens before these passes.")] = "256",
    reading: Annotated[
        str | None, typer.Option(help='Also time reading prompts of so many tokens, such as "1000,4000".')
    ] = None,
    count: Annotated[bool, typer.Option("--count-work", help="Also count torch operations and own calls.")] = False,
    repeats: Repeats = 3,
) -> None:
    """Measure methods against plain decoding, in turns.

    Every drafter with every policy, or those of --methods: the terms of the speed-up by prompt file, and what a round
    spends where. --limit takes that many prompts from each file, evenly spaced.
    """
    if methods and (drafters or policies):
        raise ConfigError("--methods names drafters and policies; leave out --drafters and --policies")
    names = split_names(";".join(drafters or [AUTO]), ";")
    judge = find_verifier(verifier)
    if NO_DRAFTER in names:
        raise ConfigError(f"--drafters: {NO_DRAFTER!r} is not a drafter; plain decoding is run in any case")
    method_grid = [Method(name, policy) for name in names for policy in parse_policies(policies or [POLICIES]).values()]
    drafting_methods = [method for method in parse_methods(methods or method_grid).values() if method.drafter]
    sizes = parse_numbers(passes, "--passes", 1) if passes else []
    context_sizes = parse_numbers(contexts, "--contexts", 1)
    programs = split_names(peers) if peers else []
    lengths = parse_numbers(reading, "--reading", 1) if reading else []
    check_installed(programs)
    if TRANSFORMERS in programs and models.quantize:
        raise ConfigError("transformers has no int8 here; leave it out of --peers, or leave out --quantize")
    if draws.temperature and {*programs} - {TRANSFORMERS}:
        raise ConfigError(
            "other programs draw in ways of their own; leave out --temperature, or take transformers alone"
        )

    from drafttree.engine.generation import Generation
    from drafttree.interfaces.cli.decoders import judged_by
    from drafttree_lab.round_work import count_work

    names = [str(method.drafter) for method in drafting_methods]
    loaded_decoder = models.load(AUTO if AUTO in names else NO_DRAFTER, quantize_drafter=quantize_drafter)
    decoder = judged_by(loaded_decoder.with_drafter(None), judge)
    drafters_by_name = _load_drafters(decoder, models, {*names} - {AUTO}, quantize_drafter) | {
        AUTO: loaded_decoder.drafter
    }
    decoders = _make_decoders(decoder, drafting_methods, drafters_by_name, exact_text=exact_text)
    sets = prompts.token_ids_by_file(decoder, draws.max_new_tokens)
    store = results.open_store(context, sets, versions(programs))
    options = asdict(draws) | ({} if draft_temperature is None else {"draft_temperature": draft_temperature})
    grouped_prompts = [(group, ids) for group, group_ids in sets.items() for ids in group_ids]
    context_length = max(
        max(len(ids) for _, ids in grouped_prompts) + draws.max_new_tokens, max(context_sizes) + max(sizes, default=0)
    )
    context_length = max(context_length, max(lengths, default=0) + 1)
    with TemporaryDirectory(prefix="drafttree-peers-") as folder:
        peer_names = [name for name in programs if name != TRANSFORMERS]
        peer_programs = {name: open_program(name, decoder, models, Path(folder), context_length) for name in peer_names}
        ways: dict[str, Way] = {
            name: partial(way_decoder.generate, **options) for name, way_decoder in decoders.items()
        }
        ways |= _transformers(decoders, options) if TRANSFORMERS in programs else {}
        ways |= {
            name: partial(program.generate, max_new_tokens=draws.max_new_tokens)
            for name, program in peer_programs.items()
        }
        with progress(repeats * len(grouped_prompts) * len(ways)) as advance:
            race_options: dict[str, Any] = {
                "repeats": repeats,
                "warm_up": grouped_prompts[0][1],
                "store": store,
                "progress": advance,
            }
            cells = measure.race(ways, grouped_prompts, Generation | measure.ReferenceRun, **race_options)
        machine = {} if store.interrupted else _measure_machine(decoder, peer_programs, sizes, context_sizes, repeats)
        prompt_seconds = [] if store.interrupted else _time_reading(decoder, peer_programs, lengths, repeats)

    def find(plain: "Cell", own: "Cell") -> Any:
        return measure.find_difference(
            decoder, grouped_prompts[own.prompt][1], plain.result.tokens, own.result.tokens, **options
        )

    rows = [*make_rows(cells, chains(drafting_methods), _seeded(ways, decoders, draws.temperature), find)]
    for row in rows:
        if way_decoder := decoders.get(row["method"]):
            row |= _read_bytes(way_decoder, row, machine) if sizes and machine else {}
            if count and not store.interrupted:
                row |= count_work(way_decoder, grouped_prompts[0][1], **options)._asdict()
    report = {"rows": rows, "texts": [*_texts(cells)], "machine": machine, "versions": versions(programs)}
    report |= {"reading": prompt_seconds}
    report |= {"prompts": len({cell.prompt for cell in cells}), "looping": len(looping_prompts(cells))}
    results.finish(store, measure.to_json(report), lambda: _show(report))


def chains(methods: Sequence[Method]) -> dict[str, str]:
    """By method, the first one of the same drafter and verifier that drafts chains."""
    first_chains: dict[tuple[str | None, str], str] = {}
    for method in methods:
        if isinstance(method.policy, Chain):
            first_chains.setdefault((method.drafter, method.verifier_name), method.spec)
    chain_specs = {method.spec: first_chains.get((method.drafter, method.verifier_name)) for method in methods}
    return {spec: chain for spec, chain in chain_specs.items() if chain}


def _texts(cells: Sequence["Cell"]) -> Iterator[dict[str, object]]:
    """Every text that has rounds; a prompt has its number in its group."""
    numbers = {group: sorted({c.prompt for c in cells if c.group == group}) for group in {c.group for c in cells}}
    for cell in cells:
        if metrics := getattr(cell.result, "metrics", None):
            labels = {"prompt": numbers[cell.group].index(cell.prompt), "repeat": cell.repeat}
            yield {"way": cell.way, "group": cell.group, **labels, **measure.describe(metrics)}


def _load_drafters(decoder: "Decoder", models: TargetOptions, names: set[str], quantize: str | None) -> dict[str, Any]:
    """The drafters by name; an inflated target has those of the target that it was inflated from."""
    from drafttree.loading import find_drafter
    from drafttree.measure.inflation import drafters_for_inflated

    if models.inflated:
        return {**drafters_for_inflated(decoder, models.target, sorted(names), quantize)}
    target = measure.transformers_model(decoder)
    return {name: find_drafter(name, target, decoder.tokenizer, quantize) for name in names}


def _make_decoders(
    decoder: "Decoder", methods: Sequence[Method], drafters: Mapping[str, Any], *, exact_text: bool
) -> dict[str, "Decoder"]:
    """Plain decoding and every method, with `exact_text` too if that is wanted."""
    from drafttree.measure.method_decoders import make_decoders
    from drafttree.models import TargetModel, Wants, choose_backend

    method_decoders = {PLAIN: decoder.plain(), **make_decoders(decoder, methods, drafters)}
    if exact_text:
        exact_target = TargetModel(
            measure.transformers_model(decoder).module, partial(choose_backend, wants=Wants(exact_text=True))
        )
        method_decoders |= {
            f"{name}{EXACT}": method_decoder.with_target(exact_target)
            for name, method_decoder in method_decoders.items()
        }
    return method_decoders


def _seeded(
    ways: Mapping[str, Any], decoders: Mapping[str, "Decoder"], temperature: float | None
) -> Callable[[str], bool]:
    """Whether prompt and seed decide a way's text: those of drawing verifiers and of other programs follow drafts."""
    from drafttree.engine.compatibility import is_text_of_seed

    drawing_ways = {
        name for name in ways if name not in decoders or not is_text_of_seed(decoders[name].verifier or Coupled)
    }
    return lambda name: not temperature or name not in drawing_ways


def _transformers(decoders: Mapping[str, "Decoder"], options: Mapping[str, Any]) -> dict[str, "Way"]:
    """transformers' own ways of generating; assisted ones where a language model drafts."""
    from transformers import GenerationConfig

    from drafttree.drafters.language_model import LanguageModelDrafter
    from drafttree.measure.reference import released
    from drafttree.models import TargetModel

    generate_options = {name: value for name, value in options.items() if name != "draft_temperature"}
    run = partial(measure.transformers_generate, decoders[PLAIN], **generate_options)

    def assisted(model: TargetModel, schedule: str, ids: list[int]) -> Any:
        with released(model) as assistant:
            assistant.generation_config = GenerationConfig(num_assistant_tokens_schedule=schedule)
            return run(ids, assistance={"assistant_model": assistant})

    ways: dict[str, Way] = {
        "transformers": run,
        "transformers prompt lookup": partial(run, assistance={"prompt_lookup_num_tokens": 10}),
    }
    drafters = {name.partition("|")[0]: decoder.drafter for name, decoder in decoders.items()}
    models = {
        name: drafter.model
        for name, drafter in drafters.items()
        if isinstance(drafter, LanguageModelDrafter) and isinstance(drafter.model, TargetModel)
    }
    return ways | {
        f"transformers assisted by {name}, {schedule}": partial(assisted, model, schedule)
        for name, model in models.items()
        for schedule in ("constant", "heuristic")
    }


def _measure_machine(
    decoder: "Decoder", programs: Mapping[str, Any], sizes: Sequence[int], contexts: Sequence[int], repeats: int
) -> dict[str, Any]:
    """The target and the machine; where passes are wanted, milliseconds of each and the bandwidth of a large copy.

    A pass behind more tokens than the model was made for is timed too: only the time is looked at.
    """
    from drafttree.engine.drafting.measure import time_passes

    target = measure.transformers_model(decoder)
    machine: dict[str, Any] = {
        "device": str(target.device),
        "dtype": target.precision,
        "threads": torch.get_num_threads(),
    }
    machine["parameters"] = sum(parameter.numel() for parameter in target.module.parameters())
    if not sizes:
        return machine
    times = {"drafttree": lambda context: time_passes(target, sizes, context, 10 * repeats)}
    if LLAMA_CPP in programs:
        times[LLAMA_CPP] = lambda context: programs[LLAMA_CPP].time_passes(sizes, context, 10 * repeats)
    passes = [
        {"passes": f"{name}, behind {context}", "ms": {size: 1e3 * seconds for size, seconds in timer(context).items()}}
        for context in contexts
        for name, timer in times.items()
    ]
    bytes_read = pass_bytes(target, contexts[0])
    return machine | {
        "passes": passes,
        "bandwidth": copy_bandwidth(target.device),
        "context": contexts[0],
        "bytes": bytes_read,
    }


def _time_reading(
    decoder: "Decoder", programs: Mapping[str, Any], lengths: Sequence[int], repeats: int
) -> list[dict[str, Any]]:
    """The least seconds of reading prompts of so many random tokens and writing one more, by program, in turns."""
    if not lengths:
        return []
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(decoder.target.vocab_size, (max(lengths),), generator=generator).tolist()
    ways = {"drafttree": decoder.generate}
    if LLAMA_CPP in programs:
        ways[LLAMA_CPP] = programs[LLAMA_CPP].generate
    rows: list[dict[str, Any]] = [{"program": name, "s": {}} for name in ways]
    for length in lengths:
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(repeats):
            for name, write in ways.items():
                seconds[name].append(write(prompt[:length], max_new_tokens=1).seconds)
        for row in rows:
            row["s"][length] = min(seconds[row["program"]])
    return rows


def copy_bandwidth(device: "torch.device", repeats: int = 9) -> float:
    """Bytes per second, read and written, of a copy much larger than any cache: the machine's roofline."""
    from drafttree.engine.drafting.measure import time_work

    source = torch.ones(COPIED, dtype=torch.uint8, device=device)
    copy = torch.empty_like(source)
    seconds = [time_work(lambda: copy.copy_(source), device) for _ in range(1 + repeats)]
    return 2 * COPIED / statistics.median(seconds[1:])


def pass_bytes(model: Any, context: int) -> int:
    """Bytes a pass over one node reads: weights, but for an embedding's other rows, and the cache of a context.

    Of a mixture the experts of one token are counted.
    """
    from drafttree.models import prefill
    from drafttree.models.native.products import weight_place
    from drafttree.models.quantization.quantized_embedding import table_of

    module = model.module
    weights = {id(parameter): parameter.nbytes for parameter in module.parameters()}
    table = table_of(module.get_input_embeddings())
    head = getattr(*weight_place(module.get_output_embeddings()))
    if table is not head:
        weights[id(table)] = table[0].nbytes
    active_experts = getattr(module.config, "num_experts_per_tok", None) or getattr(
        module.config, "top_k_experts", None
    )
    for submodule in module.modules():
        if active_experts and "Experts" in type(submodule).__name__:
            weights |= {
                id(weight): weight.nbytes * active_experts // module.config.num_experts
                for weight in submodule.parameters()
            }
    cache = model.new_cache(context)
    prefill(model, cache, [0])
    return sum(weights.values()) + cache.nbytes * context // cache.capacity


def _read_bytes(decoder: "Decoder", row: Mapping[str, Any], machine: Mapping[str, Any]) -> dict[str, float]:
    """Bytes per second that the models' passes of a way read, and their share of what a large copy moves."""
    from drafttree.models import TargetModel

    draft = getattr(decoder.drafter, "model", None)
    draft_bytes = pass_bytes(draft, machine["context"]) if isinstance(draft, TargetModel) else 0
    bytes_per_second = row["tokens/s"] / row["tau"] * (machine["bytes"] + row["delta"] * draft_bytes)
    return {"GB/s": bytes_per_second / 1e9, "of the roofline": bytes_per_second / machine["bandwidth"]}


def _show(report: Mapping[str, Any]) -> None:
    console = make_console()
    machine = report["machine"]
    if machine:
        size = f"{machine['parameters'] / 1e6:.1f} M parameters, {machine['threads']} threads"
        console.print(f"{machine['device']}, {machine['dtype']}, {size}", soft_wrap=True)
    if "passes" in machine:
        read_note = f"behind {machine['context']} tokens a target pass reads {machine['bytes'] / 1e6:.1f} MB"
        console.print(f"a large copy moves {machine['bandwidth'] / 1e9:.1f} GB/s; {read_note}", soft_wrap=True)
        sizes = [*machine["passes"][0]["ms"]]
        timing_rows = [
            {"": f"{row['passes']}, {name}"} | {str(size): row["ms"][size] / unit for size in sizes}
            for row in machine["passes"]
            for name, unit in (("ms", 1), ("v", row["ms"][sizes[0]]))
        ]
        console.print(
            measure.to_table("passes over so many rows", timing_rows, {"": "", **dict.fromkeys(map(str, sizes), ".2f")})
        )
    if report["reading"]:
        timing_rows = [
            {"": row["program"]} | {str(size): seconds for size, seconds in row["s"].items()}
            for row in report["reading"]
        ]
        columns = {"": "", **dict.fromkeys([*timing_rows[0]][1:], ".2f")}
        console.print(measure.to_table("seconds of reading prompts of so many tokens", timing_rows, columns))
    for group in dict.fromkeys(row["group"] for row in report["rows"]):
        rows = [row for row in report["rows"] if row["group"] == group]
        console.print(measure.to_table(f"{group}: {rows[0]['prompts']} prompts", rows, LAW))
        for row in rows:
            if row.get("doubt"):
                print(f"{row['method']}: {row['doubt']}")
        rows = [row for row in rows if "tau" in row]
        console.print(measure.to_table("mean µs per round outside the passes, by part; what drafters cost", rows, REST))
    loop_note = "texts loop (their last 48 tokens repeat with a period of at most 16)"
    print(f"{report['looping']} of {report['prompts']} {loop_note}")
    print("tokens/s: all tokens over all seconds, prompts included; R: that over plain decoding's [95 %, by jackknife]")
    print("R law = tau (1 + h0) / (v + c*delta + h), prompts left out as in R decoding; terms are medians over repeats")
    if report["versions"]:
        print(", ".join(f"{name} {version}" for name, version in report["versions"].items()))
