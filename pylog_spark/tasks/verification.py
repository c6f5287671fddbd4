"""Verify partitions and stretches of them, rows in, rows out.

Nothing is written.

A partition that fits in one unit is verified whole, in one task. A bigger one is cut into stretches
of segments; their facts travel as rows to the one task that puts the partition together.
"""

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.rows import rows_to_batches
from pylog_spark.schemas import VERIFIED
from pylog_spark.tasks.ahead import BYTES_AT_ONCE, Room, map_partitions, map_where_remote
from pylog_spark.tasks.cells import join_rows
from storage_core.catalog.roles import Role
from storage_core.checkpoint.checkpoints import CHECKPOINT_FILES, PartitionCheckpoints
from storage_core.errors import PartitionNotFoundError, describe_failure
from storage_core.filenames import TopicPartition
from storage_core.maintenance.verification.files import PartitionFiles, sort_files
from storage_core.maintenance.verification.finding_kinds import describe_fix, severity_of
from storage_core.maintenance.verification.findings import Code, Finding, Severity
from storage_core.maintenance.verification.options import DirectoryContext, VerifyOptions
from storage_core.maintenance.verification.partition import (
    PartitionFacts,
    fold_partition,
    verify_segments,
)
from storage_core.maintenance.verification.segment_facts import SegmentFacts
from storage_core.store import LogStore, ManagedStore, open_store
from storage_core.store.generations import require_no_remains, unpinned
from storage_core.store.open_store import join_location

FINDING_ROW = "finding"
FACTS_ROW = "facts"
PARTITION_ROW = "partition"
# The ordinal of a directory that is loaded at a start, and not verified.
NOT_VERIFIED = -1

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A partition that is to be verified.

    Attributes:
        ordinal: Its number in the run.
        root: Its log directory, as the run was given it.
        directory: Path of its own directory.
        partition: Its name.
        context: Where it lies.
        checkpoints: What the log directory says of it.
        roots: The log directories of its broker that the run was given; empty for only ``root``.
    """

    ordinal: int
    root: str
    directory: str
    partition: TopicPartition
    context: DirectoryContext
    checkpoints: PartitionCheckpoints
    roots: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Neighbouring segments of a partition, within a range of base offsets.

    Attributes:
        target: The partition.
        first_offset: Where the range begins.
        end_offset: Just past its end; None for no end.
        size_bytes: Of its segments.
    """

    target: Target
    first_offset: int = 0
    end_offset: int | None = None
    size_bytes: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether these are all segments of the partition."""
        return self.first_offset == 0 and self.end_offset is None

    def holds(self, base_offset: int) -> bool:
        """Whether a segment belongs to it."""
        end = self.end_offset
        return self.first_offset <= base_offset and (end is None or base_offset < end)


def measure_segments(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield offsets and sizes of each partition's .log files.

    Rows (ordinal, directory) become rows (ordinal, directory, offsets, sizes).

    The directory of a managed partition becomes that of the generation that was looked at.

    A directory that cannot be listed has none: the task that verifies it says why.
    """
    rows = (row for batch in batches for row in batch.to_pylist())
    yield from rows_to_batches(schema, map_partitions(_measure, rows))


def _measure(row: Row) -> Row:
    directory = row["directory"]
    try:
        store = open_store(directory)
        segments = sort_files(store.list_files()).segments
        directory = store.location
    except Exception:  # noqa: BLE001  # verifying it meets the same error, and reports it
        segments = ()
    return {
        "ordinal": row["ordinal"],
        "directory": directory,
        "offsets": [segment.base_offset for segment in segments],
        "sizes": [segment.log.size_bytes for segment in segments],
    }


def verify_stretches(
    stretches: Sequence[Stretch], options: VerifyOptions
) -> Iterator[pa.RecordBatch]:
    """Verify stretches and yield rows of ``schemas.VERIFIED``.

    Small ones on an object store beside each other: they are mostly waiting for it.
    """
    room = Room(BYTES_AT_ONCE)

    def verify(stretch: Stretch) -> list[Row]:
        with room.take(stretch.size_bytes):
            return verify_stretch(stretch, options)

    verified = map_where_remote(
        verify, stretches, directory_of=lambda stretch: stretch.target.directory
    )
    yield from rows_to_batches(VERIFIED, chain.from_iterable(verified))


def verify_stretch(stretch: Stretch, options: VerifyOptions) -> list[Row]:
    """Return the rows of one stretch, whatever is wrong with it."""
    target = stretch.target
    try:
        store = open_store(target.directory)
        files = _list_files(store, target, options)
        if isinstance(files, list):
            return files if stretch.is_whole else [_facts_row(stretch, [])]
        facts, found = verify_segments(
            store,
            files,
            [segment for segment in files.segments if stretch.holds(segment.base_offset)],
            target.context,
            options,
        )
        rows = finding_rows(target, found)
        if stretch.is_whole:
            return rows + _fold(store, target, files, facts, options)
        return [*rows, _facts_row(stretch, facts)]
    except Exception as error:  # noqa: BLE001  # the row carries it; other partitions go on
        failed = _partition_row(target) if stretch.is_whole else _facts_row(stretch, [])
        return [failed | describe_failure(error)]


def facts_of_stretches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the facts among rows of ``schemas.VERIFIED``, in pieces as they come."""
    for batch in batches:
        yield batch.filter(pc.equal(batch["row"], FACTS_ROW))


def fold_verified(
    batches: Iterable[pa.RecordBatch], targets: Mapping[int, Target], options: VerifyOptions
) -> Iterator[pa.RecordBatch]:
    """Put the stretches of partitions together.

    Args:
        batches: Pieces of their rows of facts, ordered by partition and first offset; all of a
            partition are there.
        targets: All partitions that were cut into stretches, by ordinal.
        options: How to look.
    """
    for ordinal, rows in groupby(join_rows(batches), key=lambda row: int(row["ordinal"])):
        folded = _fold_stretches(targets[ordinal], list(rows), options)
        yield from rows_to_batches(VERIFIED, folded)


def finding_rows(target: Target, findings: Iterable[Finding]) -> list[Row]:
    """Return findings as rows."""
    return [
        place_finding(
            finding,
            root=target.root,
            directory=target.directory,
            partition=target.partition,
            role=target.context.role,
            ordinal=target.ordinal,
            log_start_offset=target.checkpoints.log_start_offset,
            roots=target.roots,
        )
        for finding in findings
    ]


def place_finding(  # the place of a finding
    finding: Finding,
    *,
    root: str,
    directory: str | None,
    partition: TopicPartition | None,
    role: Role,
    ordinal: int | None = None,
    log_start_offset: int | None = None,
    roots: Sequence[str] = (),
) -> Row:
    """Return a finding as a ``schemas.VERIFIED`` row with place and advice.

    Args:
        finding: The finding.
        root: The log directory.
        directory: Of the partition, None where the log directory itself is meant.
        partition: Whose it is, None where nobody's.
        role: What the log directory is.
        ordinal: Number of the partition in the run.
        log_start_offset: What the checkpoint says of it, None for nothing.
        roots: The log directories of its broker; empty for only ``root``.
    """
    # A finding about a partition's line in a checkpoint names a file of the log directory.
    is_in_root = directory is None or finding.file in CHECKPOINT_FILES
    home = root if is_in_root else unpinned(directory or root)
    file = join_location(home, finding.file) if finding.file else home
    named = replace(finding, file=file)
    return {
        "row": FINDING_ROW,
        "ordinal": ordinal,
        "root": root,
        "severity": finding.severity.value,
        "code": finding.code.value,
        "topic": None if partition is None else partition.topic,
        "partition": None if partition is None else partition.partition,
        "file": file,
        "position": finding.position,
        "offset": finding.offset,
        "message": finding.message,
        "fix": describe_fix(
            named,
            root=root,
            directory=directory or "",
            topic=None if partition is None else partition.topic,
            log_start_offset=log_start_offset,
            role=role,
            roots=roots,
        ),
    }


def _list_files(
    store: LogStore, target: Target, options: VerifyOptions
) -> PartitionFiles | list[Row]:
    """Return a partition's files, or the rows for a missing partition.

    The rows are for one that is gone, if that may happen.

    Raises:
        ManifestError: It is a managed one of which all is there but what says what it is.
        StorageError: It cannot be listed.
    """
    try:
        return sort_files(store.list_files())
    except PartitionNotFoundError:
        if isinstance(store, ManagedStore):
            require_no_remains(store.objects, store.partition)
        gone = Finding(
            code=Code.CHANGED_WHILE_READ,
            severity=Severity.INFO if options.is_live else severity_of(Code.CHANGED_WHILE_READ),
            message="the directory was listed and is gone",
        )
        return [*finding_rows(target, [gone]), _partition_row(target)]


def _fold(
    store: LogStore,
    target: Target,
    files: PartitionFiles,
    facts: Sequence[SegmentFacts],
    options: VerifyOptions,
) -> list[Row]:
    whole, found = fold_partition(
        store, files, facts, target.context, options, _checkpoints(store, target)
    )
    return [*finding_rows(target, found), _partition_row(target, whole)]


def _checkpoints(store: LogStore, target: Target) -> PartitionCheckpoints:
    """Return a partition's checkpoint entries; a manifest has its own."""
    if not isinstance(store, ManagedStore):
        return target.checkpoints
    # Its recovery point says how far it was ingested, not how far it was written to a disk.
    return replace(store.manifest.checkpoints, recovery_point=None)


def _fold_stretches(target: Target, rows: Sequence[Row], options: VerifyOptions) -> list[Row]:
    for row in rows:
        if row["error"] is not None:
            error = {name: row[name] for name in ("error_class", "error")}
            return [_partition_row(target) | error]
    try:
        facts = [
            SegmentFacts.from_plain(values)
            for row in rows
            for values in json.loads(zlib.decompress(row["facts"]))
        ]
        store = open_store(target.directory)
        files = _list_files(store, target, options)
        if isinstance(files, list):
            return files
        return _fold(store, target, files, facts, options)
    except Exception as error:  # noqa: BLE001  # the row carries it; other partitions go on
        return [_partition_row(target) | describe_failure(error)]


def _facts_row(stretch: Stretch, facts: Sequence[SegmentFacts]) -> Row:
    content = json.dumps([asdict(segment) for segment in facts], separators=(",", ":"))
    return {
        "row": FACTS_ROW,
        "ordinal": stretch.target.ordinal,
        "root": stretch.target.root,
        "first_offset": stretch.first_offset,
        "facts": zlib.compress(content.encode(), 1),
    }


def _partition_row(target: Target, facts: PartitionFacts | None = None) -> Row:
    row: Row = {
        "row": PARTITION_ROW,
        "ordinal": target.ordinal,
        "root": target.root,
        "topic": target.partition.topic,
        "partition": target.partition.partition,
    }
    if facts is None:
        return row
    return row | {
        "segments": facts.segments,
        "bytes": facts.size_bytes,
        "records": facts.records,
        "log_start_offset": facts.log_start_offset,
        "log_end_offset": facts.log_end_offset,
        "read_bytes": facts.read_bytes,
        "read_ms": round(facts.read_seconds * 1000),
    }
