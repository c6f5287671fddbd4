"""The program, called in this process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pylog_spark.cli.program import app
from tests.kit.golden_data import Golden

Pylog = Callable[..., Any]


@pytest.fixture(scope="session")
def pylog() -> Pylog:
    """Call the program with arguments; the result has exit_code, stdout and stderr."""
    runner = CliRunner()

    def call(*arguments: object) -> Any:
        return runner.invoke(app, [str(argument) for argument in arguments], prog_name="pylog")

    return call


@pytest.fixture(scope="session")
def broker_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A broker's log directory, cleanly shut down; for tests that only look."""
    return Golden("broker-dir").unpack(tmp_path_factory.mktemp("clean"))


@pytest.fixture(scope="session")
def unclean_broker_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A broker's log directory after SIGKILL, with a transaction open; for tests that look."""
    return Golden("broker-dir-unclean").unpack(tmp_path_factory.mktemp("unclean"))
