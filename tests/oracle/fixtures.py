"""The fixture through which tests get at Kafka; for any conftest that needs it to import."""

from collections.abc import Iterator

import pytest

from tests.oracle.jvm import QUICK, start_jvm, stop_jvm


@pytest.fixture(scope="session")
def kafka_jvm() -> Iterator[None]:
    """A JVM with Kafka's classes in this process."""
    start_jvm(options=QUICK)
    yield
    stop_jvm()
