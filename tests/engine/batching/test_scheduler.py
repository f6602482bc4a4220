from types import SimpleNamespace
from typing import Any, cast

import pytest

from drafttree.core.errors import ConfigError, ContextError
from drafttree.engine.batching.kv_memory import KVMemory
from drafttree.engine.batching.scheduler import REGAIN_ROUNDS, Scheduler
from drafttree.engine.batching.served_request import ServedRequest
from drafttree.models import TargetModel
from helpers import tiny


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return TargetModel(tiny.build("llama"))


def waiting(order: int, rows: int, *, full: bool = False) -> ServedRequest:
    """A request that needs so many rows, whose reader may take no more."""
    served = ServedRequest(cast(Any, SimpleNamespace(capacity=rows)), order=order)
    served.reader.full = full
    return served


def orders(requests) -> list[int]:
    return [served.order for served in requests]


def test_requests_are_admitted_in_order_as_far_as_the_batch_has_room(target):
    scheduler = Scheduler(2, KVMemory(target, 100))
    for order in range(4):
        scheduler.add(waiting(order, 10))
    assert orders(scheduler.admit()) == [0, 1]
    scheduler.remove(scheduler.running[0])
    assert orders(scheduler.admit()) == [2]
    assert orders(scheduler.running) == [1, 2]


def test_a_small_request_does_not_pass_a_large_one_that_waits(target):
    scheduler = Scheduler(8, KVMemory(target, 100))
    for order, rows in enumerate((60, 70, 10)):
        scheduler.add(waiting(order, rows))
    assert orders(scheduler.admit()) == [0]
    scheduler.remove(scheduler.running[0])
    assert orders(scheduler.admit()) == [1, 2]


def test_reserved_rows_never_exceed_the_memory_and_come_back(target):
    memory = KVMemory(target, 100)
    scheduler = Scheduler(8, memory)
    for order in range(6):
        scheduler.add(waiting(order, 30))
    scheduler.admit()
    assert memory.reserved == 90
    for served in list(scheduler.running):
        scheduler.remove(served)
    assert memory.reserved == 0


def test_halving_sends_the_youngest_back_to_the_front_of_the_queue(target):
    memory = KVMemory(target, 1000)
    scheduler = Scheduler(4, memory)
    for order in range(6):
        scheduler.add(waiting(order, 10))
    scheduler.admit()
    assert orders(scheduler.halve()) == [2, 3]
    assert orders(scheduler.waiting) == [2, 3, 4, 5]
    assert memory.reserved == 20
    assert scheduler.admit() == []
    assert scheduler.preempted == 2


def test_a_halved_batch_grows_again_by_one_after_quiet_rounds(target):
    scheduler = Scheduler(4, KVMemory(target, 1000))
    for order in range(4):
        scheduler.add(waiting(order, 10))
    scheduler.admit()
    scheduler.halve()
    admitted = [len(scheduler.admit()) for _ in range(2 * REGAIN_ROUNDS + 1)]
    assert sum(admitted) == 2
    assert max(admitted) == 1


def test_halving_a_single_request_sends_nothing_back(target):
    scheduler = Scheduler(4, KVMemory(target, 1000))
    scheduler.add(waiting(0, 10))
    scheduler.admit()
    assert scheduler.halve() == []
    assert orders(scheduler.running) == [0]


def test_requests_that_are_not_read_keep_their_places_until_others_want_them(target):
    memory = KVMemory(target, 100)
    scheduler = Scheduler(2, memory)
    unread = [waiting(order, 30) for order in range(2)]
    for served in unread:
        scheduler.add(served)
    scheduler.admit()
    for served in unread:
        served.reader.full = True
    assert not scheduler.ready
    assert scheduler.set_aside() == []
    scheduler.add(waiting(2, 90))
    assert scheduler.ready
    assert orders(scheduler.set_aside()) == [1, 0]
    assert orders(scheduler.admit()) == [2]
    assert (memory.reserved, scheduler.preempted) == (90, 0)


def test_a_request_that_is_not_read_is_passed_until_it_is(target):
    scheduler = Scheduler(1, KVMemory(target, 100))
    unread = waiting(0, 10, full=True)
    scheduler.add(unread)
    scheduler.add(waiting(1, 10))
    assert orders(scheduler.admit()) == [1]
    scheduler.remove(scheduler.running[0])
    assert not scheduler.ready
    assert scheduler.admit() == []
    unread.reader.full = False
    assert scheduler.ready
    assert orders(scheduler.admit()) == [0]


def test_a_cancelled_request_is_to_be_dropped_whether_it_is_read_or_not(target):
    scheduler = Scheduler(1, KVMemory(target, 100))
    scheduler.add(waiting(0, 10, full=True))
    assert not scheduler.ready
    scheduler.waiting[0].cancel("cancelled")
    assert scheduler.ready


def test_a_request_that_can_never_run_is_refused_with_what_it_needs(target):
    with pytest.raises(ContextError, match=r"needs 101 rows of the KV cache .* the engine has 100"):
        KVMemory(target, 100).check(101)


def test_a_memory_of_no_rows_is_refused(target):
    with pytest.raises(ConfigError, match="max_kv_tokens is 0; it must be a whole number of at least 1"):
        KVMemory(target, 0)


def test_by_default_half_of_the_memory_is_for_rows(target):
    row = 2 * tiny.LAYERS * 2 * 8 * 4  # keys and values, layers, key heads, width, bytes of a float32
    memory = KVMemory(target).rows * row
    with open("/proc/meminfo") as lines:
        total = int(next(line for line in lines if line.startswith("MemTotal")).split()[1]) * 1024
    assert memory == pytest.approx(total / 2, rel=0.01)
