"""A log directory of a broker that was cleanly shut down, with one partition of everything.

Three closed segments and an active one; an idempotent producer, one that commits and one that
aborts; two leader epochs; snapshots at every base. Nothing about it is to be found.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage_core import filenames
from storage_core.catalog.roles import Role
from storage_core.checkpoint.checkpoints import CHECKPOINT_FILES, encode_offset_checkpoint
from storage_core.formats.control import ControlType
from storage_core.maintenance.verification import log_directories
from storage_core.maintenance.verification.findings import Code, Finding, Severity, VerifyOptions
from storage_core.store import LocalStore
from tests.kit.builders import SOME_TIME_MS, BatchSpec, RecordSpec, encode_batch, end_txn_marker
from tests.kit.directories import AbortedTxnSpec, ProducerSpec, SegmentSpec, write_partition
from tests.kit.one_partition import verify_partition

PARTITION = filenames.TopicPartition("t", 0)
NOW_MS = SOME_TIME_MS + 60_000
END_OFFSET = 40
IDEMPOTENT, COMMITS, ABORTS = 7, 8, 9
# Small, so that indexes have entries.
INTERVAL_BYTES = 50
# Words that say whose directory it is: that of a node that gets the cluster's metadata elsewhere.
ONLY_BROKER = ("--set", "process.roles=broker")


def records(count: int, first_ms: int) -> tuple[RecordSpec, ...]:
    return tuple(
        RecordSpec(key=b"k%d" % n, value=b"v" * 20, timestamp=first_ms + n) for n in range(count)
    )


def batch(base_offset: int, count: int = 5, **fields) -> BatchSpec:
    first_ms = SOME_TIME_MS + 10 * base_offset
    return BatchSpec(records=records(count, first_ms), base_offset=base_offset, **fields)


def transactional(base_offset: int, producer_id: int, count: int = 4, **fields) -> BatchSpec:
    return batch(
        base_offset,
        count,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
        **fields,
    )


def marker(base_offset: int, producer_id: int, kind: ControlType, **fields) -> BatchSpec:
    return end_txn_marker(
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0,
        control_type=kind,
        timestamp=SOME_TIME_MS + 10 * base_offset + 9,
        **fields,
    )


def segments() -> list[SegmentSpec]:
    """Return the segments of the partition; offsets 0 to 39."""
    idempotent = ProducerSpec(
        producer_id=IDEMPOTENT,
        last_sequence=4,
        last_offset=9,
        offset_delta=4,
        last_timestamp=SOME_TIME_MS + 54,
    )
    return [
        SegmentSpec(
            base_offset=0,
            batches=(
                batch(0),
                batch(5, producer_id=IDEMPOTENT, producer_epoch=0, base_sequence=0),
            ),
            producers=(),
        ),
        SegmentSpec(
            base_offset=10,
            batches=(
                transactional(10, COMMITS),
                marker(14, COMMITS, ControlType.COMMIT),
                transactional(15, ABORTS, leader_epoch=3),
                marker(19, ABORTS, ControlType.ABORT, leader_epoch=3),
            ),
            aborted=(
                AbortedTxnSpec(
                    producer_id=ABORTS, first_offset=15, last_offset=19, last_stable_offset=20
                ),
            ),
            producers=(idempotent,),
        ),
        SegmentSpec(
            base_offset=20,
            batches=tuple(batch(base, leader_epoch=3) for base in (20, 25)),
        ),
        SegmentSpec(
            base_offset=30,
            batches=tuple(batch(base, leader_epoch=3) for base in (30, 35)),
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRoot:
    """The log directory, and what verification finds in it."""

    path: Path
    role: Role = Role.BROKER

    @property
    def partition(self) -> Path:
        return self.path / str(PARTITION)

    def file(self, base_offset: int, suffix: str = ".log") -> Path:
        return self.partition / filenames.segment_file(base_offset, suffix)

    def log_bytes(self) -> int:
        """Return the bytes of all segments."""
        return sum(path.stat().st_size for path in self.partition.glob("*.log"))

    def write_segments(self, specs: Sequence[SegmentSpec]) -> None:
        """Replace the segments by others."""
        for path in self.partition.iterdir():
            if path.name != filenames.PARTITION_METADATA_FILE:
                path.unlink()
        write_partition(self.partition, specs, index_interval_bytes=INTERVAL_BYTES)

    def write_batches(self, *specs: BatchSpec | bytes, base_offset: int = 0) -> None:
        """Replace the segments by one with these batches; as bytes, they are as they stand.

        The checkpoints go: they were of the other segments.
        """
        for name in CHECKPOINT_FILES:
            (self.path / name).unlink()
        good = [spec for spec in specs if isinstance(spec, BatchSpec)]
        spec = SegmentSpec(base_offset=base_offset, batches=good, producers=())
        self.write_segments([spec])
        data = b"".join(s if isinstance(s, bytes) else encode_batch(s) for s in specs)
        self.file(base_offset).write_bytes(data)

    def write_checkpoint(self, name: str, offset: int) -> None:
        (self.path / name).write_bytes(encode_offset_checkpoint({PARTITION: offset}))

    def change(self, path: Path, at: int, data: bytes) -> None:
        """Overwrite bytes of a file."""
        content = bytearray(path.read_bytes())
        at = at if at >= 0 else len(content) + at
        content[at : at + len(data)] = data
        path.write_bytes(content)

    def findings(self, **options) -> list[Finding]:
        chosen = dataclasses.replace(VerifyOptions(now_ms=NOW_MS), **options)
        observed, placed = log_directories.verify_log_directories([(str(self.path), self.role)])
        found = [entry.finding for entry in placed]
        for entry in observed[0].entries:
            if entry.kind in log_directories.VERIFIED_KINDS:
                _, more = verify_partition(
                    LocalStore(Path(entry.path)),
                    observed[0].context_of(entry),
                    chosen,
                    observed[0].checkpoints_of(entry.topic_partition),
                )
                found += more
        return found

    def codes(self, least: Severity = Severity.INFO, **options) -> set[Code]:
        """Return the codes of what is found, of this severity or worse."""
        return {f.code for f in self.findings(**options) if f.severity.rank >= least.rank}


def log_root(path: Path) -> LogRoot:
    """Write the log directory."""
    path.mkdir()
    root = LogRoot(path=path)
    write_partition(root.partition, segments(), index_interval_bytes=INTERVAL_BYTES)
    metadata = "version: 0\ntopic_id: 3BBfqQbWRHy_3kC4SIuLMw"
    (root.partition / filenames.PARTITION_METADATA_FILE).write_text(metadata)
    (path / filenames.META_PROPERTIES_FILE).write_text(
        "version=1\nnode.id=1\ncluster.id=V3CHegy_ZdcmiWckVUA0FQ\n"
    )
    (path / filenames.CLEAN_SHUTDOWN_FILE).write_text('{"version":0,"brokerEpoch":11}')
    for name in (filenames.RECOVERY_POINT_FILE, filenames.REPLICATION_FILE):
        root.write_checkpoint(name, END_OFFSET)
    root.write_checkpoint(filenames.CLEANER_FILE, 10)
    root.write_checkpoint(filenames.LOG_START_FILE, 5)
    return root


def long_to_bytes(number: int) -> bytes:
    return np.array([number], ">i8").tobytes()
