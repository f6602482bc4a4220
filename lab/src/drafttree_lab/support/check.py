"""Checks one architecture: compares drafttree's texts with those of transformers, on a small random model."""

import io
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, pairwise
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from drafttree.core.errors import DraftTreeError, InputError
from drafttree.engine.decoder import Decoder
from drafttree.engine.generation import Generation
from drafttree.engine.metrics import Metrics
from drafttree.loading import make_policy
from drafttree.loading.load import load
from drafttree.measure.reference import find_difference
from drafttree_lab.support.image_models import IMAGES, image_model
from drafttree_lab.support.random_models import popular_model, random_model
from drafttree_lab.support.scripted_drafter import ScriptedDrafter
from drafttree_lab.support.small_configs import VOCAB

POLICIES = {"chain": "chain", "dynatree": "dynatree", "talon": "talon", "template": "template:tree=binary-4"}
PROMPT_LENGTHS = (3, 21, 45)
"""The small models have windows of 8 tokens, so all texts and two of the prompts are longer than a window."""
LENGTH = 28
SEEDS = range(12)
MIN_BRANCHING = 5
"""Minimum number of tokens with different successors in the texts, which shows that these depend on the context."""
MIN_DIFFERENT = 30
"""Minimum number of different tokens in the texts of a model with a large vocabulary."""
IMAGE_PROMPTS = (([2, 5, 6], [7, 8, 9]), ([11, 12], [13, 14, 15] * 9, [16, 17] * 6))
"""The texts around the images of two prompts; the longer one has two images and is longer than a window."""
UNREAD = ("pixel_values_videos", "input_features")
"""Inputs of video and audio, which are refused."""
GREEDY: dict[str, Any] = {"max_new_tokens": LENGTH}
SEEDED: dict[str, Any] = {"max_new_tokens": LENGTH, "temperature": 1.0, "seed": 7}

EXACT, REFUSED, NOT_BUILT, FAILS = "exact", "refused", "not built", "fails"


@dataclass(frozen=True)
class Finding:
    """The result for one architecture.

    Attributes:
        name: the model type; a variant's change follows after a "+", and the last is "images" if prompts have some.
        result: "exact", "refused", "not built" or "fails".
        reason: why it is not exact; if `exact` names policies, why the others are not.
        exact: the policies whose texts were all equal.
        texts: number of compared texts.
        accepted: accepted tokens per round, of the policy with the fewest.
        seconds: duration of the check.
        runs_on: backend of the target's passes, and why not a faster one; empty if the model was not loaded.
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
        """False if a text differed, or an error was not drafttree's own."""
        return self.result != FAILS


Build = Callable[[int], PreTrainedModel]
"""Makes a model with random weights from a seed."""


class Text(NamedTuple):
    """A prompt, and the text after it.

    Attributes:
        prompt: its token ids.
        tokens: token ids of the text.
        images: the model's inputs for the images of the prompt, empty for none.
    """

    prompt: list[int]
    tokens: list[int]
    images: Mapping[str, Tensor] = MappingProxyType({})

    @property
    def inputs(self) -> Any:
        """The prompt as `generate` takes it."""
        return {"input_ids": torch.tensor([self.prompt]), **self.images} if self.images else self.prompt


Variety = Callable[[Sequence[Text]], float]
"""Measures how much texts vary; from 1 on, it is enough to compare them."""


def check_architecture(name: str) -> Finding:
    """Build a small random model of an architecture, and compare its texts."""
    return _check(name, partial(random_model, name), lambda texts: _branching(texts) / MIN_BRANCHING)


def check_popular(name: str) -> Finding:
    """Build a model of `POPULAR` with few layers and random weights, and compare its texts."""
    return _check(name, partial(popular_model, name), lambda texts: _different(texts) / MIN_DIFFERENT)


def check_images(name: str) -> Finding:
    """Build a small random model that reads images, and compare its texts behind images.

    Args:
        name: one of `image_architectures`.
    """
    return _timed(name, lambda: _image_texts(name), _check_image_model)


def _check(name: str, build: Build, variety: Variety) -> Finding:
    return _timed(name, lambda: _lively_model(build, variety), check_model)


def _timed(
    name: str,
    make: Callable[[], tuple[PreTrainedModel, list[Text]]],
    check: Callable[[str, PreTrainedModel, Sequence[Text]], Finding],
) -> Finding:
    """The finding for a model and its texts by transformers, with how long it took."""
    started = time.perf_counter()
    with redirect_stdout(io.StringIO()):  # some models of transformers print
        try:
            module, texts = make()
        except Exception as error:
            finding = Finding(name, NOT_BUILT, _one_line(error))
        else:
            finding = check(name, module, texts)
    return replace(finding, seconds=time.perf_counter() - started)


def _image_texts(name: str) -> tuple[PreTrainedModel, list[Text]]:
    """A random model that reads images, and its greedy texts by transformers."""
    model = image_model(name.removesuffix(IMAGES))
    texts = list[Text]()
    for prompt_texts in IMAGE_PROMPTS:
        inputs = model.prompt(*prompt_texts)
        images = {input_name: value for input_name, value in inputs.items() if input_name != "input_ids"}
        texts.append(Text(inputs["input_ids"][0].tolist(), model.generate(inputs, LENGTH), images))
    return model.module, texts


def _check_image_model(name: str, module: PreTrainedModel, texts: Sequence[Text]) -> Finding:
    """Compare texts behind images; video and audio must be refused."""
    finding = check_model(name, module, texts)
    if finding.result != EXACT:
        return finding
    decoder = load(module, None, "chain")
    for unread_input in UNREAD:
        prompt: Any = {**texts[0].inputs, unread_input: torch.zeros(1, 2)}
        try:
            decoder.generate(prompt, **GREEDY)
        except InputError:
            continue
        return replace(finding, result=FAILS, reason=f"{unread_input} is not refused")
    return finding


def check_model(name: str, module: PreTrainedModel, texts: Sequence[Text]) -> Finding:
    """Compare texts of a model, which drafttree wraps, with the greedy texts that transformers wrote before."""
    try:
        decoder = load(module, None, "chain")
        plain = [decoder.generate(text.inputs, **GREEDY) for text in texts]
        if difference := _difference(decoder, "plain decoding", texts, plain, GREEDY):
            return Finding(name, FAILS, difference, texts=len(texts))
        seeded_texts = [text._replace(tokens=decoder.generate(text.inputs, **SEEDED).tokens) for text in texts[-1:]]
    except Exception as error:
        return Finding(name, *_judge(error))
    findings = [_try_policy(decoder, policy, ((GREEDY, texts), (SEEDED, seeded_texts))) for policy in POLICIES]
    exact_findings = [finding for finding in findings if finding.result == EXACT]
    worst_finding = min(findings, key=lambda finding: (FAILS, EXACT, REFUSED).index(finding.result))
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
"""Largest difference of the two best scores at which float32 rounding may choose either."""


def _try_policy(decoder: Decoder, policy: str, sets: Iterable[tuple[dict[str, Any], Sequence[Text]]]) -> Finding:
    """The finding for one policy, under its name."""
    metrics = []
    try:
        policy_decoder = decoder.with_policy(make_policy(POLICIES[policy]))
        for options, texts in sets:
            generations: list[Generation] = []
            for text in texts:
                drafter = ScriptedDrafter(text.prompt, text.tokens, decoder.target.vocab_size)
                generations.append(policy_decoder.with_drafter(drafter).generate(text.inputs, **options))
            metrics += map(attrgetter("metrics"), generations)
            if difference := _difference(decoder, policy, texts, generations, options):
                return Finding(policy, FAILS, difference, texts=len(metrics))
    except Exception as error:
        return Finding(policy, *_judge(error), texts=len(metrics))
    return Finding(policy, EXACT, texts=len(metrics), accepted=Metrics.total(metrics).mean_path_length)


def _difference(
    decoder: Decoder, way: str, texts: Sequence[Text], generations: Sequence[Generation], options: dict[str, Any]
) -> str:
    """The first difference between drafttree's texts and those expected, in a few words; empty if there is none."""
    for text, generation in zip(texts, generations, strict=True):
        prompt = text.prompt
        if text.images and generation.tokens != text.tokens:  # ties are not told apart
            return f"{way}{' with a seed' if 'seed' in options else ''}: another text behind {len(prompt)} tokens"
        difference = (
            None if text.images else find_difference(decoder, prompt, text.tokens, generation.tokens, **options)
        )
        if difference and difference.gap > TIE:
            return (
                f"{way}{' with a seed' if 'seed' in options else ''}: after {len(prompt)} tokens, token "
                f"{difference.position} is {difference.got}, not {difference.expected}, whose score is better by "
                f"{difference.gap:.2g}"
            )
    return ""


def _lively_model(build: Build, variety: Variety) -> tuple[PreTrainedModel, list[Text]]:
    """A random model and its greedy texts by transformers, from the first seed whose texts vary enough."""
    best_variety = 0.0
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(8, VOCAB - 8, (length,), generator=generator).tolist() for length in PROMPT_LENGTHS]
    for seed in SEEDS:
        module = build(seed)
        texts = [Text(prompt, _own_text(module, prompt)) for prompt in prompts]
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
    """The number of tokens with different successors; if it is high, texts depend on their context."""
    followers = defaultdict(set)
    for text in texts:
        for token, follower in pairwise(text.tokens):
            followers[token].add(follower)
    return sum(len(next_tokens) > 1 for next_tokens in followers.values())


def _different(texts: Sequence[Text]) -> int:
    """The number of different tokens in the texts."""
    return len(set(chain.from_iterable(text.tokens for text in texts)))


def _judge(error: Exception) -> tuple[str, str]:
    if isinstance(error, DraftTreeError):
        return REFUSED, _one_line(error)
    return FAILS, f"{type(error).__name__}: {_one_line(error)}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
