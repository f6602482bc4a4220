"""Whether times tell how much faster drafts are: the one check before any ratio of speeds is printed."""

from dataclasses import asdict

from drafttree.engine.metrics import Metrics
from drafttree.engine.speedup_law import SpeedupLaw

LEAST_TOKENS = 1.02
"""Tokens of a pass, tau, below which drafts have given nothing: a ratio is that of plain decoding over itself."""
LEAST_COST, MOST_COST = 0.85, 1.15
"""What a pass over one row costs, in plain passes, on a machine that does nothing else: it is the same pass."""
FEWEST = 3
"""Passes over one row that tell."""


def drafts_nothing(drafted: Metrics) -> bool:
    """Whether a pass has yielded no more than plain decoding's one token."""
    return drafted.mean_accepted_tokens < LEAST_TOKENS


def doubt(drafted: Metrics, plain: Metrics) -> str | None:
    """Why the ratio of two speeds means nothing, in one line; None where it may be told.

    Args:
        drafted: of the texts that drafts were made for.
        plain: of plain decoding of the same texts.
    """
    if drafts_nothing(drafted):
        found = "nothing was drafted" if drafted.mean_nodes < LEAST_TOKENS else "no draft was accepted"
        return f"No ratio: {found} ({drafted.mean_accepted_tokens:.2f} tokens a pass)."
    unit = plain.target_pass
    alone = [each.target_seconds for each in drafted.rounds if each.nodes == 1]
    row = sum(alone) / len(alone) / unit if unit and len(alone) >= FEWEST else 1.0
    whole = drafted.target_pass / unit if unit else 1.0
    if LEAST_COST <= row <= MOST_COST and whole >= LEAST_COST:
        return None
    rows, cost = ("one row", row) if not LEAST_COST <= row <= MOST_COST else (f"{drafted.mean_nodes:.1f} rows", whole)
    return (
        f"No ratio: other work disturbed the times (a pass over {rows} cost {cost:.2f} plain passes); "
        "run it again when the machine is idle."
    )


def law_terms(law: SpeedupLaw, doubt: str | None) -> dict[str, float | None]:
    """The terms of a law by name, for JSON; those that are ratios of times are None where there is a doubt."""
    terms: dict[str, float | None] = asdict(law) | {"predicted": law.predicted}
    return terms if doubt is None else dict.fromkeys(terms) | {"tau": law.tau, "delta": law.delta}
