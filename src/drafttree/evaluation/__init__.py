"""Checks a decoder and chooses what is fastest: certificates, exact enumeration, comparisons, tuning and traces.

This package exports nothing: import the modules. `drafttree.exactness` holds the public names of the enumeration.

- `certify`: is a policy's text the reference's, token for token?
- `live_certificate`: do the texts of a user's own policy and verifier follow the target's distribution? A test by bets
  on their tokens.
- `text_law` and `pair_sweep`: the exact law of a verifier, by enumeration.
- `compare`: the text of one prompt, generated with drafts, without drafts and by transformers.
- `tune`: the drafter and the policy that write given prompts fastest.
- `trace`: what the draft trees of a text did, round by round.
"""
