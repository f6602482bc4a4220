"""The engine of the playground, which drafts in every round, even if that does not pay."""

from drafttree.core.tree import Proposal
from drafttree.engine.batching import Engine
from drafttree.engine.compatibility import incompatibility
from drafttree.engine.decoder import Decoder
from drafttree.engine.drafting.measure import TRIAL_COSTS
from drafttree.loading.specs import default_policy
from drafttree.policies import Chain, TreePolicy

MAX_BATCH = 4
"""The most texts of the playground at once, in addition to those of the server."""


def drafting_engine(decoder: Decoder) -> Engine:
    """A second engine with the server's target and drafter, and with costs that make drafting free.

    Its budget is so large that no tree is cut. For verifiers that draw children, there is no budget, and the engine
    skips drafts in some rounds to measure plain ones.
    """
    decoder = decoder.with_policy(drafting_policy(decoder)).with_costs(TRIAL_COSTS)
    draws_children = decoder.verifier is not None and decoder.verifier.proposal is not Proposal.TOP_K
    return Engine(decoder, max_batch=MAX_BATCH, budget=None if draws_children else max(decoder.policy.budget - 1, 1))


def drafting_policy(decoder: Decoder) -> TreePolicy:
    """The decoder's policy; if that uses costs, and so may draft nothing, a policy that does not."""
    if not decoder.policy.uses_costs:
        return decoder.policy
    fallback_policy = default_policy(decoder.verifier, decoder.drafter, sharded=True)
    return Chain() if decoder.verifier and incompatibility(fallback_policy, decoder.verifier) else fallback_policy
