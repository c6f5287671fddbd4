"""What all tests share: Hypothesis's profile, the one Spark session, and who is skipped."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from pylog_spark.java import JavaNotFoundError, find_java
from pylog_spark.session import build_session

SPARK_SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    # Delta's state of a small table: one partition instead of fifty.
    "spark.databricks.delta.snapshotPartitions": "1",
    # The quick compiler: tests are short, most of their time went into optimising Spark's code.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}

# The same examples in every run, on every machine; "brief" is for runs that are a test themselves.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=60)
settings.register_profile("brief", settings.get_profile("repeatable"), max_examples=10)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    needs_java = [item for item in items if item.get_closest_marker("oracle")]
    if not needs_java:
        return
    try:
        find_java()
    except JavaNotFoundError as error:
        for item in needs_java:
            item.add_marker(pytest.mark.skip(reason=f"Apache Kafka cannot be asked: {error}"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The session of this run: two local cores, two shuffle partitions, UTC, no pages."""
    session = build_session(
        "local[2]",
        SPARK_SETTINGS | {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))},
        app_name="tests",
    )
    yield session
    session.stop()
