"""Faults between the store and a server: the same bytes, and nothing lost.

botocore's own retries are at work, four attempts a request; the waits between them are botocore's.
"""

from pathlib import Path

import numpy as np
import pytest
from botocore.retries.standard import ExponentialBackoff

from storage_core.errors import (
    ChangedWhileReadError,
    ConditionFailedError,
    LeaseLostError,
    StorageError,
)
from storage_core.store import ManagedStore, ObjectDirectory
from storage_core.store import s3_objects as s3_transfer
from storage_core.store.garbage import find_garbage
from storage_core.store.generations import manifest_key
from storage_core.store.lease import acquire_lease, read_lease
from storage_core.store.object_files import ObjectFileReader
from tests.s3.fault_proxy import Fault, FaultKind
from tests.storage_core.store.managed_homes import (
    FILES,
    PARTITION,
    contents,
    create_partition,
    open_partition,
)

KEY = "topic-0/data/a1/00000000000000000000.log"
TRANSIENT = [
    FaultKind.INTERNAL_ERROR,
    FaultKind.SLOW_DOWN,
    FaultKind.SLOW,
    FaultKind.DROP_REQUEST,
]
# The server has obeyed, and nobody was told.
UNANSWERED = [FaultKind.LOSE_ANSWER, FaultKind.FAIL_AFTER]


@pytest.fixture(autouse=True)
def attempts(monkeypatch):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "4")
    monkeypatch.setenv("AWS_RETRY_MODE", "standard")
    # Which answers are asked for again, and how often, is botocore's; its waits are for servers.
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda *_: 0.01)
    monkeypatch.setattr(s3_transfer, "BODY_WAIT_SECONDS", 0.001)


def data(size: int) -> bytes:
    return np.random.default_rng(7).integers(0, 256, size, np.uint8).tobytes()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [*TRANSIENT, FaultKind.DROP_BODY], ids=lambda kind: kind.name)
def test_a_read_survives(objects, server, kind):
    content = data(300_000)
    etag = objects.put(KEY, content)
    server.faults.append(Fault(kind=kind, operation="GET", times=2))
    target = np.empty(200_000, np.uint8)
    assert objects.read_into(KEY, 50_000, target, etag=etag) == target.size
    assert target.tobytes() == content[50_000:250_000]
    assert all(fault.hits for fault in server.faults)
    server.faults[:] = [Fault(kind=kind, operation="GET", times=2)]
    assert objects.get_with_etag(KEY) == (content, etag)
    assert all(fault.hits for fault in server.faults)


def test_what_a_broken_body_brought_is_not_asked_for_again(objects, server):
    content = data(400_000)
    objects.put(KEY, content)
    server.reset()
    server.faults.append(Fault(kind=FaultKind.DROP_BODY, operation="GET", times=1))
    assert objects.get_range(KEY, 0, 400_000) == content
    assert server.counts() == {("GET", "data"): 2}
    assert 500_000 < server.body_bytes["GET"] < 700_000


def test_an_object_that_changes_under_a_broken_read_is_not_mixed(objects, server):
    objects.put(KEY, b"a" * 100_000)
    server.faults.append(Fault(kind=FaultKind.DROP_BODY, operation="GET", times=8))
    with pytest.raises(StorageError, match="broke off"):
        objects.get_range(KEY, 0, 100_000)

    server.reset()
    server.faults.append(Fault(kind=FaultKind.DROP_BODY, operation="GET", times=1))

    def replace_before_the_second(request):
        if [request.operation for request in server.requests].count("GET") == 2:
            server.on_request = None
            objects.put(KEY, b"b" * 100_000)

    server.on_request = replace_before_the_second
    with pytest.raises(ChangedWhileReadError, match=KEY):
        objects.get_range(KEY, 0, 100_000)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", [*TRANSIENT, *UNANSWERED], ids=lambda kind: kind.name)
def test_a_write_survives(objects, server, kind):
    server.faults.append(Fault(kind=kind, operation="PUT", times=2))
    etag = objects.put(KEY, b"content")
    assert objects.get_with_etag(KEY) == (b"content", etag)
    assert server.faults[0].hits


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [*TRANSIENT, *UNANSWERED], ids=lambda kind: kind.name)
@pytest.mark.parametrize("operation", ["CREATE_UPLOAD", "PART", "COMPLETE"])
def test_an_upload_in_parts_survives(objects, server, tmp_path: Path, kind, operation):
    content = data(18 << 20)
    path = tmp_path / "scratch"
    path.write_bytes(content)
    server.faults.append(Fault(kind=kind, operation=operation))
    etag = objects.put_file(KEY, str(path))
    assert objects.head(KEY).etag == etag
    target = np.empty(len(content), np.uint8)
    assert objects.read_into(KEY, 0, target) == target.size
    assert target.tobytes() == content
    assert server.faults[0].hits == 1


@pytest.mark.thorough
def test_an_upload_that_fails_leaves_nothing(objects, server, tmp_path: Path):
    path = tmp_path / "scratch"
    path.write_bytes(data(18 << 20))
    server.faults.append(Fault(kind=FaultKind.INTERNAL_ERROR, operation="PART", times=99))
    with pytest.raises(StorageError, match=KEY):
        objects.put_file(KEY, str(path))
    assert list(objects.list()) == []
    assert objects.call("list_multipart_uploads").get("Uploads", []) == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [*TRANSIENT, *UNANSWERED], ids=lambda kind: kind.name)
def test_a_conditional_write_whose_answer_is_lost_is_settled(objects, server, kind):
    server.faults.append(Fault(kind=kind, operation="PUT_IF", times=2))
    first = objects.put_if_absent(KEY, b"first, of attempt a1")
    assert objects.get_with_etag(KEY) == (b"first, of attempt a1", first)
    server.faults[:] = [Fault(kind=kind, operation="PUT_IF", times=2)]
    second = objects.put_if_match(KEY, b"second, of attempt a1", first)
    assert objects.get_with_etag(KEY) == (b"second, of attempt a1", second)
    assert all(fault.hits for fault in server.faults)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", UNANSWERED, ids=lambda kind: kind.name)
def test_a_conditional_write_that_is_never_answered_is_settled_all_the_same(objects, server, kind):
    server.faults.append(Fault(kind=kind, operation="PUT_IF", times=99))
    first = objects.put_if_absent(KEY, b"first, of attempt a1")
    assert objects.put_if_match(KEY, b"second, of attempt a1", first)
    assert objects.get(KEY) == b"second, of attempt a1"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [*TRANSIENT[:2], *UNANSWERED], ids=lambda kind: kind.name)
def test_a_refusal_stays_a_refusal(objects, server, kind):
    first = objects.put_if_absent(KEY, b"of somebody else")
    server.faults.append(Fault(kind=kind, operation="PUT_IF", times=2))
    with pytest.raises(ConditionFailedError):
        objects.put_if_absent(KEY, b"mine")
    with pytest.raises(ConditionFailedError):
        objects.put_if_match(KEY, b"mine", "0" * 32)
    assert objects.get_with_etag(KEY) == (b"of somebody else", first)


@pytest.mark.thorough
def test_a_store_that_is_away_is_a_storage_error(objects, server, monkeypatch):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    away = type(objects)(objects.url)
    objects.put(KEY, b"content")
    server.faults.append(Fault(kind=FaultKind.DROP_REQUEST, times=10_000))
    for action in (
        lambda: away.get(KEY),
        lambda: away.put(KEY, b""),
        lambda: away.put_if_absent(KEY, b""),
        lambda: away.head(KEY),
        lambda: list(away.list()),
        lambda: away.delete([KEY]),
    ):
        with pytest.raises(StorageError) as caught:
            action()
        assert "some/root" in caught.value.path


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [*TRANSIENT, FaultKind.DROP_BODY], ids=lambda kind: kind.name)
def test_listing_and_deleting_survive(objects, server, kind):
    for number in range(5):
        objects.put(f"t-0/{number}", b"")
    server.faults.append(Fault(kind=kind, operation="LIST", times=2))
    server.faults.append(Fault(kind=kind, operation="DELETE_MANY", times=2))
    assert [info.key for info in objects.list("t-0/")] == [f"t-0/{n}" for n in range(5)]
    objects.delete([f"t-0/{n}" for n in range(5)])
    assert list(objects.list()) == []
    assert all(fault.hits for fault in server.faults)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kind",
    [*TRANSIENT, *UNANSWERED, FaultKind.DROP_BODY],
    ids=lambda kind: kind.name,
)
def test_a_commit_survives_faults_at_every_request(objects, server, kind):
    create_partition(objects)
    server.faults.append(Fault(kind=kind, times=3, skip=1))
    store = open_partition(objects)
    store.write_file("00000000000000000000.log", b"cleaned", modified_ms=1)
    store.delete("00000000000000000042.snapshot")
    manifest = store.publish(run_id="run-2", fencing_token=1)
    server.faults.clear()
    again = open_partition(objects)
    assert again.manifest == manifest
    expected = {**FILES, "00000000000000000000.log": b"cleaned"}
    del expected["00000000000000000042.snapshot"]
    assert contents(again) == expected
    assert contents(ManagedStore(objects, PARTITION, generation=1)) == FILES


@pytest.mark.thorough
def test_a_lost_answer_to_the_manifest_put_of_two_writers_has_one_winner(objects, server):
    create_partition(objects)
    one, two = (open_partition(objects, attempt=name) for name in ("a-one", "a-two"))
    for store in (one, two):
        store.write_file("00000000000000000000.log", store.attempt_id.encode())
        store.upload_waiting()
    server.faults.append(
        Fault(kind=FaultKind.LOSE_ANSWER, operation="PUT_IF", key="manifest", times=99)
    )
    assert one.publish(run_id="run-2", fencing_token=1).generation == 2
    with pytest.raises(ConditionFailedError):
        two.publish(run_id="run-2", fencing_token=1)
    server.faults.clear()
    assert contents(open_partition(objects))["00000000000000000000.log"] == b"a-one"


@pytest.mark.thorough
def test_a_stale_listing_deletes_nothing_that_is_needed(objects, server):
    create_partition(objects)
    # The listing that a purge will see is of generation 1.
    assert find_garbage(objects, PARTITION, grace_start_ms=0).keys() == []
    for number in range(2, 5):
        store = open_partition(objects)
        store.write_file("00000000000000000000.log", b"x" * number)
        store.publish(run_id=f"run-{number}", fencing_token=1)
    server.faults.append(Fault(kind=FaultKind.STALE, operation="LIST", times=9))
    garbage = find_garbage(objects, PARTITION, grace_start_ms=2**62)
    objects.delete(garbage.keys())
    server.faults.clear()
    current = open_partition(objects)
    assert current.manifest.generation == 4
    assert contents(current) == {**FILES, "00000000000000000000.log": b"xxxx"}


@pytest.mark.thorough
def test_a_lease_survives_lost_answers_and_has_one_holder(objects, server):
    server.faults.append(Fault(kind=FaultKind.LOSE_ANSWER, operation="PUT_IF", times=99))
    lease = acquire_lease(objects, holder="run one")
    lease.renew()
    lease.require_current()
    lease.release()
    assert acquire_lease(objects, holder="run two").token == 2
    server.faults.clear()
    facts, _ = read_lease(objects)
    assert facts.proof.holder == "run two"
    with pytest.raises(LeaseLostError):
        lease.renew()


def test_a_sync_that_replaces_a_file_while_it_is_read_is_told(objects, server):
    for name in ("00000000000000000000.log", "00000000000000000042.log"):
        objects.put(f"mirror-0/{name}", data(100_000))
    directory = ObjectDirectory(objects, "mirror-0")
    assert [info.size_bytes for info in directory.list_files()] == [100_000, 100_000]
    file = directory.open_file("00000000000000000042.log")
    assert file.read_into(0, np.empty(10, np.uint8)) == 10
    objects.put("mirror-0/00000000000000000042.log", data(200_000))
    with pytest.raises(ChangedWhileReadError, match=r"mirror-0/00000000000000000042\.log"):
        file.read_into(10, np.empty(10, np.uint8))
    assert server.counts()["LIST", "other"] == 1


@pytest.mark.thorough
def test_reading_ahead_under_faults_gives_the_same_bytes(objects, server, tmp_path: Path):
    content = data(5 << 20)
    etag = objects.put(KEY, content)
    for kind in (FaultKind.SLOW_DOWN, FaultKind.DROP_BODY, FaultKind.SLOW):
        server.faults.append(Fault(kind=kind, operation="GET", times=3, skip=2))
    reader = ObjectFileReader(objects, KEY, name="x", size_bytes=len(content), etag=etag)
    reader.block_bytes = 512 << 10
    window = np.empty(700_000, np.uint8)
    position, read = 0, b""
    while position < len(content):
        filled = reader.read_into(position, window)
        read = read[:position] + window[:filled].tobytes()
        # A window begins a little before the last one's end.
        position += filled if position + filled == len(content) else filled - 1000
    reader.close()
    assert read == content
    assert all(fault.hits for fault in server.faults)


def test_nothing_of_a_manifest_key_is_ever_deleted(objects, server):
    create_partition(objects)
    objects.delete(find_garbage(objects, PARTITION, grace_start_ms=2**62).keys())
    assert objects.head(manifest_key(PARTITION))
