"""Packs a trace into compact rows and puts them, with style and script, into the template."""

from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from json import dumps
from typing import Any

import drafttree
from drafttree.evaluation.trace import PHASES, Outcome, Rule, Trace, TracedNode, TracedRound
from drafttree.interfaces.trace_page.output import check_jinja

DIGITS = 3
"""Significant digits of probabilities and times in the page."""
OUTCOMES, RULES = tuple(Outcome), tuple(Rule)
FIGURES = ("tokens", "mean_accepted_tokens", "draft_efficiency", "acceptance_rate", "mean_nodes", "tokens_per_second")


def render(trace: Trace) -> str:
    """The page of a trace.

    Raises:
        ConfigError: jinja2 is not installed.
    """
    check_jinja()
    from jinja2 import Environment, StrictUndefined
    from jinja2.utils import htmlsafe_json_dumps

    read = partial(_read, files("drafttree.interfaces.trace_page"))
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    data = htmlsafe_json_dumps(pack(trace), dumps=partial(dumps, separators=(",", ":"), allow_nan=False))
    parts = {"style": read("trace.css"), "script": read("trace.js"), "version": drafttree.__version__}
    return environment.from_string(read("template.html")).render(data=data, **parts)


def pack(trace: Trace) -> dict[str, Any]:
    """A trace as short rows, which the script of the page reads by their places."""
    strings: dict[str, int] = {}
    rounds = [_packed_round(turn, strings) for turn in trace.rounds]
    return {
        "prompt": trace.prompt,
        "pieces": trace.pieces,
        "setting": trace.setting,
        "sampled": trace.sampled,
        "finish": trace.finish_reason,
        "figures": {name: trace.metrics[name] for name in FIGURES},
        "phases": PHASES,
        "outcomes": OUTCOMES,
        "rules": RULES,
        "acceptance": [list(vars(cell).values()) for cell in trace.acceptance],
        "rounds": rounds,
        "strings": list(strings),
    }


def _packed_round(turn: TracedRound, strings: dict[str, int]) -> dict[str, Any]:
    return {
        "n": [_packed_node(node, strings) for node in turn.nodes],
        "s": turn.size,
        "p": turn.path,
        "b": _packed_node(turn.bonus, strings),
        "c": turn.committed,
        "a": turn.accepted,
        "x": [turn.cut.get(rule, 0) for rule in RULES],
        "w": turn.widths,
        "j": turn.rejected,
        "t": _short([turn.seconds[phase] for phase in PHASES]),
    }


def _packed_node(node: TracedNode, strings: dict[str, int]) -> list[Any]:
    """Text, id, parent, rank, outcome, rule, then the probabilities: draft, target, and seen where it is another."""
    chances = [node.draft, node.target]
    if node.seen is not None and abs(node.seen - (node.draft or 0.0)) > 10.0**-DIGITS:
        chances.append(node.seen)
    text = strings.setdefault(node.text, len(strings))
    places = [OUTCOMES.index(node.outcome), RULES.index(node.rule)]
    return [text, node.token, node.parent, node.rank, *places, *_short(chances)]


def _short(numbers: Sequence[float | None]) -> list[float | None]:
    return [None if number is None else float(f"{number:.{DIGITS}g}") for number in numbers]


def _read(folder: Any, name: str) -> str:
    return (folder / name).read_text(encoding="utf-8")
