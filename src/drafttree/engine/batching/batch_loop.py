"""The loop of an engine: every round advances all requests that run, in one target pass.

    admit -> budget -> draft (one packed pass per level) -> one packed target pass -> verify each -> commit -> publish

Trees, single nodes and parts of prompts lie behind each other in the pass, and only attention knows whose rows are
whose. So a request joins by adding a segment and leaves by adding none. A loop belongs to one thread.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from drafttree.core.tree import DraftTree
from drafttree.engine.batching.batch_drafting import BatchDrafting, Drafts
from drafttree.engine.batching.draft_switch import RoundRate
from drafttree.engine.batching.engine_metrics import EngineMetrics, EngineRound
from drafttree.engine.batching.experience import Experience
from drafttree.engine.batching.kv_memory import KVMemory
from drafttree.engine.batching.packed_scoring import score
from drafttree.engine.batching.prompt_reading import Part, PromptReading
from drafttree.engine.batching.scheduler import Scheduler
from drafttree.engine.batching.served_request import ServedRequest
from drafttree.engine.compatibility import refuse_sharded
from drafttree.engine.out_of_memory import is_out_of_memory
from drafttree.engine.request import Request
from drafttree.engine.request_rounds import RequestRounds
from drafttree.models import Output

logger = logging.getLogger("drafttree")


class Plan(NamedTuple):
    """What a round does.

    Attributes:
        writing: requests that a token is chosen for.
        parts: of prompts, to be read.
    """

    writing: list[ServedRequest]
    parts: list[Part]

    @property
    def prefill_rows(self) -> int:
        """Rows of prompts."""
        return sum(part.size for part in self.parts)

    @property
    def rows(self) -> int:
        """Rows of the target pass without drafted nodes."""
        return len(self.writing) + self.prefill_rows


@dataclass
class Laps:
    """When the parts of a round began: drafting, the target pass, what follows it."""

    times: list[float] = field(default_factory=lambda: [time.perf_counter()])

    def lap(self) -> None:
        """The next part begins."""
        self.times.append(time.perf_counter())

    def seconds(self, part: int) -> float:
        """Of a part."""
        return self.times[part + 1] - self.times[part]


class BatchLoop:
    """Runs requests of one decoder.

    Args:
        rounds: the decoder.
        max_batch: requests at once, at most.
        memory: what their KV caches may take.
        budget: as for `Engine`.

    Attributes:
        metrics: of all rounds.

    Raises:
        ConfigError: the target is sharded over processes.
    """

    def __init__(self, rounds: RequestRounds, max_batch: int, memory: KVMemory, budget: int | None = None) -> None:
        refuse_sharded(rounds.target, "the drafts of many requests at once are budgeted")
        self.metrics = EngineMetrics()
        self._rounds, self._budget = rounds, budget
        self._scheduler = Scheduler(max_batch, memory)
        experience = Experience.of(rounds)
        self._costs, self._switch = experience.costs, experience.switch
        self._reading = PromptReading(rounds, self._costs)
        self._drafting = BatchDrafting(rounds, experience, budget)
        self._predicted = RoundRate()
        self._cancelled = False

    @property
    def busy(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self._scheduler.waiting or self._scheduler.running)

    def add(self, served: ServedRequest) -> None:
        """Let a request wait for its turn."""
        served.request.draft_failed = self._drafter_failed
        self._scheduler.add(served)

    @torch.inference_mode()
    def step(self) -> None:
        """Advance every request that runs by one round. An error of one of them ends that one alone."""
        self._drop_cancelled()
        try:
            self._admit()
            self._advance(self._scheduler.running)
        except Exception as error:
            if is_out_of_memory(error):
                self._relieve(error)
            else:
                self._advance_one_by_one()
        self.metrics.running, self.metrics.waiting = len(self._scheduler.running), len(self._scheduler.waiting)

    def stop(self, reason: str) -> None:
        """End all requests where they are."""
        for served in self._scheduler.requests:
            self._scheduler.remove(served)
            served.end(reason)

    def cancel_all(self) -> None:
        """Let no request go on beyond this round, and none begin; any thread may call it."""
        self._cancelled = True

    def fail(self, error: Exception) -> None:
        """End all requests with an error."""
        for served in self._scheduler.requests:
            self._fail(served, error)

    def _drop_cancelled(self) -> None:
        for served in self._scheduler.requests:
            if served.cancelled or self._cancelled:
                self._scheduler.remove(served)
                self.metrics.cancelled += 1
                served.end(served.cancel_reason)

    def _admit(self) -> None:
        admitted = self._scheduler.admit()
        for place, served in enumerate(admitted):
            try:
                self._reading.begin(served)
            except Exception as error:
                if is_out_of_memory(error) and self._has_room_to_make:
                    self._put_back(admitted[place:])
                    return
                self._fail(served, error)

    def _advance(self, running: Sequence[ServedRequest]) -> None:
        """One packed pass, and what stands before and after it."""
        plan = self._plan(running)
        if not plan.rows:
            return
        laps = Laps()
        drafts = self._draft(plan)
        laps.lap()
        outputs, read = score(self._rounds, [each.request for each in plan.writing], drafts.trees, plan.parts)
        laps.lap()
        for part, output in zip(plan.parts, read, strict=True):
            self._reading.commit(part, output)
        committed = [
            self._settle(served, tree, output, laps)
            for served, tree, output in zip(plan.writing, drafts.trees, outputs, strict=True)
        ]
        laps.lap()
        self._learn(plan, drafts, self._turn(plan, drafts, sum(committed), laps))

    def _plan(self, running: Sequence[ServedRequest]) -> Plan:
        reading = [served for served in running if served.unread]
        writing = [served for served in running if not served.unread]
        for served in writing:
            self._rounds.read_again_if_long(served.request)
        return Plan(writing, self._reading.parts(reading, len(writing)))

    def _draft(self, plan: Plan) -> Drafts:
        """The trees of a round, shown to who observes a request."""
        requests = [served.request for served in plan.writing]
        drafts = self._drafted(requests, plan.rows)
        for request, grown in zip(requests, drafts.grown, strict=True):
            if request.observer:
                request.observer.drafted(request, grown, drafts.reason)
        return drafts

    def _drafted(self, requests: list[Request], rows: int) -> Drafts:
        if reason := self._reason_not_to_draft(len(requests)):
            return self._drafting.plain(requests, reason)
        drafts = self._drafting.draft(requests, rows, self._switch.rate(len(requests)))
        self.metrics.drafter_failures += drafts.failure is not None
        return drafts

    def _reason_not_to_draft(self, batch: int) -> str | None:
        if self._rounds.drafter is None:
            return "there is no drafter"
        if not batch:
            return "prompts are read"
        return None if self._budget is not None else self._switch.decide(batch)

    def _settle(self, served: ServedRequest, tree: DraftTree, output: Output, laps: Laps) -> int:
        """Verify and commit the tree of one request, and tell its reader; how many tokens were committed."""
        request, known = served.request, len(served.request.tokens)
        try:
            committed, turn = self._rounds.settle(request, tree, output, laps.times[0])
            served.record(turn)
            self.metrics.count(turn)
            if known == request.prompt_length:
                self.metrics.count_prompt(request)
            if not request.finish_reason:
                self._drafting.observe(request, tree, turn)
            else:
                self._finish(served)
            served.publish(known)
        except Exception as error:
            if is_out_of_memory(error) and self._has_room_to_make:
                self._put_back([served])  # its KV cache may be ahead of its tokens
            else:
                self._fail(served, error)
            return 0
        return committed

    def _finish(self, served: ServedRequest) -> None:
        """Keep what a text leaves for later ones, if there is memory for it; the text is written all the same."""
        self._scheduler.remove(served)
        self.metrics.finished += 1
        try:
            self._rounds.prefixes.keep_if_wanted(served.request)
            self._rounds.adaptation.remember(served.request)
        except Exception:
            logger.warning("a finished text was not kept for later ones", exc_info=True)

    def _drafter_failed(self, error: Exception) -> None:
        """Count an error of one request's drafter, which goes on without drafts."""
        self.metrics.drafter_failures += 1
        self._drafting.log_failure(error)

    def _turn(self, plan: Plan, drafts: Drafts, committed: int, laps: Laps) -> EngineRound:
        return EngineRound(
            batch=len(plan.writing),
            waiting=len(self._scheduler.waiting),
            drafted=drafts.drafted,
            rows=plan.rows + drafts.drafted,
            prefill_rows=plan.prefill_rows,
            committed=committed,
            draft_passes=drafts.passes,
            draft_seconds=laps.seconds(0),
            target_seconds=laps.seconds(1),
            seconds=laps.times[-1] - laps.times[0],
            expected=drafts.expected if drafts.groups else None,
            reason=drafts.reason,
        )

    def _learn(self, plan: Plan, drafts: Drafts, turn: EngineRound) -> None:
        """Mend the costs by a round, and judge drafting where nothing but writing was done in it."""
        self.metrics.record(turn)
        self._costs.observe(turn, drafts.groups)
        if plan.parts or not turn.batch or drafts.failure:
            return
        drafting = sum(self._costs.drafting(*group) for group in drafts.groups)
        cost = self._costs.round(turn.batch, turn.rows, drafting)
        if self._budget is None:
            spent = self._costs.without_outlier(turn.seconds, cost)
            self._switch.observe(turn.batch, turn.committed, spent, drafted=bool(drafts.groups))
        if drafts.groups:
            self._predicted.add(drafts.expected * self._costs.round(turn.batch, turn.batch) / turn.batch, cost)
            self.metrics.predicted_gain = self._predicted.value
        self.metrics.measured_gain = self._switch.gain(turn.batch)

    def _fail(self, served: ServedRequest, error: Exception) -> None:
        """End a request with an error."""
        self._scheduler.remove(served)
        self.metrics.failed += 1
        served.reader.end(error)

    def _advance_one_by_one(self) -> None:
        """Advance each request by a round of its own, after one of them has broken the pass of all."""
        self._drop_drafted()
        for served in list(self._scheduler.running):
            try:
                self._advance([served])
            except Exception as error:
                if is_out_of_memory(error):
                    self._relieve(error)
                    return
                self._fail(served, error)

    @property
    def _has_room_to_make(self) -> bool:
        """Whether other requests could wait, or kept beginnings of texts could go, where memory ran out."""
        return len(self._scheduler.running) > 1 or self._rounds.prefixes.tokens > 0

    def _relieve(self, error: Exception) -> None:
        """Make room after memory ran out in a pass: half of the batch waits again, or the only request fails."""
        if self._has_room_to_make:
            self._drop_drafted()
            self._make_room(self._scheduler.halve())
        else:
            for served in list(self._scheduler.running):
                self._fail(served, error)

    def _put_back(self, requests: Sequence[ServedRequest]) -> None:
        self._scheduler.put_back(requests)
        self._make_room(requests)

    def _make_room(self, waiting: Sequence[ServedRequest]) -> None:
        """Drop kept beginnings of texts, and the rows of requests that wait again: their tokens are read again."""
        self._rounds.prefixes.clear()
        for served in waiting:
            self._rounds.close(served.request)
        self.metrics.preempted = self._scheduler.preempted
        if self._rounds.target.device.type == "cuda":
            torch.cuda.empty_cache()
        going_on = len(self._scheduler.running)
        logger.warning("memory ran out; %d requests wait again and %d go on", len(waiting), going_on)

    def _drop_drafted(self) -> None:
        """Drop the rows that a broken pass may have drafted."""
        for served in self._scheduler.running:
            served.request.cache.commit([])
