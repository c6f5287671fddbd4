"""The two S3 servers of the tests, and the environment that leads s3fs to them.

moto answers in this process and starts at once. versitygw is a server that people run: a Go module,
built once by ``go install`` into a folder that is kept.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from moto import backends
from moto.server import ThreadedMotoServer

from pylog_spark.java import cache_folder
from tests.kit.ports import free_ports

ACCESS_KEY: Final = "testing-access"
SECRET_KEY: Final = "testing-secret"  # noqa: S105  # of a server on loopback
VERSITYGW: Final = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
PROGRAM_VARIABLE: Final = "PYLOG_VERSITYGW"
RUN_VARIABLE: Final = "PYLOG_S3"
_START_SECONDS: Final = 20.0


def aws_environment(endpoint: str) -> dict[str, str]:
    """Return what the environment has to say so that s3fs finds a server."""
    return {
        "AWS_ENDPOINT_URL_S3": endpoint,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }


@contextmanager
def moto_server() -> Iterator[str]:
    """Run moto and yield its endpoint.

    It would list its own folder twice for each request, a fifth of what the request takes.
    """
    services = frozenset(backends.list_of_moto_modules())
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends, "list_of_moto_modules", lambda: services)
        server.start()
        host, port = server.get_host_and_port()
        try:
            yield f"http://{host}:{port}"
        finally:
            server.stop()


@contextmanager
def versitygw_server(folder: Path) -> Iterator[str]:
    """Run versitygw over a folder and yield its endpoint; skip where it cannot be had."""
    program = find_versitygw()
    data, sidecar = folder / "data", folder / "sidecar"
    data.mkdir()
    sidecar.mkdir()
    [port] = free_ports(1)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                program,
                "--port",
                f"127.0.0.1:{port}",
                "--quiet",
                "posix",
                "--sidecar",
                str(sidecar),
                str(data),
            ],
            env={
                "PATH": os.defpath,
                "ROOT_ACCESS_KEY": ACCESS_KEY,
                "ROOT_SECRET_KEY": SECRET_KEY,
            },
            stdout=log,
            stderr=log,
        )
    try:
        _wait_for(port, process, folder / "log")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def find_versitygw() -> str:
    """Return the program, built now if need be; skip the test where there is neither it nor Go."""
    present = os.environ.get(PROGRAM_VARIABLE)
    if present:
        return present
    if os.environ.get(RUN_VARIABLE) != "1":
        pytest.skip("make s3 asks versitygw too")
    folder = cache_folder("versitygw")
    program = folder / "versitygw"
    if program.exists():
        return str(program)
    go = shutil.which("go")
    if go is None:
        pytest.skip(f"no Go to build versitygw with; {PROGRAM_VARIABLE} names a built one")
    subprocess.run(
        [go, "install", VERSITYGW],
        check=True,
        env=os.environ | {"GOBIN": str(folder)},
        timeout=1800,
    )
    return str(program)


def _wait_for(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"versitygw did not start: {log.read_text()}")
