"""One architecture: its texts with trees compared with those of transformers alone, on a small random model."""

import io
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, pairwise
from operator import attrgetter, itemgetter
from typing import Any

import torch
from transformers import PreTrainedModel

from drafttree.core.errors import DraftTreeError
from drafttree.engine.decoder import Decoder
from drafttree.engine.generation import Generation
from drafttree.engine.metrics import Metrics
from drafttree.loading import make_policy
from drafttree.loading.load import load
from drafttree.measure.reference import find_difference
from drafttree_lab.support.random_models import popular_model, random_model
from drafttree_lab.support.scripted_drafter import ScriptedDrafter
from drafttree_lab.support.small_configs import VOCAB

POLICIES = {"chain": "chain", "dynatree": "dynatree", "talon": "talon", "template": "template:tree=binary-4"}
PROMPT_LENGTHS = (3, 21, 45)
"""The small models' windows have 8 tokens, so two prompts are longer than those and all texts are."""
LENGTH = 28
SEEDS = range(12)
MIN_BRANCHING = 5
"""Tokens that must be followed by different ones somewhere in the texts, which then depend on more than one token."""
MIN_DIFFERENT = 30
"""Different tokens that the texts of a large vocabulary must have, in which hardly a token comes twice."""
GREEDY: dict[str, Any] = {"max_new_tokens": LENGTH}
SEEDED: dict[str, Any] = {"max_new_tokens": LENGTH, "temperature": 1.0, "seed": 7}

EXACT, REFUSED, NOT_BUILT, FAILS = "exact", "refused", "not built", "fails"


@dataclass(frozen=True)
class Finding:
    """The result for one architecture.

    Attributes:
        name: its model type, and what a variant changes behind a "+".
        result: "exact", "refused", "not built" or "fails".
        reason: why it is not exact: for some policies alone, if `exact` names others.
        exact: the policies whose texts were all equal.
        texts: compared.
        accepted: drafted tokens accepted per round, of the policy with the fewest.
        seconds: it took.
        runs_on: the backend of the target's passes, and why no faster one; empty where the model was not loaded.
    """

    name: str
    result: str
    reason: str = ""
    exact: list[str] = field(default_factory=list)
    texts: int = 0
    accepted: float = 0.0
    seconds: float = 0.0
    runs_on: str = ""

    @property
    def passed(self) -> bool:
        """True unless a text was another one or an error was not drafttree's own."""
        return self.result != FAILS


Build = Callable[[int], PreTrainedModel]
"""Makes a model of random weights, given a seed."""
Text = tuple[list[int], list[int]]
"""A prompt, and the tokens that should follow it."""
Variety = Callable[[Sequence[Text]], float]
"""How much texts vary, 1 for enough to compare them."""


def check_architecture(name: str) -> Finding:
    """Build an architecture small and random, and compare its texts."""
    return _check(name, partial(random_model, name), lambda texts: _branching(texts) / MIN_BRANCHING)


def check_popular(name: str) -> Finding:
    """Build a model of `POPULAR` with few layers and random weights, and compare its texts."""
    return _check(name, partial(popular_model, name), lambda texts: _different(texts) / MIN_DIFFERENT)


def _check(name: str, build: Build, variety: Variety) -> Finding:
    started = time.perf_counter()
    with redirect_stdout(io.StringIO()):  # some of transformers' models print
        try:
            module, texts = _lively_model(build, variety)
        except Exception as error:
            finding = Finding(name, NOT_BUILT, _one_line(error))
        else:
            finding = check_model(name, module, texts)
    return replace(finding, seconds=time.perf_counter() - started)


def check_model(name: str, module: PreTrainedModel, texts: Sequence[Text]) -> Finding:
    """Compare texts of a model, which is wrapped, with the greedy ones that transformers wrote before."""
    try:
        decoder = load(module, None, "chain")
        plain = [decoder.generate(prompt, **GREEDY) for prompt, _ in texts]
        if difference := _difference(decoder, "plain decoding", texts, plain, GREEDY):
            return Finding(name, FAILS, difference, texts=len(texts))
        seeded_texts = [(prompt, decoder.generate(prompt, **SEEDED).tokens) for prompt, _ in texts[-1:]]
    except Exception as error:
        return Finding(name, *_judge(error))
    findings = [_try_policy(decoder, policy, ((GREEDY, texts), (SEEDED, seeded_texts))) for policy in POLICIES]
    exact_findings = [finding for finding in findings if finding.result == EXACT]
    worst_finding = min(findings, key=lambda each: (FAILS, EXACT, REFUSED).index(each.result))
    reasons = dict.fromkeys(filter(None, map(attrgetter("reason"), findings)))
    return Finding(
        name,
        worst_finding.result,
        "; ".join(reasons),
        list(map(attrgetter("name"), exact_findings)),
        sum(map(attrgetter("texts"), findings)),
        min(map(attrgetter("accepted"), exact_findings), default=0.0),
        runs_on=getattr(decoder.target, "runs_on", ""),
    )


TIE = 1e-5
"""Difference of the two best scores up to which rounding in float32 decides between them."""


def _try_policy(decoder: Decoder, policy: str, sets: Iterable[tuple[dict[str, Any], Sequence[Text]]]) -> Finding:
    """The result for one policy, whose name it has."""
    metrics = []
    try:
        policy_decoder = decoder.with_policy(make_policy(POLICIES[policy]))
        for options, texts in sets:
            generations: list[Generation] = []
            for prompt, text in texts:
                drafter = ScriptedDrafter([*prompt, *text], decoder.target.vocab_size)
                generations.append(policy_decoder.with_drafter(drafter).generate(prompt, **options))
            metrics += map(attrgetter("metrics"), generations)
            if difference := _difference(decoder, policy, texts, generations, options):
                return Finding(policy, FAILS, difference, texts=len(metrics))
    except Exception as error:
        return Finding(policy, *_judge(error), texts=len(metrics))
    return Finding(policy, EXACT, texts=len(metrics), accepted=Metrics.total(metrics).mean_path_length)


def _difference(
    decoder: Decoder, way: str, texts: Sequence[Text], found: Sequence[Generation], options: dict[str, Any]
) -> str:
    """The first difference of the texts found, in a few words; empty if there is none."""
    for (prompt, expected_text), generation in zip(texts, found, strict=True):
        difference = find_difference(decoder, prompt, expected_text, generation.tokens, **options)
        if difference and difference.gap > TIE:
            return (
                f"{way}{' with a seed' if 'seed' in options else ''}: after {len(prompt)} tokens, token "
                f"{difference.position} is {difference.got}, not {difference.expected}, whose score is better by "
                f"{difference.gap:.2g}"
            )
    return ""


def _lively_model(build: Build, variety: Variety) -> tuple[PreTrainedModel, list[Text]]:
    """A random model and transformers' own greedy texts, from the first seed whose texts vary enough."""
    best_variety = 0.0
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(8, VOCAB - 8, (length,), generator=generator).tolist() for length in PROMPT_LENGTHS]
    for seed in SEEDS:
        module = build(seed)
        texts = [(prompt, _own_text(module, prompt)) for prompt in prompts]
        if (text_variety := variety(texts)) >= 1:
            return module, texts
        best_variety = max(best_variety, text_variety)
    raise ValueError(f"its random texts vary too little to compare: {best_variety:.0%} of what they should")


@torch.inference_mode()
def _own_text(module: PreTrainedModel, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    out: Any = module.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **GREEDY)  # pyright: ignore[reportCallIssue]
    return out[0, len(prompt) :].tolist()


def _branching(texts: Sequence[Text]) -> int:
    """How many tokens are followed by different ones: the texts depend on what comes before them."""
    followers = defaultdict(set)
    for _, text in texts:
        for token, follower in pairwise(text):
            followers[token].add(follower)
    return sum(len(next_tokens) > 1 for next_tokens in followers.values())


def _different(texts: Sequence[Text]) -> int:
    """How many different tokens the texts have."""
    return len(set(chain.from_iterable(map(itemgetter(1), texts))))


def _judge(error: Exception) -> tuple[str, str]:
    if isinstance(error, DraftTreeError):
        return REFUSED, _one_line(error)
    return FAILS, f"{type(error).__name__}: {_one_line(error)}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
