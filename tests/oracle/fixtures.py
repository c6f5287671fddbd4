"""The fixture through which tests get at Kafka; for any conftest that needs it to import."""

from collections.abc import Iterator

import pytest

from tests.oracle.jvm import NoJavaError, start_jvm, stop_jvm


@pytest.fixture(scope="session")
def kafka_jvm() -> Iterator[None]:
    """A JVM with Kafka's classes in this process; the test is skipped where there is no Java."""
    try:
        start_jvm()
    except NoJavaError as reason:
        pytest.skip(f"Apache Kafka cannot be asked: {reason}")
    yield
    stop_jvm()
