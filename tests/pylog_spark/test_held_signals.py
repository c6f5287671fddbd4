"""Signals that wait for the end of a block."""

import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from pylog_spark.session import held_signals


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM raise, and put things back afterwards."""

    def stop(*_: object) -> None:
        raise SystemExit(143)

    # A run of tests in the background ignores Ctrl-C from its start.
    former = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, stop),
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
    }
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


def in_a_block(*steps: Callable[[], object]) -> None:
    with held_signals():
        for step in steps:
            step()


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_is_delivered_when_the_block_has_ended(number, error):
    steps = []
    with pytest.raises(error):
        in_a_block(lambda: signal.raise_signal(number), lambda: steps.append("went on"))
    assert steps == ["went on"]
    with pytest.raises(error):
        signal.raise_signal(number)


def test_a_second_signal_does_not_wait():
    twice = [lambda: signal.raise_signal(signal.SIGINT)] * 2
    with pytest.raises(KeyboardInterrupt):
        in_a_block(*twice, lambda: pytest.fail("went on"))


def test_a_handler_that_the_block_has_put_there_stays_and_is_told():
    told = []
    with held_signals():
        signal.raise_signal(signal.SIGINT)
        signal.signal(signal.SIGINT, lambda number, _: told.append(number))
    assert told == [signal.SIGINT]


def test_a_signal_that_is_ignored_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with held_signals():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_other_threads_may_enter_it():
    ended = []

    def run() -> None:
        with held_signals():
            ended.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert ended == [True]
