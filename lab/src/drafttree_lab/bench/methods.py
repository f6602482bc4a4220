"""Methods compared with plain decoding on the same prompts, alternately in one process.

Greedy texts of base models often end in a loop, which any drafter predicts. So if all prompts are in one group, prompts
with and without looping texts are also reported apart.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain, product, starmap
from operator import attrgetter, itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

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
from drafttree_lab.speed_rows import EXACT, PARTS, group_by, looping_prompts, make_rows

if TYPE_CHECKING:
    from drafttree.engine.decoder import Decoder
    from drafttree.measure.driver import Cell, Way
    from drafttree.measure.run_store import RunStore

POLICIES = "auto;chain;dynatree;talon;eagle;opt-tree"
COPIED = 256 << 20
"""Size in bytes of the copied array, much larger than any cache."""
LAW = {"method": "", "tau": ".2f", "delta": ".2f", "v": ".2f", "c": ".2f", "h": ".2f", "R law": ".2f", "R": ".2f"}
LAW |= {"over its chain": ".2f", "tokens/s": ".1f", "of nodes": ".1%", "of levels": ".1%", "nodes": ".1f"}
LAW |= {"same text": ">", "ties": ".0f", "gap": ".3f"}
REST = {"method": "", "R decoding": ".2f", "at h = 0": ".2f", "round": ".0f", "outside": ".0f"}
REST |= dict.fromkeys((*PARTS, "other", "operations", "calls"), ".0f")
REST |= {"ms a draft pass": ".2f", "weights, MB": ".2f", "cache, MB": ".2f", "GB/s": ".1f", "of the roofline": ".0%"}


@dataclass(frozen=True)
class MethodOptions:
    """Which methods are measured, and how their models are held."""

    drafters: Annotated[
        list[str] | None,
        typer.Option("--drafters", "--drafter", help='Names, folders or hub names; by default "auto".'),
    ] = None
    policies: Annotated[
        list[str] | None,
        typer.Option(
            "--policies",
            "--policy",
            help=f'Specifications or "all", for each drafter; by default "{POLICIES}".',
            autocompletion=complete_policy,
        ),
    ] = None
    methods: Annotated[
        list[str] | None,
        typer.Option(help='Instead: "DRAFTER|POLICY|VERIFIER;..." (the last two optional). May be repeated.'),
    ] = None
    verifier: VerifierName = "auto"
    draft_temperature: DraftTemperature = None
    quantize_drafter: QuantizeDrafter = "auto"
    exact_text: Annotated[bool, typer.Option("--exact-text", help="Also run every method with exact_text.")] = False

    def parse(self) -> list[Method]:
        """The methods that the options name.

        Raises:
            ConfigError: an option is unknown, or two options name the same thing.
        """
        if self.methods and (self.drafters or self.policies):
            raise ConfigError("--methods names drafters and policies; leave out --drafters and --policies")
        names = split_names(";".join(self.drafters or [AUTO]), ";")
        find_verifier(self.verifier)
        if NO_DRAFTER in names:
            raise ConfigError(
                f"--drafters: {NO_DRAFTER!r} is not a drafter; leave it out: plain decoding is always included"
            )
        policies = parse_policies(self.policies or [POLICIES]).values()
        methods = parse_methods(self.methods or [*starmap(Method, product(names, policies))])
        return [method for method in methods.values() if method.drafter]

    def load(self, models: TargetOptions, methods: Sequence[Method], draws: DrawOptions) -> "Writers":
        """Load the target and the drafters of some methods."""
        from drafttree.interfaces.cli.decoders import judged_by

        names = set(map(attrgetter("drafter"), methods))
        loaded_decoder = models.load(AUTO if AUTO in names else NO_DRAFTER, quantize_drafter=self.quantize_drafter)
        decoder = judged_by(loaded_decoder.with_drafter(None), find_verifier(self.verifier))
        drafters = _load_drafters(decoder, models, names - {AUTO}, self.quantize_drafter)
        drafters[AUTO] = loaded_decoder.drafter
        options = asdict(draws)
        if self.draft_temperature is not None:
            options["draft_temperature"] = self.draft_temperature
        decoders = _make_decoders(decoder, methods, drafters, exact_text=self.exact_text)
        return Writers(decoder, decoders, options, chains(methods))


class Timings(NamedTuple):
    """What is timed and counted.

    Attributes:
        repeats: number of repeats of every text and every timing.
        sizes: rows of the timed passes; empty to time none.
        contexts: context lengths of the timed passes.
        lengths: lengths of the prompts whose reading is timed; empty to time none.
        counts_work: whether torch operations and function calls are counted.
    """

    repeats: int
    sizes: list[int]
    contexts: list[int]
    lengths: list[int]
    counts_work: bool

    @property
    def context(self) -> int:
        """The longest timed context in tokens."""
        return max(max(self.contexts) + max(self.sizes, default=0), max(self.lengths, default=0) + 1)


@dataclass(frozen=True)
class TimingOptions:
    """What is timed and counted besides texts, and how often."""

    passes: Annotated[
        str | None, typer.Option(help='Also time passes over so many rows, such as "1,4,16,64", and the memory.')
    ] = None
    contexts: Annotated[str, typer.Option(help="Numbers of tokens in the KV cache before these passes.")] = "256"
    reading: Annotated[
        str | None, typer.Option(help='Also time reading prompts of so many tokens, such as "1000,4000".')
    ] = None
    count: Annotated[
        bool, typer.Option("--count-work", help="Also count torch operations and calls of drafttree's own functions.")
    ] = False
    repeats: Repeats = 3

    def parse(self) -> Timings:
        """The timings that the options describe.

        Raises:
            ConfigError: an option is not a list of numbers.
        """
        return Timings(
            self.repeats,
            parse_numbers(self.passes, "--passes", 1) if self.passes else [],
            parse_numbers(self.contexts, "--contexts", 1),
            parse_numbers(self.reading, "--reading", 1) if self.reading else [],
            self.count,
        )


@dataclass(frozen=True)
class Writers:
    """Writes texts by plain decoding, by methods and by other programs.

    Attributes:
        decoder: the target without a drafter.
        decoders: plain decoding and the methods, by name.
        options: as for `Decoder.generate`.
        chains: by method, the chain that it is compared with.
        peers: names of other programs.
        programs: by name, the other programs opened with the same weights; transformers is not among them.
    """

    decoder: "Decoder"
    decoders: Mapping[str, "Decoder"]
    options: Mapping[str, Any]
    chains: Mapping[str, str]
    peers: Sequence[str] = ()
    programs: Mapping[str, Any] = field(default_factory=dict)

    def beside(self, peers: Sequence[str], models: TargetOptions, folder: Path, context: int) -> "Writers":
        """These writers together with other programs; arguments as for `open_program`."""
        programs: dict[str, Any] = {}
        for name in peers:
            if name != TRANSFORMERS:
                programs[name] = open_program(name, self.decoder, models, folder, context)
        return replace(self, peers=peers, programs=programs)

    @property
    def ways(self) -> "dict[str, Way]":
        """By name, a function from the token ids of a prompt to its text."""
        ways: dict[str, Way] = {}
        for name, decoder in self.decoders.items():
            ways[name] = partial(decoder.generate, **self.options)
        if TRANSFORMERS in self.peers:
            ways |= _transformers(self.decoders, self.options)
        for name, program in self.programs.items():
            ways[name] = partial(program.generate, max_new_tokens=self.options["max_new_tokens"])
        return ways

    def is_seeded(self, way: str) -> bool:
        """Whether prompt and seed alone determine a way's text; not so for verifiers that draw, and other programs."""
        from drafttree.engine.compatibility import is_text_of_seed

        if not self.options["temperature"]:
            return True
        return way in self.decoders and is_text_of_seed(self.decoders[way].verifier or Coupled)

    def find_difference(self, prompts: Sequence[tuple[str, list[int]]], plain: "Cell", drafted: "Cell") -> Any:
        """The first difference of a text from plain decoding's, as from `measure.find_difference`."""
        _, ids = prompts[drafted.prompt]
        return measure.find_difference(self.decoder, ids, plain.result.tokens, drafted.result.tokens, **self.options)


@grouped
def bench(
    context: typer.Context,
    models: TargetOptions,
    draws: DrawOptions,
    results: ResultOptions,
    prompts: PromptOptions,
    method_options: MethodOptions,
    peers: Annotated[str | None, typer.Option(help=f"Programs to compare with: {', '.join(PEERS)}.")] = None,
    timing_options: TimingOptions = TimingOptions(),
) -> None:
    """Measure methods and plain decoding alternately.

    Every drafter with every policy, or those of --methods: the terms of the speed-up by prompt file, and what a round
    spends where. --limit takes that many prompts from each file, evenly spaced.
    """
    methods = method_options.parse()
    timings = timing_options.parse()
    programs = split_names(peers) if peers else []
    _check_programs(programs, models, draws)

    writers = method_options.load(models, methods, draws)
    sets = prompts.token_ids_by_file(writers.decoder, draws.max_new_tokens)
    store = results.open_store(context, sets, versions(programs))
    longest_prompt = max(map(len, chain.from_iterable(sets.values())))
    context_length = max(longest_prompt + draws.max_new_tokens, timings.context)
    with TemporaryDirectory(prefix="drafttree-peers-") as folder:
        report = _measure(writers.beside(programs, models, Path(folder), context_length), sets, timings, store)
    results.finish(store, measure.to_json(report), lambda: _show(report))


def _check_programs(programs: Sequence[str], models: TargetOptions, draws: DrawOptions) -> None:
    """Refuse programs that cannot be compared.

    Raises:
        ConfigError: a program is not installed, or cannot do what the options ask for.
    """
    check_installed(programs)
    if TRANSFORMERS in programs and models.quantize:
        raise ConfigError("transformers has no int8 here; leave it out of --peers, or leave out --quantize")
    if draws.temperature and {*programs} - {TRANSFORMERS}:
        raise ConfigError(
            "other programs draw other random numbers, so only greedy texts can be compared; leave out "
            "--temperature, or use --peers transformers"
        )


def _measure(
    writers: Writers, sets: Mapping[str, Sequence[list[int]]], timings: Timings, store: "RunStore"
) -> dict[str, Any]:
    """Let all ways answer the prompts of all sets alternately, and take the other timings."""
    from drafttree.engine.generation import Generation
    from drafttree_lab.round_work import count_work

    prompts: list[tuple[str, list[int]]] = []
    for group, group_ids in sets.items():
        prompts += product([group], group_ids)
    ways = writers.ways
    with progress(timings.repeats * len(prompts) * len(ways)) as advance:
        race_options: dict[str, Any] = {"warm_up": prompts[0][1], "store": store, "progress": advance}
        result_type = Generation | measure.ReferenceRun
        cells = measure.race(ways, prompts, result_type, repeats=timings.repeats, **race_options)
    machine = {} if store.interrupted else _measure_machine(writers, timings)
    reading = [] if store.interrupted else _time_reading(writers, timings)
    find = partial(writers.find_difference, prompts)
    rows = list(make_rows(cells, writers.chains, writers.is_seeded, find))
    for row in rows:
        if decoder := writers.decoders.get(row["method"]):
            row |= _read_bytes(decoder, row, machine) if "bandwidth" in machine else {}
            if timings.counts_work and not store.interrupted:
                row |= count_work(decoder, prompts[0][1], **writers.options)._asdict()
    return {
        "rows": rows,
        "texts": [*_texts(cells)],
        "machine": machine,
        "versions": versions(writers.peers),
        "reading": reading,
        "prompts": len(set(map(attrgetter("prompt"), cells))),
        "looping": len(looping_prompts(cells)),
    }


def chains(methods: Sequence[Method]) -> dict[str, str]:
    """By method, the first method with the same drafter and verifier that drafts chains."""
    chain_specs: dict[str, str] = {}
    for rivals in group_by(methods, attrgetter("drafter", "verifier_name")).values():
        first_chain = next((method.spec for method in rivals if isinstance(method.policy, Chain)), None)
        if first_chain:
            chain_specs |= dict.fromkeys(map(attrgetter("spec"), rivals), first_chain)
    return chain_specs


def _texts(cells: Sequence["Cell"]) -> Iterator[dict[str, object]]:
    """The texts that have rounds; prompts are numbered within their group."""
    numbers: dict[str, list[int]] = {}
    for group, group_cells in group_by(cells, attrgetter("group")).items():
        numbers[group] = sorted(set(map(attrgetter("prompt"), group_cells)))
    for cell in cells:
        if metrics := getattr(cell.result, "metrics", None):
            labels = {"prompt": numbers[cell.group].index(cell.prompt), "repeat": cell.repeat}
            yield {"way": cell.way, "group": cell.group, **labels, **measure.describe(metrics)}


def _load_drafters(decoder: "Decoder", models: TargetOptions, names: set[str], quantize: str | None) -> dict[str, Any]:
    """The drafters by name; an inflated target uses those of its original."""
    from drafttree.loading import find_drafter
    from drafttree.measure.inflation import drafters_for_inflated

    if models.inflated:
        return {**drafters_for_inflated(decoder, models.target, sorted(names), quantize)}
    target = measure.transformers_model(decoder)
    return {name: find_drafter(name, target, decoder.tokenizer, quantize) for name in names}


def _make_decoders(
    decoder: "Decoder", methods: Sequence[Method], drafters: Mapping[str, Any], *, exact_text: bool
) -> dict[str, "Decoder"]:
    """Decoders for plain decoding and every method, also with `exact_text` if asked for."""
    from drafttree.measure.method_decoders import make_decoders
    from drafttree.models import TargetModel
    from drafttree.models.backend_choice import Wants, choose_backend

    decoders = {PLAIN: decoder.plain(), **make_decoders(decoder, methods, drafters)}
    if not exact_text:
        return decoders
    exact_target = TargetModel(
        measure.transformers_model(decoder).module, partial(choose_backend, wants=Wants(exact_text=True))
    )
    for name, method_decoder in list(decoders.items()):
        decoders[f"{name}{EXACT}"] = method_decoder.with_target(exact_target)
    return decoders


def _transformers(decoders: Mapping[str, "Decoder"], options: Mapping[str, Any]) -> dict[str, "Way"]:
    """transformers' own ways of generating, assisted ones for drafters that are language models."""
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
    for name, decoder in decoders.items():
        drafter = decoder.drafter
        if isinstance(drafter, LanguageModelDrafter) and isinstance(drafter.model, TargetModel):
            for schedule in ("constant", "heuristic"):
                way = f"transformers assisted by {name.partition('|')[0]}, {schedule}"
                ways[way] = partial(assisted, drafter.model, schedule)
    return ways


def _measure_machine(writers: Writers, timings: Timings) -> dict[str, Any]:
    """A description of target and machine, with the times of passes and the copy bandwidth if asked for.

    Passes are also timed at contexts beyond the model's limit, since only their time matters.
    """
    target = measure.transformers_model(writers.decoder)
    machine: dict[str, Any] = {
        "device": str(target.device),
        "dtype": target.precision,
        "threads": torch.get_num_threads(),
        "parameters": sum(parameter.numel() for parameter in target.module.parameters()),
    }
    if timings.sizes:
        context = timings.contexts[0]
        machine["passes"] = list(_time_passes(writers, timings))
        bytes_read = pass_bytes(target, context)
        machine |= {"bandwidth": copy_bandwidth(target.device), "context": context, "bytes": bytes_read}
    return machine


def _time_passes(writers: Writers, timings: Timings) -> Iterator[dict[str, Any]]:
    """Milliseconds of passes of the target, and of llama.cpp, at every context length."""
    from drafttree.engine.drafting.measure import time_passes

    target = measure.transformers_model(writers.decoder)
    timers = {"drafttree": partial(time_passes, target)}
    if LLAMA_CPP in writers.programs:
        timers[LLAMA_CPP] = writers.programs[LLAMA_CPP].time_passes
    for context, (name, timer) in product(timings.contexts, timers.items()):
        seconds = timer(timings.sizes, context, 10 * timings.repeats)
        yield {"passes": f"{name}, behind {context}", "ms": {size: 1e3 * seconds[size] for size in seconds}}


def _time_reading(writers: Writers, timings: Timings) -> list[dict[str, Any]]:
    """By program and length, the shortest time in seconds to read a random prompt and write one token."""
    if not timings.lengths:
        return []
    decoder = writers.decoder
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(decoder.target.vocab_size, (max(timings.lengths),), generator=generator).tolist()
    ways = {"drafttree": decoder.generate}
    if LLAMA_CPP in writers.programs:
        ways[LLAMA_CPP] = writers.programs[LLAMA_CPP].generate
    rows: dict[str, dict[str, Any]] = {name: {"program": name, "s": {}} for name in ways}
    for length, _, (name, write) in product(timings.lengths, range(timings.repeats), ways.items()):
        seconds = write(prompt[:length], max_new_tokens=1).seconds
        least_seconds = rows[name]["s"]
        least_seconds[length] = min(seconds, least_seconds.get(length, seconds))
    return list(rows.values())


def copy_bandwidth(device: "torch.device", repeats: int = 9) -> float:
    """Bytes per second that a large copy reads and writes: the bandwidth of the machine's roofline."""
    from drafttree.engine.drafting.measure import time_work

    source = torch.ones(COPIED, dtype=torch.uint8, device=device)
    copy = torch.empty_like(source)
    work = partial(copy.copy_, source)
    time_work(work, device)
    return 2 * COPIED / statistics.median(time_work(work, device) for _ in range(repeats))


def pass_bytes(model: Any, context: int) -> int:
    """Bytes that a pass over one node reads: the weights and the cache of a context.

    An embedding counts one row; a mixture of experts counts the experts of one token.
    """
    from drafttree.models.base import prefill
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
            for weight in submodule.parameters():
                weights[id(weight)] = weight.nbytes * active_experts // module.config.num_experts
    cache = model.new_cache(context)
    prefill(model, cache, [0])
    return sum(weights.values()) + cache.nbytes * context // cache.capacity


def _read_bytes(decoder: "Decoder", row: Mapping[str, Any], machine: Mapping[str, Any]) -> dict[str, float]:
    """Bytes per second that the passes of a way read, and their share of the copy bandwidth."""
    from drafttree.models import TargetModel

    draft = getattr(decoder.drafter, "model", None)
    draft_bytes = pass_bytes(draft, machine["context"]) if isinstance(draft, TargetModel) else 0
    bytes_per_second = row["tokens/s"] / row["tau"] * (machine["bytes"] + row["delta"] * draft_bytes)
    return {"GB/s": bytes_per_second / 1e9, "of the roofline": bytes_per_second / machine["bandwidth"]}


def _show(report: Mapping[str, Any]) -> None:
    if report["machine"]:
        _show_machine(report["machine"])
    if report["reading"]:
        _show_reading(report["reading"])
    for group, rows in group_by(report["rows"], itemgetter("group")).items():
        _show_group(group, rows)
    loop_note = "texts loop (their last 48 tokens repeat with a period of at most 16)"
    print(f"{report['looping']} of {report['prompts']} {loop_note}")
    print(
        "tokens/s: all tokens over all seconds, including the time for prompts; R: tokens/s over plain decoding's "
        "[95 % interval by jackknife]"
    )
    print("R law = tau (1 + h0) / (v + c*delta + h), with each term a median over repeats")
    print("R law and R decoding leave out the time in which prompts are read")
    if report["versions"]:
        print(", ".join(map(" ".join, report["versions"].items())))


def _show_machine(machine: Mapping[str, Any]) -> None:
    """Print the machine and the times of passes."""
    console = make_console()
    size = f"{machine['parameters'] / 1e6:.1f} M parameters, {machine['threads']} threads"
    console.print(f"{machine['device']}, {machine['dtype']}, {size}", soft_wrap=True)
    if "passes" not in machine:
        return
    read_note = f"behind {machine['context']} tokens a target pass reads {machine['bytes'] / 1e6:.1f} MB"
    console.print(f"a large copy moves {machine['bandwidth'] / 1e9:.1f} GB/s; {read_note}", soft_wrap=True)
    rows = list[dict[str, Any]]()
    for timed_row in machine["passes"]:
        milliseconds = {str(size): ms for size, ms in timed_row["ms"].items()}
        unit = next(iter(milliseconds.values()))
        rows.append({"": f"{timed_row['passes']}, ms", **milliseconds})
        rows.append({"": f"{timed_row['passes']}, v", **{size: ms / unit for size, ms in milliseconds.items()}})
    columns = {"": "", **dict.fromkeys([*rows[0]][1:], ".2f")}
    console.print(measure.to_table("passes over so many rows", rows, columns))


def _show_reading(reading: Sequence[Mapping[str, Any]]) -> None:
    """Print the times of reading prompts."""
    rows = [{"": row["program"], **{str(size): seconds for size, seconds in row["s"].items()}} for row in reading]
    columns = {"": "", **dict.fromkeys([*rows[0]][1:], ".2f")}
    make_console().print(measure.to_table("seconds of reading prompts of so many tokens", rows, columns))


def _show_group(group: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the tables of a group of prompts, and why ratios are missing."""
    console = make_console()
    console.print(measure.to_table(f"{group}: {rows[0]['prompts']} prompts", rows, LAW))
    for row in rows:
        if row.get("doubt"):
            print(f"{row['method']}: {row['doubt']}")
    law_rows = [row for row in rows if "tau" in row]
    console.print(measure.to_table("mean µs per round outside the passes, by part; what drafters cost", law_rows, REST))
