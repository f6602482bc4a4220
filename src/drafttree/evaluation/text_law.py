"""The exact law of texts: every draw and decision of the loop that serves is enumerated, for texts alone or in a batch.

Whole texts are enumerated, or only some rounds of one text, after earlier rounds that were drawn once. Whole texts
cover rounds without drafts, tokens that end a text, the last token, and what a batch decides from all its texts. A
verifier is lossless iff the texts have the target's own law; texts that have not ended are continued by the target.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

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
        length: maximum number of tokens of a text.
        eos: token ids that end a text.
        batch: texts that an engine writes at once; None to write each alone, one after the other.
        levels: maximum number of levels of a tree.
        costs: costs of passes, for policies that weigh them.
        pause: rounds without drafts at the beginning of a text, if drafting may pause.
        is_head: whether the draft is treated as a head, whose test then decides whether it drafts.
        processor: a logits processor as in transformers, or None.
        rounds: number of rounds of one text to enumerate, instead of texts of `length` tokens; None for whole texts.
        earlier: number of rounds before these, which are drawn once; the law is conditional on their outcome.
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
        """Write the texts with `toy`, which must be a new decoder."""
        if self.rounds is not None:
            return [toy.write_rounds(self.prompts[0], self.earlier + self.rounds, options).generation()]
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
        """The target's own law of the next token after a prompt and the beginning of a text."""
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
        """A new decoder for the texts; its random numbers are answered by the script if there is one."""
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
        texts: the probability of every combination of texts or, if rounds are enumerated, of their committed tokens.
        total_variation: distance from the target's law. Texts of a batch are compared together, as independent texts.
            Texts written alone are compared each by itself, since equal seeds give equal numbers; the largest distance
            counts.
        expected_accepted: mean drafted tokens accepted in a round.
        lengths: the probability of every number of drafted tokens that all texts together accepted.
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
        return _marginal(self.texts, 0)


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
    """The exact law of the texts of a verifier that draws tokens.

    Args:
        target: the toy target.
        draft: the toy draft, of the same vocabulary or a smaller one.
        policy: how the tree grows.
        verifier: what is accepted.
        texts: which texts are written, and how.
        checked: whether a pair that is not proven lossless is refused; False allows one to measure its bias.
        **sampling: the options of `Sampling` except its seed, and draft_temperature; both temperatures are 1 unless
            given.

    Raises:
        ConfigError: an argument is invalid; the pair is refused or has more than 50,000 outcomes; or the verifier
            accepts nodes that are not a path, or a bonus that is not a token.
    """
    options = toy_options(target, draft, policy, verifier, sampling, checked)
    new_decoder = partial(texts.decoder, target, draft, policy, verifier)
    history = _drawn_history(texts, new_decoder, options)

    def run(script: ScriptedRandom) -> tuple[ToyDecoder, list[Generation]]:
        toy = new_decoder(script)
        return toy, texts.write(toy, options)

    tally = _Tally(texts.earlier, len(history.tokens))
    for chance, (toy, generations) in outcomes(run, history.answers, pair_name(policy, verifier)):
        tally.add(chance / history.chance, generations, toy.reach)
    distance = _distance(target, texts, history.tokens, tally.probabilities, Sampling.from_options(options))
    return TextLaw(
        tally.probabilities, distance, tally.expected_accepted, tally.lengths, tally.reach, tally.outcome_count
    )


class _History(NamedTuple):
    """What the earlier rounds of a text drew.

    Attributes:
        tokens: the tokens that they committed.
        answers: the answers of their randomness, as `outcomes` takes them.
        chance: the probability of these answers.
    """

    tokens: Context
    answers: list[int]
    chance: float


def _drawn_history(
    texts: Texts, new_decoder: Callable[[ScriptedRandom], ToyDecoder], options: Mapping[str, float]
) -> _History:
    """Draw the earlier rounds of a text, if there are any; equal `texts` always give the same history."""
    script = ScriptedRandom([], random.Random(len(texts.prompts[0]) - 1))
    tokens: Context = ()
    if texts.earlier:
        (generation,) = replace(texts, earlier=0, rounds=texts.earlier).write(new_decoder(script), options)
        tokens = tuple(generation.tokens)
    return _History(tokens, [answer for answer, _ in script.choices], script.weight)


class _Tally:
    """Sums up the outcomes of texts to their law.

    Args:
        earlier_rounds: number of rounds at the beginning of each text that are not counted.
        earlier_tokens: number of tokens that these rounds committed.

    Attributes:
        probabilities: as of `TextLaw.texts`; the others as of `TextLaw`.
        outcome_count: outcomes so far.
    """

    def __init__(self, earlier_rounds: int, earlier_tokens: int) -> None:
        self._earlier_rounds = earlier_rounds
        self._earlier_tokens = earlier_tokens
        self.probabilities = dict[tuple[Context, ...], float]()
        self.lengths = dict[int, float]()
        self.expected_accepted = 0.0
        self.reach = Reach()
        self.outcome_count = 0

    def add(self, weight: float, generations: Sequence[Generation], reach: Reach) -> None:
        """Add an outcome with its probability."""
        text = tuple(tuple(generation.tokens[self._earlier_tokens :]) for generation in generations)
        length = 0
        mean_counts = list[float]()
        for generation in generations:
            accepted_counts = [text_round.accepted for text_round in generation.metrics.rounds[self._earlier_rounds :]]
            length += sum(accepted_counts)
            mean_counts.append(sum(accepted_counts) / len(accepted_counts))
        self.probabilities[text] = self.probabilities.get(text, 0.0) + weight
        self.lengths[length] = self.lengths.get(length, 0.0) + weight
        self.expected_accepted += weight * sum(mean_counts) / len(generations)
        self.reach |= reach
        self.outcome_count += 1


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
    """The exact law of some rounds of a text that a policy and a verifier write.

    Args:
        target: the toy target.
        draft: the toy draft, of the same vocabulary.
        policy: how the tree grows.
        verifier: what is accepted.
        levels: maximum number of levels of a tree.
        rounds: number of rounds to enumerate, with all their combinations.
        earlier: number of rounds before them, which are drawn once; the law is conditional on their outcome.
        position: the position of the first root; the prompt up to it is drawn.
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
    earlier_tokens: Context,
    probabilities: Mapping[tuple[Context, ...], float],
    sampling: Sampling,
) -> float:
    """Total variation between the enumerated law of texts and the target's own law, given `earlier_tokens`."""
    target_laws = list[dict[Context, float]]()
    distances = list[float]()
    for index, prompt in enumerate(texts.prompts):
        cells = [*_cells(target, texts, (*prompt, *earlier_tokens), _marginal(probabilities, index), sampling)]
        target_laws.append({text: chance for text, _, chance in cells})
        distances.append(_total_variation({text: weight for text, weight, _ in cells}, target_laws[-1]))
    return max(distances) if texts.batch is None else _total_variation(probabilities, _independent(target_laws))


def _cells(
    target: TabularModel, texts: Texts, context: Context, probabilities: Mapping[Context, float], sampling: Sampling
) -> Iterator[tuple[Context, float, float]]:
    """Prefixes of texts, with their enumerated probability and that under the target's law.

    Every text has exactly one of these prefixes. If other texts continue a text, only its rounds have ended, so the
    target continues it.
    """
    followers: dict[Context, set[int]] = {}
    for text in probabilities:
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
            yield from below(continuation, weight * share + probabilities.get(continuation, 0.0), chance * share)

    return below((), 0.0, 1.0)


def _marginal(probabilities: Mapping[tuple[Context, ...], float], index: int) -> dict[Context, float]:
    """The law of the text at this index, from the law of all texts together."""
    text_probabilities: dict[Context, float] = {}
    for texts, weight in probabilities.items():
        text = texts[index]
        text_probabilities[text] = text_probabilities.get(text, 0.0) + weight
    return text_probabilities


def _total_variation(probabilities: Mapping[Any, float], target_probabilities: Mapping[Any, float]) -> float:
    texts = probabilities.keys() | target_probabilities.keys()
    return sum(abs(probabilities.get(text, 0.0) - target_probabilities.get(text, 0.0)) for text in texts) / 2


def _independent(laws: Sequence[Mapping[Context, float]]) -> dict[tuple[Context, ...], float]:
    """The joint law of independent texts, by their laws."""
    joint_law: dict[tuple[Context, ...], float] = {(): 1.0}
    for marginal in laws:
        joint_law = {
            (*texts, text): weight * marginal[text] for texts, weight in joint_law.items() for text in marginal
        }
    return joint_law
