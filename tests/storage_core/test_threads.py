"""Work beside work: what is made ahead, in which order, and what becomes of errors."""

import threading
from collections.abc import Generator

import pytest

from storage_core.threads import Beside, count_processors, read_ahead, valid_at_once

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


@THREADS
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 20])
def test_items_come_in_order_and_all_of_them(threads, count):
    source = Source(count)
    assert list(read_ahead(source.numbers(), threads=threads)) == list(range(count))
    assert source.is_closed


@THREADS
def test_no_more_items_are_made_than_may_be_valid(threads):
    source = Source(20)
    for number in read_ahead(source.numbers(), threads=threads):
        assert source.made - number <= valid_at_once(threads)
    assert valid_at_once(1) == 1


def test_another_thread_makes_them_only_where_there_are_two():
    alone, beside = Source(5), Source(5)
    list(read_ahead(alone.numbers(), threads=1))
    list(read_ahead(beside.numbers(), threads=2))
    assert alone.makers == {threading.get_ident()}
    assert len(beside.makers) == 1
    assert beside.makers.isdisjoint(alone.makers)


@THREADS
def test_an_error_comes_after_the_items_before_it(threads):
    source = Source(9, fails_at=4)
    taken = []
    with pytest.raises(ValueError, match="4"):  # noqa: PT012  # what came before counts
        for number in read_ahead(source.numbers(), threads=threads):
            taken.append(number)  # noqa: PERF402  # a list would lose them
    assert taken == [0, 1, 2, 3]


@THREADS
def test_who_stops_early_hears_of_no_later_error_and_leaves_nothing_open(threads):
    source = Source(9, fails_at=2)
    before = threading.active_count()
    items = read_ahead(source.numbers(), threads=threads)
    assert next(items) == 0
    items.close()
    assert source.is_closed
    assert threading.active_count() == before


@THREADS
def test_calls_are_done_in_order(threads):
    done: list[int] = []
    with Beside(threads=threads) as beside:
        for number in range(20):
            beside.do(done.append, number)
        beside.wait()
        assert done == list(range(20))


@THREADS
def test_leaving_waits_for_the_last_call(threads):
    done = threading.Event()
    with Beside(threads=threads) as beside:
        beside.do(done.set)
    assert done.is_set()


def _fail() -> None:
    raise OSError(28, "No space left on device")


def test_an_error_of_a_call_is_raised_by_what_comes_next():
    with Beside(threads=2) as beside:
        beside.do(_fail)
        with pytest.raises(OSError, match="No space"):
            beside.do(_fail)
        beside.wait()  # the second one was never begun
        beside.do(_fail)
        with pytest.raises(OSError, match="No space"):
            beside.wait()


def test_with_one_thread_an_error_is_raised_at_once():
    with Beside(threads=1) as beside, pytest.raises(OSError, match="No space"):
        beside.do(_fail)


def test_there_is_a_processor():
    assert count_processors() >= 1
