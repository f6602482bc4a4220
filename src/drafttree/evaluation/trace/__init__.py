"""What the draft trees of a text did, round by round.

    trace = trace_text(decoder, "The old man", max_new_tokens=64)

The text is that of `Decoder.generate`. `growth` records why candidates become nodes of its trees or do not; `rounds`
turns that into plain data. Of a request in an engine, `served_rounds` only sees the trees before and after the cut to
the budget of the batch.
"""

from drafttree.core.tree import Rule
from drafttree.evaluation.trace.rounds import TokenTexts
from drafttree.evaluation.trace.served_rounds import ServedRound, TracingObserver
from drafttree.evaluation.trace.trace import (
    PHASES,
    AcceptanceCell,
    Outcome,
    Trace,
    TracedNode,
    TracedRound,
)
from drafttree.evaluation.trace.tracer import Tracer, trace_text

__all__ = [
    "PHASES",
    "AcceptanceCell",
    "Outcome",
    "Rule",
    "ServedRound",
    "TokenTexts",
    "Trace",
    "TracedNode",
    "TracedRound",
    "Tracer",
    "TracingObserver",
    "trace_text",
]
