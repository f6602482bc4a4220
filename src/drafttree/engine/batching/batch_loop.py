"""The loop of an engine: every round advances all requests that run, in one target pass.

    admit -> plan -> a round (see `drafttree.engine.round_loop`) -> publish -> learn

A loop belongs to one thread.
"""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from drafttree.core.machine_memory import is_out_of_memory
from drafttree.engine.batching.engine_metrics import EngineMetrics, EngineRound
from drafttree.engine.batching.prompt_parts import choose_parts
from drafttree.engine.batching.scheduler import Scheduler
from drafttree.engine.batching.served_request import ServedRequest
from drafttree.engine.drafting.controller import Controller
from drafttree.engine.memory import KVMemory
from drafttree.engine.metrics import Round
from drafttree.engine.request import Request
from drafttree.engine.round_clock import RoundClock
from drafttree.engine.round_loop import Drafts, PromptPart, RoundLoop
from drafttree.models import Model

logger = logging.getLogger("drafttree")


class Plan(NamedTuple):
    """What a round does.

    Attributes:
        writing: requests that a token is chosen for.
        parts: parts of prompts, to be read.
    """

    writing: list[ServedRequest]
    parts: list[PromptPart]

    @property
    def prefill_rows(self) -> int:
        """Rows of prompts."""
        return sum(part.size for part in self.parts)

    @property
    def rows(self) -> int:
        """Rows of the target pass without drafted nodes."""
        return len(self.writing) + self.prefill_rows


class BatchLoop:
    """Runs requests of one decoder, whose `batch_loop` makes it.

    Args:
        loop: the loop of the decoder.
        controller: decides how much is drafted.
        remember: told of every finished request.
        max_batch: requests at once, at most.
        memory: what their KV caches may take.
        max_token_gap: as for `Engine`.

    Attributes:
        memory: as given.
        metrics: metrics of all rounds.
    """

    def __init__(
        self,
        loop: RoundLoop,
        controller: Controller,
        remember: Callable[[Request], None],
        max_batch: int,
        memory: KVMemory,
        max_token_gap: float,
    ) -> None:
        self.memory, self.metrics, self._max_token_gap = memory, EngineMetrics(), max_token_gap
        self._loop, self._remember, self._controller = loop, remember, controller
        self._scheduler = Scheduler(max_batch, memory)
        self._cancelled = False

    @property
    def target(self) -> Model:
        """The model whose output is wanted."""
        return self._loop.target

    @property
    def busy(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self._scheduler.waiting or self._scheduler.running)

    @property
    def ready(self) -> bool:
        """Whether a step would do anything: not where all requests wait for their texts to be read."""
        scheduler = self._scheduler
        cancelled = self._cancelled or any(served.reader.cancelled for served in scheduler.waiting)
        return self.busy and (scheduler.ready or cancelled)

    def add(self, served: ServedRequest) -> None:
        """Let a request wait for its turn."""
        served.request.drafting.on_failure = self._drafter_failed
        served.request.drafting.controller = self._controller
        self._scheduler.add(served)

    @torch.inference_mode()
    def step(self) -> None:
        """Advance every request that runs by one round. An error of one of them ends that one alone."""
        self._drop_cancelled()
        for unread in self._scheduler.pause_unread():
            self._loop.close(unread.request)
        broken = False
        try:
            self._admit()
            self._advance(self._scheduler.running)
        except Exception as error:
            broken = not is_out_of_memory(error)
            if not broken:
                self._relieve(error)
        if broken:  # not where the error is handled: what one request raises then would be told as of another's
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
            if reason := served.reader.cancelled or ("cancelled" if self._cancelled else None):
                self._scheduler.remove(served)
                self.metrics.cancelled += 1
                served.end(reason)

    def _admit(self) -> None:
        admitted, running = self._scheduler.admit(), self._scheduler.running
        waiting = [served for served in running if served.request.waits or served in admitted]
        for place, served in enumerate(waiting):
            try:
                if served in admitted:
                    self._loop.open(served.request)
                begun = [each.request for each in running if each.request.ids]
                self._loop.begin(served.request, batch=len(running), running=begun)
            except Exception as error:
                if is_out_of_memory(error) and self._has_room_to_make:
                    self._put_back(waiting[place:])
                    return
                self._fail(served, error)

    def _advance(self, running: Sequence[ServedRequest]) -> None:
        """One round, and what stands before and after it."""
        plan = self._plan(running)
        if not plan.rows:
            return
        requests, clock = [served.request for served in plan.writing], RoundClock()
        drafts = self._draft(requests, plan.rows)
        clock.lap("draft")
        turns = self._loop.step(requests, plan.parts, drafts.trees, clock)
        committed = [self._publish(*each) for each in zip(plan.writing, turns, strict=True)]
        clock.lap("publish")
        self._learn(plan, drafts, self._turn(plan, drafts, sum(committed), clock))

    def _plan(self, running: Sequence[ServedRequest]) -> Plan:
        turns = self._scheduler.by_turns(running)
        reading = [served.request for served in turns if served.request.unread and not served.request.waits]
        writing = [served for served in running if not served.request.unread]
        return Plan(writing, choose_parts(reading, len(writing), self._controller.prices, self._max_token_gap))

    def _draft(self, requests: list[Request], rows: int) -> Drafts:
        """The trees of a round, shown to who observes a request."""
        reason = "there is no drafter" if self._loop.drafter is None else None if requests else "prompts are read"
        drafts = self._loop.draft(requests, rows, reason)
        self.metrics.drafter_failures += drafts.failure is not None
        for request, grown in zip(requests, drafts.grown, strict=True):
            if request.observer:
                request.observer.drafted(request, grown, drafts.reason)
        return drafts

    def _publish(self, served: ServedRequest, turn: Round | Exception) -> int:
        """Tell the reader of a request what its round has added; how many tokens were committed."""
        try:
            if isinstance(turn, Exception):
                raise turn
            request, known = served.request, len(served.request.tokens) - turn.committed
            served.record(turn)
            self.metrics.count(turn)
            if known == request.prompt_length:
                self.metrics.count_prompt(request)
            if request.finish_reason:
                self._finish(served)
            served.publish(known)
        except Exception as error:
            if is_out_of_memory(error) and self._has_room_to_make:
                self._put_back([served])  # its KV cache may be ahead of its tokens
            else:
                self._fail(served, error)
            return 0
        return turn.committed

    def _finish(self, served: ServedRequest) -> None:
        """Keep what a text leaves for later ones, if there is memory for it; the text is written all the same."""
        self._scheduler.remove(served)
        self.metrics.finished += 1
        try:
            self._loop.prefixes.keep(served.request)
            self._remember(served.request)
        except Exception:
            logger.warning("a finished text was not kept for later ones", exc_info=True)

    def _drafter_failed(self, error: Exception) -> None:
        """Count an error of one request's drafter, which goes on without drafts."""
        self.metrics.drafter_failures += 1
        self._loop.log_failure(error)

    def _turn(self, plan: Plan, drafts: Drafts, committed: int, clock: RoundClock) -> EngineRound:
        drafted = sum(tree.size - 1 for tree in drafts.trees)
        return EngineRound(
            batch=len(plan.writing),
            waiting=len(self._scheduler.waiting),
            drafted=drafted,
            rows=plan.rows + drafted,
            prefill_rows=plan.prefill_rows,
            committed=committed,
            draft_passes=sum(len(widths) for _, widths in drafts.groups),
            draft_seconds=clock.seconds["draft"],
            target_seconds=clock.seconds["masks"] + clock.seconds["target"],
            seconds=clock.total,
            expected=drafts.expected if drafts.groups else None,
            reason=drafts.reason,
        )

    def _learn(self, plan: Plan, drafts: Drafts, turn: EngineRound) -> None:
        """Mend the costs by a round, and judge drafting where nothing but writing was done in it."""
        self.metrics.record(turn)
        controller, ended = self._controller, any(served.request.finish_reason for served in plan.writing)
        rest = None if plan.parts or ended else turn.seconds - turn.target_seconds - turn.draft_seconds
        groups = drafts.groups if drafts.failure is None else []  # a level that failed has taken time, too
        controller.prices.observe(turn.batch, turn.rows, turn.target_seconds, turn.draft_seconds, rest, groups)
        if plan.parts or not turn.batch or drafts.failure is not None or (ended and not groups):
            return  # the last round of a text, which drafts nothing, is no plain one that others compare with
        controller.learn(turn.batch, turn.rows, turn.committed, groups, drafts.expected)
        if groups:
            self.metrics.predicted_gain = controller.predicted_gain(turn.batch)
        self.metrics.measured_gain = controller.gain(turn.batch)

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
        return len(self._scheduler.running) > 1 or bool(self._scheduler.paused) or self._loop.prefixes.tokens > 0

    def _relieve(self, error: Exception) -> None:
        """Make room after memory ran out in a pass: half of the batch waits again, or the only request fails."""
        if self._has_room_to_make:
            self._drop_drafted()
            self._make_room(self._scheduler.halve())
        else:
            for served in list(self._scheduler.running):
                self._fail(served, error)

    def _put_back(self, requests: Sequence[ServedRequest]) -> None:
        self._make_room(self._scheduler.put_back(requests))

    def _make_room(self, waiting: Sequence[ServedRequest]) -> None:
        """Drop kept beginnings of texts, and the rows of requests that wait again: their tokens are read again."""
        self._loop.prefixes.clear()
        for served in waiting:
            self._loop.close(served.request)
        self.metrics.preempted = self._scheduler.preempted
        if self._loop.target.device.type == "cuda":
            torch.cuda.empty_cache()
        going_on = len(self._scheduler.running)
        logger.warning("memory ran out; %d requests wait again and %d go on", len(waiting), going_on)

    def _drop_drafted(self) -> None:
        """Drop the rows that a broken pass may have drafted."""
        for served in self._scheduler.running:
            served.request.cache.commit([])
