"""Log directories that every test of the command line may look at."""

from pathlib import Path

import pytest

from tests.kit.golden_data import Golden


@pytest.fixture(scope="session")
def broker_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A broker's log directory, cleanly shut down; for tests that only look."""
    return Golden("broker-dir").unpack(tmp_path_factory.mktemp("clean"))


@pytest.fixture(scope="session")
def unclean_broker_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A broker's log directory after SIGKILL, with a transaction open; for tests that look."""
    return Golden("broker-dir-unclean").unpack(tmp_path_factory.mktemp("unclean"))
