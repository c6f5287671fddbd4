# ruff: noqa: N802 - the methods are Java's, names and all
"""Java interfaces that Kafka calls, implemented in Python: the clock, the scheduler, two questions.

JPype gives a proxy only the methods that stand here: a default method of the interface that Kafka
calls and that is missing here would be a NoSuchMethodError, so they are all spelled out.
The classes exist only once the JVM runs, hence ``deferred``.
"""

from typing import Any

from jpype import JImplements, JOverride

from tests.oracle.jvm import java


@JImplements("org.apache.kafka.common.utils.Time", deferred=True)
class FixedTime:
    """A clock that stands still until it is set or somebody sleeps."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    @JOverride
    def milliseconds(self) -> int:
        return self.now_ms

    @JOverride
    def hiResClockMs(self) -> int:
        return self.now_ms

    @JOverride
    def nanoseconds(self) -> int:
        return self.now_ms * 1_000_000

    @JOverride
    def sleep(self, milliseconds: int) -> None:
        self.now_ms += int(milliseconds)

    @JOverride
    def timer(self, timeout: Any) -> Any:
        return java("org.apache.kafka.common.utils.Time").SYSTEM.timer(timeout)

    @JOverride
    def waitObject(self, _lock: Any, _condition: Any, _deadline: int) -> None:
        raise NotImplementedError("nothing here may wait for another thread")

    @JOverride
    def waitForFuture(self, _future: Any, _deadline: int) -> Any:
        raise NotImplementedError("nothing here may wait for another thread")


@JImplements("java.util.concurrent.ScheduledFuture", deferred=True)
class DoneFuture:
    """A task that already ran, or never will: there is nothing to cancel or to wait for."""

    @JOverride
    def cancel(self, _interrupt: bool) -> bool:
        return False

    @JOverride
    def isCancelled(self) -> bool:
        return False

    @JOverride
    def isDone(self) -> bool:
        return True

    @JOverride
    def get(self, *_timeout: Any) -> None:
        return None

    @JOverride
    def getDelay(self, _unit: Any) -> int:
        return 0

    @JOverride
    def compareTo(self, _other: Any) -> int:
        return 0


@JImplements("org.apache.kafka.server.util.Scheduler", deferred=True)
class ImmediateScheduler:
    """Runs one-off tasks where they are scheduled, whatever their delay; never a periodic one.

    So a delayed deletion has happened when the call returns, no thread is needed, and producers
    expire where Kafka loads them and nowhere else.
    """

    @JOverride
    def startup(self) -> None:
        pass

    @JOverride
    def shutdown(self) -> None:
        pass

    @JOverride
    def scheduleOnce(self, name: Any, task: Any, delay_ms: int = 0) -> Any:
        return self.schedule(name, task, delay_ms, -1)

    @JOverride
    def schedule(self, _name: Any, task: Any, _delay_ms: int, period_ms: int) -> Any:
        if period_ms < 0:
            task.run()
        return DoneFuture()

    @JOverride
    def resizeThreadPool(self, _size: int) -> None:
        pass


@JImplements("java.util.function.Consumer", deferred=True)
class NeverAborted:
    """The cleaner's question whether its round was aborted, answered by silence."""

    @JOverride
    def accept(self, _partition: Any) -> None:
        pass

    @JOverride
    def andThen(self, after: Any) -> Any:
        return after


@JImplements("java.util.function.Function", deferred=True)
class NeverStray:
    """The broker's question whether a log is one that it should not have: no."""

    @JOverride
    def apply(self, _log: Any) -> Any:
        return java("java.lang.Boolean").FALSE

    @JOverride
    def andThen(self, _after: Any) -> Any:
        return self

    @JOverride
    def compose(self, _before: Any) -> Any:
        return self
