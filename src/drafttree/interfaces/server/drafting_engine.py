"""The engine of the playground, which drafts in every round, whether or not that pays."""

from drafttree.core.tree import Proposal
from drafttree.engine.batching import Engine
from drafttree.engine.compatibility import incompatibility
from drafttree.engine.decoder import Decoder
from drafttree.engine.drafting.measure import TRIAL_COSTS
from drafttree.loading.specs import default_policy
from drafttree.policies import Chain, TreePolicy

MAX_BATCH = 4
"""Texts of the playground that are written at once: each takes a place beside those of the server."""


def drafting_engine(decoder: Decoder) -> Engine:
    """An engine beside the server's, over the same target and drafter; drafting costs nothing by its costs.

    Its budget is one that no tree can exceed, so none is cut. Trees whose children are drawn have no budget, and of
    those it leaves out some rounds, to know what a plain one costs.
    """
    decoder = decoder.with_policy(drafting_policy(decoder)).with_costs(TRIAL_COSTS)
    draws_children = decoder.verifier is not None and decoder.verifier.proposal is not Proposal.TOP_K
    return Engine(decoder, max_batch=MAX_BATCH, budget=None if draws_children else max(decoder.policy.budget - 1, 1))


def drafting_policy(decoder: Decoder) -> TreePolicy:
    """The policy of a decoder, or the one in its place where that may draft nothing, since it weighs costs."""
    if not decoder.policy.uses_costs:
        return decoder.policy
    fallback_policy = default_policy(decoder.verifier, decoder.drafter, sharded=True)
    return Chain() if decoder.verifier and incompatibility(fallback_policy, decoder.verifier) else fallback_policy
