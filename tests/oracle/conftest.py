"""Every test here asks Kafka."""

from pathlib import Path

import pytest

from tests.oracle.fixtures import kafka_jvm

__all__ = ["kafka_jvm"]

# For a test that waits inside Java: Python's signal handlers do not run there, so only another
# thread can report where it hangs and end the process.
SECONDS = 300


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.pluginmanager.hasplugin("timeout"):
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.timeout(SECONDS, method="thread"))
