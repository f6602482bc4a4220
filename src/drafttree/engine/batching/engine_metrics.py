"""What an engine has done: its latest rounds, and counts since it began."""

from collections import deque
from dataclasses import dataclass, field

from drafttree.engine.metrics import Round
from drafttree.engine.request import Request

LATEST = 4096
"""Rounds that are kept."""


@dataclass(frozen=True)
class EngineRound:
    """One round of all requests that run.

    Attributes:
        batch: requests that a token was chosen for.
        waiting: requests in the queue.
        drafted: nodes that were verified beside the roots, over all requests: the k that the budget chose.
        rows: rows of the target pass: roots, drafted nodes and parts of prompts.
        prefill_rows: rows that were tokens of prompts.
        committed: tokens that became part of texts.
        draft_passes: packed draft passes.
        draft_seconds: drafting: the passes, growth and bookkeeping.
        target_seconds: seconds in the target pass.
        seconds: wall time of the round.
        expected: tokens that the controller expected to be committed, None where nothing was drafted.
        reason: why nothing was drafted, None where something was.
    """

    batch: int
    waiting: int
    drafted: int
    rows: int
    prefill_rows: int
    committed: int
    draft_passes: int
    draft_seconds: float
    target_seconds: float
    seconds: float
    expected: float | None = None
    reason: str | None = None


@dataclass
class EngineMetrics:
    """Counts since the engine started, and its latest rounds. Any thread may read them.

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
        drafter_failures: rounds in which the drafter raised an error and that went on without drafts.
        collapsed_texts: texts whose drafts became useless, as in `Metrics.collapsed_texts`.
        running: requests that are running now.
        waiting: requests that are waiting now.
        predicted_gain: predicted speed of drafting over plain rounds at the present batch size; None before the first
            drafted round.
        measured_gain: the same, measured in recent rounds; None before there are any of both kinds.
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

    def record(self, turn: EngineRound) -> None:
        """Count a finished round."""
        self._rounds.append(turn)
        self.drafted += turn.drafted
        self.drafting_off = turn.reason

    def count(self, turn: Round) -> None:
        """Count the tokens that a round committed for one request, before its reader sees them."""
        self.tokens += turn.committed
        self.drafts += turn.nodes > 1
        self.accepted += turn.accepted
        self.collapsed_texts += turn.collapsed
        self.accepted_by_position += [0] * (turn.accepted - len(self.accepted_by_position))
        for level in range(turn.accepted):
            self.accepted_by_position[level] += 1

    def count_prompt(self, request: Request) -> None:
        """Count the prompt of a request whose text has started."""
        self.prompt_tokens += request.prompt_length
        self.reused_tokens += request.metrics.reused_tokens
