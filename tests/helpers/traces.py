"""Laws of four tokens for traces that can be computed by hand, and a trace made by hand."""

import math
from collections.abc import Sequence

from drafttree import Decoder
from drafttree.evaluation.trace import PHASES, Outcome, Rule, Trace, TracedNode, TracedRound
from drafttree.policies import TreePolicy
from drafttree.verifiers import Verifier
from testing.costs import toy_decoder
from testing.toy import Law, ToyDrafter, ToyModel

DRAFTED = [0.5, 0.3, 0.15, 0.05]
"""The drafter's probabilities of the four tokens, whatever the text."""
ROOT = 3
"""The prompt's only token."""


def always(probabilities: Sequence[float]) -> Law:
    """A law that gives these probabilities after every text."""
    return lambda prefix: [math.log(each) for each in probabilities]


def prefers(first: int, later: int) -> Law:
    """A target's law: one token after the prompt, another after any other."""
    return lambda prefix: [4.0 if token == (first if prefix[-1] == ROOT else later) else 0.0 for token in range(4)]


def hand_decoder(policy: TreePolicy, law: Law, verifier: type[Verifier] | None = None) -> Decoder:
    """A decoder whose drafter gives `DRAFTED`."""
    return toy_decoder(ToyModel(law, 4), ToyDrafter(always(DRAFTED), 4), policy, verifier)


def node(text: str, parent: int, depth: int, outcome: Outcome, draft=0.5, rule=Rule.NONE, rank=0) -> TracedNode:
    """A node whose token is the first character of its text."""
    return TracedNode(ord(text[:1] or "0"), text, parent, depth, rank, draft, draft, 0.25, outcome, rule)


def hand_trace(pieces: Sequence[str] = (" the", " sea", " was"), prompt: str = "Look:") -> Trace:
    """Two rounds: in the first one token of three is accepted and one was cut; in the second nothing is drafted."""
    accepted, bonus, alone = pieces
    nodes = [
        node(prompt[-1:], -1, 0, Outcome.ROOT, draft=None, rank=-1),
        node(accepted, 0, 1, Outcome.ACCEPTED),
        node(" a", 0, 1, Outcome.REJECTED, draft=0.25, rank=1),
        node(" cat", 1, 2, Outcome.REJECTED, draft=0.75, rule=Rule.DEPTH),
        node(" dog", 2, 2, Outcome.CUT, rule=Rule.KEEP),
    ]
    first = TracedRound(
        nodes=nodes,
        size=4,
        path=[0, 1],
        bonus=node(bonus, 1, 2, Outcome.BONUS, draft=0.125, rule=Rule.WIDTH, rank=5),
        committed=2,
        accepted=1,
        cut={"keep": 7},
        widths=[1, 2],
        seconds=dict.fromkeys(PHASES, 0.001),
    )
    root = node(bonus, -1, 0, Outcome.ROOT, draft=None, rank=-1)
    last = node(alone, 0, 1, Outcome.BONUS, draft=None, rule=Rule.DEPTH, rank=-1)
    second = TracedRound([root], 1, [0], last, 1, 0, {}, [], dict.fromkeys(PHASES, 0.002))
    figures = ("tokens", "mean_accepted_tokens", "draft_efficiency", "acceptance_rate", "mean_nodes")
    metrics = dict.fromkeys((*figures, "tokens_per_second"), 1.5) | {"tokens": 3}
    setting = {"target": "toy", "drafter": "toy", "policy": "talon", "verifier": "greedy"}
    return Trace(prompt, list(pieces), setting, False, "length", [first, second], metrics)
