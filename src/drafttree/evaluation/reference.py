"""The yardstick: transformers' own `generate` on the very same weights, and what a difference from it is worth."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel

from drafttree.constraints.options import PROCESSOR_FACTORIES
from drafttree.core.errors import ConfigError
from drafttree.core.randomness import gumbel
from drafttree.core.sampling import Sampling
from drafttree.engine.decoder import Decoder
from drafttree.models import NAME, TargetModel

TOLERANCE_ULPS = 4
"""A reduced-precision difference is a tie if both tokens' logits are within this many ulps of the best one's."""


@dataclass(frozen=True)
class ReferenceRun:
    """What transformers generated.

    Attributes:
        tokens: the generated token ids, EOS included.
        seconds: wall time, the prompt included.
    """

    tokens: list[int]
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second."""
        return len(self.tokens) / self.seconds


@dataclass(frozen=True)
class Difference:
    """The first position where two texts of one prompt differ.

    Attributes:
        position: index among the generated tokens.
        expected: token id of the reference there, None where it had ended.
        got: token id of the other text, None where it had ended.
        gap: distance between the two best reference scores there.
        tolerance: what the dtype's rounding explains; 0 in float32.
        explained: whether both tokens are within the tolerance of the best one.
    """

    position: int
    expected: int | None
    got: int | None
    gap: float
    tolerance: float
    explained: bool


@contextmanager
def released(model: TargetModel) -> Iterator[PreTrainedModel]:
    """The wrapped module with its own attention and no generation settings of its own, restored afterwards."""
    module, settings = model.module, model.module.generation_config
    model.release()
    module.generation_config = GenerationConfig()
    try:
        yield module
    finally:
        module.generation_config = settings
        module.set_attn_implementation(NAME)


def transformers_model(decoder: Decoder) -> TargetModel:
    """The decoder's target, which must be a transformers model.

    Raises:
        ConfigError: it is not.
    """
    if not isinstance(decoder.target, TargetModel):
        raise ConfigError(f"{type(decoder.target).__name__} is not a transformers model: there is no reference")
    return decoder.target


@torch.inference_mode()
def transformers_generate(
    decoder: Decoder, prompt: Sequence[int], *, assistance: Mapping[str, Any] | None = None, **options
) -> ReferenceRun:
    """Generate with transformers alone, on the decoder's target.

    Logits processors are those transformers makes of the options itself, and xgrammar's own for a grammar.

    Args:
        decoder: whose target, tokenizer and EOS tokens to use.
        prompt: token ids.
        assistance: arguments of transformers' own speculation, such as `assistant_model`.
        **options: as for `Decoder.new_request`. transformers draws its own random numbers, so above temperature 0
            the text is another one.
    """
    sampling, model = Sampling.of(options), transformers_model(decoder)
    config = _generation_config(decoder, sampling, options)
    tokenizer = {"tokenizer": decoder.tokenizer} if config.stop_strings else {}
    processors = list(options.get("logits_processor") or ())
    if grammar := options.get("grammar"):
        processors.append(grammar.processor(decoder.tokenizer, model.vocab_size, decoder.eos))
    forked = torch.random.fork_rng([model.device] if model.device.type == "cuda" else [])
    with released(model) as module, forked:
        ids = torch.tensor([list(prompt)], device=module.device)
        torch.manual_seed(sampling.seed)
        started = time.perf_counter()
        out = module.generate(  # pyright: ignore[reportCallIssue]
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=config,
            logits_processor=LogitsProcessorList(processors),
            **tokenizer,
            **(assistance or {}),
        )
        tokens = out[0, len(prompt) :].tolist()
        return ReferenceRun(tokens, time.perf_counter() - started)


def _generation_config(decoder: Decoder, sampling: Sampling, options: Mapping[str, Any]) -> GenerationConfig:
    eos, stop = list(decoder.eos), options.get("stop", ())
    sampler = {name: value for name, value in vars(sampling).items() if name != "seed"}
    sampler |= {name: sampler[name] or None for name in ("min_p", "top_h")}
    return GenerationConfig(
        max_new_tokens=options.get("max_new_tokens", 128),
        do_sample=not sampling.greedy,
        eos_token_id=None if options.get("ignore_eos") or not eos else eos,
        pad_token_id=eos[0] if eos else 0,
        stop_strings=[stop] if isinstance(stop, str) else list(stop) or None,
        **({} if sampling.greedy else sampler),
        **{name: options[name] for name in PROCESSOR_FACTORIES if name in options},
    )


def find_difference(
    decoder: Decoder, prompt: Sequence[int], expected: Sequence[int], got: Sequence[int], **options
) -> Difference | None:
    """Where a text first departs from the reference, and how near the reference's choice was; None if nowhere.

    Args:
        decoder: whose target judges, by one plain transformers pass over prompt and common beginning.
        prompt: token ids.
        expected: the reference's tokens.
        got: the other text's tokens.
        **options: as for `Decoder.new_request`, what both were generated with.
    """
    if list(expected) == list(got):
        return None
    pairs = zip(expected, got, strict=False)
    position = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(got)))
    wanted, found = (text[position] if position < len(text) else None for text in (expected, got))
    scores, unit = _scores(decoder, prompt, expected[:position], options)
    best = scores.topk(2).values.tolist()
    tolerance = TOLERANCE_ULPS * unit
    within = (token is not None and best[0] - scores[token].item() <= tolerance for token in (wanted, found))
    explained = bool(unit) and all(within)
    return Difference(position, wanted, found, best[0] - best[1], tolerance, explained)


@torch.inference_mode()
def _scores(
    decoder: Decoder, prompt: Sequence[int], text: Sequence[int], options: Mapping[str, Any]
) -> tuple[Tensor, float]:
    """What the next token is the argmax of, and the size of one ulp of the best logit, 0 in float32."""
    sampling, sequence = Sampling.of(options), decoder.plain().new_request(prompt, **options)
    for token in text:
        sequence.commit([token], 0)
    tokens = sequence.tokens
    with released(transformers_model(decoder)) as module:
        logits = module(torch.tensor([tokens], device=module.device), logits_to_keep=1).logits[0, -1]
    scores = sampling.process(sequence.constraints.apply(tokens, [()], logits[None])[0])
    if sampling.greedy:
        return scores, _ulp(logits, logits[scores.argmax()].item())
    scores = scores + gumbel(sampling.seed, torch.tensor([len(tokens)], device=logits.device), len(logits))[0]
    return scores, _ulp(logits, logits[scores.argmax()].item()) / sampling.temperature


def _ulp(logits: Tensor, value: float) -> float:
    if logits.dtype == torch.float32:
        return 0.0
    return torch.finfo(logits.dtype).eps * 2.0 ** math.frexp(value)[1] / 2
