"""Every figure of the papers, computed from committed tokens only.

The law that relates them: R = tau * (1 + h0) / (v + c * delta + h), in units of one target pass over one token. What
plain decoding spends outside its passes, h0, is counted too: without it the law would call plain decoding slower than
itself.
"""

import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Round:
    """One round of the loop.

    Attributes:
        committed: tokens that became part of the text.
        accepted: how many of them were drafted.
        nodes: nodes the target scored, the root included.
        levels: drafted levels.
        draft_passes: drafter forward passes.
        draft_seconds: time in them, on their device.
        target_seconds: wall time of the target pass, until its device has finished.
        seconds: wall time of the whole round.
        growth_seconds: the policy, building the tree and the drafter's own bookkeeping.
        mask_seconds: ancestor masks and positions for the target.
        verify_seconds: the verifier, and constraints on the text.
        commit_seconds: keeping cache rows and telling drafter and policy.
        text_seconds: turning committed tokens into text.
        widths: widths of the frontiers the drafter was asked about, the root's first; empty if it was not asked.
        source: which model of the drafter drafted, 0 unless it has several.
        ranks: ranks of the accepted nodes among their siblings, from the first level down: 1 for the one the drafter
            thinks likeliest, in drawn trees for the one drawn first.
        collapsed: whether it showed that drafts had become useless to its text (see `Metrics.collapsed_texts`).
    """

    committed: int
    accepted: int
    nodes: int
    levels: int
    draft_passes: int
    draft_seconds: float
    target_seconds: float
    seconds: float
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
        """Draft passes, and growing the tree from them."""
        return self.draft_seconds + self.growth_seconds

    @property
    def outside_seconds(self) -> float:
        """Outside the two models' passes."""
        return self.seconds - self.draft_seconds - self.target_seconds


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
    """

    rounds: list[Round] = field(default_factory=list)
    prefill_passes: int = 0
    prefill_seconds: float = 0.0
    reused_tokens: int = 0
    seconds: float = 0.0
    first_token_seconds: list[float] = field(default_factory=list)
    draft_weight_bytes: int = 0
    draft_cache_bytes: int = 0
    is_mixed: bool = False

    def __repr__(self) -> str:
        speed = f"{self.mean_accepted_tokens:.2f} tokens per target pass, {self.tokens_per_second:.1f} tokens/s"
        return f"Metrics({self.tokens} tokens in {len(self.rounds)} rounds, {speed})"

    @classmethod
    def total(cls, parts: Iterable["Metrics"]) -> "Metrics":
        """The metrics of several generations as one."""
        whole = cls()
        for part in parts:
            whole.rounds += part.rounds
            whole.prefill_passes += part.prefill_passes
            whole.prefill_seconds += part.prefill_seconds
            whole.reused_tokens += part.reused_tokens
            whole.seconds += part.seconds
            whole.first_token_seconds += part.first_token_seconds
            whole.draft_weight_bytes = max(whole.draft_weight_bytes, part.draft_weight_bytes)
            whole.draft_cache_bytes = max(whole.draft_cache_bytes, part.draft_cache_bytes)
            whole.is_mixed |= part.is_mixed
        return whole

    def record(self, turn: Round, seconds: float) -> None:
        """Add a round, and the wall time of it and of what came before it."""
        self.rounds.append(turn)
        self.seconds += seconds
        if not self.first_token_seconds:
            self.first_token_seconds.append(seconds)
            self.prefill_seconds = seconds - turn.seconds

    @property
    def tokens(self) -> int:
        """Committed tokens."""
        return sum(r.committed for r in self.rounds)

    @property
    def tokens_per_second(self) -> float:
        """Committed tokens per second, including the time to the first token."""
        return _ratio(self.tokens, self.seconds)

    @property
    def decoding_tokens_per_second(self) -> float:
        """Committed tokens per second, without the time of reading prompts."""
        return _ratio(self.tokens, self.seconds - self.prefill_seconds)

    @property
    def time_to_first_token(self) -> float:
        """Mean seconds from the start of a generation to its first committed token."""
        return statistics.fmean(self.first_token_seconds) if self.first_token_seconds else 0.0

    @property
    def time_per_output_token(self) -> float:
        """Seconds per committed token after the first of each generation, the time to the first one left out."""
        decoding = self.seconds - sum(self.first_token_seconds)
        return _ratio(decoding, self.tokens - len(self.first_token_seconds))

    @property
    def lookup_rounds(self) -> int:
        """Rounds drafted by lookup, for a drafter that mixes it with a model."""
        return sum(bool(r.widths) and r.source == 0 for r in self.rounds) if self.is_mixed else 0

    @property
    def collapsed_texts(self) -> int:
        """Texts whose drafts were accepted far less often than before from some token on, or ended at the drafter's
        context. A warning said where."""
        return sum(r.collapsed for r in self.rounds)

    @property
    def mean_accepted_tokens(self) -> float:
        """tau: committed tokens per target pass, the bonus token included."""
        return _ratio(self.tokens, len(self.rounds))

    @property
    def tau(self) -> float:
        """The papers' name for `mean_accepted_tokens`."""
        return self.mean_accepted_tokens

    @property
    def mean_path_length(self) -> float:
        """Accepted drafted tokens per round, the bonus token not included."""
        return _ratio(sum(r.accepted for r in self.rounds), len(self.rounds))

    @property
    def draft_efficiency(self) -> float:
        """delta: draft passes per round."""
        return _ratio(sum(r.draft_passes for r in self.rounds), len(self.rounds))

    @property
    def acceptance_rate(self) -> float:
        """Accepted drafted tokens per drafted token."""
        return _ratio(sum(r.accepted for r in self.rounds), sum(r.nodes - 1 for r in self.rounds))

    @property
    def level_acceptance(self) -> float:
        """Accepted drafted tokens per drafted level."""
        return _ratio(sum(r.accepted for r in self.rounds), sum(r.levels for r in self.rounds))

    @property
    def mean_nodes(self) -> float:
        """Nodes scored per target pass, the root included."""
        return _ratio(sum(r.nodes for r in self.rounds), len(self.rounds))

    @property
    def mean_levels(self) -> float:
        """Drafted levels per round, the longest path that can be accepted."""
        return _ratio(sum(r.levels for r in self.rounds), len(self.rounds))

    @property
    def acceptance_by_depth(self) -> list[float]:
        """Per level, the share of rounds with an accepted token on it, among rounds that drafted it."""
        deepest = max((r.levels for r in self.rounds), default=0)
        return [
            _ratio(sum(r.accepted >= level for r in self.rounds), sum(r.levels >= level for r in self.rounds))
            for level in range(1, deepest + 1)
        ]

    @property
    def target_pass(self) -> float:
        """Mean seconds per target pass."""
        return _ratio(sum(r.target_seconds for r in self.rounds), len(self.rounds))

    @property
    def draft_pass(self) -> float:
        """Mean seconds per draft pass."""
        return _ratio(sum(r.draft_seconds for r in self.rounds), sum(r.draft_passes for r in self.rounds))

    @property
    def overhead(self) -> float:
        """Mean seconds per round outside the passes of both models."""
        return _ratio(sum(r.outside_seconds for r in self.rounds), len(self.rounds))

    def summary(self) -> dict[str, object]:
        """All figures by name, for printing and JSON."""
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


@dataclass(frozen=True)
class SpeedupLaw:
    """R = tau * (1 + h0) / (v + c * delta + h), each term measured against plain decoding by the same engine.

    Attributes:
        tau: mean accepted tokens.
        v: verification cost, time of a target pass over the tree in plain target passes.
        c: cost ratio, time of a draft pass in plain target passes.
        delta: draft passes per round.
        h: host share, everything else of a round in plain target passes.
        h0: host share of plain decoding.
        measured: ratio of tokens per second, prompts included.
        decoding: ratio of tokens per second of decoding, prompts left out: what the law is about.
    """

    tau: float
    v: float
    c: float
    delta: float
    h: float
    h0: float
    measured: float
    decoding: float

    @classmethod
    def of(cls, speculative: Metrics, plain: Metrics) -> "SpeedupLaw":
        """The law's terms for a speculative and a plain run over the same prompts."""
        unit = plain.target_pass
        return cls(
            tau=speculative.tau,
            v=_ratio(speculative.target_pass, unit),
            c=_ratio(speculative.draft_pass, unit),
            delta=speculative.draft_efficiency,
            h=_ratio(speculative.overhead, unit),
            h0=_ratio(plain.overhead, unit),
            measured=_ratio(speculative.tokens_per_second, plain.tokens_per_second),
            decoding=_ratio(speculative.decoding_tokens_per_second, plain.decoding_tokens_per_second),
        )

    @property
    def predicted(self) -> float:
        """R as predicted by the law."""
        return _ratio(self.tau * (1 + self.h0), self.v + self.c * self.delta + self.h)

    @property
    def without_host(self) -> float:
        """R as predicted for an engine without overhead, h = h0 = 0."""
        return _ratio(self.tau, self.v + self.c * self.delta)


def peak_memory() -> int:
    """Bytes: of the GPU where one is in use, else of the process, 0 where the system does not tell (Windows)."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
