"""A certificate of the policy and verifier that a user runs, by bets on their tokens (see `evidence` and `audit`).

It needs no other model and no enumeration, so it works for any verifier that draws, and takes little longer
than generating the texts.
"""

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from drafttree.core.counts import check_count
from drafttree.core.errors import ConfigError
from drafttree.core.randomness import derived_seed
from drafttree.core.sampling import Sampling
from drafttree.engine.batching import Engine
from drafttree.engine.compatibility import default_verifier, precision_of
from drafttree.engine.decoder import Decoder
from drafttree.engine.generation import Generation
from drafttree.engine.generation_options import RequestOptions
from drafttree.evaluation.audit import Audit
from drafttree.evaluation.evidence import Evidence
from drafttree.measure.prompt_encoding import fit
from drafttree.measure.run_store import RunStore
from drafttree.verifiers import Verifier

TRIAL_TOKENS = 48
"""Tokens that are written first, to estimate the time."""
TURNS = 2
"""Texts that are submitted together, per text that an engine writes at once."""
RARELY = 0.1
"""The share of rounds with drafted tokens below which a certificate says that little was speculated."""


@dataclass
class WrittenTexts:
    """The evidence of some texts, and what they took.

    Attributes:
        evidence: against the target's law.
        texts: the number of texts.
        rounds: target passes that committed tokens.
        drafted_rounds: those of them that verified drafted tokens.
        seconds: wall time of writing and betting.
    """

    evidence: Evidence = field(default_factory=Evidence)
    texts: int = 0
    rounds: int = 0
    drafted_rounds: int = 0
    seconds: float = 0.0

    def add(self, written_texts: "WrittenTexts") -> None:
        """Add the evidence and the counts of other texts."""
        self.evidence.add(written_texts.evidence)
        self.texts += written_texts.texts
        self.rounds += written_texts.rounds
        self.drafted_rounds += written_texts.drafted_rounds
        self.seconds += written_texts.seconds


@dataclass(frozen=True)
class LiveCertificate:
    """The outcome for one pair.

    Attributes:
        verifier: the name of the verifier's class.
        policy: the tree policy.
        dtype: the precision of the target.
        temperature: the sampling temperature.
        lossless: whether the pair claims to keep the target's law.
        max_batch: texts that were written at once.
        wanted: tokens that were asked for.
        written: the evidence of the texts.
        refuted: whether the evidence refuted the law, after any group of texts.
        interrupted: whether tokens are missing because of Ctrl-C or the time limit.
    """

    verifier: str
    policy: str
    dtype: str
    temperature: float
    lossless: bool
    max_batch: int
    wanted: int
    written: WrittenTexts
    refuted: bool
    interrupted: bool

    @property
    def passed(self) -> bool:
        """Whether all tokens that were asked for were generated, and the evidence does not refute the law."""
        return not self.refuted and not self.interrupted

    def summary(self) -> dict[str, object]:
        """All results, for JSON."""
        evidence = self.written.evidence
        results: dict[str, object] = {
            "log_e_value": evidence.log_e_value,
            "log_e_values": evidence.log_e_values,
            "smallest_bias": evidence.smallest_bias,
            "passed": self.passed,
        }
        return asdict(self) | results


def certify_live(
    decoder: Decoder,
    prompts: Sequence[str | Sequence[int]],
    *,
    tokens: int = 100_000,
    max_batch: int = 1,
    max_new_tokens: int = 128,
    progress: Callable[[str, int], None] = lambda name, count: None,
    tell: Callable[[str], None] = lambda line: None,
    store: RunStore | None = None,
    **options,
) -> LiveCertificate:
    """Write texts, and look for evidence that they do not follow the target's law.

    The texts continue one prompt after the other, each with a seed of its own. If the law is refuted, no more are
    written.

    Args:
        decoder: the pair, with its target and drafter.
        prompts: texts or token ids; prompts that do not fit are cut to their last tokens.
        tokens: tokens to bet on.
        max_batch: texts that an engine writes at once; 1 to write each alone.
        max_new_tokens: maximum number of tokens of a text.
        progress: called after every group of texts with the evidence so far and the number of new tokens.
        tell: called with an estimate of the time, before the texts are written.
        store: keeps finished texts; by default none.
        **options: as for `Decoder.generate`: temperature (1 unless given), the seed of the first text (0 unless given),
            top_p, grammar ...

    Raises:
        ConfigError: there is no prompt, nothing is drawn, a number is below 1, or the verifier does not serve the
            sampling.
        ContextError: `max_new_tokens` leaves no room for a prompt.
    """
    check_count("tokens", tokens)
    check_count("max_batch", max_batch)
    if not prompts:
        raise ConfigError("there is no prompt; give at least one")
    options = {"temperature": 1.0, **{name: value for name, value in options.items() if value is not None}}
    sampling = RequestOptions.merge(decoder.defaults, options).sampling
    verifier = _drawing_verifier(decoder, sampling)
    first_seed = options.pop("seed", 0)
    writer = _GroupWriter(
        decoder,
        prompts=[fit(decoder, prompt, max_new_tokens)[0] for prompt in prompts],
        first_seed=first_seed,
        max_batch=max_batch,
        options={**options, "max_new_tokens": max_new_tokens},
    )
    store = store or RunStore()
    written_texts, refuted = _write_groups(writer, tokens, store, progress, tell)
    return LiveCertificate(
        verifier=verifier.__name__,
        policy=repr(decoder.policy),
        dtype=precision_of(decoder.target),
        temperature=sampling.temperature,
        lossless=decoder.fidelity.lossless,
        max_batch=max_batch,
        wanted=tokens,
        written=written_texts,
        refuted=refuted,
        interrupted=store.interrupted,
    )


def _write_groups(
    writer: "_GroupWriter",
    tokens: int,
    store: RunStore,
    progress: Callable[[str, int], None],
    tell: Callable[[str], None],
) -> tuple[WrittenTexts, bool]:
    """Write groups of texts until they have `tokens` tokens, refute the law or are interrupted.

    Returns:
        The sum of all groups, and whether the law was refuted.
    """
    written_texts = WrittenTexts()
    refuted = False
    with store.interruptible():
        is_told = False
        for group in itertools.count():
            missing_tokens = tokens - written_texts.evidence.tokens
            if not is_told and store.find(("texts", group), WrittenTexts) is None:
                is_told = True
                tell(writer.estimate(missing_tokens))
            group_texts = store.run(("texts", group), WrittenTexts, partial(writer.write, group, missing_tokens))
            written_texts.add(group_texts)
            refuted = refuted or written_texts.evidence.refutes
            progress(f"log e {written_texts.evidence.log_e_value:+.1f}", group_texts.evidence.tokens)
            if refuted or written_texts.evidence.tokens >= tokens:
                break
    return written_texts, refuted


def _drawing_verifier(decoder: Decoder, sampling: Sampling) -> type[Verifier]:
    """The verifier of a decoder's texts.

    Raises:
        ConfigError: nothing is drawn, or the verifier does not serve the sampling.
    """
    if sampling.greedy:
        raise ConfigError(
            "at temperature 0 nothing is drawn, so its tokens are not evidence; give a temperature above 0, or compare "
            "greedy texts with transformers' own (certify without --live)"
        )
    verifier = decoder.verifier or default_verifier(sampling)
    verifier(sampling)  # refuses a sampling that it does not serve
    return verifier


@dataclass(frozen=True)
class _GroupWriter:
    """Writes texts in groups and bets on their tokens; a group is always the same texts.

    Attributes:
        decoder: writes the texts.
        prompts: token ids of the prompts, which the texts continue one after the other.
        first_seed: the seed of the first text; each further text takes the next one.
        max_batch: texts that an engine writes at once; 1 to write each alone.
        options: options of all texts except the seed, `max_new_tokens` among them.
    """

    decoder: Decoder
    prompts: Sequence[list[int]]
    first_seed: int
    max_batch: int
    options: Mapping[str, Any]

    def write(self, group: int, missing_tokens: int) -> WrittenTexts:
        """Write a group, given by its number; texts beyond those that `missing_tokens` need are left out."""
        size = TURNS * self.max_batch if self.max_batch > 1 else 1
        count = min(size, math.ceil(missing_tokens / self.options["max_new_tokens"]))
        audit = Audit(derived_seed(self.first_seed, f"places {group}") % 2**63)
        start = time.perf_counter()
        generations = self._generations(range(group * size, group * size + count), audit)
        rounds = [text_round.nodes > 1 for generation in generations for text_round in generation.metrics.rounds]
        return WrittenTexts(audit.evidence, count, len(rounds), sum(rounds), time.perf_counter() - start)

    def _generations(self, numbers: Sequence[int], audit: Audit) -> list[Generation]:
        """Write the texts of these numbers."""
        texts = [(self.prompts[number % len(self.prompts)], _as_int64(self.first_seed + number)) for number in numbers]
        options = {**self.options, "observer": audit}
        if self.max_batch == 1:
            return [self.decoder.generate(prompt, seed=seed, **options) for prompt, seed in texts]
        with Engine(self.decoder, max_batch=self.max_batch) as engine:
            handles = [engine.submit(prompt, seed=seed, **options) for prompt, seed in texts]
            return [handle.result() for handle in handles]

    def estimate(self, tokens: int) -> str:
        """How long these tokens will take, in words, measured on a few tokens without bets."""
        options: dict[str, Any] = {
            **self.options,
            "seed": derived_seed(self.first_seed, "trial"),
            "max_new_tokens": min(TRIAL_TOKENS, self.options["max_new_tokens"]),
        }
        self.decoder.generate(self.prompts[0], **options)  # measures costs and packs weights, once
        start = time.perf_counter()
        token_count = len(self.decoder.generate(self.prompts[0], observer=Audit(), **options).tokens)
        speed = token_count / (time.perf_counter() - start)
        note = f" if each is written alone; {self.max_batch} at once take less" if self.max_batch > 1 else ""
        rate = f"{speed:.1f} tokens/s, measured on {token_count} tokens"
        return f"{tokens:,} tokens will take about {_duration(tokens / speed)} ({rate}){note}"


def _as_int64(number: int) -> int:
    """A whole number as a seed; numbers beyond 64 bits wrap around."""
    return (number + 2**63) % 2**64 - 2**63


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 3600:.1f} hours" if seconds > 5400 else f"{seconds / 60:.1f} minutes"
