"""``conf/s3``: what a look, an ingest and a nightly have to be allowed in a bucket, and no more."""

import subprocess
import sys
from pathlib import Path

import pytest

from storage_core.store.s3_objects import S3ObjectStore
from tests.jobs.spark_programs import write_config
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, BrokerDirectory, broker_directory
from tests.pylog_spark.managed_roots import managed_twin
from tests.s3.fault_proxy import FaultProxy
from tests.s3.permissions import Policy

FOLDER = Path(__file__).parents[2] / "conf" / "s3"
NAMES = ["clean-headers-none-s101", "retain-size-s501"]
AGE = """
import sys, deltalake
aged = {"delta.checkpointInterval": "1", "delta.logRetentionDuration": "interval 0 seconds"}
deltalake.DeltaTable(sys.argv[1]).alter.set_table_properties(aged)
"""
PLACES = {"ROOT": "kafka/root", "LEDGER": "kafka/ledger", "MIRROR": "backup/kafka"}


@pytest.fixture(params=["moto"])
def server(request, server: FaultProxy, monkeypatch) -> FaultProxy:
    """moto alone; deltalake has to be told twice where it is."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    return server


def policy(name: str, bucket: str) -> Policy:
    """Return a policy of conf/s3 with the names of this bucket filled in."""
    name_of_bucket = bucket.removeprefix("s3://")
    text = (FOLDER / f"{name}.json").read_text()
    text = text.replace("MIRROR_BUCKET", name_of_bucket).replace("BUCKET", name_of_bucket)
    for word, place in PLACES.items():
        text = text.replace(f"/{word}/", f"/{place}/").replace(f'"{word}/', f'"{place}/')
    return Policy.parse(text)


@pytest.fixture(scope="module")
def origin(tmp_path_factory) -> BrokerDirectory:
    return broker_directory(tmp_path_factory.mktemp("policies") / "log", NAMES)


def pylog(*words: str | Path) -> list[str]:
    """Run a command in a process of its own; return what is wrong with its end.

    deltalake keeps all other threads waiting while it waits for the server, which is one of ours.
    """
    ended = subprocess.run(
        [sys.executable, "-m", "pylog_spark", *words], capture_output=True, text=True, check=False
    )
    said = [line for line in (ended.stdout + ended.stderr).splitlines() if "NOT_ASKED" in line]
    return said if ended.returncode == 0 else [f"{words[0]}: {ended.returncode}", ended.stderr]


class Look:
    """Inspect and verify a managed root."""

    def __init__(self, bucket: str, origin: BrokerDirectory, folder: Path) -> None:
        self.root = f"{bucket}/{PLACES['ROOT']}"
        managed_twin(origin, self.root)

    def run(self) -> list[str]:
        return pylog("inspect", self.root) + pylog("verify", self.root, "--engine", "local")


class Ingest:
    """Take a mirror into a managed root that is not there yet."""

    def __init__(self, bucket: str, origin: BrokerDirectory, folder: Path) -> None:
        self.root, self.mirror = (f"{bucket}/{PLACES[word]}" for word in ("ROOT", "MIRROR"))
        objects = S3ObjectStore(self.mirror)
        for path in origin.path.rglob("[!.]*"):
            if path.is_file():
                objects.put_file(str(path.relative_to(origin.path)), str(path))

    def run(self) -> list[str]:
        words = ("--engine", "local", "--settle", "1s", "--sync-stopped")
        return pylog("ingest", self.mirror, self.root, *words)


class Nightly:
    """Retain, compact and purge a managed root, with a ledger beside it."""

    def __init__(self, bucket: str, origin: BrokerDirectory, folder: Path) -> None:
        self.root, self.ledger = (f"{bucket}/{PLACES[word]}" for word in ("ROOT", "LEDGER"))
        self.config = write_config(origin, folder / "conf.yaml")
        managed_twin(origin, self.root)
        # What years leave: deltalake takes old entries of the log away when it writes a checkpoint.
        assert pylog("verify", self.root, "--engine", "local", "--ledger", self.ledger) == []
        subprocess.run([sys.executable, "-c", AGE, f"{self.ledger}/runs"], check=True)
        # What a killed process leaves.
        upload = f"{PLACES['ROOT']}/t-0/data/a/0.log"
        S3ObjectStore(bucket).call("create_multipart_upload", Key=upload)

    def run(self) -> list[str]:
        words = ["--role", "managed", "--engine", "local", "--ledger", self.ledger]
        words += ["--config", str(self.config), "--max-delete-ratio", "1"]
        return pylog("run", self.root, *words, "--now-ms", str(FIRST_ROUNDS_MS))


WORK = {"look": Look, "ingest": Ingest, "nightly": Nightly}


def trouble(name: str, server: FaultProxy, bucket: str, origin, folder: Path, policy: Policy):
    """Return what goes wrong, or is left undone, under a policy."""
    work = WORK[name](bucket, origin, folder)
    server.policy = policy
    said = work.run()
    server.policy = None
    uploads = S3ObjectStore(bucket).call("list_multipart_uploads", Prefix="")
    return said + [f"upload: {upload['Key']}" for upload in uploads.get("Uploads", ())]


def test_every_policy_is_tried():
    assert {path.stem for path in FOLDER.glob("*.json")} == set(WORK)


@pytest.mark.thorough
@pytest.mark.parametrize("name", WORK)
def test_with_its_policy_it_does_all(server, bucket, origin, tmp_path, name):
    allowed = policy(name, bucket)
    assert trouble(name, server, bucket, origin, tmp_path, allowed) == []


LESS = [
    pytest.param(name, sid, action, id=f"{name}-{sid}-{action}")
    for name in WORK
    for sid, action in policy(name, "s3://bucket").actions()
]


@pytest.mark.deploy
@pytest.mark.parametrize(("name", "sid", "action"), LESS)
def test_with_one_action_less_it_does_not(server, bucket, origin, tmp_path, name, sid, action):
    allowed = policy(name, bucket).without(sid, action)
    assert trouble(name, server, bucket, origin, tmp_path, allowed) != []
