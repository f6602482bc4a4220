"""The time of a round: the two models' forward passes, and everything around them, as the loop's own clock has it.

The first round of a text, in which the drafter reads the prompt, is left out.
"""

import functools
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from drafttree.core.errors import ConfigError
from drafttree.engine.decoder import Decoder, Prompt
from drafttree.engine.metrics import Round
from drafttree.evaluation.run_store import RunStore
from drafttree.loading import PolicyLike, parse_policies

TIMED = {
    "growth": "growth_seconds",
    "masks": "mask_seconds",
    "verify": "verify_seconds",
    "commit": "commit_seconds",
    "text": "text_seconds",
}
"""The parts of a round outside the two models' passes, by the names of `Round`."""
PARTS = (*TIMED, "other")


@dataclass(frozen=True)
class Overhead:
    """Mean seconds per round of one policy.

    Attributes:
        policy: its specification.
        round: the whole turn.
        target: the target's forward pass.
        draft: the drafter's forward passes.
        growth: policy, tree building and the drafter's own bookkeeping.
        masks: ancestor masks and positions for the target.
        verify: the verifier.
        commit: keeping cache rows and telling drafter and policy.
        text: turning committed tokens into text.
        other: what none of the clocks saw.
    """

    policy: str
    round: float
    target: float
    draft: float
    growth: float
    masks: float
    verify: float
    commit: float
    text: float
    other: float

    @property
    def seconds(self) -> float:
        """Outside the two models' passes."""
        return self.round - self.target - self.draft

    @property
    def share(self) -> float:
        """Of the round that is outside the two models' passes."""
        return self.seconds / self.round if self.round else 0.0

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON."""
        return {**asdict(self), "outside": self.seconds, "share": self.share}


def measure_overhead(
    decoder: Decoder,
    prompts: Sequence[Prompt],
    policies: Sequence[PolicyLike],
    *,
    repeats: int = 3,
    store: RunStore | None = None,
    **options,
) -> list[Overhead]:
    """Time the parts of a round for every policy, interleaved; each part is the median over the repeats.

    Args:
        decoder: with a drafter.
        prompts: texts or token ids.
        policies: as for `parse_policies`.
        repeats: times every policy runs every prompt, after one more that is not counted.
        store: keeps finished runs; by default none.
        **options: as for `Decoder.new_request`.

    Raises:
        ConfigError: there is no drafter.
    """
    if decoder.drafter is None:
        raise ConfigError("overhead is measured with a drafter; name one")
    decoders = {spec: decoder.with_policy(policy) for spec, policy in parse_policies(policies).items()}
    warm_up = functools.cache(lambda spec: _rounds(decoders[spec], prompts[0], options))

    def run(spec: str) -> Overhead:
        warm_up(spec)
        return _overhead(spec, decoders[spec], prompts, options)

    store, runs = store or RunStore(), {spec: [] for spec in decoders}
    with store.interruptible():
        for repeat in range(repeats):
            for spec, own in runs.items():
                own.append(store.run((repeat, spec), Overhead, functools.partial(run, spec)))
    return [_median(own) for own in runs.values() if own]


def _rounds(decoder: Decoder, prompt: Prompt, options: dict[str, Any]) -> list[Round]:
    """The rounds of a text but the first, in which the drafter reads the prompt."""
    return decoder.generate(prompt, **options).metrics.rounds[1:]


def _overhead(spec: str, decoder: Decoder, prompts: Sequence[Prompt], options: dict[str, Any]) -> Overhead:
    """Mean times per round over some prompts."""
    rounds = [each for prompt in prompts for each in _rounds(decoder, prompt, options)]
    mean = {
        field.name: statistics.fmean(getattr(each, field.name) for each in rounds) if rounds else 0.0
        for field in fields(Round)
    }
    parts = {part: mean[name] for part, name in TIMED.items()}
    other = mean["seconds"] - mean["target_seconds"] - mean["draft_seconds"] - sum(parts.values())
    return Overhead(
        policy=spec,
        round=mean["seconds"],
        target=mean["target_seconds"],
        draft=mean["draft_seconds"],
        **parts,
        other=other,
    )


def _median(runs: list[Overhead]) -> Overhead:
    parts = [name for name in Overhead.__dataclass_fields__ if name != "policy"]
    return Overhead(runs[0].policy, *(statistics.median(getattr(run, name) for run in runs) for name in parts))
