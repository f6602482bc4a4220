"""drafttree beside the programs that people pick: the same weights, threads and prompts, greedy, all by turns."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from drafttree.core.errors import unknown
from drafttree.engine.decoder import Decoder
from drafttree.engine.drafting.measure import time_passes
from drafttree.loading import DrafterSource
from drafttree.measure.by_turns import by_turns
from drafttree.measure.interval import Interval
from drafttree.measure.method import PLAIN, Method
from drafttree.measure.method_decoders import make_decoders
from drafttree.measure.reference import ReferenceRun, find_difference, transformers_generate, transformers_model
from drafttree.measure.run_store import RunStore
from drafttree_lab.experiment.cells import check_given
from drafttree_lab.experiment.methods import ALL, MethodRow, PeerRow
from drafttree_lab.experiment.race import Outputs, race, way
from drafttree_lab.peers.gguf_file import write_gguf
from drafttree_lab.peers.llama_cpp import LlamaCpp
from drafttree_lab.peers.openvino import OpenVino
from drafttree_lab.peers.packages import LLAMA_CPP, OPENVINO, TRANSFORMERS, versions
from drafttree_lab.peers.streams import StreamRow, own_streams, time_streams

FLOAT32, BFLOAT16, INT8 = DTYPES = ("float32", "bfloat16", "int8")
FILES = {
    LLAMA_CPP: {FLOAT32: "f32", BFLOAT16: "bf16", INT8: "q8_0"},
    OPENVINO: {FLOAT32: "f16", BFLOAT16: "f16", INT8: "q8_0"},
}
"""The kind of GGUF file by peer and dtype; OpenVINO GenAI reads neither f32 nor bf16, but computes in either."""
CONTEXT = 256
"""Tokens before the passes."""
PASSES = 7
"""Passes of each number of rows in a turn."""
OURS = "drafttree"
Way = tuple[str, str]
"""A dtype, and our plain decoding, a method or a peer."""


@dataclass(frozen=True)
class SameText:
    """How far texts are those of our plain decoding in the same dtype.

    Attributes:
        texts: their number.
        equal: those that are the same from beginning to end.
        tokens: the tokens of all of plain decoding's texts.
        equal_tokens: those before the first difference of a text.
        ties: first differences between tokens that the rounding of a half-precision dtype does not tell apart.
        gap: the largest distance of the two best logits at a first difference; None where there is none.
    """

    texts: int
    equal: int
    tokens: int
    equal_tokens: int
    ties: int
    gap: float | None

    @property
    def share(self) -> float:
        """The share of equal tokens."""
        return self.equal_tokens / self.tokens


@dataclass(frozen=True)
class SpeedRow:
    """One way of writing the texts, in one dtype.

    Attributes:
        dtype: of the weights.
        speed: what was measured; over plain decoding in the same dtype.
        over_baseline: speed in that of the run's one baseline, over prompts and repeats.
        same_text: how far the texts are plain decoding's.
    """

    dtype: str
    speed: MethodRow | PeerRow
    over_baseline: Interval
    same_text: SameText

    @property
    def name(self) -> str:
        """The method, or the peer."""
        return self.speed.method if isinstance(self.speed, MethodRow) else self.speed.name

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON."""
        speed = self.speed.summary() if isinstance(self.speed, MethodRow) else asdict(self.speed)
        return {**asdict(self), "name": self.name, "speed": speed, "same_text": asdict(self.same_text)}


@dataclass(frozen=True)
class PassRow:
    """Passes of one program in one dtype; seconds by rows, the median over the turns of each turn's least."""

    dtype: str
    program: str
    seconds: dict[int, float]


@dataclass(frozen=True)
class PeerBench:
    """Everything measured.

    Attributes:
        rows: the rows, by dtype: plain decoding, our methods, the peers.
        passes: times of passes over several rows; of ours and of llama.cpp.
        streams: many texts at once, of ours and of llama.cpp.
        baseline: what all speeds are compared with.
        prompts: how many.
        threads: threads of every program.
        versions: of the peers.
    """

    rows: list[SpeedRow]
    passes: list[PassRow]
    streams: list[StreamRow]
    baseline: str
    prompts: int
    threads: int
    versions: dict[str, str]

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON."""
        return {**asdict(self), "rows": [row.summary() for row in self.rows]}


def check_dtypes(dtypes: Sequence[str]) -> None:
    """Refuse an unknown dtype.

    Raises:
        ConfigError: the message names it.
    """
    if wrong := next((dtype for dtype in dtypes if dtype not in DTYPES), None):
        raise unknown("dtype", wrong, DTYPES)


def write_files(decoder: Decoder, peers: Sequence[str], dtypes: Sequence[str], folder: Path) -> dict[str, Path]:
    """The GGUF files that some peers need in some dtypes, by kind.

    Args:
        decoder: one whose target has float32 weights.
        peers: names.
        dtypes: names.
        folder: where to write them.

    Raises:
        ConfigError: the target cannot be written.
    """
    kinds = dict.fromkeys(FILES[peer][dtype] for peer in peers if peer in FILES for dtype in dtypes)
    files = {kind: folder / f"{kind}.gguf" for kind in kinds}
    for kind, path in files.items():
        write_gguf(transformers_model(decoder).module, decoder.tokenizer, path, kind)
    return files


def bench_peers(
    decoders: Mapping[str, Decoder],
    methods: Sequence[Method],
    prompts: Sequence[Sequence[int]],
    *,
    drafters: Mapping[str, Mapping[str, DrafterSource]],
    peers: Sequence[str],
    files: Mapping[str, Path],
    max_new_tokens: int = 64,
    repeats: int = 1,
    passes: Sequence[int] = (),
    streams: Sequence[int] = (),
    progress: Callable[[str], None] = lambda _: None,
    store: RunStore | None = None,
) -> PeerBench:
    """Run plain decoding, our methods and the peers in every dtype, all by turns, then passes and streams.

    The baseline is transformers in the first dtype, or our plain decoding where transformers is left out.

    Args:
        decoders: by dtype, on the CPU.
        methods: how else we decode.
        prompts: token ids.
        drafters: by dtype, sources by the names that methods have for them, as for `make_decoders`.
        peers: names of installed ones.
        files: as `write_files` gives them.
        max_new_tokens: per prompt.
        repeats: times everything runs, after a warm-up.
        passes: rows of passes to time; none for no passes.
        streams: texts at once; none for no such measurement.
        progress: called after everything that was run with what it was.
        store: keeps finished runs; by default none.

    Raises:
        ConfigError: there is no dtype or prompt, or as for `make_decoders`.
    """
    check_given(dtype=decoders, prompt=prompts)
    store = store or RunStore()
    context = max(max(map(len, prompts)) + max_new_tokens, CONTEXT + max(passes, default=0))
    options = {"max_new_tokens": max_new_tokens, "temperature": 0.0}
    programs = {
        (dtype, peer): _open(peer, decoder, dtype, files, context, max(streams, default=1))
        for dtype, decoder in decoders.items()
        for peer in peers
        if peer != TRANSFORMERS
    }
    ours = {
        (dtype, name): each
        for dtype, decoder in decoders.items()
        for name, each in ({PLAIN: decoder.plain()} | make_decoders(decoder, methods, drafters.get(dtype, {}))).items()
    }
    ways: dict[Way, Callable] = {}
    for dtype, decoder in decoders.items():
        ways |= {at: way(each, options) for at, each in ours.items() if at[0] == dtype}
        if TRANSFORMERS in peers and dtype != INT8:
            ways[dtype, TRANSFORMERS] = partial(transformers_generate, decoder, **options)
        ways |= {
            at: partial(each.generate, max_new_tokens=max_new_tokens) for at, each in programs.items() if at[0] == dtype
        }
    first = next(iter(decoders))
    baseline = (first, TRANSFORMERS if (first, TRANSFORMERS) in ways else PLAIN)
    runs = race({_name(at): run for at, run in ways.items()}, prompts, repeats, progress, store)
    finished = prompts[: len(runs[0])]
    rows = [
        SpeedRow(
            dtype=dtype,
            speed=_speed((dtype, name), runs),
            over_baseline=_ratio(runs, (dtype, name), baseline),
            same_text=_compare(decoders[dtype], (dtype, name), finished, runs[0], options),
        )
        for dtype, name in ways
    ]
    llama_cpp = {at: each for at, each in programs.items() if isinstance(each, LlamaCpp)}
    timed = {(dtype, OURS): partial(_time_own, decoder) for dtype, decoder in decoders.items()}
    timed |= {at: each.time_passes for at, each in llama_cpp.items()}
    together = {_name(at): own_streams(each) for at, each in ours.items()}
    together |= {_name(at): each.generate_together for at, each in llama_cpp.items()}
    settings: dict[str, Any] = {"repeats": repeats, "progress": progress, "store": store}
    return PeerBench(
        rows=rows,
        passes=_time_passes(timed, passes, **settings),
        streams=time_streams(together, prompts, streams, max_new_tokens=max_new_tokens, **settings),
        baseline=_name(baseline),
        prompts=len(finished),
        threads=torch.get_num_threads(),
        versions=versions(peers),
    )


def _name(way: Way) -> str:
    return ", ".join(way)


def _open(
    peer: str, decoder: Decoder, dtype: str, files: Mapping[str, Path], context: int, streams: int
) -> LlamaCpp | OpenVino:
    """A peer with the decoder's weights."""
    path, shared = files[FILES[peer][dtype]], {"threads": torch.get_num_threads(), "eos": decoder.eos}
    if peer == OPENVINO:
        return OpenVino(path, dtype=dtype, **shared)
    return LlamaCpp(path, exact_cache=dtype == FLOAT32, context=context, streams=streams, **shared)


def _speed(way: Way, runs: Sequence[Sequence[Outputs]]) -> MethodRow | PeerRow:
    """What was measured of a way, beside plain decoding in its dtype."""
    dtype, name = way
    own = [[{each: turn[_name((dtype, each))] for each in (PLAIN, name)} for turn in run] for run in runs]
    kind = PeerRow if isinstance(own[0][0][name], ReferenceRun) else MethodRow
    return kind.of(name, ALL, [True] * len(own[0]), own)


def _ratio(runs: Sequence[Sequence[Outputs]], way: Way, base: Way) -> Interval:
    """The speed of one way in that of another, over prompts and repeats."""
    texts = [[turn[_name(each)] for run in runs for turn in run] for each in (way, base)]
    return Interval.of_ratio_by_student(*([len(text.tokens) / text.seconds for text in each] for each in texts))


def _compare(
    decoder: Decoder, way: Way, prompts: Sequence[Sequence[int]], turns: Sequence[Outputs], options: Mapping[str, Any]
) -> SameText:
    """How far the texts of a way are those of plain decoding in its dtype."""
    dtype, name = way
    pairs = [[turn[_name((dtype, each))].tokens for each in (PLAIN, name)] for turn in turns]
    found = [find_difference(decoder, prompt, *pair, **options) for prompt, pair in zip(prompts, pairs, strict=True)]
    return SameText(
        texts=len(pairs),
        equal=found.count(None),
        tokens=sum(len(plain) for plain, _ in pairs),
        equal_tokens=sum(each.position if each else len(plain) for each, (plain, _) in zip(found, pairs, strict=True)),
        ties=sum(each.explained for each in found if each),
        gap=max((each.gap for each in found if each), default=None),
    )


def _time_own(decoder: Decoder, sizes: Sequence[int], context: int, repeats: int) -> dict[int, float]:
    return time_passes(decoder.target, sizes, context, repeats, typical=min)


def _time_passes(
    programs: Mapping[Way, Callable[[Sequence[int], int, int], dict[int, float]]],
    sizes: Sequence[int],
    *,
    repeats: int,
    progress: Callable[[str], None],
    store: RunStore,
) -> list[PassRow]:
    """The passes of every program by turns; of a turn the least seconds count: threads of others may still spin."""
    found: dict[Way, list[dict[int, float]]] = {at: [] for at in programs}
    names = {_name(at): at for at in programs}
    with store.interruptible():
        for turn, name in by_turns([*names], repeats if sizes and not store.interrupted else 0):
            work = partial(programs[names[name]], sizes, CONTEXT, PASSES)
            found[names[name]].append(store.run(("passes", turn, name), dict[int, float], work))
            progress(f"{name}, passes")
    return [
        PassRow(dtype, program, {size: statistics.median(each[size] for each in times) for size in sizes})
        for (dtype, program), times in found.items()
        if times
    ]
