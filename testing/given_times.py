"""Texts whose passes take the time a test wants."""

from collections.abc import Callable
from dataclasses import replace

from drafttree import Decoder
from drafttree.engine.request import Request

Cost = Callable[[bool, int], float]


def give_times(monkeypatch, cost: Cost) -> None:
    """Let every round take what `cost` has for whether there is a drafter and for the rows of its target pass."""
    new_request, generation, known = Decoder.new_request, Request.generation, []

    def remembered(decoder, *arguments, **options):
        known.append((new_request(decoder, *arguments, **options), decoder.drafter is not None))
        return known[-1][0]

    def timed(request):
        found = generation(request)
        drafts = next(drafts for each, drafts in known if each is request)
        nothing = dict.fromkeys(("draft_seconds", "growth_seconds", "mask_seconds", "verify_seconds"), 0.0)
        nothing |= {"commit_seconds": 0.0, "text_seconds": 0.0}
        costs = [cost(drafts, each.nodes) for each in found.metrics.rounds]
        rounds = zip(found.metrics.rounds, costs, strict=True)
        found.metrics.rounds = [replace(each, target_seconds=own, seconds=own, **nothing) for each, own in rounds]
        found.metrics.seconds, found.metrics.prefill_seconds = sum(costs), 0.0
        return found

    monkeypatch.setattr(Decoder, "new_request", remembered)
    monkeypatch.setattr(Request, "generation", timed)


def idle(drafts: bool, rows: int) -> float:
    """Of a machine that does nothing else: a further row costs a twentieth of a pass."""
    return 0.01 * (1 + 0.05 * (rows - 1))
