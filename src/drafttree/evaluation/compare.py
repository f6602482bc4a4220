"""Compares three ways to write a text: speculatively, plainly by the same engine, and by transformers' `generate`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from drafttree.core.errors import ConfigError
from drafttree.core.randomness import random_seed
from drafttree.engine import compatibility
from drafttree.engine.decoder import Decoder, Prompt
from drafttree.engine.generation import Generation
from drafttree.measure.driver import Way, race
from drafttree.measure.law import Speedup
from drafttree.measure.method import PLAIN
from drafttree.measure.reference import Difference, ReferenceRun, find_difference, transformers_generate
from drafttree.models import TargetModel

SPECULATIVE = "speculative"
TRANSFORMERS = "transformers"
WARM_UP = 16


@dataclass(frozen=True)
class Comparison:
    """Texts of one prompt, and whether they agree.

    Attributes:
        speculative: the text of the decoder with its drafter.
        plain: the text of the same engine without speculation.
        transformers: the text by transformers; None if it was not written.
        from_plain: the first difference from the plain text; None if there is none or `seeded` is False.
        from_transformers: the first difference from transformers' text; None if there is none or `greedy` is False.
        greedy: whether decoding is greedy, so that transformers' text can be compared.
        seeded: whether the text is a function of prompt and seed, so that the plain text can be compared.
        runs_on: the backend of the target's passes, and why faster ones do not run them; None for a target that is not
            a `TargetModel`.
    """

    speculative: Generation
    plain: Generation
    transformers: ReferenceRun | None
    from_plain: Difference | None
    from_transformers: Difference | None
    greedy: bool
    seeded: bool
    runs_on: str | None = None

    @property
    def speedup(self) -> Speedup:
        """The speculative text compared with the plain one."""
        return Speedup(self.speculative.metrics, self.plain.metrics)

    @property
    def speeds(self) -> dict[str, float]:
        """Tokens per second of each way, prompts included."""
        runs = {SPECULATIVE: self.speculative.metrics, PLAIN: self.plain.metrics, TRANSFORMERS: self.transformers}
        return {name: run.tokens_per_second for name, run in runs.items() if run}

    @property
    def verdict(self) -> str:
        """One sentence: how much faster the text was and why, or why no ratio is reported."""
        if self.speedup.doubt:
            return self.speedup.doubt
        law = self.speedup.law
        nodes = self.speculative.metrics.mean_nodes
        sentence = f"{law.measured:.2f} times as fast as plain decoding"
        if self.transformers:
            sentence += f" and {self.speeds[SPECULATIVE] / self.speeds[TRANSFORMERS]:.2f} times transformers"
        return (
            f"{sentence}: each target pass yields {law.tau:.2f} tokens; scoring {nodes:.1f} nodes at once costs "
            f"{law.v:.2f} plain passes, drafting them {law.c * law.delta:.2f} and everything else {law.h:.2f}."
        )

    def summary(self) -> dict[str, object]:
        """All figures, for JSON; ratios are None if there is a doubt."""
        return {
            "tokens_per_second": self.speeds,
            "seeded": self.seeded,
            "runs_on": self.runs_on,
            "from_plain": asdict(self.from_plain) if self.from_plain else None,
            "from_transformers": asdict(self.from_transformers) if self.from_transformers else None,
            "verdict": self.verdict,
            **self.speedup.summary(),
        }


def compare(decoder: Decoder, prompt: Prompt, *, repeats: int = 3, **options) -> Comparison:
    """Run a prompt speculatively, plainly and with transformers, alternately, after a warm-up.

    Args:
        decoder: a decoder with a drafter.
        prompt: text or token ids.
        repeats: the number of runs of each way; the median by speed is reported.
        **options: options of `Decoder.new_request`; all ways get the same seed.

    Raises:
        ConfigError: the decoder has no drafter.
    """
    if decoder.drafter is None:
        raise ConfigError("without a drafter all decoding is plain and there is nothing to compare; name a drafter")
    if options.get("seed") is None:
        options["seed"] = random_seed()
    request = decoder.new_request(prompt, **options)
    ids = request.tokens
    length = request.text.remaining

    def by(write: Way, tokens: int) -> Any:
        return write(ids, **{**options, "max_new_tokens": tokens})

    writers: dict[str, Way] = {SPECULATIVE: decoder.generate, PLAIN: decoder.plain().generate}
    if _has_reference(decoder):
        writers[TRANSFORMERS] = partial(transformers_generate, decoder)
    ways: dict[str, Way] = {name: partial(by, write) for name, write in writers.items()}
    warm_up_length = min(max(WARM_UP, options.get("min_new_tokens") or 0), length)
    cells = race(ways, [("", length)], Any, repeats=max(repeats, 1), warm_up=warm_up_length)
    runs = {name: _median([cell.result for cell in cells if cell.way == name]) for name in ways}
    return judge_texts(decoder, prompt, options, **runs)


def judge_texts(
    decoder: Decoder,
    prompt: Prompt,
    options: Mapping[str, Any],
    speculative: Generation,
    plain: Generation,
    transformers: ReferenceRun | None = None,
) -> Comparison:
    """Compare texts of one prompt that were all written with these options."""
    request = decoder.new_request(prompt, **options)
    ids = request.tokens
    greedy = request.task.verifier.sampling.greedy
    seeded = compatibility.is_text_of_seed(type(request.task.verifier))

    def difference(expected: Generation | ReferenceRun) -> Difference | None:
        return find_difference(decoder, ids, expected.tokens, speculative.tokens, **options)

    return Comparison(
        speculative=speculative,
        plain=plain,
        transformers=transformers,
        from_plain=difference(plain) if seeded and _has_reference(decoder) else None,
        from_transformers=difference(transformers) if transformers and greedy else None,
        greedy=greedy,
        seeded=seeded,
        runs_on=getattr(decoder.target, "runs_on", None),
    )


def _has_reference(decoder: Decoder) -> bool:
    """Whether transformers can compute the same as the target."""
    return isinstance(decoder.target, TargetModel) and not decoder.target.lossy_window


def _median(runs: list[Any]) -> Any:
    """The run of median speed."""
    return sorted(runs, key=lambda run: getattr(run, "metrics", run).tokens_per_second)[len(runs) // 2]
