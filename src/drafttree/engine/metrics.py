"""The papers' figures, computed from committed tokens only, and the counts of an engine."""

import statistics
import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

LATEST = 4096
"""Number of latest rounds that an engine keeps."""


@dataclass(frozen=True)
class _Round:
    committed: int
    accepted: int
    nodes: int
    levels: int
    draft_passes: int
    draft_seconds: float
    target_seconds: float
    seconds: float
    batch: int = field(default=1, kw_only=True)

    @property
    def drafted(self) -> int:
        """Drafted nodes that were verified, without the roots."""
        return self.nodes - self.batch

    @property
    def outside_seconds(self) -> float:
        """Time outside the passes of target and drafter."""
        return self.seconds - self.draft_seconds - self.target_seconds


@dataclass(frozen=True)
class TextRound(_Round):
    """One round of one text.

    Attributes:
        committed: tokens that became part of the text.
        accepted: how many of them were drafted.
        nodes: nodes that the target scored, the root included.
        levels: drafted levels.
        draft_passes: forward passes of the drafter.
        draft_seconds: time of these passes on their device.
        target_seconds: wall time of the target pass, until its device has finished.
        seconds: wall time of the whole round.
        batch: 1, the number of texts.
        growth_seconds: time of the policy, of building the tree and of the drafter's own bookkeeping.
        mask_seconds: time to make ancestor masks and positions for the target.
        verify_seconds: time of the verifier, and of constraints on the text.
        commit_seconds: time to move accepted rows of the KV cache, and to pass the committed tokens to drafter and
            policy.
        text_seconds: time to turn committed tokens into text.
        widths: width of the frontier in each draft pass, the root's first; empty without draft passes.
        source: the index of the drafter's model that drafted; 0 unless it has several.
        ranks: ranks of the accepted nodes among their siblings, from the first level on. Rank 1 is the drafter's
            likeliest token or, in drawn trees, the one drawn first.
        collapsed: whether the round showed that drafts had become useless (see `Metrics.collapsed_texts`).
    """

    growth_seconds: float = 0.0
    mask_seconds: float = 0.0
    verify_seconds: float = 0.0
    commit_seconds: float = 0.0
    text_seconds: float = 0.0
    widths: tuple[int, ...] = ()
    source: int = 0
    ranks: tuple[int, ...] = ()
    collapsed: bool = False

    @property
    def drafting_seconds(self) -> float:
        """Time of draft passes, and of growing the tree."""
        return self.draft_seconds + self.growth_seconds


@dataclass(frozen=True)
class EngineRound(_Round):
    """One round of an engine, for all of its running texts together.

    Attributes:
        committed: tokens that became part of the texts.
        accepted: how many of them were drafted.
        nodes: nodes that the target scored, roots included.
        levels: number of levels of the deepest tree.
        draft_passes: forward passes of the drafter.
        draft_seconds: time of these passes and of growing the trees.
        target_seconds: wall time of the target pass, until its device has finished.
        seconds: wall time of the whole round.
        batch: number of texts that got tokens.
        prefill_rows: rows of the target pass that were tokens of prompts.
        waiting: requests in the queue.
        expected: tokens that the controller expected to be committed; None without drafts.
        reason: why nothing was drafted, or that the drafter failed; None otherwise.
    """

    prefill_rows: int = 0
    waiting: int = 0
    expected: float | None = None
    reason: str | None = None

    @property
    def rows(self) -> int:
        """Rows of the target pass: roots, drafted nodes and parts of prompts."""
        return self.nodes + self.prefill_rows


Round = TextRound
"""The former name of `TextRound`."""


@dataclass
class Metrics:
    """Passes, tokens and times of one or more generations.

    Attributes:
        rounds: every round, in order.
        prefill_passes: target passes over prompts.
        prefill_seconds: wall time of reading prompts.
        reused_tokens: prompt tokens whose KV rows were reused from earlier texts.
        seconds: wall time, prompts included.
        first_token_seconds: per generation, time from the start to the first committed token.
        draft_weight_bytes: memory of the drafter's own weights, without those it shares with the target.
        draft_cache_bytes: memory of the drafter's state for the text; for several texts, the largest.
        is_mixed: whether the drafter mixes lookup with a model.
        queue_seconds: wall time in the queue of an engine, before the prompt was read; for several texts, the sum.
    """

    rounds: list[TextRound] = field(default_factory=list)
    prefill_passes: int = 0
    prefill_seconds: float = 0.0
    reused_tokens: int = 0
    seconds: float = 0.0
    first_token_seconds: list[float] = field(default_factory=list)
    draft_weight_bytes: int = 0
    draft_cache_bytes: int = 0
    is_mixed: bool = False
    queue_seconds: float = 0.0

    def __repr__(self) -> str:
        speed = f"{self.mean_accepted_tokens:.2f} tokens per target pass, {self.tokens_per_second:.1f} tokens/s"
        return f"Metrics({self.tokens} tokens in {len(self.rounds)} rounds, {speed})"

    @classmethod
    def total(cls, generations: Iterable["Metrics"]) -> "Metrics":
        """The metrics of several generations as one."""
        total = cls()
        for metrics in generations:
            total.rounds += metrics.rounds
            total.queue_seconds += metrics.queue_seconds
            total.prefill_passes += metrics.prefill_passes
            total.prefill_seconds += metrics.prefill_seconds
            total.reused_tokens += metrics.reused_tokens
            total.seconds += metrics.seconds
            total.first_token_seconds += metrics.first_token_seconds
            total.draft_weight_bytes = max(total.draft_weight_bytes, metrics.draft_weight_bytes)
            total.draft_cache_bytes = max(total.draft_cache_bytes, metrics.draft_cache_bytes)
            total.is_mixed |= metrics.is_mixed
        return total

    def record(self, text_round: TextRound, seconds: float) -> None:
        """Add a round.

        Args:
            text_round: the round.
            seconds: wall time since the last round or since the start, this round included.
        """
        self.rounds.append(text_round)
        self.seconds += seconds
        if not self.first_token_seconds:
            self.first_token_seconds.append(seconds)
            self.prefill_seconds = seconds - self.queue_seconds - text_round.seconds

    @property
    def tokens(self) -> int:
        """Committed tokens."""
        return sum(text_round.committed for text_round in self.rounds)

    @property
    def tokens_per_second(self) -> float:
        """Committed tokens per second, including the time to the first token."""
        return ratio(self.tokens, self.seconds)

    @property
    def decoding_seconds(self) -> float:
        """Wall time without waiting in the queue and reading prompts."""
        return self.seconds - self.queue_seconds - self.prefill_seconds

    @property
    def decoding_tokens_per_second(self) -> float:
        """Committed tokens per second of `decoding_seconds`."""
        return ratio(self.tokens, self.decoding_seconds)

    @property
    def time_to_first_token(self) -> float:
        """Mean seconds from the start of a generation to its first committed token."""
        return statistics.fmean(self.first_token_seconds) if self.first_token_seconds else 0.0

    @property
    def time_per_output_token(self) -> float:
        """Seconds per committed token, without the first token of each generation and the time to it."""
        output_seconds = self.seconds - sum(self.first_token_seconds)
        return ratio(output_seconds, self.tokens - len(self.first_token_seconds))

    @property
    def lookup_rounds(self) -> int:
        """Rounds drafted by lookup, for a drafter that mixes it with a model."""
        return (
            sum(bool(text_round.widths) and text_round.source == 0 for text_round in self.rounds)
            if self.is_mixed
            else 0
        )

    @property
    def collapsed_texts(self) -> int:
        """Number of texts whose drafts became useless: rarely accepted, or beyond the drafter's context.

        A warning was logged for each of them.
        """
        return sum(text_round.collapsed for text_round in self.rounds)

    @property
    def mean_accepted_tokens(self) -> float:
        """tau: committed tokens per target pass, the bonus token included."""
        return ratio(self.tokens, len(self.rounds))

    @property
    def tau(self) -> float:
        """The papers' name for `mean_accepted_tokens`."""
        return self.mean_accepted_tokens

    @property
    def mean_path_length(self) -> float:
        """Accepted drafted tokens per round, without the bonus token."""
        return ratio(sum(text_round.accepted for text_round in self.rounds), len(self.rounds))

    @property
    def draft_efficiency(self) -> float:
        """delta: draft passes per round."""
        return ratio(sum(text_round.draft_passes for text_round in self.rounds), len(self.rounds))

    @property
    def acceptance_rate(self) -> float:
        """Accepted drafted tokens per drafted token."""
        return ratio(
            sum(text_round.accepted for text_round in self.rounds),
            sum(text_round.nodes - 1 for text_round in self.rounds),
        )

    @property
    def level_acceptance(self) -> float:
        """Accepted drafted tokens per drafted level."""
        return ratio(
            sum(text_round.accepted for text_round in self.rounds), sum(text_round.levels for text_round in self.rounds)
        )

    @property
    def mean_nodes(self) -> float:
        """Nodes scored per target pass, the root included."""
        return ratio(sum(text_round.nodes for text_round in self.rounds), len(self.rounds))

    @property
    def mean_levels(self) -> float:
        """Drafted levels per round, the longest path that can be accepted."""
        return ratio(sum(text_round.levels for text_round in self.rounds), len(self.rounds))

    @property
    def acceptance_by_depth(self) -> list[float]:
        """Per level, the share of rounds with an accepted token there, among rounds that drafted the level."""
        max_levels = max((text_round.levels for text_round in self.rounds), default=0)
        return [
            ratio(
                sum(text_round.accepted >= level for text_round in self.rounds),
                sum(text_round.levels >= level for text_round in self.rounds),
            )
            for level in range(1, max_levels + 1)
        ]

    @property
    def target_pass(self) -> float:
        """Mean seconds per target pass."""
        return ratio(sum(text_round.target_seconds for text_round in self.rounds), len(self.rounds))

    @property
    def draft_pass(self) -> float:
        """Mean seconds per draft pass."""
        return ratio(
            sum(text_round.draft_seconds for text_round in self.rounds),
            sum(text_round.draft_passes for text_round in self.rounds),
        )

    @property
    def overhead(self) -> float:
        """Mean seconds per round outside the passes of both models."""
        return ratio(sum(text_round.outside_seconds for text_round in self.rounds), len(self.rounds))

    def summary(self) -> dict[str, object]:
        """The figures by name, for printing and JSON."""
        return {
            "tokens": self.tokens,
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "decoding_tokens_per_second": self.decoding_tokens_per_second,
            "time_to_first_token": self.time_to_first_token,
            "time_per_output_token": self.time_per_output_token,
            "mean_accepted_tokens": self.mean_accepted_tokens,
            "mean_path_length": self.mean_path_length,
            "draft_efficiency": self.draft_efficiency,
            "acceptance_rate": self.acceptance_rate,
            "level_acceptance": self.level_acceptance,
            "acceptance_by_depth": self.acceptance_by_depth,
            "rounds": len(self.rounds),
            "prefill_passes": self.prefill_passes,
            "prefill_seconds": self.prefill_seconds,
            "reused_tokens": self.reused_tokens,
            "mean_levels": self.mean_levels,
            "mean_nodes": self.mean_nodes,
            "target_pass": self.target_pass,
            "draft_pass": self.draft_pass,
            "overhead": self.overhead,
            "draft_weight_bytes": self.draft_weight_bytes,
            "draft_cache_bytes": self.draft_cache_bytes,
            "lookup_rounds": self.lookup_rounds,
            "collapsed_texts": self.collapsed_texts,
            "peak_memory_bytes": peak_memory(),
        }


@dataclass
class EngineMetrics:
    """Counts since an engine started, and its latest rounds. Any thread may read them.

    Attributes:
        tokens: committed tokens.
        prompt_tokens: tokens of the prompts of texts that have started.
        reused_tokens: prompt tokens whose KV rows were reused from other texts.
        drafts: verified trees with drafted nodes.
        drafted: verified drafted nodes.
        accepted: accepted drafted tokens.
        accepted_by_position: per level, how often a node of it was accepted.
        finished: finished requests.
        failed: requests that ended with an error.
        cancelled: cancelled requests.
        preempted: requests that had to start over because memory ran out.
        drafter_failures: rounds that went on without drafts because the drafter raised an error.
        collapsed_texts: texts whose drafts became useless, as in `Metrics.collapsed_texts`.
        image_wait_seconds: seconds for which running texts waited while the images of a prompt were read.
        running: requests that are running now.
        waiting: requests that are waiting now.
        predicted_gain: predicted speed with drafts divided by the speed of plain rounds, at the present batch size;
            None before the first drafted round.
        measured_gain: the same, measured in recent rounds; None until there are rounds of both kinds.
        drafting_off: why the latest round drafted nothing; None if it drafted.
    """

    tokens: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    preempted: int = 0
    drafter_failures: int = 0
    collapsed_texts: int = 0
    image_wait_seconds: float = 0.0
    running: int = 0
    waiting: int = 0
    predicted_gain: float | None = None
    measured_gain: float | None = None
    drafting_off: str | None = None
    _rounds: deque[EngineRound] = field(default_factory=lambda: deque(maxlen=LATEST), repr=False)

    @property
    def rounds(self) -> list[EngineRound]:
        """A copy of the latest rounds."""
        return list(self._rounds)

    @property
    def latest(self) -> EngineRound | None:
        """The latest finished round."""
        return self._rounds[-1] if self._rounds else None

    def record(self, engine_round: EngineRound) -> None:
        """Count a finished round."""
        self._rounds.append(engine_round)
        self.drafted += engine_round.drafted
        self.drafting_off = engine_round.reason

    def count(self, text_round: TextRound) -> None:
        """Count the tokens that a round committed for one request, before its reader sees them."""
        self.tokens += text_round.committed
        self.drafts += text_round.nodes > 1
        self.accepted += text_round.accepted
        self.collapsed_texts += text_round.collapsed
        self.accepted_by_position += [0] * (text_round.accepted - len(self.accepted_by_position))
        for level in range(text_round.accepted):
            self.accepted_by_position[level] += 1


def peak_memory() -> int:
    """Peak bytes of the GPU if one is in use, else of the process; 0 if the system does not tell (Windows)."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def ratio(numerator: float, denominator: float) -> float:
    """The ratio of two numbers; 0 if the denominator is 0."""
    return numerator / denominator if denominator else 0.0
