"""The engine of the playground, which drafts in every round, whether or not that pays."""

from threading import Lock
from typing import Any

from drafttree.core.tree import Proposal
from drafttree.engine.batching import Engine, Handle
from drafttree.engine.compatibility import incompatibility
from drafttree.engine.decoder import Decoder
from drafttree.engine.drafting.measure import TRIAL_COSTS
from drafttree.engine.metrics import EngineMetrics
from drafttree.engine.prompt import Prompt
from drafttree.loading.specs import default_policy
from drafttree.policies import Chain, TreePolicy

MAX_BATCH = 4
"""Texts of the playground that are written at once: each takes a place beside those of the server."""


class DraftingEngine:
    """An engine beside the server's, over the same target and drafter; it is made when the first text asks for it.

    Args:
        decoder: the decoder that is served.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._engine: Engine | None = None
        self._lock = Lock()

    def submit(self, prompt: Prompt, **options: Any) -> Handle:
        """As `Engine.submit`."""
        with self._lock:
            if self._engine is None:
                decoder = always_drafting(self._decoder)
                self._engine = Engine(decoder, max_batch=MAX_BATCH, budget=_budget(decoder))
        return self._engine.submit(prompt, **options)

    @property
    def metrics(self) -> EngineMetrics:
        """What it has done so far."""
        return self._engine.metrics if self._engine else EngineMetrics()

    def close(self) -> None:
        """End the engine if there is one."""
        with self._lock:
            if self._engine:
                self._engine.close()


def always_drafting(decoder: Decoder) -> Decoder:
    """The decoder with a policy that drafts in every round; drafting costs nothing by its costs, so none is left out.

    An engine cuts no trees by a budget that they cannot exceed. Trees whose children are drawn have no budget, and of
    those it leaves out some rounds, to know what a plain one costs.
    """
    return decoder.with_policy(drafting_policy(decoder)).with_costs(TRIAL_COSTS)


def drafting_policy(decoder: Decoder) -> TreePolicy:
    """The policy of a decoder, or the one in its place where that may draft nothing, since it weighs costs."""
    if not decoder.policy.uses_costs:
        return decoder.policy
    found = default_policy(decoder.verifier, decoder.drafter, sharded=True)
    return Chain() if decoder.verifier and incompatibility(found, decoder.verifier) else found


def _budget(decoder: Decoder) -> int | None:
    """The drafted nodes that the trees of a decoder have at most; None where they may not be cut."""
    drawn = decoder.verifier is not None and decoder.verifier.proposal is not Proposal.TOP_K
    return None if drawn else max(decoder.policy.budget - 1, 1)
