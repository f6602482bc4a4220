"""Measures: prompts, ways of writing them by turns, what is kept of the texts, and numbers with intervals.

This door is empty on purpose: prompts and names of methods are read before torch is imported.

- `prompts`: prompt files; `prompt_form` and `prompt_encoding`: in which form they are asked.
- `method`: a drafter, a policy and a verifier by one specification; `method_decoders`: the decoders of methods.
- `reference`: transformers' own `generate` on the same weights.
- `inflation` and `shapes`: the function of a small target at the cost of a larger one.
- `run_store`: finished runs, from which an interrupted command goes on; `json_lines`: files written as they come.
- `doubt`: whether times tell a ratio at all.
"""
