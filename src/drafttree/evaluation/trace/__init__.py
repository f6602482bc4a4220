"""What the draft trees of a text did, round by round.

    trace = trace_text(decoder, "The old man", max_new_tokens=64)

The text is the one that `Decoder.generate` gives: `recording` wraps the policy and the verifier of its request and
passes every question on, `growth` follows the recorded growth of a tree, `rounds` makes plain data of it.
`served_rounds` sees less of a request in an engine, where trees of many requests grow together.
"""

from drafttree.evaluation.trace.served_rounds import ServedRound, TracingObserver
from drafttree.evaluation.trace.token_texts import TokenTexts
from drafttree.evaluation.trace.trace import (
    PHASES,
    AcceptanceCell,
    Outcome,
    Rule,
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
