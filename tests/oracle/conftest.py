"""Every test here asks Kafka."""

import os
from pathlib import Path

import pytest

from tests.oracle.fixtures import kafka_jvm

__all__ = ["kafka_jvm"]

# Its assertions should say what differs, as those of a test do.
pytest.register_assert_rewrite("tests.oracle.comparison")

# For a test that waits inside Java: Python's signal handlers do not run there, so only another
# thread can report where it hangs and end the process. A long search may take its time.
SECONDS = 3600 if {"PYLOG_ORACLE_EXAMPLES", "PYLOG_ORACLE_SHRINK"} & set(os.environ) else 300


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.pluginmanager.hasplugin("timeout"):
        for item in items:
            has_own = item.get_closest_marker("timeout") is not None
            if Path(__file__).parent in item.path.parents and not has_own:
                item.add_marker(pytest.mark.timeout(SECONDS, method="thread"))
