"""Every test here asks Kafka."""

import os

import pytest

from tests.oracle.fixtures import kafka_jvm

__all__ = ["kafka_jvm"]

# Its assertions should say what differs, as those of a test do.
pytest.register_assert_rewrite("tests.oracle.ours")

# For a test that waits inside Java: Python's signal handlers do not run there, so only another
# thread can report where it hangs and end the process. A long search may take its time.
SECONDS = 3600 if {"PYLOG_ORACLE_EXAMPLES", "PYLOG_ORACLE_SHRINK"} & set(os.environ) else 300


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.pluginmanager.hasplugin("timeout"):
        # This hook gets the tests of all folders.
        for item in items:
            is_here = item.nodeid.startswith("tests/oracle/")
            if is_here and item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(SECONDS, method="thread"))
