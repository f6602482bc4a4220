"""The exact law of texts, written alone or together by the loop that serves, over all draws and decisions.

Texts are followed to their end: rounds without drafts, tokens that end a text, the last token, and what a batch decides
from the rounds of all its texts. Or some rounds of a text are followed, behind a history of rounds that was drawn once.
A verifier is lossless iff the texts, continued by the target where they have not ended, have the target's own law.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from drafttree.core.cost_curve import CostCurve
from drafttree.core.sampling import Sampling
from drafttree.engine.generation import Generation
from drafttree.evaluation.scripted_random import ScriptedRandom, outcomes
from drafttree.evaluation.toy_decoder import Reach, SteppedEngine, ToyDecoder
from drafttree.evaluation.toy_models import TOY_COSTS, Context, TabularModel
from drafttree.evaluation.toy_texts import Processor, drawn_prompt, next_scores, pair_name, toy_options
from drafttree.policies.base import TreePolicy
from drafttree.verifiers.base import Verifier


@dataclass(frozen=True)
class Texts:
    """Which texts are written, and how.

    Attributes:
        prompts: the prompt of each text.
        seeds: the seeds of the texts.
        length: tokens of a text at most.
        eos: token ids that end a text.
        batch: texts that an engine writes at once; None for one after the other, each alone.
        levels: the most levels of a tree.
        costs: costs of passes, for policies that weigh them.
        pause: rounds that drafting pauses for at first, where it may.
        is_head: whether the draft is taken for a head, as of `ToyDecoder`.
        processor: a logits processor of transformers' form, None for none.
        rounds: the number of rounds of one text that are followed, in place of a length; None to follow texts to their
            end.
        earlier: the number of rounds before these, which are drawn once; the law is the one given what they drew.
    """

    prompts: Sequence[Context] = ((0,),)
    seeds: Sequence[int] = (0,)
    length: int = 3
    eos: Context = ()
    batch: int | None = None
    levels: int = 3
    costs: CostCurve = TOY_COSTS
    pause: int = 0
    is_head: bool = False
    processor: Processor | None = None
    rounds: int | None = None
    earlier: int = 0

    def write(self, toy: ToyDecoder, options: Mapping[str, float]) -> list[Generation]:
        """The texts, by a decoder that has written none before."""
        if self.rounds is not None:
            return [toy.rounds(self.prompts[0], self.earlier + self.rounds, options).generation()]
        request_options: dict[str, Any] = {"max_new_tokens": self.length, "observer": toy, **options}
        if self.processor:
            request_options["logits_processor"] = [self.processor]
        seeded_prompts = [*zip(self.prompts, self.seeds, strict=True)]
        if self.batch is None:
            return [toy.generate([*prompt], seed=seed, **request_options) for prompt, seed in seeded_prompts]
        engine = SteppedEngine(toy, max_batch=self.batch)
        handles = [engine.submit([*prompt], seed=seed, **request_options) for prompt, seed in seeded_prompts]
        engine.run()
        return [handle.result() for handle in handles]

    def next_law(self, target: TabularModel, text: Context, sampling: Sampling) -> dict[int, float]:
        """The target's own law of the next token, behind a prompt and a part of a text."""
        probs = next_scores(target, text, sampling, self.processor).double().softmax(-1).tolist()
        return {token: probs[token] for token in target.tokens if token < target.vocab}

    def decoder(
        self,
        target: TabularModel,
        draft: TabularModel,
        policy: TreePolicy,
        verifier: type[Verifier],
        script: ScriptedRandom | None = None,
    ) -> ToyDecoder:
        """A new decoder for them."""
        settings: Any = {
            "costs": self.costs,
            "eos": self.eos,
            "script": script,
            "pause": self.pause,
            "is_head": self.is_head,
        }
        toy = ToyDecoder(target, draft, policy, verifier, self.levels, **settings)
        toy.reach = replace(toy.reach, texts=min(self.batch or 1, len(self.prompts)))
        return toy


@dataclass(frozen=True)
class TextLaw:
    """The exact law of texts.

    Attributes:
        texts: probability of every combination of texts, or of what the rounds have committed.
        total_variation: distance from the target's law. Texts of a batch are independent under it; of texts that are
            written alone, where equal seeds give equal numbers, each is compared by itself.
        expected_accepted: mean drafted tokens accepted in a round.
        lengths: probability of every number of drafted tokens that all texts have accepted.
        reach: how far texts were tried.
        outcomes: the number of combinations of draws and decisions.
    """

    texts: dict[tuple[Context, ...], float]
    total_variation: float
    expected_accepted: float
    lengths: dict[int, float]
    reach: Reach
    outcomes: int

    @property
    def committed(self) -> dict[Context, float]:
        """The law of the first text."""
        return _of_text(self.texts, 0)


def text_law(
    target: TabularModel,
    draft: TabularModel,
    policy: TreePolicy,
    verifier: type[Verifier],
    texts: Texts = Texts(),
    *,
    checked: bool = True,
    **sampling: float,
) -> TextLaw:
    """The exact law of texts of a verifier that draws.

    Args:
        target: the toy target.
        draft: the toy draft, of the same vocabulary or a smaller one.
        policy: how the tree grows.
        verifier: what is accepted.
        texts: which texts are written, and how.
        checked: refuse a pair that is not proven lossless; without it such a pair's bias can be looked at.
        **sampling: temperature (1), top_k, top_p, min_p and the other options of `Sampling` but its seed, and
            draft_temperature (1).

    Raises:
        ConfigError: the pair is refused or has more than 50,000 outcomes, the verifier accepts nodes that are no path
            or a bonus that is no token, or an argument is none.
    """
    options = toy_options(target, draft, policy, verifier, sampling, checked)
    history = ScriptedRandom([], random.Random(len(texts.prompts[0]) - 1))
    earlier_tokens: Context = ()
    if texts.earlier:
        toy = texts.decoder(target, draft, policy, verifier, history)
        (earlier_generation,) = replace(texts, earlier=0, rounds=texts.earlier).write(toy, options)
        earlier_tokens = tuple(earlier_generation.tokens)
    earlier_answers = [answer for answer, _ in history.choices]
    probabilities = dict[tuple[Context, ...], float]()
    lengths = dict[int, float]()
    expected_accepted = 0.0
    reach = Reach()
    count = 0

    def run(script: ScriptedRandom) -> tuple[ToyDecoder, list[Generation]]:
        toy = texts.decoder(target, draft, policy, verifier, script)
        return toy, texts.write(toy, options)

    for chance, (toy, generations) in outcomes(run, earlier_answers, pair_name(policy, verifier)):
        weight = chance / history.weight
        text = tuple(tuple(generation.tokens[len(earlier_tokens) :]) for generation in generations)
        rounds = [[turn.accepted for turn in generation.metrics.rounds[texts.earlier :]] for generation in generations]
        length = sum(map(sum, rounds))
        probabilities[text] = probabilities.get(text, 0.0) + weight
        lengths[length] = lengths.get(length, 0.0) + weight
        expected_accepted += weight * sum(sum(counts) / len(counts) for counts in rounds) / len(generations)
        reach |= toy.reach
        count += 1
    distance = _distance(target, texts, earlier_tokens, probabilities, Sampling.from_options(options))
    return TextLaw(probabilities, distance, expected_accepted, lengths, reach, count)


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
) -> TextLaw:
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
        checked: as for `text_law`.
        costs: costs of passes, for policies that weigh them.
        **sampling: as for `text_law`.

    Raises:
        ConfigError: as for `text_law`.
    """
    prompts = (drawn_prompt(target, position),)
    texts = Texts(prompts, levels=levels, costs=costs, rounds=rounds, earlier=earlier)
    return text_law(target, draft, policy, verifier, texts, checked=checked, **sampling)


def _distance(
    target: TabularModel,
    texts: Texts,
    drawn: Context,
    found: Mapping[tuple[Context, ...], float],
    sampling: Sampling,
) -> float:
    """Total variation between texts, behind what was drawn before, and the target's own."""
    target_laws = list[dict[Context, float]]()
    distances = list[float]()
    for index, prompt in enumerate(texts.prompts):
        cells = [*_cells(target, texts, (*prompt, *drawn), _of_text(found, index), sampling)]
        target_laws.append({text: chance for text, _, chance in cells})
        distances.append(_total_variation({text: weight for text, weight, _ in cells}, target_laws[-1]))
    return max(distances) if texts.batch is None else _total_variation(found, _independent(target_laws))


def _cells(
    target: TabularModel, texts: Texts, context: Context, found: Mapping[Context, float], sampling: Sampling
) -> Iterator[tuple[Context, float, float]]:
    """Beginnings of texts, of which each text has one, with their probability as found and under the target's law.

    A text that ends while others that begin alike go on has ended with its rounds: the target continues it.
    """
    followers: dict[Context, set[int]] = {}
    for text in found:
        for length, token in enumerate(text):
            followers.setdefault(text[:length], set()).add(token)

    def below(text: Context, weight: float, chance: float) -> Iterator[tuple[Context, float, float]]:
        if text not in followers:
            yield text, weight, chance
            return
        next_law = texts.next_law(target, (*context, *text), sampling)
        for token in next_law.keys() | followers[text]:
            continuation = (*text, token)
            share = next_law.get(token, 0.0)
            yield from below(continuation, weight * share + found.get(continuation, 0.0), chance * share)

    return below((), 0.0, 1.0)


def _of_text(found: Mapping[tuple[Context, ...], float], place: int) -> dict[Context, float]:
    """The law of one of the texts."""
    probabilities: dict[Context, float] = {}
    for texts, weight in found.items():
        probabilities[texts[place]] = probabilities.get(texts[place], 0.0) + weight
    return probabilities


def _total_variation(found: Mapping[Any, float], wanted: Mapping[Any, float]) -> float:
    return sum(abs(found.get(text, 0.0) - wanted.get(text, 0.0)) for text in found.keys() | wanted.keys()) / 2


def _independent(laws: Sequence[Mapping[Context, float]]) -> dict[tuple[Context, ...], float]:
    """The law of texts that have nothing to do with each other."""
    joint_law: dict[tuple[Context, ...], float] = {(): 1.0}
    for marginal in laws:
        joint_law = {
            (*texts, text): weight * marginal[text] for texts, weight in joint_law.items() for text in marginal
        }
    return joint_law
