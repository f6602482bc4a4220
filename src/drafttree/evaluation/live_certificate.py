"""A certificate of the pair that a user runs: bets on the tokens that it writes (`evidence`, `audit`).

It needs no other model and no enumeration, so it is for any verifier that draws, at the speed of the texts.
"""

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from drafttree.core.counts import check_count
from drafttree.core.errors import ConfigError
from drafttree.core.randomness import derived_seed
from drafttree.engine.batching import Engine
from drafttree.engine.compatibility import default_verifier, precision_of
from drafttree.engine.decoder import Decoder
from drafttree.engine.generation import Generation
from drafttree.engine.generation_options import RequestOptions
from drafttree.evaluation.audit import Audit
from drafttree.evaluation.evidence import Evidence
from drafttree.measure.prompt_encoding import fit
from drafttree.measure.run_store import RunStore

TRIAL_TOKENS = 48
"""Tokens by which the time of all is told beforehand."""
TURNS = 2
"""Texts that are submitted together, for each that runs at once."""
RARELY = 0.1
"""The share of rounds with drafts below which a certificate says that little was speculated."""


@dataclass
class WrittenTexts:
    """What was found of some texts.

    Attributes:
        evidence: against the target's law.
        texts: their number.
        rounds: target passes that committed their tokens.
        drafted_rounds: those of them that verified drafted tokens.
        seconds: wall time of writing and betting.
    """

    evidence: Evidence = field(default_factory=Evidence)
    texts: int = 0
    rounds: int = 0
    drafted_rounds: int = 0
    seconds: float = 0.0

    def add(self, other: "WrittenTexts") -> None:
        """Take over what was found of other texts."""
        self.evidence.add(other.evidence)
        self.texts += other.texts
        self.rounds += other.rounds
        self.drafted_rounds += other.drafted_rounds
        self.seconds += other.seconds


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
        written: what was found of the texts.
        refuted: whether the tokens were found not to follow the law, after any of the texts.
        interrupted: whether Ctrl-C or the time left tokens out.
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
        """True if all tokens were written and do not refute the law."""
        return not self.refuted and not self.interrupted

    def summary(self) -> dict[str, object]:
        """Everything found, for JSON."""
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
    """Look for evidence that a pair's texts do not follow the target's law, while it writes them.

    The texts are of the prompts in turns, each by a seed of its own. They end early where the law is refuted.

    Args:
        decoder: the pair: its target, drafter, policy and verifier.
        prompts: texts or token ids; longer ones than fit are cut to their last tokens.
        tokens: tokens to bet on.
        max_batch: texts that are written at once by an engine; 1 writes each alone.
        max_new_tokens: tokens of a text at most.
        progress: called after some texts with what was found and the number of new tokens.
        tell: called with what the tokens will cost, before they are written.
        store: keeps finished texts; by default none.
        **options: as for `Decoder.generate`: temperature (1 unless given), the seed of the first text (0 unless given),
            top_p, grammar ...

    Raises:
        ConfigError: there is no prompt, nothing is drawn, a number is below 1, or the verifier does not serve the
            sampling.
        ContextError: `max_new_tokens` leaves no room for a prompt.
    """
    for name, count in (("tokens", tokens), ("max_batch", max_batch)):
        check_count(name, count)
    if not prompts:
        raise ConfigError("there is no prompt; give at least one")
    options = {"temperature": 1.0, **{name: value for name, value in options.items() if value is not None}}
    sampling = RequestOptions.merge(decoder.defaults, options).sampling
    if sampling.greedy:
        raise ConfigError(
            "at temperature 0 nothing is drawn, so its tokens are no evidence; give a temperature above 0, or compare "
            "greedy texts with transformers' own (certify without --live)"
        )
    verifier = decoder.verifier or default_verifier(sampling)
    verifier(sampling)  # refuses a sampling that it does not serve
    first_seed = options.pop("seed", 0)
    fitted_prompts = [fit(decoder, prompt, max_new_tokens)[0] for prompt in prompts]
    options |= {"max_new_tokens": max_new_tokens}
    store = store or RunStore()
    written_texts = WrittenTexts()
    refuted = False
    size = TURNS * max_batch if max_batch > 1 else 1

    def write(group: int) -> WrittenTexts:
        missing_tokens = tokens - written_texts.evidence.tokens
        numbers = range(group * size, group * size + min(size, math.ceil(missing_tokens / max_new_tokens)))
        texts = [(fitted_prompts[number % len(fitted_prompts)], _as_int64(first_seed + number)) for number in numbers]
        return _write(decoder, texts, Audit(derived_seed(first_seed, f"places {group}") % 2**63), max_batch, options)

    with store.interruptible():
        is_told = False
        for group in itertools.count():
            if not is_told and store.find(("texts", group), WrittenTexts) is None:
                is_told = True
                trial_options = options | {"seed": derived_seed(first_seed, "trial")}
                tell(
                    _costs(decoder, fitted_prompts[0], tokens - written_texts.evidence.tokens, max_batch, trial_options)
                )
            group_texts = store.run(("texts", group), WrittenTexts, lambda group=group: write(group))
            written_texts.add(group_texts)
            refuted = refuted or written_texts.evidence.refutes
            progress(f"log e {written_texts.evidence.log_e_value:+.1f}", group_texts.evidence.tokens)
            if refuted or written_texts.evidence.tokens >= tokens:
                break
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


def _write(
    decoder: Decoder, texts: Sequence[tuple[list[int], int]], audit: Audit, max_batch: int, options: dict[str, Any]
) -> WrittenTexts:
    """Write texts, given by their prompts and seeds, and bet on their tokens."""
    start = time.perf_counter()
    generations: list[Generation]
    if max_batch == 1:
        generations = [decoder.generate(prompt, seed=seed, observer=audit, **options) for prompt, seed in texts]
    else:
        with Engine(decoder, max_batch=max_batch) as engine:
            handles = [engine.submit(prompt, seed=seed, observer=audit, **options) for prompt, seed in texts]
            generations = [handle.result() for handle in handles]
    rounds = [turn.nodes > 1 for generation in generations for turn in generation.metrics.rounds]
    return WrittenTexts(audit.evidence, len(texts), len(rounds), sum(rounds), time.perf_counter() - start)


def _costs(decoder: Decoder, prompt: list[int], tokens: int, max_batch: int, options: dict[str, Any]) -> str:
    """What so many tokens will take, by a few that are not bet on."""
    trial_options: dict[str, Any] = {**options, "max_new_tokens": min(TRIAL_TOKENS, options["max_new_tokens"])}
    decoder.generate(prompt, **trial_options)  # measures costs and packs weights, once
    start = time.perf_counter()
    token_count = len(decoder.generate(prompt, observer=Audit(), **trial_options).tokens)
    speed = token_count / (time.perf_counter() - start)
    batch_note = f" if each is written alone; {max_batch} at once take less" if max_batch > 1 else ""
    return (
        f"{tokens:,} tokens at {speed:.1f} tokens/s, by {token_count} of them: {_duration(tokens / speed)}{batch_note}"
    )


def _as_int64(number: int) -> int:
    """A whole number as a seed: those beyond 64 bits begin again."""
    return (number + 2**63) % 2**64 - 2**63


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds > 5400 else f"{seconds / 60:.1f} minutes"
