"""What the draft trees of a text did, round by round.

    trace = trace_text(decoder, "The old man", max_new_tokens=64)

The text is the one that `Decoder.generate` gives. The growth of its trees tells an observer why candidates become nodes
or do not (`growth`), and `rounds` makes plain data of it. `served_rounds` sees less of a request in an engine: its tree
before and after the budget of the batch.
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
