"""The loop of an engine: every round advances all running requests in one target pass.

    admit -> choose parts of prompts -> a round (see `drafttree.engine.round_loop`) -> publish -> learn

Only one thread may use a loop.
"""

import logging
from collections.abc import Callable, Sequence

import torch

from drafttree.core.machine_memory import is_out_of_memory
from drafttree.drafters.timing import PassTimer
from drafttree.engine.batching.scheduler import Scheduler
from drafttree.engine.batching.seat import Seat, Status
from drafttree.engine.drafting.controller import Controller
from drafttree.engine.drafting.prices import Prices
from drafttree.engine.generation import Ended, Generation, Reader
from drafttree.engine.memory import KVMemory
from drafttree.engine.metrics import EngineMetrics, EngineRound, TextRound
from drafttree.engine.prefixes import Restored, WaitsForPrefix
from drafttree.engine.request import Request
from drafttree.engine.round_loop import LONGEST_PART, Advance, PromptPart, RoundLoop
from drafttree.engine.target_lock import lock_of
from drafttree.models import Model
from drafttree.models.inference import in_inference_mode

logger = logging.getLogger("drafttree")

SHORTEST_PART = 8
"""A pass reads at least this many tokens of waiting prompts, whatever they cost, so that no prompt waits for ever."""
STRETCH = 2.0
"""A round that reads prompts may always take as long as this many plain rounds."""


class BatchLoop:
    """Runs many requests of one decoder in a batch; `Decoder.batch_loop` makes it.

    Args:
        loop: advances the requests by a round.
        controller: decides how much is drafted.
        remember: called with every finished request.
        max_batch: maximum number of running requests.
        memory: reserves the rows of their KV caches.
        max_token_gap: as for `Engine`.

    Attributes:
        memory: as given.
        metrics: counts since the loop was made, and its latest rounds.
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
        self._has_told_of_images = False

    @property
    def target(self) -> Model:
        """The target."""
        return self._loop.target

    @property
    def busy(self) -> bool:
        """Whether any request waits, pauses or runs."""
        return bool(self._scheduler.waiting or self._scheduler.running)

    @property
    def ready(self) -> bool:
        """Whether a step would do anything. It would not if all requests pause for their readers."""
        scheduler = self._scheduler
        cancelled = self._cancelled or any(seat.request.reader.cancelled for seat in scheduler.waiting)
        return self.busy and (scheduler.ready or cancelled)

    def add(self, request: Request) -> None:
        """Queue a request."""
        request.drafting.follow(self._controller, self._drafter_failed)
        self._scheduler.add(request)

    def write(self, requests: Sequence[Request]) -> list[Generation]:
        """Write the texts of requests in the caller's thread, and return the results in the same order.

        Args:
            requests: requests from `Decoder.prepare`. The loop has no others.

        Raises:
            ContextError: if a request needs more rows of the KV cache than there are.
            Exception: the error of the first request that fails. It ends the other texts too.
        """
        for request in requests:
            self.memory.check(request.task.capacity)
        errors: list[Exception] = []
        results = [Result(errors) for _ in requests]
        for request, result in zip(requests, results, strict=True):
            request.give_to(result)
            self.add(request)
        try:
            while self.busy:
                with lock_of(self.target):
                    self.step()
                if errors:
                    raise errors[0]
        except BaseException:
            errors.clear()  # their frames refer to this one, and would keep all texts until the garbage collector runs
            self.stop("interrupted")
            raise
        return [result.text for result in results]

    @in_inference_mode
    def step(self) -> None:
        """Advance every running request by one round. The error of a request ends that request only."""
        self._drop_cancelled()
        for released_seat in self._scheduler.pause_full():
            self._loop.close(released_seat.request)
        broken = False
        try:
            self._admit()
            self._advance(self._scheduler.in_round)
        except Exception as error:
            broken = not is_out_of_memory(error)
            if not broken:
                self._relieve(error)
        if broken:  # outside of the handler, since errors of requests would get the handled error as their context
            self._advance_one_by_one()
        self.metrics.running = len(self._scheduler.running)
        self.metrics.waiting = len(self._scheduler.waiting)

    def stop(self, reason: str) -> None:
        """End all requests with their texts so far and this finish reason."""
        for seat in self._scheduler.seats:
            self._end(seat, reason)

    def cancel_all(self) -> None:
        """End all requests after this round, and let none begin. Any thread may call this."""
        self._cancelled = True

    def fail(self, error: Exception) -> None:
        """End all requests with an error."""
        for seat in self._scheduler.seats:
            self._fail(seat, error)

    def _drop_cancelled(self) -> None:
        for seat in self._scheduler.seats:
            if reason := seat.request.reader.cancelled or ("cancelled" if self._cancelled else None):
                self.metrics.cancelled += 1
                self._end(seat, reason)

    def _admit(self) -> None:
        """Open newly admitted requests, and begin all that wait for no other request's prompt.

        While texts are written, the images of only one prompt are read before the next round.
        """
        admitted = self._scheduler.admit()
        running_seats = self._scheduler.running
        held_seats = [seat for seat in running_seats if seat.status is Status.HELD]
        writing_count = sum(seat.status is Status.WRITING for seat in running_seats)
        has_read_images = False
        for index, seat in enumerate(held_seats):
            try:
                if seat in admitted:
                    seat.request.record_wait()
                    self._loop.open(seat.request)
                if seat.request.task.images and has_read_images and writing_count:
                    continue
                restored = self._begin(seat.request, writing_count)
                if isinstance(restored, Restored):
                    seat.begin()
                    has_read_images |= restored.tokens < seat.request.images_end
            except Exception as error:
                if is_out_of_memory(error) and self._has_room_to_make:
                    self._make_room(self._scheduler.put_back(held_seats[index:]))
                    return
                self._fail(seat, error)

    def _begin(self, request: Request, writing: int) -> Restored | WaitsForPrefix:
        """Begin an open request; see `RoundLoop.begin`. If images are read meanwhile, note how long others waited.

        Args:
            request: the request.
            writing: the number of requests that write tokens.
        """
        running_requests = [seat.request for seat in self._scheduler.running]
        sharing_requests = [peer for peer in running_requests if peer.shared_prefix]
        timer = PassTimer(self.target.device)
        with timer:
            restored = self._loop.begin(request, batch=len(running_requests), running=sharing_requests)
        if writing and isinstance(restored, Restored) and restored.tokens < request.images_end:
            self._note_image_wait(request, timer.seconds, writing)
        return restored

    def _note_image_wait(self, request: Request, seconds: float, writing: int) -> None:
        """Count the time for which texts waited while images were read, and once log that it was too long."""
        self.metrics.image_wait_seconds += seconds
        longest_gap = longest_round(self._controller.prices, writing, self._max_token_gap)
        if seconds <= longest_gap or self._has_told_of_images:
            return
        self._has_told_of_images = True
        logger.warning(
            "reading %d tokens with images took %.2f s, and %d other texts waited for it, longer than the %.2f s that "
            "they may (max_token_gap): a prompt is read in one pass up to its last image; send smaller or fewer images",
            *(request.images_end, seconds, writing, longest_gap),
        )

    def _advance(self, seats: Sequence[Seat]) -> None:
        """Run one round: choose parts of prompts, advance the requests, publish their tokens, and learn from it."""
        for seat in seats:
            seat.note_progress()
        writing_seats = [seat for seat in seats if seat.status is Status.WRITING]
        reading_seats = [seat for seat in seats if seat.status is Status.READING]
        prompts = [seat.request for seat in self._scheduler.by_turns(reading_seats)]
        prompt_parts = choose_parts(prompts, len(writing_seats), self._controller.prices, self._max_token_gap)
        if not writing_seats and not prompt_parts:
            return
        requests = [seat.request for seat in writing_seats]
        advance = self._loop.step(requests, prompt_parts)
        self.metrics.drafter_failures += advance.drafts.failure is not None
        committed = sum(map(self._publish, writing_seats, advance.rounds))
        advance.clock.lap("publish")
        self._scheduler.charge(advance.clock.total)
        self._learn(requests, prompt_parts, advance, committed)
        del advance  # else an error in it and this frame would keep each other alive

    def _publish(self, seat: Seat, text_round: TextRound | Exception) -> int:
        """Give a request's reader the tokens of its round, and return how many were committed; 0 if it failed."""
        request = seat.request
        try:
            if isinstance(text_round, Exception):
                raise text_round
            token_count = len(request.tokens) - text_round.committed
            request.record(text_round)
            self.metrics.count(text_round)
            if token_count == len(request.task.prompt):
                self.metrics.prompt_tokens += token_count
                self.metrics.reused_tokens += request.metrics.reused_tokens
            if request.text.finish_reason:
                self._finish(seat)
            request.publish(token_count)
            return text_round.committed
        except Exception as error:
            if is_out_of_memory(error) and self._has_room_to_make and seat.status is not Status.ENDED:
                self._make_room(self._scheduler.put_back([seat]))  # its KV cache may be ahead of its tokens
            else:
                self._fail(seat, error)
            return 0
        finally:
            del text_round  # as in `_advance`

    def _finish(self, seat: Seat) -> None:
        """Keep the rows of a finished text and what it has taught; an error here does not affect the text."""
        self._scheduler.remove(seat)
        self.metrics.finished += 1
        try:
            self._loop.prefixes.store(seat.request)
            self._remember(seat.request)
        except Exception:
            logger.warning("the KV rows of a finished text could not be kept for later texts", exc_info=True)

    def _drafter_failed(self, error: Exception) -> None:
        """Count and log an error of the drafter. The request continues without drafts."""
        self.metrics.drafter_failures += 1
        self._loop.trees.log_failure(error)

    def _learn(
        self, writing: Sequence[Request], prompt_parts: Sequence[PromptPart], advance: Advance, committed: int
    ) -> None:
        """Record a round and correct the prices by it. If it read no prompts, the controller learns from it too."""
        drafts = advance.drafts
        clock = advance.clock
        controller = self._controller
        engine_round = EngineRound(
            committed=committed,
            accepted=sum(text_round.accepted for text_round in advance.rounds if isinstance(text_round, TextRound)),
            nodes=sum(tree.size for tree in drafts.trees),
            levels=max((tree.levels for tree in drafts.trees), default=0),
            draft_passes=sum(len(widths) for _, widths in drafts.groups),
            draft_seconds=clock.seconds["draft"],
            target_seconds=clock.seconds["masks"] + clock.seconds["target"],
            seconds=clock.total,
            batch=len(writing),
            prefill_rows=sum(prompt_part.size for prompt_part in prompt_parts),
            waiting=len(self._scheduler.waiting),
            expected=drafts.expected if drafts.groups else None,
            reason=drafts.reason,
        )
        self.metrics.record(engine_round)
        text_ended = any(request.text.finish_reason for request in writing)
        rest_seconds = (
            None
            if prompt_parts or text_ended
            else engine_round.seconds - engine_round.target_seconds - engine_round.draft_seconds
        )
        groups = drafts.groups if drafts.failure is None else []  # draft seconds include the level that failed
        controller.prices.observe(
            engine_round.batch,
            engine_round.rows,
            engine_round.target_seconds,
            engine_round.draft_seconds,
            rest_seconds,
            groups,
        )
        if prompt_parts or not writing or drafts.failure is not None or (text_ended and not groups):
            return  # the last round of a text drafts nothing in any case, so it is not a plain round
        controller.learn(engine_round.batch, engine_round.rows, committed, groups, drafts.expected)
        if groups:
            self.metrics.predicted_gain = controller.predicted_gain(engine_round.batch)
            self.metrics.measured_gain = controller.gain(engine_round.batch)

    def _end(self, seat: Seat, reason: str) -> None:
        """End a request, and give its text so far to its reader."""
        self._scheduler.remove(seat)
        seat.request.end(reason)
        seat.request.publish(len(seat.request.tokens))

    def _fail(self, seat: Seat, error: Exception) -> None:
        """End a request, and give the error to its reader."""
        self._scheduler.remove(seat)
        self.metrics.failed += 1
        seat.request.reader.end(error)

    def _advance_one_by_one(self) -> None:
        """Advance each request by a round of its own, after the round of all of them has raised an error."""
        self._drop_drafted()
        for seat in list(self._scheduler.running):
            try:
                self._advance([seat])
            except Exception as error:
                if is_out_of_memory(error):
                    self._relieve(error)
                    return
                self._fail(seat, error)

    @property
    def _has_room_to_make(self) -> bool:
        """Whether memory can be freed: by requests that wait again, or by kept texts that are dropped."""
        return len(self._scheduler.running) > 1 or bool(self._scheduler.paused) or self._loop.prefixes.tokens > 0

    def _relieve(self, error: Exception) -> None:
        """Free memory after a pass ran out of it: half of the batch waits again. If nothing can be freed, all fail."""
        if self._has_room_to_make:
            self._drop_drafted()
            self._make_room(self._scheduler.halve())
        else:
            for seat in list(self._scheduler.running):
                self._fail(seat, error)

    def _make_room(self, released_seats: Sequence[Seat]) -> None:
        """Drop kept texts, and the rows of requests that wait again. Their tokens are read anew later."""
        self._loop.prefixes.clear()
        for seat in released_seats:
            self._loop.close(seat.request)
        self.metrics.preempted = self._scheduler.preempted
        if self._loop.target.device.type == "cuda":
            torch.cuda.empty_cache()
        going_on = len(self._scheduler.running)
        logger.warning("memory ran out; %d requests wait again and %d go on", len(released_seats), going_on)

    def _drop_drafted(self) -> None:
        """Drop uncommitted rows that a failed pass may have left in the KV caches."""
        for seat in self._scheduler.running:
            seat.request.cache.commit([])


def choose_parts(reading: Sequence[Request], writing: int, prices: Prices, max_token_gap: float) -> list[PromptPart]:
    """Choose the parts of prompts to read in the next pass, so that other texts are not delayed too much.

    Args:
        reading: requests whose prompts are being read, the next one first.
        writing: the number of requests that write tokens; each has a row in the pass.
        prices: costs of passes, in seconds.
        max_token_gap: as for `longest_round`.
    """
    room = LONGEST_PART
    prompt_parts = list[PromptPart]()
    if writing and reading:
        max_seconds = longest_round(prices, writing, max_token_gap)
        room = max(prices.rows_within(writing, LONGEST_PART, max_seconds), SHORTEST_PART)
    for request in reading:
        if count := min(request.unread, room):
            prompt_parts.append(PromptPart(request, count))
            room -= count
    return prompt_parts


def longest_round(prices: Prices, writing: int, max_token_gap: float) -> float:
    """The seconds that a round may take which reads prompts.

    Args:
        prices: costs of passes, in seconds.
        writing: the number of requests that write tokens.
        max_token_gap: seconds that it may always take. It may take `STRETCH` plain rounds if that is longer.
    """
    return max(max_token_gap, STRETCH * prices.round(writing, writing))


class Result(Reader):
    """Keeps the finished text of a request.

    Args:
        errors: the list that errors of requests are added to.
    """

    text: Generation

    def __init__(self, errors: list[Exception]) -> None:
        self._errors = errors

    def end(self, outcome: Ended) -> None:
        if isinstance(outcome, Exception):
            self._errors.append(outcome)
        else:
            self.text = outcome
