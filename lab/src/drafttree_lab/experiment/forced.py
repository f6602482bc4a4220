"""What it gains to draft, without a drafter, what a grammar forces: JSON of five schemas, with and without.

Each schema's texts are measured in two ways. "target": the target writes them; one that has read little JSON may spell
it otherwise than its tokenizer. "replay": JSON as the tokenizer spells it, as most models write it, is taken for the
target's output; it takes no time, so its speeds are those of the loop alone.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

from drafttree.constraints import grammar
from drafttree.core.errors import ConfigError
from drafttree.core.tree import FORCED
from drafttree.engine.decoder import Decoder
from drafttree.engine.metrics import Metrics
from drafttree.evaluation.by_turns import by_turns
from drafttree_lab.experiment.lookup import Recording


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties]}


def _text(most: int, **rest: Any) -> dict[str, Any]:
    return {"type": "string", "maxLength": most, **rest}


def _list(items: dict[str, Any], least: int, most: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


WHOLE = {"type": "integer", "minimum": 0, "maximum": 9999}
SCHEMAS = {
    "person": _object(name=_text(20), age=WHOLE, email=_text(30, format="email")),
    "colour": _object(name=_text(10), colour={"enum": ["red", "green", "blue"]}, tags=_list(_text(8), 1, 3)),
    "place": _object(
        type={"const": "Feature"},
        geometry=_object(type={"const": "Point"}, coordinates=_list({"type": "number"}, 2, 2)),
        properties=_object(title=_text(12)),
    ),
    "call": _object(
        tool={"const": "search"},
        arguments=_object(query=_text(24), max_results=WHOLE, language={"enum": ["english", "german"]}),
    ),
    "order": _object(
        order_number=WHOLE,
        customer=_object(first_name=_text(10), last_name=_text(10)),
        items=_list(_object(article=_text(10), quantity=WHOLE), 2, 2),
    ),
}
EXAMPLES: dict[str, list[Any]] = {
    "person": [
        {"name": "Ann Miller", "age": 34, "email": "ann@mail.com"},
        {"name": "Tom Reed", "age": 51, "email": "tom@mail.com"},
    ],
    "colour": [
        {"name": "rose", "colour": "red", "tags": ["warm", "garden"]},
        {"name": "leaf", "colour": "green", "tags": ["tree"]},
    ],
    "place": [
        {
            "type": "Feature",
            "geometry": {"type": "Point", "coordinates": [12.5, 41.9]},
            "properties": {"title": "Rome"},
        },
        {
            "type": "Feature",
            "geometry": {"type": "Point", "coordinates": [2.3, 48.8]},
            "properties": {"title": "Paris"},
        },
    ],
    "call": [
        {"tool": "search", "arguments": {"query": "old ships", "max_results": 3, "language": "english"}},
        {"tool": "search", "arguments": {"query": "new books", "max_results": 5, "language": "german"}},
    ],
    "order": [
        {
            "order_number": 17,
            "customer": {"first_name": "Ann", "last_name": "Reed"},
            "items": [{"article": "lamp", "quantity": 2}, {"article": "chair", "quantity": 4}],
        },
        {
            "order_number": 18,
            "customer": {"first_name": "Tom", "last_name": "Hill"},
            "items": [{"article": "table", "quantity": 1}, {"article": "bench", "quantity": 2}],
        },
    ],
}
"""Two texts of each schema: both are in the prompt of "target", the second is replayed behind the first."""


KINDS = (False, True)
"""Whether what is forced is drafted; plain decoding without it is what the others are compared with."""


@dataclass(frozen=True)
class ForcedRow:
    """One drafter on the texts of one schema.

    Attributes:
        schema: its name.
        way: "target" or "replay".
        drafter: its name.
        forced: whether what the grammar forces was drafted.
        tau: committed tokens per round.
        delta: draft passes per round.
        accepted: accepted tokens of those that were forced, per one drafted; 0 where none was.
        speed: tokens per second of decoding, the best of the repeats, over those of plain decoding that forces nothing.
        tokens: tokens of the text.
    """

    schema: str
    way: str
    drafter: str
    forced: bool
    tau: float
    delta: float
    accepted: float
    speed: float
    tokens: int

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON."""
        return asdict(self)


class Unforced:
    """A grammar that does not say what it forces."""

    def __init__(self, made: grammar.Grammar) -> None:
        self._made = made

    def new_state(self, tokenizer: Any, vocab_size: int, eos: tuple[int, ...]) -> Any:
        state = self._made.new_state(tokenizer, vocab_size, eos)
        return SimpleNamespace(restrict=state.restrict, commit=state.commit)


def bench_forced(
    decoders: Mapping[str, Decoder],
    schemas: Sequence[str] = tuple(SCHEMAS),
    *,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    seed: int = 0,
    repeats: int = 3,
    progress: Callable[[str], None] = lambda _: None,
) -> list[ForcedRow]:
    """Write a text of every schema with every decoder, with and without what is forced, by turns.

    Args:
        decoders: decoders of one target by the name of their drafter; the first decodes plainly.
        schemas: names of `SCHEMAS`.
        max_new_tokens: tokens of a text at most.
        temperature: of the texts.
        seed: of the texts.
        repeats: how often each is written; the fastest counts.
        progress: called after every text with what was written.

    Raises:
        ConfigError: there is no tokenizer.
    """
    name, plain = next(iter(decoders.items()))
    if plain.tokenizer is None:
        raise ConfigError("a grammar needs a tokenizer; give the decoder one")
    options = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    rows = list[ForcedRow]()
    for schema in schemas:
        before, behind = (_ids(plain, text) for text in ("The JSON:\n", "\n\n"))
        first, second = (_ids(plain, json.dumps(each)) for each in EXAMPLES[schema])
        prompt = [*before, *first, *behind, *before]
        replay = Decoder(
            Recording([*prompt, *second, *plain.eos], plain.target.vocab_size),
            tokenizer=plain.tokenizer,
            eos=plain.eos,
        )
        both = [*prompt, *second, *behind, *before]
        ways = {("target", drafter): (decoder, both) for drafter, decoder in decoders.items()}
        ways["replay", name] = replay, prompt
        rows += _written(schema, ways, options, repeats, progress)
    return rows


def _written(
    schema: str,
    ways: Mapping[tuple[str, str], tuple[Decoder, list[int]]],
    options: Mapping[str, Any],
    repeats: int,
    progress: Callable[[str], None],
) -> list[ForcedRow]:
    made, best = grammar.json_schema(SCHEMAS[schema]), dict[str, Metrics]()
    runs = {
        f"{schema}, {', '.join(way)}, {'forced' if each else 'alone'}": (way, each) for way in ways for each in KINDS
    }
    for _, run in by_turns([*runs], repeats):
        way, forced = runs[run]
        decoder, prompt = ways[way]
        found = decoder.generate(prompt, grammar=made if forced else Unforced(made), **options).metrics
        if run not in best or found.decoding_tokens_per_second > best[run].decoding_tokens_per_second:
            best[run] = found
        progress(run)
    plain: dict[str, float] = {}
    rows = list[ForcedRow]()
    for run, ((way, drafter), forced) in runs.items():
        found = best[run]
        chains = [turn for turn in found.rounds if turn.source == FORCED]
        accepted = sum(turn.accepted for turn in chains) / max(sum(turn.nodes - 1 for turn in chains), 1)
        speed = found.decoding_tokens_per_second / plain.setdefault(way, found.decoding_tokens_per_second)
        rows.append(
            ForcedRow(schema, way, drafter, forced, found.tau, found.draft_efficiency, accepted, speed, found.tokens)
        )
    return rows


def _ids(decoder: Decoder, text: str) -> list[int]:
    assert decoder.tokenizer
    return decoder.tokenizer.encode(text, add_special_tokens=False)
