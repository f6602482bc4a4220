"""The time of a round: the two models' forward passes, and everything around them, as the loop's own clock has it.

What is around them is the law's h, in passes of plain decoding, which is timed by turns with the policies. The first
round of a text, in which the drafter reads the prompt, is left out.
"""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace

from drafttree.core.errors import ConfigError
from drafttree.engine.decoder import Decoder, Prompt
from drafttree.engine.generation import Generation
from drafttree.engine.metrics import Round
from drafttree.loading import PolicyLike, parse_policies
from drafttree.measure.method import PLAIN
from drafttree.measure.run_store import RunStore
from drafttree_lab.experiment.race import race, way
from drafttree_lab.experiment.round_work import count_work

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
        other: what none of the clocks saw: the loop itself.
        operations: operations of torch, counted in another run.
        calls: calls of the package's own functions, counted in another run.
        plain_pass: the target's forward pass in plain decoding.
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
    operations: float = 0.0
    calls: float = 0.0
    plain_pass: float = 0.0

    @property
    def seconds(self) -> float:
        """Outside the two models' passes."""
        return self.round - self.target - self.draft

    @property
    def share(self) -> float:
        """Of the round that is outside the two models' passes."""
        return self.seconds / self.round if self.round else 0.0

    @property
    def h(self) -> float:
        """The law's h: what is outside the two models' passes, in passes of plain decoding."""
        return self.seconds / self.plain_pass if self.plain_pass else 0.0

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON."""
        return {**asdict(self), "outside": self.seconds, "share": self.share, "h": self.h}


def measure_overhead(
    decoder: Decoder,
    prompts: Sequence[Prompt],
    policies: Sequence[PolicyLike],
    *,
    repeats: int = 3,
    store: RunStore | None = None,
    **options,
) -> list[Overhead]:
    """Time the parts of a round for plain decoding and every policy, interleaved, and count its work.

    Of the repeats of a policy the one of median `seconds` is returned, so its parts add up. Plain decoding comes first.

    Args:
        decoder: a decoder with a drafter.
        prompts: texts or token ids.
        policies: as for `parse_policies`.
        repeats: times every policy runs every prompt, after a warm-up; its work is counted in another run, unless this
            one is interrupted.
        store: keeps finished runs; by default none.
        **options: as for `Decoder.new_request`.

    Raises:
        ConfigError: there is no drafter.
    """
    if decoder.drafter is None:
        raise ConfigError("overhead is measured with a drafter; name one")
    chosen = parse_policies(policies)
    decoders = {PLAIN: decoder.plain(), **{spec: decoder.with_policy(policy) for spec, policy in chosen.items()}}
    ids = [decoder.new_request(prompt, **options).tokens for prompt in prompts]
    ways = {spec: way(each, options) for spec, each in decoders.items()}
    store = store or RunStore()
    runs = race(ways, ids, repeats, lambda _: None, store)
    found = [_median([_overhead(spec, [turn[spec] for turn in run]) for run in runs]) for spec in decoders]
    found = [replace(row, plain_pass=found[0].target) for row in found]
    if store.interrupted:
        return found
    counted = [count_work(each, ids[0], **options) for each in decoders.values()]
    return [replace(row, **work._asdict()) for row, work in zip(found, counted, strict=True)]


def _overhead(spec: str, texts: Sequence[Generation]) -> Overhead:
    """Mean times per round over some texts, without the first of each, in which the drafter reads the prompt."""
    rounds = [each for text in texts for each in text.metrics.rounds[1:]]
    mean = {
        field.name: statistics.fmean(getattr(each, field.name) for each in rounds) if rounds else 0.0
        for field in fields(Round)
        if field.type in (int, float)
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
    return sorted(runs, key=lambda run: run.seconds)[len(runs) // 2]
