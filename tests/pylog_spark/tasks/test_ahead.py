"""Waits beside each other: in order, bounded, and an error where it belongs."""

import threading
import time

import pytest

from pylog_spark.tasks.ahead import AT_ONCE, Room, map_ahead, map_in_turns, map_partitions
from storage_core.threads import waiting


@pytest.mark.parametrize("count", [0, 1, 5, 200])
def test_answers_come_in_the_order_of_the_questions(count):
    def work(number):
        time.sleep(0.001 * (number % 3))
        return number * number

    assert list(map_ahead(work, range(count))) == [number * number for number in range(count)]


def test_no_more_items_are_taken_than_are_on_their_way():
    taken = []

    def items():
        for number in range(100):
            taken.append(number)
            yield number

    answers = map_ahead(lambda number: number, items(), at_once=4)
    assert next(answers) == 0
    assert len(taken) <= 5
    answers.close()


def test_several_calls_run_at_the_same_time():
    meeting = threading.Barrier(4, timeout=10)
    assert list(map_ahead(lambda _: meeting.wait() >= 0, range(8), at_once=4)) == [True] * 8


def test_what_a_call_raises_is_raised_where_its_answer_would_be():
    def work(number):
        if number == 2:
            raise ValueError("two")
        return number

    answers = map_ahead(work, range(5))
    assert [next(answers), next(answers)] == [0, 1]
    with pytest.raises(ValueError, match="two"):
        next(answers)


def test_only_partitions_on_an_object_store_are_asked_for_ahead():
    threads = {}

    def work(row):
        threads[row["directory"]] = threading.current_thread()
        return row["directory"]

    places = ["/var/log/a-0", "managed+/m/a-1", "s3://b/a-2", "managed+s3://b/a-3", "/var/log/a-4"]
    assert list(map_partitions(work, ({"directory": place} for place in places))) == places
    here = threading.current_thread()
    assert [threads[place] is here for place in places] == [True, True, False, False, True]


def test_who_finds_no_room_waits_until_there_is_some():
    room, order = Room(10), []
    second = threading.Thread(target=lambda: _in_room(room, 5, order, "second"))
    with room.take(6):
        second.start()
        second.join(timeout=0.2)
        order.append("first")
    second.join()
    assert order == ["first", "second"]


def test_who_needs_more_room_than_there_is_has_it_alone():
    room, order = Room(10), []
    second = threading.Thread(target=lambda: _in_room(room, 1, order, "second"))
    with room.take(1000):
        second.start()
        second.join(timeout=0.2)
        order.append("first")
    second.join()
    assert order == ["first", "second"]


def test_room_is_given_back_after_an_error():
    room, order = Room(10), []
    with pytest.raises(ValueError, match="wrong"), room.take(10):
        raise ValueError("wrong")
    _in_room(room, 10, order, "next")
    assert order == ["next"]


def _in_room(room, size_bytes, order, name):
    with room.take(size_bytes):
        order.append(name)


def test_who_computes_is_this_thread_alone_until_one_has_waited():
    everybody = threading.Barrier(AT_ONCE, timeout=20)

    def work(number: int) -> threading.Thread:
        if number == 3:
            with waiting():
                time.sleep(0.05)
        if number > 3:
            with waiting():
                everybody.wait()  # for so many at once
        return threading.current_thread()

    threads = list(map_in_turns(work, range(4 + AT_ONCE)))
    assert set(threads[:4]) == {threading.current_thread()}
    assert len(set(threads[4:])) == AT_ONCE
