"""The exact law of whole texts, written alone or together by the loop that serves, over all draws and decisions.

Where `exactness.law` enumerates some rounds in the middle of a text, this follows texts to their end: rounds without
drafts, tokens that end a text, the last token, and what a batch decides from the rounds of all its texts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from drafttree.core.cost_curve import CostCurve
from drafttree.core.sampling import Sampling
from drafttree.engine.generation import Generation
from drafttree.evaluation.exactness import (
    CoupledText,
    Processor,
    drawn_prompt,
    pair_name,
    plain_text,
    processed,
    toy_options,
)
from drafttree.evaluation.scripted_random import ScriptedRandom, outcomes
from drafttree.evaluation.toy_decoder import Reach, SteppedEngine, ToyDecoder
from drafttree.evaluation.toy_models import TOY_COSTS, Context, TabularModel
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

    def write(self, toy: ToyDecoder, options: Mapping[str, float]) -> list[Generation]:
        """The texts, by a decoder that has written none before."""
        shared: dict[str, Any] = {"max_new_tokens": self.length, "observer": toy, **options}
        if self.processor:
            shared["logits_processor"] = [self.processor]
        pairs = [*zip(self.prompts, self.seeds, strict=True)]
        if self.batch is None:
            return [toy.generate([*prompt], seed=seed, **shared) for prompt, seed in pairs]
        engine = SteppedEngine(toy, max_batch=self.batch)
        handles = [engine.submit([*prompt], seed=seed, **shared) for prompt, seed in pairs]
        engine.run()
        return [handle.result() for handle in handles]

    def next_law(self, target: TabularModel, text: Context, sampling: Sampling) -> dict[int, float]:
        """The target's own law of the next token, behind a prompt and a part of a text."""
        probs = processed(target, text, sampling, self.processor).double().softmax(-1).tolist()
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
        given: Any = {
            "costs": self.costs,
            "eos": self.eos,
            "script": script,
            "pause": self.pause,
            "is_head": self.is_head,
        }
        toy = ToyDecoder(target, draft, policy, verifier, self.levels, **given)
        toy.reach = replace(toy.reach, texts=min(self.batch or 1, len(self.prompts)))
        return toy


@dataclass(frozen=True)
class TextLaw:
    """The exact law of texts.

    Attributes:
        texts: probability of every combination of texts.
        total_variation: distance from the target's law. Texts of a batch are independent under it; of texts that are
            written alone, where equal seeds give equal numbers, each is compared by itself.
        expected_accepted: mean drafted tokens accepted in a round.
        reach: how far texts were tried.
        outcomes: the number of combinations of draws and decisions.
    """

    texts: dict[tuple[Context, ...], float]
    total_variation: float
    expected_accepted: float
    reach: Reach
    outcomes: int


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
        ConfigError: as for `exactness.law`.
    """
    options = toy_options(target, draft, policy, verifier, sampling, checked)
    found: dict[tuple[Context, ...], float] = {}
    accepted, reach, count = 0.0, Reach(), 0

    def run(script: ScriptedRandom) -> tuple[ToyDecoder, list[Generation]]:
        toy = texts.decoder(target, draft, policy, verifier, script)
        return toy, texts.write(toy, options)

    for weight, (toy, written) in outcomes(run, what=pair_name(policy, verifier)):
        text = tuple(tuple(each.tokens) for each in written)
        found[text] = found.get(text, 0.0) + weight
        accepted += weight * sum(each.metrics.mean_path_length for each in written) / len(written)
        reach, count = reach | toy.reach, count + 1
    laws = [_law(target, prompt, texts, Sampling.from_options(options)) for prompt in texts.prompts]
    if texts.batch is None:
        distance = max(_distance(_of_text(found, place), law) for place, law in enumerate(laws))
    else:
        distance = _distance(found, _independent(laws))
    return TextLaw(found, distance, accepted, reach, count)


def coupled_texts(
    target: TabularModel,
    draft: TabularModel,
    policy: TreePolicy,
    verifier: type[Verifier],
    texts: Texts,
    **sampling: float,
) -> list[CoupledText]:
    """Texts of a verifier whose draws are a function of seed and position, each beside the plain one of its seed.

    Args and raises as for `text_law`.
    """
    options = toy_options(target, draft, policy, verifier, sampling)
    toy = texts.decoder(target, draft, policy, verifier)
    plain = [
        plain_text(
            target, prompt, texts.length, Sampling.from_options(options | {"seed": seed}), texts.eos, texts.processor
        )
        for prompt, seed in zip(texts.prompts, texts.seeds, strict=True)
    ]
    return [
        CoupledText(tuple(each.tokens), own, each.metrics.mean_path_length, toy.reach)
        for each, own in zip(texts.write(toy, options), plain, strict=True)
    ]


def coupled_text(
    target: TabularModel,
    draft: TabularModel,
    policy: TreePolicy,
    verifier: type[Verifier],
    *,
    seed: int = 0,
    levels: int = 3,
    length: int = 24,
    position: int = 0,
    **sampling: float,
) -> CoupledText:
    """A text, and the one decoded token after token with the same noise.

    For verifiers whose draws are a function of seed and position: the noise is a continuum that cannot be enumerated,
    and need not be. If the two agree whatever the noise, a text has the law of plain decoding, in which each token is
    the argmax of logits and Gumbel noise and so follows the target.

    Args:
        target: the toy target.
        draft: the toy draft, of the same vocabulary.
        policy: how the tree grows.
        verifier: what is accepted.
        seed: the seed of the noise.
        levels: the tree is no deeper.
        length: tokens of the text.
        position: the position of the first root; the prompt is drawn.
        **sampling: temperature (1), top_k, top_p, min_p and the other options of `Sampling` but its seed, and
            draft_temperature (1).

    Raises:
        ConfigError: as for `law`.
    """
    texts = Texts([drawn_prompt(target, position)], [seed], length, levels=levels)
    return coupled_texts(target, draft, policy, verifier, texts, **sampling)[0]


def _law(target: TabularModel, prompt: Context, texts: Texts, sampling: Sampling) -> dict[Context, float]:
    """The target's own law of a text."""
    law, going = dict[Context, float](), {(): 1.0}
    for length in range(1, texts.length + 1):
        longer = {
            (*text, token): weight * chance
            for text, weight in going.items()
            for token, chance in texts.next_law(target, (*prompt, *text), sampling).items()
        }
        ended = {text for text in longer if length == texts.length or text[-1] in texts.eos}
        law |= {text: longer[text] for text in ended}
        going = {text: weight for text, weight in longer.items() if text not in ended}
    return law


def _of_text(found: Mapping[tuple[Context, ...], float], place: int) -> dict[Context, float]:
    """The law of one of the texts."""
    law: dict[Context, float] = {}
    for texts, weight in found.items():
        law[texts[place]] = law.get(texts[place], 0.0) + weight
    return law


def _distance(found: Mapping[Any, float], wanted: Mapping[Any, float]) -> float:
    """Total variation between two laws."""
    return sum(abs(found.get(each, 0.0) - wanted.get(each, 0.0)) for each in found.keys() | wanted.keys()) / 2


def _independent(laws: Sequence[Mapping[Context, float]]) -> dict[tuple[Context, ...], float]:
    """The law of texts that have nothing to do with each other."""
    joint: dict[tuple[Context, ...], float] = {(): 1.0}
    for law in laws:
        joint = {(*texts, own): weight * chance for texts, weight in joint.items() for own, chance in law.items()}
    return joint
