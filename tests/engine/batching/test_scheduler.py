from types import SimpleNamespace
from typing import cast

import pytest

from drafttree.engine.batching.scheduler import REGAIN_ROUNDS, Scheduler
from drafttree.engine.batching.seat import Seat, Status
from drafttree.engine.generation import Reader
from drafttree.engine.memory import KVMemory
from drafttree.engine.prefixes import PrefixCache
from drafttree.engine.request import Request
from drafttree.models import TargetModel
from testing import tiny


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return TargetModel(tiny.build("llama"))


def waiting(rows: int, group: str | None = None) -> Request:
    """What a scheduler knows of a request that needs so many rows, of a group or of none."""
    task = SimpleNamespace(capacity=rows, group=group or object())
    return cast(Request, SimpleNamespace(task=task, reader=Reader()))


def unread(target, memory: int = 100, room: int = 2, texts: int = 2) -> tuple[Scheduler, list[Seat]]:
    """A scheduler whose texts, of 30 rows each, all pause until they are read."""
    scheduler = Scheduler(room, KVMemory(target, PrefixCache(0), memory))
    given = [scheduler.add(waiting(30)) for _ in range(texts)]
    scheduler.admit()
    for seat in given:
        seat.request.reader.full = True
    assert scheduler.pause_full() == []
    return scheduler, given


def crowded(target, memory: int = 1000, room: int = 4, texts: int = 6) -> Scheduler:
    """A scheduler whose batch is full with texts of one group."""
    scheduler = Scheduler(room, KVMemory(target, PrefixCache(0), memory))
    for _ in range(texts):
        scheduler.add(waiting(10, "many"))
    scheduler.admit()
    return scheduler


def orders(seats) -> list[int]:
    return [seat.order for seat in seats]


def test_reserved_rows_never_exceed_the_memory_and_come_back(target):
    memory = KVMemory(target, PrefixCache(0), 100)
    scheduler = Scheduler(8, memory)
    for _ in range(6):
        scheduler.add(waiting(30))
    scheduler.admit()
    assert memory.reserved == 90
    for served in list(scheduler.running):
        scheduler.remove(served)
    assert memory.reserved == 0


def test_a_halved_batch_grows_again_by_one_after_quiet_rounds(target):
    scheduler = Scheduler(4, KVMemory(target, PrefixCache(0), 1000))
    for _ in range(4):
        scheduler.add(waiting(10))
    scheduler.admit()
    scheduler.halve()
    admitted = [len(scheduler.admit()) for _ in range(2 * REGAIN_ROUNDS + 1)]
    assert sum(admitted) == 2
    assert max(admitted) == 1


def test_halving_a_single_request_sends_nothing_back(target):
    scheduler = Scheduler(4, KVMemory(target, PrefixCache(0), 1000))
    scheduler.add(waiting(10))
    scheduler.admit()
    assert scheduler.halve() == []
    assert orders(scheduler.running) == [0]


def test_a_text_of_another_group_begins_at_once_and_the_youngest_of_many_pauses_for_it(target):
    scheduler = crowded(target)
    scheduler.add(waiting(10))
    assert orders(scheduler.admit()) == [6]
    assert orders(scheduler.running) == [0, 1, 2, 6]
    assert orders(scheduler.paused) == [3]
    assert orders(scheduler.waiting) == [3, 4, 5]
    assert scheduler.preempted == 0


def test_a_paused_text_keeps_its_rows_and_goes_on_before_its_group_begins_another(target):
    scheduler = crowded(target)
    single = scheduler.add(waiting(10))
    scheduler.admit()
    assert scheduler._memory.reserved == 50
    scheduler.remove(single)
    assert scheduler.admit() == []
    assert orders(scheduler.running) == [0, 1, 2, 3]
    assert scheduler._memory.reserved == 40


def test_groups_of_many_texts_share_the_batch(target):
    scheduler = crowded(target)
    for _ in range(6, 12):
        scheduler.add(waiting(10, "as many"))
    assert orders(scheduler.admit()) == [6, 7]
    assert sorted(orders(scheduler.running)) == [0, 1, 6, 7]
    assert scheduler.admit() == []


def test_every_group_keeps_a_place_however_many_others_come(target):
    scheduler = crowded(target)
    for _ in range(6, 12):
        scheduler.add(waiting(10))
    assert orders(scheduler.admit()) == [6, 7, 8]
    scheduler.remove(scheduler.running[0])
    assert scheduler.admit() == []
    assert orders(scheduler.running) == [6, 7, 8, 1]


@pytest.mark.parametrize("room", [1, 2])
def test_a_text_waits_for_one_more_text_of_each_larger_group_where_there_are_fewer_places_than_groups(target, room):
    scheduler = Scheduler(room, KVMemory(target, PrefixCache(0), 1000))
    for order in range(12):
        scheduler.add(waiting(10, "ab"[order // 6]))
    scheduler.admit()
    scheduler.add(waiting(10))
    begun = []
    while 12 not in begun:
        scheduler.remove(scheduler.running[0])
        begun += orders(scheduler.admit())
    assert len(begun) <= 3


def test_a_group_goes_on_while_others_keep_coming(target):
    scheduler = crowded(target, room=1, texts=3)
    begun = []
    for _ in range(3, 12):
        scheduler.add(waiting(10))
        scheduler.remove(scheduler.running[0])
        begun += orders(scheduler.admit())
    assert begun == [1, 3, 2, 4, 5, 6, 7, 8, 9]


def test_nothing_pauses_for_a_text_whose_memory_is_not_there(target):
    scheduler = crowded(target, memory=45)
    scheduler.add(waiting(10))
    assert scheduler.admit() == []
    assert scheduler.paused == []


def test_paused_texts_go_on_before_a_text_for_which_only_their_end_makes_room(target):
    scheduler = crowded(target, memory=60, room=3, texts=3)
    scheduler.add(waiting(10))
    scheduler.admit()
    large = scheduler.add(waiting(60))
    for order in (0, 1, 3):
        scheduler.remove(next(served for served in scheduler.running if served.order == order))
        scheduler.admit()
    assert orders(scheduler.running) == [2]
    scheduler.remove(scheduler.running[0])
    assert scheduler.admit() == [large]


def test_where_memory_runs_out_paused_texts_give_their_rows_up_too(target):
    scheduler = crowded(target)
    scheduler.add(waiting(10))
    scheduler.admit()
    assert orders(scheduler.halve()) == [2, 3, 6]
    assert scheduler.paused == []
    assert scheduler._memory.reserved == 20
    assert scheduler.preempted == 3


def test_turns_go_from_group_to_group(target):
    scheduler = Scheduler(4, KVMemory(target, PrefixCache(0), 1000))
    given = [scheduler.add(waiting(1, group)) for group in ("a", "a", "b", None, "b")]
    assert orders(scheduler.by_turns(given)) == [0, 2, 3, 1, 4]


def test_a_text_that_is_not_read_pauses_and_keeps_its_rows(target):
    scheduler, given = unread(target)
    assert scheduler.admit() == []
    assert [seat.status for seat in given] == [Status.PAUSED] * 2
    assert (scheduler.running, scheduler.paused, scheduler.ready) == ([], given, False)
    assert (scheduler._memory.reserved, scheduler.preempted) == (60, 0)


def test_a_text_that_is_read_again_goes_on_where_it_was(target):
    scheduler, given = unread(target)
    scheduler.admit()
    given[1].request.reader.full = False
    assert scheduler.ready
    assert scheduler.pause_full() == scheduler.admit() == []
    assert scheduler.running == [given[1]]


def test_a_text_that_is_not_read_lets_others_have_its_place(target):
    scheduler, _ = unread(target)
    for _ in range(2, 5):
        scheduler.add(waiting(10))
    assert scheduler.pause_full() == []
    assert orders(scheduler.admit()) == [2, 3]
    assert scheduler._memory.reserved == 80


def test_texts_that_are_not_read_give_up_the_rows_that_others_need_and_no_more(target):
    scheduler, given = unread(target)
    scheduler.add(waiting(70))
    assert scheduler.ready
    assert orders(scheduler.pause_full()) == [1]
    assert orders(scheduler.admit()) == [2]
    assert (scheduler._memory.reserved, scheduler.preempted) == (100, 0)
    assert scheduler.paused == [given[0]]
    scheduler.remove(scheduler.running[0])
    given[1].request.reader.full = False
    assert scheduler.pause_full() == []
    assert scheduler.admit() == [given[1]]


def test_rows_are_not_given_up_for_a_text_that_has_no_place(target):
    scheduler, _ = unread(target, room=1, texts=1)
    scheduler.add(waiting(10))
    scheduler.admit()
    scheduler.add(waiting(100))
    assert scheduler.pause_full() == scheduler.admit() == []
    scheduler.remove(scheduler.running[0])
    assert orders(scheduler.pause_full()) == [0]
    assert orders(scheduler.admit()) == [2]


def test_a_text_that_was_read_again_waits_for_a_place_and_is_not_passed_by_later_ones(target):
    scheduler, (first,) = unread(target, room=1, texts=1)
    for _ in range(1, 3):
        scheduler.add(waiting(10))
    assert orders(scheduler.admit()) == [1]
    first.request.reader.full = False
    assert scheduler.pause_full() == scheduler.admit() == []
    scheduler.remove(scheduler.running[0])
    assert scheduler.admit() == []
    assert scheduler.running == [first]


def test_where_memory_runs_out_texts_that_are_not_read_give_their_rows_up_too(target):
    scheduler, given = unread(target)
    scheduler.add(waiting(10))
    scheduler.admit()
    assert scheduler.put_back([]) == given
    assert scheduler._memory.reserved == 10


def test_by_default_half_of_the_memory_is_for_rows(target):
    row = 2 * tiny.LAYERS * 2 * 8 * 4  # keys and values, layers, key heads, width, bytes of a float32
    memory = KVMemory(target, PrefixCache(0)).rows * row
    with open("/proc/meminfo") as lines:
        total = int(next(line for line in lines if line.startswith("MemTotal")).split()[1]) * 1024
    assert memory == pytest.approx(total / 2, rel=0.01)


def test_a_seat_says_how_far_its_request_has_come(target):
    scheduler = Scheduler(1, KVMemory(target, PrefixCache(0), 100))
    request = waiting(10)
    request.unread = 3  # pyright: ignore[reportAttributeAccessIssue]
    seat = scheduler.add(request)
    seen = [seat.status]
    scheduler.admit()
    seen.append(seat.status)
    seat.begin()
    seen.append(seat.status)
    request.reader.full = True
    scheduler.pause_full()
    seen.append(seat.status)
    request.reader.full = False
    scheduler.pause_full()
    scheduler.admit()
    seen.append(seat.status)
    request.unread = 0  # pyright: ignore[reportAttributeAccessIssue]
    seat.note_progress()
    seen.append(seat.status)
    scheduler.put_back([seat])
    seen.append(seat.status)
    scheduler.remove(seat)
    seen.append(seat.status)
    assert seen == ["queued", "held", "reading", "paused", "reading", "writing", "queued", "ended"]


def test_a_request_that_others_wait_for_takes_part_however_slow_its_constraints_were(target):
    scheduler = Scheduler(2, KVMemory(target, PrefixCache(0), 100))
    requests = [waiting(10), waiting(10)]
    requests[0].unread = 3  # pyright: ignore[reportAttributeAccessIssue]
    reading, held = [scheduler.add(request) for request in requests]
    scheduler.admit()
    reading.begin()
    reading.overtime = 5.0
    assert held.status is Status.HELD
    assert scheduler.in_round == [reading]
