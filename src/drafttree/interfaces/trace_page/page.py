"""The page of a trace, with its rounds as compact rows."""

from typing import Any

from drafttree.evaluation.trace import Trace
from drafttree.interfaces.page_parts.assembly import assemble
from drafttree.interfaces.page_parts.round_packing import WORDS, pack_round

FIGURES = ("tokens", "mean_accepted_tokens", "draft_efficiency", "acceptance_rate", "mean_nodes", "tokens_per_second")


def render(trace: Trace) -> str:
    """The page of a trace.

    Raises:
        ConfigError: jinja2 is not installed.
    """
    return assemble("drafttree.interfaces.trace_page", "trace.css", "trace.js", pack(trace))


def pack(trace: Trace) -> dict[str, Any]:
    """Pack a trace into compact rows, whose elements the page's script reads by position."""
    strings: dict[str, int] = {}
    rounds = [pack_round(traced_round, strings) for traced_round in trace.rounds]
    return {
        "prompt": trace.prompt,
        "pieces": trace.pieces,
        "setting": trace.setting,
        "sampled": trace.sampled,
        "finish": trace.finish_reason,
        "figures": {name: trace.metrics[name] for name in FIGURES},
        **WORDS,
        "acceptance": [list(vars(cell).values()) for cell in trace.acceptance],
        "rounds": rounds,
        "strings": list(strings),
    }
