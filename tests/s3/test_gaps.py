"""Logs with gaps: the object store copies what stays, and the bytes are those of a plain upload."""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from botocore.retries.standard import ExponentialBackoff

from storage_core.config import CleanerConfig
from storage_core.errors import ChangedWhileReadError, ObjectNotFoundError, StorageError
from storage_core.filenames import TopicPartition, log_file
from storage_core.store.copying import LEAST_GAP_BYTES, CopiedRange
from storage_core.store.generations import FileEntry
from storage_core.store.s3_gaps import LEAST_PART_BYTES, put_with_gaps
from storage_core.store.s3_objects import S3ObjectStore
from tests.kit.builders import BatchSpec, RecordSpec
from tests.kit.directories import SegmentSpec, write_partition
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, BrokerDirectory, broker_directory
from tests.pylog_spark.managed_roots import ManagedTwin, managed_twin
from tests.pylog_spark.tasks.managed_pipeline import ManagedPipeline, clean
from tests.s3.fault_proxy import Fault, FaultKind, FaultProxy

SOURCE = "topic-0/data/a1/00000000000000000000.log"
TARGET = "topic-0/data/a2/00000000000000000000.log"
LONG = LEAST_GAP_BYTES
TOPIC = "copied"
VALUE_BYTES = 1_000_000
# Of two records, one of which gets a new value: it is rebuilt between two stretches that stay.
TORN_BATCH = 20
BATCHES = 45


@pytest.fixture(autouse=True)
def attempts(monkeypatch):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "3")
    monkeypatch.setenv("AWS_RETRY_MODE", "standard")
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda *_: 0.01)


class Upload:
    """A source, and a file that leaves out some of it.

    Args:
        pieces: In order: True for a gap, False for own bytes, each with its length.
    """

    def __init__(self, objects: S3ObjectStore, folder: Path, pieces: list[tuple[bool, int]]):
        self.objects = objects
        source = np.random.default_rng(7).integers(0, 256, 100 + sum(n for _, n in pieces), "u1")
        self.etag = objects.put(SOURCE, source.tobytes())
        self.content, self.gaps = b"", []
        self.path = folder / "scratch"
        start = 100
        with self.path.open("wb") as file:
            for is_gap, size in pieces:
                here = source[start : start + size].tobytes()
                if is_gap:
                    entry = FileEntry(
                        key=SOURCE, start=start, size_bytes=size, etag=self.etag, modified_ms=0
                    )
                    self.gaps.append(CopiedRange(position=len(self.content), source=entry))
                    file.seek(size, 1)
                else:
                    here = here[::-1]
                    file.write(here)
                self.content += here
                start += size
            file.truncate()

    def put(self) -> str:
        return put_with_gaps(self.objects, TARGET, str(self.path), self.gaps)

    def check(self, etag: str) -> None:
        assert self.objects.head(TARGET).etag == etag
        assert self.objects.get(TARGET, limit_bytes=len(self.content)) == self.content


def open_uploads(objects: S3ObjectStore) -> list[object]:
    return objects.call("list_multipart_uploads").get("Uploads", [])


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("pieces", "sent", "fetched"),
    [
        pytest.param([(True, LONG)], 0, 0, id="nothing else"),
        pytest.param([(True, LONG), (True, LONG + 1)], 0, 0, id="neighbours"),
        pytest.param([(True, LONG), (False, 9)], 9, 0, id="a few bytes at the end"),
        pytest.param([(False, 9), (True, LONG)], 1, 1, id="a few bytes before"),
        pytest.param(
            [(False, LEAST_PART_BYTES), (True, LONG)], LEAST_PART_BYTES, 0, id="enough bytes before"
        ),
        pytest.param(
            [(True, LONG), (False, 9), (True, LONG), (False, 9)], 2, 1, id="a few bytes between"
        ),
        pytest.param([(True, 130 << 20), (False, 40 << 20)], 40 << 20, 0, id="many parts"),
    ],
)
def test_what_a_file_leaves_out_is_copied(objects, server, tmp_path, pieces, sent, fetched):
    upload = Upload(objects, tmp_path, pieces)
    server.reset()
    etag = upload.put()
    counts, through = server.counts(), (server.sent_bytes["PART"], server.body_bytes["GET"])
    upload.check(etag)
    if fetched:  # a part that is no last one has the least that it may have
        sent = LEAST_PART_BYTES + sum(size for _, size in pieces if size == 9) - 9
        fetched = LEAST_PART_BYTES - 9
    assert through == (sent, fetched)
    assert counts["HEAD", "data"] == 1
    assert counts["PART_COPY", "data"] >= len(upload.gaps)
    assert open_uploads(objects) == []


@pytest.mark.thorough
def test_a_store_that_copies_no_parts_is_sent_every_byte(objects, server, tmp_path, caplog):
    upload = Upload(objects, tmp_path, [(False, 9), (True, LONG), (False, 9), (True, LONG)])
    server.faults.append(Fault(kind=FaultKind.REFUSE, operation="PART_COPY", times=99))
    with caplog.at_level(logging.WARNING):
        upload.check(upload.put())
    assert "copies no parts" in caplog.text
    assert server.counts()["ABORT", "data"] == 1
    assert open_uploads(objects) == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kind",
    [FaultKind.SLOW_DOWN, FaultKind.DROP_REQUEST, FaultKind.LOSE_ANSWER, FaultKind.FAIL_AFTER],
    ids=lambda kind: kind.name,
)
@pytest.mark.parametrize("operation", ["CREATE_UPLOAD", "PART_COPY", "COMPLETE", "HEAD"])
def test_a_copy_survives(objects, server, tmp_path, kind, operation):
    upload = Upload(objects, tmp_path, [(True, LONG), (False, 9)])
    server.faults.append(Fault(kind=kind, operation=operation))
    upload.check(upload.put())
    assert server.faults[0].hits == 1


@pytest.mark.thorough
def test_a_copy_that_fails_leaves_nothing(objects, server, tmp_path):
    upload = Upload(objects, tmp_path, [(True, LONG)])
    server.faults.append(Fault(kind=FaultKind.INTERNAL_ERROR, operation="PART_COPY", times=99))
    with pytest.raises(StorageError, match="a2"):
        upload.put()
    assert [info.key for info in objects.list()] == [SOURCE]
    assert open_uploads(objects) == []


@pytest.mark.thorough
def test_another_version_is_not_copied(objects, tmp_path):
    upload = Upload(objects, tmp_path, [(True, LONG)])
    objects.put(SOURCE, upload.content + bytes(100))
    with pytest.raises(ChangedWhileReadError, match="a1"):
        upload.put()
    objects.delete([SOURCE])
    with pytest.raises(ObjectNotFoundError, match="a1"):
        upload.put()
    assert open_uploads(objects) == []


def big_log(folder: Path) -> BrokerDirectory:
    """Return a directory with one log: a long clean segment, and a new value of one of its keys."""
    origin = broker_directory(folder, [])
    batches, offset = [], 0
    for number in range(BATCHES):
        names = ["a", "b"] if number == TORN_BATCH else ["a"]
        records = tuple(
            RecordSpec(key=f"{number}{name}".encode(), value=bytes([number]) * VALUE_BYTES)
            for name in names
        )
        batches.append(BatchSpec(base_offset=offset, records=records))
        offset += len(records)
    new = RecordSpec(key=f"{TORN_BATCH}a".encode(), value=b"new")
    write_partition(
        origin.path / f"{TOPIC}-0",
        [
            SegmentSpec(base_offset=0, batches=batches, modified_ms=1),
            SegmentSpec(
                base_offset=offset,
                batches=[BatchSpec(base_offset=offset, records=(new,))],
                modified_ms=2,
            ),
            SegmentSpec(base_offset=offset + 1, producers=()),
        ],
    )
    origin.configs[TOPIC] = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0",
        "max.message.bytes": str(3 * VALUE_BYTES),
    }
    origin.high_watermarks[TopicPartition(TOPIC, 0)] = offset
    origin.write_files()
    return origin


def compact_twice(twin: ManagedTwin, keys: str, server: FaultProxy) -> None:
    """Compact the first segment, and then both; what was asked of the server is of the second."""
    for number in range(2):
        run = ManagedPipeline(
            twin,
            FIRST_ROUNDS_MS,
            run_id=f"run-{number}",
            cleaner=CleanerConfig(key_sidecars=keys),
        )
        with run.held() as context:
            works = run.works()
            assert len(works) == 1
            server.reset()
            assert [row["error"] for row in clean(works, context)] == [None]
        if number == 0:
            store = twin.store(TOPIC)
            store.set_checkpoints(
                replace(store.checkpoints, high_watermark=store.checkpoints.high_watermark + 1)
            )
            store.publish(run_id="more-came", fencing_token=1)


@pytest.mark.thorough
def test_compaction_moves_only_what_changes(server, bucket, tmp_path):
    origin = big_log(tmp_path / "log")
    twins = {
        name: managed_twin(origin, location)
        for name, location in (
            ("plain", tmp_path / "plain"),
            ("read", f"{bucket}/read"),
            ("copied", f"{bucket}/copied"),
        )
    }
    moved = {}
    for name, twin in twins.items():
        compact_twice(twin, str(tmp_path / "keys") if name == "copied" else "", server)
        moved[name] = server.body_bytes["GET"] + server.sent_bytes["PART"]
        if name == "copied":
            assert server.counts()["PART_COPY", "data"] == 2
    for name in ("read", "copied"):
        assert twins[name].tree(TOPIC) == twins["plain"].tree(TOPIC)
    assert len(twins["copied"].tree(TOPIC)[log_file(0)]) > BATCHES * VALUE_BYTES
    assert moved["read"] > 80_000_000
    assert moved["copied"] < 3 * LEAST_PART_BYTES
