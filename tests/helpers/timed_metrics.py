"""Metrics of texts that were never written, with the speed a test wants."""

from drafttree import Metrics
from drafttree.engine.metrics import TextRound

CURVE = {
    "target": {"1": 1.0, "8": 1.35},
    "draft": [{"first": 0.1, "later": {"1": 0.1}}],
    "overhead": 0.2,
    "plain_overhead": 0.1,
}
"""Costs as `tune` measures them."""
CHAIN = {"committed": 2, "nodes": 3, "levels": 2, "draft_passes": 2, "draft_seconds": 0.01, "widths": (1, 1)}
"""A round with a chain of two."""


def timed(seconds: float, tokens: int = 10, **fields) -> Metrics:
    """One text of equal rounds, in so many seconds of decoding after one for its prompt; `fields` are of a round."""
    committed = fields.pop("committed", 1)
    count = tokens // committed
    each = seconds / count
    parts = {"accepted": committed - 1, "nodes": 1, "levels": 0, "draft_passes": 0, "draft_seconds": 0.0} | fields
    turn = TextRound(committed=committed, target_seconds=each / 2, seconds=each, **parts)
    return Metrics(rounds=[turn] * count, seconds=seconds + 1, prefill_seconds=1.0, first_token_seconds=[1 + each])
