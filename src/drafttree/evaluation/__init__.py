"""Checks a decoder and chooses what is fastest: certificates, exact enumeration, comparisons, tuning and traces.

This door is empty on purpose: `import drafttree` needs `exactness` alone, and the rest is imported by those who use it.

- `certify`: is a policy's text the reference's, token for token?
- `exactness` and `pair_sweep`: the exact law of a verifier, by enumeration.
- `compare`: one prompt speculatively, plainly and by transformers.
- `tune`: the drafter and the policy that write given prompts fastest.
- `trace`: what the draft trees of a text did, round by round.
"""
