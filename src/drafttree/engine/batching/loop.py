"""The loop of an engine: every round advances all requests that run, in one target pass.

    admit -> choose parts of prompts -> a round (see `drafttree.engine.round_loop`) -> publish -> learn

A loop belongs to one thread.
"""

import logging
from collections.abc import Callable, Sequence

import torch

from drafttree.core.machine_memory import is_out_of_memory
from drafttree.engine.batching.scheduler import Scheduler
from drafttree.engine.drafting.controller import Controller
from drafttree.engine.drafting.prices import Prices
from drafttree.engine.generation import Ended, Generation, Reader
from drafttree.engine.memory import KVMemory
from drafttree.engine.metrics import EngineMetrics, Round
from drafttree.engine.request import Request
from drafttree.engine.round_loop import LONGEST_PART, Advance, PromptPart, RoundLoop
from drafttree.engine.target_lock import lock_of
from drafttree.models import Model
from drafttree.models.inference import in_inference_mode

logger = logging.getLogger("drafttree")

SHORTEST_PART = 8
"""Tokens of prompts in a pass at least, however dear they are, so that no prompt waits for ever."""
STRETCH = 2.0
"""A round with parts may take this many plain ones, however long those are."""


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
        self.memory = memory
        self.metrics = EngineMetrics()
        self._max_token_gap = max_token_gap
        self._loop = loop
        self._remember = remember
        self._controller = controller
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
        cancelled = self._cancelled or any(request.reader.cancelled for request in scheduler.waiting)
        return self.busy and (scheduler.ready or cancelled)

    def add(self, request: Request) -> None:
        """Let a request wait for its turn."""
        request.drafting.on_failure = self._drafter_failed
        request.drafting.controller = self._controller
        self._scheduler.add(request)

    def write(self, requests: Sequence[Request]) -> list[Generation]:
        """The texts of requests, in their order, written in the thread of the caller.

        Args:
            requests: prepared by the loop's decoder, not opened; nothing else runs.

        Raises:
            ContextError: one needs more rows of the KV cache than there are.
            Exception: what a request failed with; the others end there.
        """
        for request in requests:
            self.memory.check(request.capacity)
        errors: list[Exception] = []
        results = [Result(errors) for _ in requests]
        for order, (request, result) in enumerate(zip(requests, results, strict=True)):
            request.order = order
            request.reader = result
            self.add(request)
        try:
            while self.busy:
                with lock_of(self.target):
                    self.step()
                if errors:
                    raise errors[0]
        except BaseException:
            errors.clear()  # the frames of each lead here, and would keep all texts until the garbage collector comes
            self.stop("interrupted")
            raise
        return [result.text for result in results]

    @in_inference_mode
    def step(self) -> None:
        """Advance every request that runs by one round. An error of one of them ends that one alone."""
        self._drop_cancelled()
        for unread in self._scheduler.pause_unread():
            self._loop.close(unread)
        broken = False
        try:
            self._admit()
            self._advance(self._scheduler.in_round)
        except Exception as error:
            broken = not is_out_of_memory(error)
            if not broken:
                self._relieve(error)
        if broken:  # not where the error is handled: what one request raises then would be told as of another's
            self._advance_one_by_one()
        self.metrics.running = len(self._scheduler.running)
        self.metrics.waiting = len(self._scheduler.waiting)

    def stop(self, reason: str) -> None:
        """End all requests where they are."""
        for request in self._scheduler.requests:
            self._end(request, reason)

    def cancel_all(self) -> None:
        """Let no request go on beyond this round, and none begin; any thread may call it."""
        self._cancelled = True

    def fail(self, error: Exception) -> None:
        """End all requests with an error."""
        for request in self._scheduler.requests:
            self._fail(request, error)

    def _drop_cancelled(self) -> None:
        for request in self._scheduler.requests:
            if reason := request.reader.cancelled or ("cancelled" if self._cancelled else None):
                self.metrics.cancelled += 1
                self._end(request, reason)

    def _admit(self) -> None:
        admitted = self._scheduler.admit()
        running_requests = self._scheduler.running
        pending_requests = [request for request in running_requests if request.waits or request in admitted]
        for index, request in enumerate(pending_requests):
            try:
                if request in admitted:
                    request.begin()
                    self._loop.open(request)
                sharing_requests = [peer for peer in running_requests if peer.ids]
                self._loop.begin(request, batch=len(running_requests), running=sharing_requests)
            except Exception as error:
                if is_out_of_memory(error) and self._has_room_to_make:
                    self._make_room(self._scheduler.put_back(pending_requests[index:]))
                    return
                self._fail(request, error)

    def _advance(self, running: Sequence[Request]) -> None:
        """One round, and what stands before and after it."""
        writing_requests = [request for request in running if not request.unread]
        reading_requests = [
            request for request in self._scheduler.by_turns(running) if request.unread and not request.waits
        ]
        prompt_parts = choose_parts(
            reading_requests, len(writing_requests), self._controller.prices, self._max_token_gap
        )
        if not writing_requests and not prompt_parts:
            return
        advance = self._loop.step(writing_requests, prompt_parts)
        self.metrics.drafter_failures += advance.drafts.failure is not None
        committed = sum(map(self._publish, writing_requests, advance.turns))
        advance.clock.lap("publish")
        self._scheduler.charge(advance.clock.total)
        self._learn(writing_requests, prompt_parts, advance, committed)
        del advance  # the frames of an error in it lead here, and must not lead back to it

    def _publish(self, request: Request, turn: Round | Exception) -> int:
        """Tell the reader of a request what its round has added; how many tokens were committed."""
        try:
            if isinstance(turn, Exception):
                raise turn
            token_count = len(request.tokens) - turn.committed
            request.record(turn)
            self.metrics.count(turn)
            if token_count == request.prompt_length:
                self.metrics.prompt_tokens += request.prompt_length
                self.metrics.reused_tokens += request.metrics.reused_tokens
            if request.finish_reason:
                self._finish(request)
            request.publish(token_count)
            return turn.committed
        except Exception as error:
            if is_out_of_memory(error) and self._has_room_to_make:
                self._make_room(self._scheduler.put_back([request]))  # its KV cache may be ahead of its tokens
            else:
                self._fail(request, error)
            return 0
        finally:
            del turn  # as in `_advance`

    def _finish(self, request: Request) -> None:
        """Keep what a text leaves for later ones, if there is memory for it; the text is written all the same."""
        self._scheduler.remove(request)
        self.metrics.finished += 1
        try:
            self._loop.prefixes.keep(request)
            self._remember(request)
        except Exception:
            logger.warning("a finished text was not kept for later ones", exc_info=True)

    def _drafter_failed(self, error: Exception) -> None:
        """Count an error of one request's drafter, which goes on without drafts."""
        self.metrics.drafter_failures += 1
        self._loop.trees.log_failure(error)

    def _learn(self, writing: Sequence[Request], parts: Sequence[PromptPart], advance: Advance, committed: int) -> None:
        """Note what a round was, mend the costs by it, and judge drafting where nothing but writing was done in it."""
        drafts = advance.drafts
        clock = advance.clock
        controller = self._controller
        turn = Round(
            committed=committed,
            accepted=sum(turn.accepted for turn in advance.turns if isinstance(turn, Round)),
            nodes=sum(tree.size for tree in drafts.trees),
            levels=max((tree.levels for tree in drafts.trees), default=0),
            draft_passes=sum(len(widths) for _, widths in drafts.groups),
            draft_seconds=clock.seconds["draft"],
            target_seconds=clock.seconds["masks"] + clock.seconds["target"],
            seconds=clock.total,
            batch=len(writing),
            prefill_rows=sum(prompt_part.size for prompt_part in parts),
            waiting=len(self._scheduler.waiting),
            expected=drafts.expected if drafts.groups else None,
            reason=drafts.reason,
        )
        self.metrics.record(turn)
        text_ended = any(request.finish_reason for request in writing)
        rest_seconds = None if parts or text_ended else turn.seconds - turn.target_seconds - turn.draft_seconds
        groups = drafts.groups if drafts.failure is None else []  # a level that failed has taken time, too
        controller.prices.observe(turn.batch, turn.rows, turn.target_seconds, turn.draft_seconds, rest_seconds, groups)
        if parts or not writing or drafts.failure is not None or (text_ended and not groups):
            return  # the last round of a text, which drafts nothing, is no plain one that others compare with
        controller.learn(turn.batch, turn.rows, committed, groups, drafts.expected)
        if groups:
            self.metrics.predicted_gain = controller.predicted_gain(turn.batch)
            self.metrics.measured_gain = controller.gain(turn.batch)

    def _end(self, request: Request, reason: str) -> None:
        """End a text where it is, for a reason of ours, and tell its reader."""
        self._scheduler.remove(request)
        request.end(reason)
        request.publish(len(request.tokens))

    def _fail(self, request: Request, error: Exception) -> None:
        """End a request with an error."""
        self._scheduler.remove(request)
        self.metrics.failed += 1
        request.reader.end(error)

    def _advance_one_by_one(self) -> None:
        """Advance each request by a round of its own, after one of them has broken the pass of all."""
        self._drop_drafted()
        for request in list(self._scheduler.running):
            try:
                self._advance([request])
            except Exception as error:
                if is_out_of_memory(error):
                    self._relieve(error)
                    return
                self._fail(request, error)

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
            for request in list(self._scheduler.running):
                self._fail(request, error)

    def _make_room(self, waiting: Sequence[Request]) -> None:
        """Drop kept beginnings of texts, and the rows of requests that wait again: their tokens are read again."""
        self._loop.prefixes.clear()
        for request in waiting:
            self._loop.close(request)
        self.metrics.preempted = self._scheduler.preempted
        if self._loop.target.device.type == "cuda":
            torch.cuda.empty_cache()
        going_on = len(self._scheduler.running)
        logger.warning("memory ran out; %d requests wait again and %d go on", len(waiting), going_on)

    def _drop_drafted(self) -> None:
        """Drop the rows that a broken pass may have drafted."""
        for request in self._scheduler.running:
            request.cache.commit([])


def choose_parts(reading: Sequence[Request], writing: int, prices: Prices, max_token_gap: float) -> list[PromptPart]:
    """What to read of prompts in the next pass, which must not hold up the texts that are being written.

    Args:
        reading: requests whose prompt is not read, the first in turn first.
        writing: requests that write; each has a row of the pass.
        prices: costs of passes, in seconds.
        max_token_gap: seconds that the round may take.
    """
    room = LONGEST_PART
    prompt_parts = list[PromptPart]()
    if writing and reading:
        max_seconds = max(max_token_gap, STRETCH * prices.round(writing, writing))
        room = max(prices.rows_within(writing, LONGEST_PART, max_seconds), SHORTEST_PART)
    for request in reading:
        if count := min(request.unread, room):
            prompt_parts.append(PromptPart(request, count))
            room -= count
    return prompt_parts


class Result(Reader):
    """Keeps the text that comes of a request.

    Args:
        errors: where what requests fail with is put.
    """

    text: Generation

    def __init__(self, errors: list[Exception]) -> None:
        self._errors = errors

    def end(self, ended: Ended) -> None:
        if isinstance(ended, Exception):
            self._errors.append(ended)
        else:
            self.text = ended
