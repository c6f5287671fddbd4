"""Servers, a proxy before each, and an empty bucket for every test."""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from storage_core.store import object_store
from storage_core.store.s3_objects import S3ObjectStore
from tests.s3.fault_proxy import FaultProxy, run_proxy
from tests.s3.servers import aws_environment, moto_server, versitygw_server

_BUCKETS = itertools.count(1)


@pytest.fixture(scope="session")
def moto() -> Iterator[FaultProxy]:
    """The proxy before moto."""
    with moto_server() as endpoint, run_proxy(endpoint, is_serial=True) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultProxy]:
    """The proxy before versitygw."""
    with ExitStack() as stack:
        endpoint = stack.enter_context(versitygw_server(tmp_path_factory.mktemp("versitygw")))
        yield stack.enter_context(run_proxy(endpoint))


@pytest.fixture(params=["moto", pytest.param("versitygw", marks=pytest.mark.object_store)])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A server, reached through its proxy, which the environment points to.

    Each command tries out its conditional writes, which is most of the command's work here: by one
    race, where ``every_race`` does not ask for all.
    """
    proxy: FaultProxy = request.getfixturevalue(request.param)
    for name, value in aws_environment(proxy.endpoint).items():
        monkeypatch.setenv(name, value)
    if "every_race" not in request.fixturenames:
        monkeypatch.setattr(object_store, "RACES", 1)
    proxy.reset()
    yield proxy
    proxy.reset()


@pytest.fixture
def every_race() -> None:
    """Whoever tries out conditional writes lets writers race as often as at the users'."""


@pytest.fixture
def bucket(server: FaultProxy) -> str:
    """The URL of a new bucket."""
    url = f"s3://bucket-{next(_BUCKETS)}"
    S3ObjectStore(url).call("create_bucket")
    server.reset()
    return url


@pytest.fixture
def objects(bucket: str) -> S3ObjectStore:
    """A root in a new bucket."""
    return S3ObjectStore(f"{bucket}/some/root")


@pytest.fixture
def workers(spark: Any, server: FaultProxy) -> Iterator[Any]:
    """The Spark session, whose Python workers find the server, too."""
    environment = spark.sparkContext.environment
    before = dict(environment)
    environment.update(aws_environment(server.endpoint))
    yield spark
    environment.clear()
    environment.update(before)
