"""What all tests share: Hypothesis's profile, the disk, Spark, the program; who is skipped."""

import gc
import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import settings

from pylog_spark.engines import local_engine as local_pool
from pylog_spark.java import JavaNotFoundError, find_java
from pylog_spark.session import build_session
from storage_core.kernels._code_files import cache_folder
from storage_core.store import syncing
from tests.kit import memory_objects  # noqa: F401  # tests open memory:// by it
from tests.kit.connect import connect_session
from tests.kit.prebuilt_kernels import WARM_UP
from tests.kit.program import Program
from tests.kit.ready_templates import ReadyTemplates
from tests.kit.remaining_processes import end_with_this_process
from tests.kit.shared_jvms import SharedJvms, put_sharing_files_first
from tests.kit.sizes import items_of_size
from tests.kit.spark_classes import FEW_ROWS, spark_options

SPARK_SETTINGS = FEW_ROWS | {
    # Delta's state of a small table: one partition instead of fifty.
    "spark.databricks.delta.snapshotPartitions": "1",
}

# The same examples in every run, on every machine; fewer of them in make test; "brief" is for runs
# that are a test themselves.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=60)
settings.register_profile("small", settings.get_profile("repeatable"), max_examples=20)
settings.register_profile("brief", settings.get_profile("repeatable"), max_examples=10)
settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    """Compile the kernels once, before processes that share the tests would each do it.

    Whatever is started from here on ends with the run.
    """
    end_with_this_process()
    if config.getoption("size") == "small":
        settings.load_profile("small")
    starts_processes = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    folder = cache_folder()
    if starts_processes and folder is not None and not any(folder.iterdir()):
        subprocess.run([sys.executable, "-c", WARM_UP], check=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without looking for garbage, a quarter of that time: it makes none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--size",
        choices=["small", "rest"],
        help="small: what make test runs; rest: what make test-all runs beyond; else all of it",
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if size := config.getoption("size"):
        chosen = items_of_size(items, size)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = [item for item in items if item in chosen]
    if hasattr(config, "workerinput"):
        put_sharing_files_first(config, items)
    needs_java = [item for item in items if item.get_closest_marker("oracle")]
    if not needs_java:
        return
    try:
        find_java()
    except JavaNotFoundError as error:
        for item in needs_java:
            item.add_marker(pytest.mark.skip(reason=f"Apache Kafka cannot be asked: {error}"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Return what hands out tests by file; xdist's own for other ways."""
    return SharedJvms(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(autouse=True)
def _no_waiting_for_disks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not synced is lost by a simulated disk where it matters, not by the real one.

    What is measured waits for it.
    """
    if request.node.get_closest_marker("bench") is None:
        monkeypatch.setattr(os, "fsync", lambda _: None)
        monkeypatch.setattr(syncing, "way_of", lambda *_: syncing.Way.ALONE)


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_after_a_failure() -> Iterator[None]:
    """Kill a process whose ``with`` block fails: it may wait for an answer that never comes."""
    plain_exit = subprocess.Popen.__exit__

    def kill_and_exit(process: subprocess.Popen[Any], kind: Any, *error: Any) -> None:
        if kind is not None:
            process.kill()
        plain_exit(process, kind, *error)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__exit__", kill_and_exit)
        yield


@pytest.fixture(scope="session", autouse=True)
def _ready_templates(request: pytest.FixtureRequest) -> Iterator[None]:
    """Workers of the local engine need not import everything anew for each test.

    What is measured has its own.
    """
    if any(item.get_closest_marker("bench") for item in request.session.items):
        yield
        return
    templates = ReadyTemplates()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_pool, "start_template", templates.start_template)
        yield
    templates.close()


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads that take turns as often as they can, so that what they share is met half done."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The session of this run: two local cores, two shuffle partitions, UTC, no pages.

    With PYLOG_CONNECT=1 it is one of Spark Connect, with a server of its own.
    """
    settings = SPARK_SETTINGS | {
        "spark.driver.extraJavaOptions": spark_options(delta=True),
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    if os.environ.get("PYLOG_CONNECT"):
        session = connect_session(settings)
    else:
        session = build_session("local[2]", settings, app_name="tests")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def pylog() -> Program:
    """The program, called in this process."""
    return Program()


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on another filesystem than the log directories of a test."""
    memory = Path("/dev/shm")  # noqa: S108 - only a parent
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is one filesystem")
    with TemporaryDirectory(dir=memory) as made:
        yield Path(made)
