"""The exact law of a policy with a verifier, through the decoder itself, over all draws and decisions, in float64.

Every random answer of some rounds of a text is enumerated (`ScriptedRandom`), wherever they begin and whatever came
before. A verifier is lossless iff the committed tokens, continued by the target, have the target's own law. Verifiers
whose noise is a function of seed and position, a continuum, have their texts compared with plain decoding instead.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from drafttree.core.cost_curve import CostCurve
from drafttree.core.errors import ConfigError, unknown
from drafttree.core.randomness import Randomness, gumbel
from drafttree.core.sampling import Sampling
from drafttree.core.tree import DraftTree
from drafttree.engine import compatibility
from drafttree.engine.request import Request
from drafttree.evaluation.scripted_random import ScriptedRandom, outcomes
from drafttree.evaluation.toy_decoder import Reach, ToyDecoder
from drafttree.evaluation.toy_models import TOY_COSTS, Context, TabularModel
from drafttree.policies.base import TreePolicy
from drafttree.verifiers.base import Verifier

OPTIONS = {field.name for field in fields(Sampling)} - {"seed"} | {"draft_temperature"}


@dataclass(frozen=True)
class RoundLaw:
    """The exact law of the rounds that were enumerated.

    Attributes:
        committed: probability of every tuple of committed tokens, bonus tokens included.
        total_variation: distance of the law they induce from the target's.
        expected_accepted: mean drafted tokens accepted in a round, the bonus not counted.
        lengths: probability of every number of tokens accepted in all rounds.
        reach: how far rounds were tried.
        outcomes: the number of combinations of draws and decisions.
    """

    committed: dict[Context, float]
    total_variation: float
    expected_accepted: float
    lengths: dict[int, float]
    reach: Reach
    outcomes: int


@dataclass(frozen=True)
class CoupledText:
    """A text and what it should be.

    Attributes:
        tokens: tokens of the text.
        plain: the tokens decoded one after the other with the same noise.
        expected_accepted: mean drafted tokens accepted in a round.
        reach: how far rounds were tried.
    """

    tokens: Context
    plain: Context
    expected_accepted: float
    reach: Reach


def law(
    target: TabularModel,
    draft: TabularModel,
    policy: TreePolicy,
    verifier: type[Verifier],
    *,
    levels: int = 3,
    rounds: int = 1,
    earlier: int = 0,
    position: int = 0,
    checked: bool = True,
    costs: CostCurve = TOY_COSTS,
    **sampling: float,
) -> RoundLaw:
    """The exact law of some rounds of a text, by a policy and a verifier.

    Args:
        target: the toy target.
        draft: the toy draft, of the same vocabulary.
        policy: how the tree grows.
        verifier: what is accepted.
        levels: the tree is no deeper.
        rounds: the number of rounds that are enumerated, with all their combinations.
        earlier: rounds before them, drawn once; the law is the one given what they drew and committed.
        position: the position of the first root; the prompt is drawn, too.
        checked: refuse a pair that is not proven lossless; without it such a pair's bias can be looked at.
        costs: costs of passes, for policies that weigh them.
        **sampling: temperature (1), top_k, top_p, min_p and the other options of `Sampling` but its seed, and
            draft_temperature (1).

    Raises:
        ConfigError: the pair is refused or has more than 50,000 outcomes, the verifier accepts nodes that are no path
            or a bonus that is no token, or an argument is none.
    """
    options = toy_options(target, draft, policy, verifier, sampling, checked)
    history, prompt = ScriptedRandom([], random.Random(position)), drawn_prompt(target, position)
    toy = ToyDecoder(target, draft, policy, verifier, levels, costs=costs, script=history)
    context = tuple(toy.rounds(prompt, earlier, options).tokens)
    given = [answer for answer, _ in history.choices]
    committed: dict[Context, float] = {}
    accepted: dict[int, float] = {}
    count = 0

    def run(script: ScriptedRandom) -> Request:
        toy.script = script
        return toy.rounds(prompt, earlier + rounds, options)

    for weight, request in outcomes(run, given, pair_name(policy, verifier)):
        tokens, drafted = tuple(request.tokens[len(context) :]), sum(request.drafted[len(context) - len(prompt) :])
        count += 1
        committed[tokens] = committed.get(tokens, 0.0) + weight / history.weight
        accepted[drafted] = accepted.get(drafted, 0.0) + weight / history.weight
    return RoundLaw(
        committed=committed,
        total_variation=_distance(committed, target, context[1:], Sampling.from_options(options)),
        expected_accepted=sum(count * weight for count, weight in accepted.items()) / rounds,
        lengths=accepted,
        reach=toy.reach,
        outcomes=count,
    )


def pair_name(policy: TreePolicy, verifier: type[Verifier]) -> str:
    """A pair in messages."""
    return f"{type(policy).__name__} with {verifier.__name__}"


def toy_options(
    target: TabularModel,
    draft: TabularModel,
    policy: TreePolicy,
    verifier: type[Verifier],
    sampling: Mapping[str, float],
    checked: bool = True,
) -> dict[str, Any]:
    """Check the arguments of `law`; the options of its requests but the seed."""
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
    """Random tokens up to a position."""
    return tuple(random.Random(position).choices(target.tokens, k=position + 1))


def trees(
    draft: TabularModel, policy: TreePolicy, verifier: type[Verifier], levels: int = 3
) -> Iterator[tuple[float, DraftTree]]:
    """Every tree a policy grows for a verifier, with its probability; one tree where children are selected."""
    return outcomes(lambda randomness: toy_tree(draft, policy, verifier, randomness, levels))


def toy_tree(
    draft: TabularModel, policy: TreePolicy, verifier: type[Verifier], randomness: Randomness, levels: int
) -> DraftTree:
    """The tree a policy grows for a verifier with this randomness, below a root at position 0."""
    toy = ToyDecoder(draft, draft, policy, verifier, levels)
    request = toy.rounds((0,), 0, {"temperature": 1.0, "seed": 0})
    request.randomness = randomness
    (tree,) = toy.loop.trees.draft([request]).trees
    return tree


Processor = Callable[[Tensor, Tensor], Tensor]
"""A logits processor of transformers' form."""


def processed(target: TabularModel, text: Sequence[int], sampling: Sampling, processor: Processor | None) -> Tensor:
    """The target's scores `[vocab]` behind a text, prompt included, as a token is drawn by them."""
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
) -> tuple[int, ...]:
    """The text after a prompt, token after token by the noise of the seed, up to a token of `eos`."""
    text = list(prompt)
    while len(text) < len(prompt) + length and (len(text) == len(prompt) or text[-1] not in eos):
        scores = processed(target, text, sampling, processor)
        if not sampling.greedy:
            scores = scores + gumbel(sampling.seed, torch.tensor(len(text)), target.vocab)
        text.append(int(scores.argmax()))
    return tuple(text[len(prompt) :])


def _distance(committed: Mapping[Context, float], target: TabularModel, context: Context, sampling: Sampling) -> float:
    """Total variation between committed tokens, continued by the target to the same length, and the target's text."""
    followers: dict[Context, set[int]] = {}
    for tokens in committed:
        for length, token in enumerate(tokens):
            followers.setdefault(tokens[:length], set()).add(token)

    def below(tokens: Context, found: float, wanted: float) -> float:
        if tokens not in followers:
            return abs(found - wanted)
        law = target.law((*context, *tokens), sampling)
        total = 0.0
        for token in law.keys() | followers[tokens]:
            text, chance = (*tokens, token), law.get(token, 0.0)
            total += below(text, found * chance + committed.get(text, 0.0), wanted * chance)
        return total

    return below((), 0.0, 1.0) / 2
