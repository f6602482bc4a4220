"""Checks and measures a decoder: certificates, exact enumeration, reference runs, tuning and traces.

This door is empty on purpose: `import drafttree` needs `exactness` alone, and the rest is imported by those who use it.

- `certify`: is a policy's text the reference's, token for token?
- `exactness` and `pair_sweep`: the exact law of a verifier, by enumeration.
- `reference`: transformers' own `generate` on the same weights.
- `prompts`: prompt files; `prompt_form` and `prompt_encoding`: in which form they are asked.
- `method`: a drafter, a policy and a verifier by one specification; `method_decoders`: the decoders of methods.
- `text_record`: what is kept of a single text.
- `json_lines`: files of results that are written as they come.
- `run_store`: finished runs, from which an interrupted command goes on.
- `compare`: one prompt speculatively, plainly and by transformers; `estimate`: means and their intervals.
- `inflation` and `shapes`: the function of a small target at the cost of a larger one.
- `tune`: the drafter and the policy that write given prompts fastest.
- `trace`: what the draft trees of a text did, round by round.
"""
