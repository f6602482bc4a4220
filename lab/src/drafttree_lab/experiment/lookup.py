"""Lookup drafters: what trees gain over chains, and what drafting costs as the text grows.

A set of prompts is measured in two ways. "target": the target decodes it, greedily. "replay": a recorded text, the
prompt and its reference, is taken for the target's output, so a drafted token is accepted iff it is the recorded one.
The latter says nothing of any model; it is the drafter alone on text that people wrote.
"""

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import as_file, files
from itertools import product

import torch
from torch.nn.functional import one_hot

from drafttree.core.errors import ConfigError, InputError
from drafttree.drafters import LOOKUPS, LookupDrafter
from drafttree.engine.decoder import Decoder
from drafttree.engine.metrics import Metrics
from drafttree.evaluation.certify import fit
from drafttree.evaluation.prompt_encoding import encode_turns
from drafttree.evaluation.prompt_form import AS_TEXT, PromptForm
from drafttree.evaluation.prompts import Example, read_examples
from drafttree.evaluation.run_store import RunStore
from drafttree.loading import PolicyLike, parse_policies
from drafttree.models import CacheLayout, Output, Segment, TreeCache
from drafttree.policies import TreePolicy
from drafttree_lab.experiment.cells import Key, run_cells

CONTEXTS = (1024, 2048, 4096, 8192)
ROUNDS, LEVELS, COMMITTED = 128, 4, 4
"""Rounds that are timed at each length of context, passes in each, and tokens committed after each."""


@dataclass(frozen=True)
class LookupRow:
    """One drafter and policy on one set.

    Attributes:
        prompts: name of the set.
        way: "target" or "replay".
        drafter: its name.
        policy: its canonical specification.
        tau: mean accepted tokens.
        nodes: nodes per round, the root included.
        delta: draft passes per round.
        tokens: committed in all.
    """

    prompts: str
    way: str
    drafter: str
    policy: str
    tau: float
    nodes: float
    delta: float
    tokens: int


@dataclass(frozen=True)
class DraftingCost:
    """Time of a drafter alone, after a text of some length.

    Attributes:
        drafter: its name.
        context: tokens of the text.
        read: seconds per token of the prompt.
        round: median seconds of a round of 4 passes over one node each, the reading of 4 committed tokens included.
    """

    drafter: str
    context: int
    read: float
    round: float


@dataclass(frozen=True)
class LookupBench:
    """Everything measured."""

    rows: list[LookupRow]
    costs: list[DraftingCost]

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON."""
        return asdict(self)


class Recording:
    """A model of the protocol that says a recorded text, whatever it is given.

    Args:
        tokens: prompt and what follows it.
        vocab_size: width of the logits.
    """

    shares_passes = False

    def __init__(self, tokens: Sequence[int], vocab_size: int) -> None:
        self.vocab_size, self.device = vocab_size, torch.device("cpu")
        self.context: int | None = None
        self.rope_switch: int | None = None
        self._next = torch.tensor([*tokens[1:], 0])
        self.nbytes = self._next.nbytes

    def new_cache(self, capacity: int) -> TreeCache:
        return TreeCache(CacheLayout({}), capacity)

    def forward(self, segments: Sequence[Segment], *, hidden_layers: tuple[int, ...] = ()) -> list[Output]:
        return [self._score(segment) for segment in segments]

    def _score(self, segment: Segment) -> Output:
        segment.cache.grow(segment.positions)
        asked = segment.positions[:, segment.wanted]
        due = self._next[asked.clamp_max(len(self._next) - 1)]
        return Output(one_hot(due, self.vocab_size).float())


def bench_lookup(
    decoder: Decoder,
    sets: Mapping[str, Sequence[Example]],
    policies: Sequence[PolicyLike],
    *,
    form: PromptForm = AS_TEXT,
    max_new_tokens: int = 128,
    repeats: int = 3,
    progress: Callable[[str], None] = lambda _: None,
    store: RunStore | None = None,
) -> LookupBench:
    """Measure every lookup drafter with every policy on every set, then the cost of drafting.

    Args:
        decoder: the decoder whose target, verifier and tokenizer to use.
        sets: prompts by the name of their set; those with a reference are replayed too.
        policies: as for `parse_policies`.
        form: the form of the prompts.
        max_new_tokens: tokens per prompt at most, in both ways.
        repeats: repeats of the timings, whose medians are taken.
        progress: called after every text with what was run.
        store: keeps finished runs; by default none.

    Raises:
        InputError: the decoder has no tokenizer.
    """
    if decoder.tokenizer is None:
        raise InputError("prompts are texts; give the decoder a tokenizer")
    drafters = {name: kind(decoder.target.vocab_size, decoder.target.device) for name, kind in LOOKUPS.items()}
    grown, store = parse_policies(policies), store or RunStore()
    cells: dict[Key, Callable[[], LookupRow]] = {
        (name, way, spec, drafter): functools.partial(
            _measure, name, way, drafter, spec, drafters[drafter], grown[spec], runs
        )
        for name, way, runs in _ways(decoder, sets, form, max_new_tokens)
        for spec, drafter in product(grown, drafters)
    }
    rows = run_cells(cells, LookupRow, progress=progress, store=store)
    if store.interrupted:
        return LookupBench([*rows.values()], [])
    stream = _stream(decoder, sets)
    timings: dict[Key, Callable[[], list[DraftingCost]]] = {
        (name,): functools.partial(drafting_cost, name, kind, stream, repeats) for name, kind in drafters.items()
    }
    costs = run_cells(timings, list[DraftingCost], store=store)
    return LookupBench([*rows.values()], [cost for each in costs.values() for cost in each])


def code_edits() -> list[Example]:
    """A code-editing set: each prompt asks to rename a symbol in a file of this project and to repeat the file.

    The files, which are the references, are those of 23 November 2026: prompts that changed with every commit would
    make no two runs comparable.
    """
    with as_file(files("drafttree_lab.experiment") / "data" / "code_edits.jsonl.gz") as path:
        return read_examples(path)


Run = Callable[[LookupDrafter, TreePolicy], Metrics]


def _ways(
    decoder: Decoder, sets: Mapping[str, Sequence[Example]], form: PromptForm, length: int
) -> Iterator[tuple[str, str, list[Run]]]:
    """The names of every set and way, and its runs; a reference answers the first turn."""
    for name, examples in sets.items():
        turns = [(example, encode_turns(decoder, example, form, length)) for example in examples]
        yield name, "target", [_decoding(decoder, prompt, length) for _, prompts in turns for prompt in prompts]
        if replays := [_replaying(decoder, each[0], own.reference, length) for own, each in turns if own.reference]:
            yield name, "replay", replays


def _decoding(decoder: Decoder, prompt: Sequence[int], length: int) -> Run:
    """The target decodes a prompt."""
    ids, _ = fit(decoder, prompt, length)

    def run(drafter: LookupDrafter, policy: TreePolicy) -> Metrics:
        engine = Decoder(decoder.target, drafter, policy, decoder.verifier)
        return _metrics(engine, ids, length)

    return run


def _replaying(decoder: Decoder, prompt: list[int], said: str, length: int) -> Run:
    """A prompt's reference is said once more."""
    reference = _ids(decoder, said)[:length]

    def run(drafter: LookupDrafter, policy: TreePolicy) -> Metrics:
        target = Recording(prompt + reference, decoder.target.vocab_size)
        engine = Decoder(target, type(drafter)(drafter.vocab_size), policy, decoder.verifier)
        return _metrics(engine, prompt, len(reference))

    return run


def _metrics(engine: Decoder, prompt: list[int], length: int) -> Metrics:
    return engine.generate(prompt, max_new_tokens=length).metrics


def _measure(
    name: str, way: str, drafter: str, spec: str, drafting: LookupDrafter, policy: TreePolicy, runs: Sequence[Run]
) -> LookupRow:
    total = Metrics.total(run(drafting, policy) for run in runs)
    figures = (total.mean_accepted_tokens, total.mean_nodes, total.draft_efficiency, total.tokens)
    return LookupRow(name, way, drafter, spec, *figures)


def drafting_cost(name: str, drafter: LookupDrafter, stream: Sequence[int], repeats: int = 3) -> list[DraftingCost]:
    """Time a drafter alone after 1k to 8k tokens of a stream, committing the stream's own next tokens.

    The lengths take turns, `repeats` times after a warm-up; medians are reported.
    """
    _time(drafter, stream, CONTEXTS[0])
    turns = [[_time(drafter, stream, context) for context in CONTEXTS] for _ in range(repeats)]
    medians = [[statistics.median(parts) for parts in zip(*times, strict=True)] for times in zip(*turns, strict=True)]
    return [DraftingCost(name, context, *median) for context, median in zip(CONTEXTS, medians, strict=True)]


def _time(drafter: LookupDrafter, stream: Sequence[int], context: int) -> tuple[float, float]:
    """Seconds to read a token of the prompt, and of a round."""
    draft = drafter.start(list(stream[:context]), context)
    started = time.perf_counter()
    draft.prefill((), context)
    reading = (time.perf_counter() - started) / context
    rounds, zero = [], torch.zeros(1, 1, dtype=torch.long, device=drafter.device)
    for place in range(context, context + ROUNDS * COMMITTED, COMMITTED):
        before = draft.seconds
        logits = draft.root()
        for _ in range(LEVELS - 1):
            logits = draft.expand(logits[..., : drafter.vocab_size].argmax(-1), zero)
        draft.commit(list(stream[place : place + COMMITTED]), ())
        rounds.append(draft.seconds - before)
    return reading, statistics.median(rounds)


def _stream(decoder: Decoder, sets: Mapping[str, Sequence[Example]]) -> list[int]:
    """The texts of all sets one after the other, and over again until they are long enough."""
    stream: list[int] = []
    texts = [
        text
        for examples in sets.values()
        for example in examples
        for text in (example.prompt, example.reference)
        if text
    ]
    while len(stream) < CONTEXTS[-1] + ROUNDS * COMMITTED:
        stream += [token for text in texts for token in _ids(decoder, text)]
    return stream


def _ids(decoder: Decoder, text: str) -> list[int]:
    if decoder.tokenizer is None:
        raise ConfigError("measuring lookup on texts needs a target with a tokenizer")
    return [int(token) for token in decoder.tokenizer(text)["input_ids"]]
