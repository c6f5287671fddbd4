"""Work beside work: what is made ahead, in which order, and what becomes of errors."""

import sys
import threading
from collections.abc import Generator

import pytest

from storage_core.threads import count_processors, in_order, valid_at_once

THREADS = pytest.mark.parametrize("threads", [1, 2, 7])


class Source:
    """Numbers, and what is known of who made them.

    Args:
        count: How many.
        fails_at: Number in whose place an error comes.
    """

    def __init__(self, count: int, fails_at: int | None = None) -> None:
        self.made = 0
        self.makers: set[int] = set()
        self.is_closed = False
        self._count = count
        self._fails_at = fails_at

    def numbers(self) -> Generator[int]:
        try:
            for number in range(self._count):
                if number == self._fails_at:
                    raise ValueError(number)
                self.made += 1
                self.makers.add(threading.get_ident())
                yield number
        finally:
            self.is_closed = True


def twice(number: int) -> int:
    return 2 * number


@THREADS
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 20])
def test_results_come_in_order_and_all_of_them(threads, count):
    source = Source(count)
    expected = [2 * number for number in range(count)]
    assert list(in_order(source.numbers(), twice, threads=threads)) == expected
    assert source.is_closed


@THREADS
def test_a_result_waits_for_those_ahead_of_it(threads):
    later = threading.Event()

    def work(number: int) -> int:
        if number == 0 and threads > 1:
            assert later.wait(30)  # until the next item is done
        else:
            later.set()
        return number

    source = Source(20)
    assert list(in_order(source.numbers(), work, threads=threads)) == list(range(20))


@THREADS
def test_no_more_items_are_made_than_may_be_valid(threads):
    source = Source(20)
    for number in in_order(source.numbers(), int, threads=threads):
        assert source.made - number <= valid_at_once(threads)
    assert valid_at_once(1) == 1


@pytest.mark.parametrize("threads", [2, 7])
def test_as_many_items_are_worked_on_as_there_are_threads(threads):
    together = threading.Barrier(threads, timeout=30)
    workers: set[int] = set()

    def work(_number: int) -> None:
        workers.add(threading.get_ident())
        together.wait()

    source = Source(3 * threads)
    assert len(list(in_order(source.numbers(), work, threads=threads))) == 3 * threads
    assert len(workers) == threads
    assert threading.get_ident() not in workers | source.makers


def test_one_thread_is_the_callers():
    source = Source(5)
    workers: set[int] = set()
    list(in_order(source.numbers(), lambda _: workers.add(threading.get_ident()), threads=1))
    assert workers == source.makers == {threading.get_ident()}


@THREADS
@pytest.mark.parametrize("place", ["making", "work"])
def test_an_error_comes_after_the_results_before_it(threads, place):
    def work(number: int) -> int:
        if number == 4:
            raise ValueError(number)
        return number

    source = Source(9, fails_at=4 if place == "making" else None)
    taken = []
    with pytest.raises(ValueError, match="4"):  # noqa: PT012  # what came before counts
        for number in in_order(source.numbers(), work, threads=threads):
            taken.append(number)  # noqa: PERF402  # a list would lose them
    assert taken == [0, 1, 2, 3]
    assert source.is_closed


@THREADS
def test_who_stops_early_hears_of_no_later_error_and_leaves_nothing_open(threads):
    source = Source(9, fails_at=2)
    before = threading.active_count()
    results = in_order(source.numbers(), int, threads=threads)
    assert next(results) == 0
    results.close()
    assert source.is_closed
    assert threading.active_count() == before


def test_threads_change_often_as_long_as_any_work_is_shared():
    before = sys.getswitchinterval()
    first, second = (in_order(Source(9).numbers(), int, threads=2) for _ in range(2))
    next(first)
    next(second)
    first.close()
    assert sys.getswitchinterval() < before
    second.close()
    assert sys.getswitchinterval() == before
    next(in_order(Source(9).numbers(), int, threads=1))
    assert sys.getswitchinterval() == before


def test_there_is_a_processor():
    assert count_processors() >= 1
