"""Compares texts of verifiers whose draws are a function of seed and position with those of plain decoding.

Their noise is continuous, so it cannot be enumerated, and need not be. In plain decoding, each token is the argmax of
logits plus Gumbel noise, and so follows the target. A text that equals plain decoding's for every noise has its law.
"""

from dataclasses import dataclass

from drafttree.core.sampling import Sampling
from drafttree.evaluation.text_law import Texts
from drafttree.evaluation.toy_decoder import Reach
from drafttree.evaluation.toy_models import Context, TabularModel
from drafttree.evaluation.toy_texts import drawn_prompt, plain_text, toy_options
from drafttree.policies.base import TreePolicy
from drafttree.verifiers.base import Verifier


@dataclass(frozen=True)
class CoupledText:
    """A text, and the one that it should equal.

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


def coupled_texts(
    target: TabularModel,
    draft: TabularModel,
    policy: TreePolicy,
    verifier: type[Verifier],
    texts: Texts,
    **sampling: float,
) -> list[CoupledText]:
    """Texts of a verifier whose draws are a function of seed and position, each with the plain text of its seed.

    Arguments and errors as for `text_law.text_law`.
    """
    options = toy_options(target, draft, policy, verifier, sampling)
    toy = texts.decoder(target, draft, policy, verifier)
    plain_texts = [
        plain_text(
            target, prompt, texts.length, Sampling.from_options(options | {"seed": seed}), texts.eos, texts.processor
        )
        for prompt, seed in zip(texts.prompts, texts.seeds, strict=True)
    ]
    return [
        CoupledText(tuple(generation.tokens), plain_tokens, generation.metrics.mean_path_length, toy.reach)
        for generation, plain_tokens in zip(texts.write(toy, options), plain_texts, strict=True)
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
    """A text of a drawn prompt, with the one decoded token after token with the same noise.

    Args:
        target: the toy target.
        draft: the toy draft, of the same vocabulary.
        policy: how the tree grows.
        verifier: what is accepted.
        seed: the seed of the noise.
        levels: maximum number of levels of a tree.
        length: tokens of the text.
        position: the position of the first root; the prompt is drawn.
        **sampling: as for `text_law.text_law`.

    Raises:
        ConfigError: as for `text_law.text_law`.
    """
    texts = Texts([drawn_prompt(target, position)], [seed], length, levels=levels)
    return coupled_texts(target, draft, policy, verifier, texts, **sampling)[0]
