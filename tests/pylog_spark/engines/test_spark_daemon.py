import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pylog_spark.engines.spark_daemon import leave_zips
from storage_core.import_path import PACKAGE_HOME, SAFE_PATH_VARIABLE

NUMBER = struct.Struct(">i")


@pytest.fixture(scope="module")
def daemon() -> Iterator[subprocess.Popen[bytes]]:
    environment = {
        **os.environ,
        "PYTHONPATH": PACKAGE_HOME,
        SAFE_PATH_VARIABLE: "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "pylog_spark.engines.spark_daemon", "pyspark.worker"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)


@pytest.fixture(scope="module")
def workers(daemon: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    assert daemon.stdout is not None
    (port,) = NUMBER.unpack(daemon.stdout.read(NUMBER.size))
    asked = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
    yield [NUMBER.unpack(each.recv(NUMBER.size, socket.MSG_WAITALL))[0] for each in asked]
    for each in asked:
        each.close()


def libraries_of(process: int) -> str:
    return Path(f"/proc/{process}/maps").read_text()


def test_workers_have_what_they_need_before_their_first_task(workers: list[int]):
    assert len(set(workers)) == len(workers)
    for worker in workers:
        for library in ("pyarrow", "llvmlite", "numpy"):
            assert f"/{library}/" in libraries_of(worker)


def test_workers_are_without_pandas(workers: list[int]):
    for worker in workers:
        assert "/pandas/" not in libraries_of(worker)


@pytest.mark.usefixtures("workers")
def test_who_forks_has_no_other_threads(daemon: subprocess.Popen[bytes]):
    tasks = Path(f"/proc/{daemon.pid}/task").iterdir()
    names = [(task / "comm").read_text().strip() for task in tasks]
    # That of Arrow's allocator, which knows of forks.
    assert len([name for name in names if name != "jemalloc_bg_thd"]) == 1


def test_what_is_installed_is_not_read_out_of_zips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    spark = tmp_path / "site" / "pyspark"
    spark.mkdir(parents=True)
    (spark / "__init__.py").touch()
    kept = [str(tmp_path / "other"), str(tmp_path / "site")]
    zips = [f"{spark}/python/lib/pyspark.zip", f"{spark}/jars/spark-core.jar"]
    monkeypatch.setattr(sys, "path", [*zips, *kept])
    monkeypatch.setattr(sys, "path_importer_cache", dict.fromkeys(sys.path))
    leave_zips()
    assert (sys.path, list(sys.path_importer_cache)) == (kept, kept)


@pytest.mark.thorough
def test_the_zips_of_another_spark_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    paths = ["/opt/spark/python/lib/pyspark.zip", str(tmp_path)]
    monkeypatch.setattr(sys, "path", [*paths])
    leave_zips()
    assert sys.path == paths
