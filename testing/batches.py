"""Requests of all kinds for an engine, and the comparison of its texts with those that each gives alone."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from drafttree import Decoder, Generation
from drafttree.constraints import grammar
from drafttree.core.randomness import gumbel
from drafttree.engine.batching import Engine, Handle
from drafttree.engine.request import RequestContext
from testing import tiny

TIE = 1e-5
"""Two logits this near to each other may change places between passes of different sizes."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = ["<eos>", *LETTERS, *"0123456789", *(first + second for first in "abcde" for second in LETTERS[:12])]


TOKENIZER = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(WordLevel({piece: index for index, piece in enumerate(PIECES)}, unk_token="<eos>")),
    eos_token="<eos>",
)
"""Letters, digits and pairs of letters, for the vocabulary of the tiny models."""


@dataclass(frozen=True)
class Asked:
    """A prompt and the options of its text."""

    prompt: list[int]
    options: dict[str, Any]

    def alone(self, decoder: Decoder) -> Generation:
        """Its text by `Decoder.generate`."""
        return decoder.generate(self.prompt, **self.options)

    def submit(self, engine: Engine) -> Handle:
        """Its handle in an engine."""
        return engine.submit(self.prompt, **self.options)


class Ramp:
    """A logits processor that depends on the whole text."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        favoured = (input_ids.sum(1, keepdim=True) + torch.arange(3)) % scores.shape[1]
        return scores.scatter_add(1, favoured, torch.full_like(favoured, 2, dtype=scores.dtype))


class EndsBehind:
    """A stopping criterion: the text ends behind a token id that is divisible by 7."""

    def __call__(self, input_ids: Tensor, scores: object, **_: object) -> Tensor:
        return input_ids[:, -1] % 7 == 0


OPTIONS: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "greedy": lambda rng: {},
    "sampled": lambda rng: {"temperature": rng.choice([0.3, 0.8, 1.5])},
    "nucleus": lambda rng: {"temperature": 1.0, "top_p": rng.choice([0.5, 0.9])},
    "truncated": lambda rng: {"temperature": 0.9, "top_k": 12, "min_p": 0.02},
    "penalised": lambda rng: {"repetition_penalty": 1.4, "temperature": rng.choice([0, 0.7])},
    "processors": lambda rng: {"logits_processor": [Ramp()], "no_repeat_ngram_size": 2},
    "stop": lambda rng: {"stop": rng.sample(LETTERS, 3), "temperature": rng.choice([0, 1.0])},
    "criterion": lambda rng: {"stopping_criteria": [EndsBehind()]},
    "grammar": lambda rng: {"grammar": grammar.regex("[a-e]{2,5}[0-9]{1,9}x?"), "temperature": rng.choice([0, 1.0])},
    "logprobs": lambda rng: {"logprobs": 3, "temperature": rng.choice([0, 0.8])},
    "past EOS": lambda rng: {"ignore_eos": True},
    "one token": lambda rng: {"max_new_tokens": 1},
    "trusting": lambda rng: {"draft_temperature": 0.5, "temperature": 0.8},
    "kept": lambda rng: {"reuse_prefix": True},
}


def mixed_requests(
    count: int, seed: int, *, vocab: int = tiny.VOCAB, longest_prompt: int = 36, most_tokens: int = 20
) -> list[Asked]:
    """Requests of every kind in turn, with prompts and lengths of all sizes."""
    rng = random.Random(seed)
    kinds = [list(OPTIONS)[place % len(OPTIONS)] for place in range(count)]
    rng.shuffle(kinds)
    return [_request(kind, rng, vocab, longest_prompt, most_tokens) for kind in kinds]


def _request(kind: str, rng: random.Random, vocab: int, longest_prompt: int, most_tokens: int) -> Asked:
    length = rng.choice([1, 2, rng.randint(3, 12), longest_prompt])
    options = {"max_new_tokens": rng.randint(2, most_tokens), "seed": rng.randrange(2**31), **OPTIONS[kind](rng)}
    return Asked([rng.randrange(vocab) for _ in range(length)], options)


def submit_from_threads(
    engine: Engine, asked: Sequence[Asked], *, threads: int = 4, seed: int = 0, pause: float = 0.01
) -> list[Handle]:
    """Submit requests from several threads at random moments; the handles in the order of the requests."""
    handles: dict[int, Handle] = {}

    def submit(worker: int) -> None:
        rng = random.Random(f"{seed} {worker}")
        for place in range(worker, len(asked), threads):
            time.sleep(rng.random() * pause)
            handles[place] = asked[place].submit(engine)

    workers = [threading.Thread(target=submit, args=(worker,)) for worker in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return [handles[place] for place in range(len(asked))]


def watch_ends(monkeypatch: pytest.MonkeyPatch) -> list[Handle]:
    """The handles in the order in which their texts will end."""
    ended: list[Handle] = []
    end = Handle.end

    def ending(handle: Handle, what) -> None:
        ended.append(handle)
        end(handle, what)

    monkeypatch.setattr(Handle, "end", ending)
    return ended


def check_texts(decoder: Decoder, asked: Sequence[Asked], found: Sequence[Generation]) -> None:
    """Compare texts with those that each request gives alone."""
    for each, got in zip(asked, found, strict=True):
        check_text(decoder, each, got, each.alone(decoder))


def check_text(decoder: Decoder, asked: Asked, got: Generation, whole: Generation) -> None:
    """Compare a text with the one alone: tokens, finish reason and log-probabilities. Ties are printed."""
    if got.tokens != whole.tokens:
        place = next(i for i, pair in enumerate(zip_longest(got.tokens, whole.tokens)) if pair[0] != pair[1])
        gap = best_gap(decoder, asked, whole, place)
        print(f"{asked} differs from itself alone at token {place}, where the two best logits are {gap:.2e} apart")
        assert gap < TIE, f"{asked}: {got.tokens} is not {whole.tokens}"
        return
    assert (got.finish_reason, got.text) == (whole.finish_reason, whole.text), asked
    if whole.logprobs is not None:
        assert got.logprobs == pytest.approx(whole.logprobs, abs=1e-4)
        assert whole.top_logprobs
        tops = zip(got.top_logprobs or [], whole.top_logprobs, strict=True)
        assert all(list(one.values()) == pytest.approx(list(other.values()), abs=1e-4) for one, other in tops)


@dataclass
class _Rows:
    """Keeps the rows that tokens are chosen from."""

    rows: list[Tensor] = field(default_factory=list)

    def add(self, logits: Tensor, constrained: Tensor, tokens: Sequence[int]) -> None:
        self.rows += constrained


def best_gap(decoder: Decoder, asked: Asked, whole: Generation, place: int) -> float:
    """How far the two best scores are apart where a token of a greedy or coupled text is chosen."""
    recorder = _Rows()
    context = RequestContext(make_recorder=lambda sampling: recorder)
    request = decoder.plain().new_request(asked.prompt, context, **asked.options)
    while len(recorder.rows) <= place:
        decoder.plain().step(request)
    sampling, row = request.task.verifier.sampling, recorder.rows[place].float()
    scores = sampling.process(row)
    if not sampling.greedy:
        scores = scores + gumbel(sampling.seed, torch.tensor(len(asked.prompt) + place), len(row))
    assert int(scores.argmax()) == whole.tokens[place]
    best, second = scores.topk(2).values.tolist()
    return best - second
