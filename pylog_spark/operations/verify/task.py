"""Verify partitions and stretches of them, rows in, rows out. Nothing is written.

A partition that fits in one unit is verified whole, in one task. A bigger one is cut into stretches
of segments; their facts travel as rows to the one task that puts the partition together.
"""

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.rows import Binary, Number, Text, column
from pylog_spark.schemas import Failure, FindingRow, PartitionName
from pylog_spark.tasks.ahead import BYTES_AT_ONCE, Room, map_where_remote
from pylog_spark.tasks.message import attempt
from storage_core.catalog.roles import Role
from storage_core.checkpoint.checkpoints import CHECKPOINT_FILES, PartitionCheckpoints
from storage_core.errors import PartitionNotFoundError
from storage_core.filenames import TopicPartition
from storage_core.maintenance.listings import look_at, sizes_by_offset
from storage_core.maintenance.verification.files import PartitionFiles, sort_files
from storage_core.maintenance.verification.finding_kinds import describe_fix, severity_of
from storage_core.maintenance.verification.findings import (
    Code,
    DirectoryContext,
    Finding,
    Severity,
    VerifyOptions,
)
from storage_core.maintenance.verification.partition import (
    PartitionFacts,
    fold_partition,
    verify_segments,
)
from storage_core.maintenance.verification.plain import (
    LARGEST_PLAIN_BYTES,
    PlainPartition,
    verify_plain,
)
from storage_core.maintenance.verification.segment_scan import SegmentFacts
from storage_core.roots.partition_facts import manifest_checkpoints
from storage_core.store import LogStore, ManagedStore, open_store
from storage_core.store.generations import require_no_remains, unpinned
from storage_core.store.open_store import join_location

FINDING_ROW = "finding"
FACTS_ROW = "facts"
PARTITION_ROW = "partition"
LARGEST_ACTIVE_INDEX = "largest_active_index"
# The ordinal of a directory that is loaded at a start, and not verified.
NOT_VERIFIED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedRow:
    """A row of verification: a finding, facts of segments, or numbers. The facts are for the
    task that joins them; the numbers are a partition's."""

    row: Text = column("finding, facts or partition")
    ordinal: Number = column("row of the partition in the run's own table, null for none")
    root: str = column("log directory, as the run was given it")
    finding: FindingRow = FindingRow()
    first_offset: Number = column("where the segments begin that the facts are of")
    facts: Binary = column("zlib over JSON; null unless row is facts")
    segments: Number = column("segments of the partition")
    bytes: Number = column("bytes of all .log files")
    records: Number = column("records that its batches count")
    log_start_offset: Number = column("first offset")
    log_end_offset: Number = column("just past the last batch")
    read_bytes: Number = column("bytes of batches that were read")
    read_ms: Number = column("time that tasks spent on reading them")
    # A broker's start opens it and does nothing else, where its config allows such an index.
    largest_active_index: Number = column("bytes of an index of a sound log; null if not known")
    duration_ms: int = column("time it took")
    failure: Failure = Failure()


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSizes:
    """The .log files of a partition."""

    ordinal: int = column("row of the partition in the run's own table")
    directory: str = column("its directory; of a managed one that of the generation looked at")
    offsets: tuple[int, ...] = column("base offsets, rising")
    sizes: tuple[int, ...] = column("their lengths")

    @classmethod
    def of(cls, target: "Target", logs: tuple[tuple[int, ...], tuple[int, ...]]) -> "SegmentSizes":
        """Return those of a plain directory, by ``sizes_by_offset``."""
        offsets, sizes = logs
        return cls(ordinal=target.ordinal, directory=target.directory, offsets=offsets, sizes=sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A partition that is to be verified."""

    ordinal: int
    root: str
    directory: str
    partition: TopicPartition
    context: DirectoryContext
    checkpoints: PartitionCheckpoints
    # The log directories of its broker that the run was given; empty for only ``root``.
    roots: tuple[str, ...]

    @property
    def name(self) -> PartitionName:
        """Its name in log lines."""
        name = self.partition
        return PartitionName(root=self.root, topic=name.topic, partition=name.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Neighbouring segments of a partition, within a range of base offsets."""

    target: Target
    size_bytes: int
    first_offset: int = 0
    end_offset: int | None = None  # just past its end; None for no end

    @property
    def is_whole(self) -> bool:
        """Whether these are all segments of the partition."""
        return self.first_offset == 0 and self.end_offset is None

    def holds(self, base_offset: int) -> bool:
        """Whether a segment belongs to it."""
        end = self.end_offset
        return self.first_offset <= base_offset and (end is None or base_offset < end)


def measure_segments(targets: Sequence[Target]) -> Iterator[SegmentSizes]:
    """Yield offsets and sizes of each partition's .log files. A directory that cannot be listed
    has none: the task that verifies it says why."""
    return map_where_remote(_measure, targets, directory_of=attrgetter("directory"))


def _measure(target: Target) -> SegmentSizes:
    directory = target.directory
    # Of a plain directory names and lengths of these files alone are read.
    is_local = directory.startswith("/")
    look = look_at(Path(directory), needs_age=False, needs_topic_id=False) if is_local else None
    if look is not None and look.are_files:
        return SegmentSizes.of(target, sizes_by_offset({n: s for n, (s, _) in look.logs.items()}))
    try:
        store = open_store(directory)
        segments = sort_files(store.list_files()).segments
        directory = store.location
    except Exception:  # noqa: BLE001  # verifying it meets the same error, and reports it
        segments = ()
    return SegmentSizes(
        ordinal=target.ordinal,
        directory=directory,
        offsets=tuple(segment.base_offset for segment in segments),
        sizes=tuple(segment.log.size_bytes for segment in segments),
    )


def verify_stretches(stretches: Sequence[Stretch], options: VerifyOptions) -> Iterator[VerifiedRow]:
    """Verify stretches. Small ones on an object store beside each other: they are mostly waiting
    for it."""
    room = Room(BYTES_AT_ONCE)
    whole = [
        stretch.target
        for stretch in stretches
        if stretch.is_whole and stretch.size_bytes <= LARGEST_PLAIN_BYTES
    ]
    plain = verify_plain(whole, options)
    told = {whole[number].ordinal: each for number, each in plain.items()}

    def verify(stretch: Stretch) -> list[VerifiedRow]:
        with room.take(stretch.size_bytes):
            return verify_stretch(stretch, options)

    for each in whole:
        if each.ordinal in told:
            yield from _attempt(
                each, _partition_row(each), partial(_tell, each, told[each.ordinal])
            )
    verified = map_where_remote(
        verify,
        [stretch for stretch in stretches if stretch.target.ordinal not in told],
        directory_of=lambda stretch: stretch.target.directory,
    )
    yield from chain.from_iterable(verified)


def _tell(
    target: Target, plain: PlainPartition, findings: list[VerifiedRow], head: VerifiedRow
) -> VerifiedRow:
    findings += finding_rows(target, plain.findings)
    return _with_facts(head, plain.facts, max(plain.active_index_bytes))


def verify_stretch(stretch: Stretch, options: VerifyOptions) -> list[VerifiedRow]:
    """Return the rows of one stretch, whatever is wrong with it."""
    target = stretch.target
    if stretch.is_whole:
        return _attempt(target, _partition_row(target), partial(_verify, stretch, options))
    head = VerifiedRow(
        row=FACTS_ROW,
        ordinal=target.ordinal,
        root=target.root,
        first_offset=stretch.first_offset,
    )
    return _attempt(target, head, partial(_verify, stretch, options))


def _attempt(
    target: Target,
    head: VerifiedRow,
    work: Callable[[list[VerifiedRow], VerifiedRow], VerifiedRow],
) -> list[VerifiedRow]:
    """Return the findings of work and its row; none after an error."""
    findings: list[VerifiedRow] = []
    row = attempt(head, partial(work, findings), target.name)
    return [row] if row.failure else [*findings, row]


def _verify(
    stretch: Stretch, options: VerifyOptions, findings: list[VerifiedRow], head: VerifiedRow
) -> VerifiedRow:
    target = stretch.target
    store = open_store(target.directory)
    files = _list_files(store, options)
    if isinstance(files, Finding):
        findings += finding_rows(target, [files]) if stretch.is_whole else []
        return head
    facts, segment_findings = verify_segments(
        store,
        files,
        [segment for segment in files.segments if stretch.holds(segment.base_offset)],
        target.context,
        options,
    )
    findings += finding_rows(target, segment_findings)
    if stretch.is_whole:
        return _fold(store, target, files, facts, options, findings, head)
    content = json.dumps([asdict(segment) for segment in facts], separators=(",", ":"))
    return replace(head, facts=zlib.compress(content.encode(), 1))


def facts_of_stretches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the facts among rows of stretches, in pieces as they come."""
    for batch in batches:
        yield batch.filter(pc.equal(batch["row"], FACTS_ROW))


def fold_verified(
    facts: Iterable[VerifiedRow], targets: Mapping[int, Target], options: VerifyOptions
) -> Iterator[VerifiedRow]:
    """Put the stretches of partitions together.

    Args:
        facts: Their rows of facts, ordered by partition and first offset; all of a partition are
            there.
        targets: All partitions that were cut into stretches, by ordinal.
    """
    for ordinal, some in groupby(facts, key=attrgetter("ordinal")):
        target = targets[ordinal]
        stretches = list(some)
        failure = next((each.failure for each in stretches if each.failure), None)
        if failure is not None:
            yield replace(_partition_row(target), failure=failure)
            continue
        work = partial(_fold_stretches, target, stretches, options)
        yield from _attempt(target, _partition_row(target), work)


def finding_rows(target: Target, findings: Iterable[Finding]) -> list[VerifiedRow]:
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
            is_tiered=target.context.is_tiered,
        )
        for finding in findings
    ]


def place_finding(  # noqa: PLR0913  # the place of a finding
    finding: Finding,
    *,
    root: str,
    directory: str | None,
    partition: TopicPartition | None,
    role: Role,
    ordinal: int | None = None,
    log_start_offset: int | None = None,
    roots: Sequence[str] = (),
    is_tiered: bool = False,
) -> VerifiedRow:
    """Return a finding as a row with place and advice.

    Args:
        directory: Of the partition, None where the log directory itself is meant.
        partition: Whose it is, None where nobody's.
        log_start_offset: What the checkpoint says of it, None for nothing.
        roots: The log directories of its broker; empty for only ``root``.
        is_tiered: Whether the topic has segments in remote storage.
    """
    # A finding about a partition's line in a checkpoint names a file of the log directory.
    is_in_root = directory is None or finding.file in CHECKPOINT_FILES
    home = root if is_in_root else unpinned(directory or root)
    file = join_location(home, finding.file) if finding.file else home
    topic = None if partition is None else partition.topic
    fix = describe_fix(
        finding,
        file=file,
        root=root,
        directory=directory or (file if partition is not None else ""),
        topic=topic,
        log_start_offset=log_start_offset,
        role=role,
        roots=roots,
        is_tiered=is_tiered,
    )
    row = FindingRow(
        severity=finding.severity.value,
        code=finding.code.value,
        topic=topic,
        partition=None if partition is None else partition.partition,
        file=file,
        position=finding.position,
        offset=finding.offset,
        message=finding.message,
        fix=fix,
    )
    return VerifiedRow(row=FINDING_ROW, ordinal=ordinal, root=root, finding=row)


def _list_files(store: LogStore, options: VerifyOptions) -> PartitionFiles | Finding:
    """Return a partition's files, or the finding that it is gone."""
    try:
        return sort_files(store.list_files())
    except PartitionNotFoundError:
        if isinstance(store, ManagedStore):
            require_no_remains(store.objects, store.partition)
        return Finding(
            code=Code.CHANGED_WHILE_READ,
            severity=Severity.INFO if options.is_live else severity_of(Code.CHANGED_WHILE_READ),
            message="the directory was listed and is gone",
        )


def _fold(
    store: LogStore,
    target: Target,
    files: PartitionFiles,
    facts: Sequence[SegmentFacts],
    options: VerifyOptions,
    findings: list[VerifiedRow],
    head: VerifiedRow,
) -> VerifiedRow:
    checkpoints = manifest_checkpoints(store) or target.checkpoints
    whole, own = fold_partition(store, files, facts, target.context, options, checkpoints)
    findings += finding_rows(target, own)
    return _with_facts(head, whole)


def _with_facts(
    head: VerifiedRow, whole: PartitionFacts, largest_active_index: int | None = None
) -> VerifiedRow:
    return replace(
        head,
        segments=whole.segments,
        bytes=whole.size_bytes,
        records=whole.records,
        log_start_offset=whole.log_start_offset,
        log_end_offset=whole.log_end_offset,
        read_bytes=whole.read_bytes,
        read_ms=round(whole.read_seconds * 1000),
        largest_active_index=largest_active_index,
    )


def _fold_stretches(
    target: Target,
    stretches: Sequence[VerifiedRow],
    options: VerifyOptions,
    findings: list[VerifiedRow],
    head: VerifiedRow,
) -> VerifiedRow:
    facts = [
        SegmentFacts.from_plain(values)
        for each in stretches
        if each.facts is not None
        for values in json.loads(zlib.decompress(each.facts))
    ]
    store = open_store(target.directory)
    files = _list_files(store, options)
    if isinstance(files, Finding):
        findings += finding_rows(target, [files])
        return head
    return _fold(store, target, files, facts, options, findings, head)


def _partition_row(target: Target) -> VerifiedRow:
    name = FindingRow(topic=target.partition.topic, partition=target.partition.partition)
    return VerifiedRow(
        row=PARTITION_ROW, ordinal=target.ordinal, root=target.root, finding=name, duration_ms=0
    )
