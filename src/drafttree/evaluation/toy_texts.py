"""Texts of toy models: their options, and plain texts token after token."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from drafttree.core.errors import ConfigError, unknown
from drafttree.core.randomness import Randomness, gumbel
from drafttree.core.sampling import Sampling
from drafttree.core.tree import DraftTree
from drafttree.engine import compatibility
from drafttree.evaluation.scripted_random import outcomes
from drafttree.evaluation.toy_decoder import ToyDecoder
from drafttree.evaluation.toy_models import Context, TabularModel
from drafttree.policies.base import TreePolicy
from drafttree.verifiers.base import Verifier

OPTIONS = {field.name for field in fields(Sampling)} - {"seed"} | {"draft_temperature"}

Processor = Callable[[Tensor, Tensor], Tensor]
"""A logits processor of transformers' form."""


def pair_name(policy: TreePolicy, verifier: type[Verifier]) -> str:
    """The name of a pair in messages."""
    return f"{type(policy).__name__} with {verifier.__name__}"


def toy_options(
    target: TabularModel,
    draft: TabularModel,
    policy: TreePolicy,
    verifier: type[Verifier],
    sampling: Mapping[str, float],
    checked: bool = True,
) -> dict[str, Any]:
    """Check the arguments of `text_law`; return the options of its requests, without the seed.

    Raises:
        ConfigError: an argument is invalid or the pair is refused.
    """
    if not isinstance(policy, TreePolicy):
        raise ConfigError(f"the policy is {policy!r}; give a TreePolicy, such as Chain(depth=2)")
    if not isinstance(verifier, type) or not issubclass(verifier, Verifier):
        raise ConfigError(f"the verifier is {verifier!r}; give a class, such as drafttree.verifiers.Traversal")
    if draft.vocab > target.vocab:
        raise ConfigError(f"the target has {target.vocab} tokens, the draft {draft.vocab}; it may not have more")
    if checked:
        compatibility.check(policy, verifier)
    for name in sampling:
        if name not in OPTIONS:
            raise unknown("option", name, OPTIONS)
    return {"temperature": 1.0, **sampling}


def drawn_prompt(target: TabularModel, position: int) -> Context:
    """A prompt of random tokens, whose last one is at this position; the same for every call."""
    return tuple(random.Random(position).choices(target.tokens, k=position + 1))


def next_scores(target: TabularModel, text: Sequence[int], sampling: Sampling, processor: Processor | None) -> Tensor:
    """The target's `[vocab]` scores for drawing the token after a text, which includes its prompt."""
    logits = target.logits(tuple(text[1:]))
    if processor:
        logits = processor(torch.tensor([text]), logits[None])[0]
    return sampling.process(logits)


def plain_text(
    target: TabularModel,
    prompt: Context,
    length: int,
    sampling: Sampling,
    eos: Context = (),
    processor: Processor | None = None,
) -> Context:
    """Write a text token after token, with the noise of the seed, up to a token of `eos`."""
    text = list(prompt)
    while len(text) < len(prompt) + length and (len(text) == len(prompt) or text[-1] not in eos):
        scores = next_scores(target, text, sampling, processor)
        if not sampling.greedy:
            scores = scores + gumbel(sampling.seed, torch.tensor(len(text)), target.vocab)
        text.append(int(scores.argmax()))
    return tuple(text[len(prompt) :])


def trees(
    draft: TabularModel, policy: TreePolicy, verifier: type[Verifier], levels: int = 3
) -> Iterator[tuple[float, DraftTree]]:
    """Every tree that a policy grows for a verifier, with its probability; a single tree if children are selected."""
    return outcomes(lambda randomness: toy_tree(draft, policy, verifier, randomness, levels))


def toy_tree(
    draft: TabularModel, policy: TreePolicy, verifier: type[Verifier], randomness: Randomness, levels: int
) -> DraftTree:
    """The tree that a policy grows for a verifier with this randomness, below a root at position 0."""
    toy = _GivenRandomness(draft, draft, policy, verifier, levels)
    toy.given = randomness
    request = toy.write_rounds((0,), 0, {"temperature": 1.0, "seed": 0})
    (tree,) = toy.loop.trees.draft([request]).trees
    return tree


class _GivenRandomness(ToyDecoder):
    """Writes texts with given random numbers."""

    given: Randomness

    def randomness(self, seed: int) -> Randomness:
        return self.given
