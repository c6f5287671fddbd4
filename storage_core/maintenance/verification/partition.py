"""Verify one partition: segments, small files, entries in the checkpoints."""

import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from shlex import quote
from typing import Final

import numpy as np

from storage_core.catalog.bootstrap_snapshot import BOOTSTRAP_SNAPSHOT
from storage_core.catalog.cluster_metadata import CLUSTER_METADATA_DIRECTORY
from storage_core.checkpoint.checkpoints import (
    MAX_PARTITION_METADATA_BYTES,
    PartitionCheckpoints,
    parse_partition_metadata,
)
from storage_core.coordinators.coordinator_log import find_undecoded
from storage_core.errors import CheckpointError, StorageError
from storage_core.filenames import (
    CLEANER_FILE,
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    LEADER_EPOCH_FILE,
    LOG_START_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    SHARE_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    is_text,
    log_file,
    parse_cluster_snapshot,
)
from storage_core.formats.batch_v2 import MAX_BATCH_BYTES
from storage_core.formats.index_entries import (
    OFFSET_INDEX_ENTRY,
    TIME_INDEX_ENTRY,
)
from storage_core.index.segment_indexes import UsedBytes, read_used
from storage_core.log.loaded_log import LogBounds
from storage_core.log.log_loader import find_former_end
from storage_core.maintenance.verification.collector import FindingCollector
from storage_core.maintenance.verification.epochs_and_snapshots import (
    check_by_replay,
    check_epochs,
    check_snapshots,
    check_tier,
)
from storage_core.maintenance.verification.files import (
    NOT_TEXT,
    PartitionFiles,
    SegmentFiles,
    base_of_renamed,
    check_folders,
    check_names,
    check_rights,
    check_side_files,
)
from storage_core.maintenance.verification.finding_kinds import severity_of
from storage_core.maintenance.verification.findings import (
    Code,
    DirectoryContext,
    Finding,
    Severity,
    VerifyOptions,
)
from storage_core.maintenance.verification.indexes import (
    MAX_INDEX_BYTES,
    IndexedBatches,
    check_offset_index,
    check_time_index,
    check_transaction_index,
    drop_beyond_log,
)
from storage_core.maintenance.verification.segment_scan import SegmentFacts, SegmentPass, TailKind
from storage_core.maintenance.verification.transactions import describe_open, fold_transactions
from storage_core.store.base import FileInfo, LogStore
from storage_core.store.local import LocalStore

# Verify one segment: every batch, its indexes, and facts for the partition.
#
# A segment is the unit of work. It is read once; with ``is_deep`` its records are decoded in the
# same pass. What no segment can judge alone (overlaps, open transactions, epochs against the
# epoch file) is handed on as facts, small enough to travel between tasks.


def verify_segment(
    store: LogStore, segment: SegmentFiles, context: DirectoryContext, options: VerifyOptions
) -> tuple[SegmentFacts, list[Finding]]:
    """Read a segment and its offset and time index.

    Returns:
        The facts, and what was found. A file that cannot be read is a finding.
    """
    findings = FindingCollector()
    started = time.perf_counter()
    offset_index = _read_index(store, segment.offset_index, OFFSET_INDEX_ENTRY, options, findings)
    time_index = _read_index(store, segment.time_index, TIME_INDEX_ENTRY, options, findings)
    indexed = IndexedBatches(
        segment.base_offset,
        b"" if offset_index is None else offset_index.content,
        b"" if time_index is None else time_index.content,
    )
    scan = SegmentPass(segment, indexed, options, findings)
    try:
        with closing(store.open_file(segment.log.name)) as reader:
            if reader.size_bytes > MAX_BATCH_BYTES:
                findings.add(
                    Code.SEGMENT_TOO_LARGE,
                    f"expected at most {MAX_BATCH_BYTES} bytes, found {reader.size_bytes}; the "
                    "file was not read",
                    file=segment.log.name,
                )
                return scan.facts(time.perf_counter() - started), findings.findings()
            scan.read(reader)
    except StorageError as error:
        report_unreadable(segment.log.name, error, store, options, findings)
        return scan.facts(time.perf_counter() - started), findings.findings()
    if scan.tail is TailKind.SHRUNK:
        _report_change(segment.log.name, "was cut while it was read", options, findings)
        return scan.facts(time.perf_counter() - started), findings.findings()
    if scan.size_bytes > segment.log.size_bytes:
        # The verification uses the length that the file had when it was opened.
        grown = f"grew from {segment.log.size_bytes} to {scan.size_bytes} bytes since it was listed"
        _report_change(segment.log.name, grown, options, findings)
    _check_indexes(
        store,
        segment,
        offset_index,
        time_index,
        scan,
        context=context,
        options=options,
        findings=findings,
    )
    _report_tail(segment, scan, context, options, findings)
    return scan.facts(time.perf_counter() - started), findings.findings()


def _check_indexes(
    store: LogStore,
    segment: SegmentFiles,
    offset_index: UsedBytes | None,
    time_index: UsedBytes | None,
    scan: SegmentPass,
    *,
    context: DirectoryContext,
    options: VerifyOptions,
    findings: FindingCollector,
) -> None:
    batches = scan.indexed.result()
    unclosed = Severity.HARMLESS if options.is_live else Severity.WARN
    severity = context.tail_severity(unclosed) if segment.is_last else Severity.ERROR
    is_closed = not segment.is_last or (context.is_clean and not context.is_copy)
    # A node closes its metadata log's newest indexes with their preallocated zeros, and deletes
    # from it by snapshots.
    is_closed &= not PurePath(store.location).name.startswith(f"{CLUSTER_METADATA_TOPIC}-")
    if segment.offset_index is not None and offset_index is not None:
        offset_index = drop_beyond_log(
            segment.offset_index.name,
            offset_index,
            OFFSET_INDEX_ENTRY,
            log_ends_at=scan.end_position,
            severity=severity,
            findings=findings,
        )
        check_offset_index(segment, offset_index, batches, findings)
    if segment.time_index is not None and time_index is not None:
        index = drop_beyond_log(
            segment.time_index.name,
            time_index,
            TIME_INDEX_ENTRY,
            log_ends_at=scan.next_offset - segment.base_offset,
            severity=severity,
            findings=findings,
        )
        check_time_index(
            segment,
            index,
            batches,
            is_rising=scan.is_rising,
            is_closed=is_closed and not options.is_live and index is time_index,
            is_copy=context.is_copy,
            findings=findings,
        )


def report_unreadable(
    name: str,
    error: StorageError,
    store: LogStore,
    options: VerifyOptions,
    findings: FindingCollector,
) -> None:
    """Report an unreadable file, or one deleted meanwhile."""
    is_gone = name not in {file.name for file in store.list_files()}
    if is_gone:
        _report_change(name, "was listed and is gone", options, findings)
    else:
        findings.add(Code.FILE_UNREADABLE, error.reason, file=name)


def _report_change(
    name: str, what: str, options: VerifyOptions, findings: FindingCollector
) -> None:
    findings.add(
        Code.CHANGED_WHILE_READ,
        f"the file {what}",
        file=name,
        severity=Severity.INFO if options.is_live else None,
    )


def _read_index(
    store: LogStore,
    file: FileInfo | None,
    entry: np.dtype[np.void],
    options: VerifyOptions,
    findings: FindingCollector,
) -> UsedBytes | None:
    """Return the content of an index; report an unreadable one, None."""
    if file is None:
        return None
    try:
        return read_used(store, file.name, entry, limit_bytes=MAX_INDEX_BYTES)
    except StorageError as error:
        report_unreadable(file.name, error, store, options, findings)
        return None


def _report_tail(
    segment: SegmentFiles,
    scan: SegmentPass,
    context: DirectoryContext,
    options: VerifyOptions,
    findings: FindingCollector,
) -> None:
    if scan.tail not in {TailKind.TORN, TailKind.ZEROS}:
        return
    remaining = scan.size_bytes - scan.end_position
    what = "zeros" if scan.tail is TailKind.ZEROS else "bytes of a batch that does not end"
    code = Code.ZERO_TAIL if scan.tail is TailKind.ZEROS else Code.TORN_TAIL
    is_expected = scan.tail is TailKind.ZEROS or options.is_live
    unclosed = Severity.HARMLESS if is_expected else Severity.WARN
    severity: Severity | None = context.tail_severity(unclosed)
    if not segment.is_last:
        code, severity = Code.TORN_SEGMENT, None
    findings.add(
        code,
        f"{remaining} {what}, after {scan.end_position} bytes of batches",
        file=segment.log.name,
        position=scan.end_position,
        severity=severity,
    )


COORDINATOR_TOPICS: Final = frozenset(
    {CONSUMER_OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTION_STATE_TOPIC}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts(LogBounds):
    """The result of a partition's verification, beside its findings."""

    segments: int
    size_bytes: int
    batches: int
    records: int
    read_bytes: int
    read_seconds: float  # time that took, summed over the segments


def verify_segments(
    store: LogStore,
    files: PartitionFiles,
    segments: Iterable[SegmentFiles],
    context: DirectoryContext,
    options: VerifyOptions,
) -> tuple[list[SegmentFacts], list[Finding]]:
    """Verify some segments of a partition, each by itself.

    Returns:
        The facts, one a segment, and what was found in them.
    """
    facts, all_findings = [], []
    for segment in segments:
        of_segment, findings = verify_segment(store, segment, context, options)
        facts.append(of_segment)
        all_findings += findings
        if options.is_deep:
            replayed = FindingCollector()
            try:
                end_offset = max(of_segment.last_offset + 1, segment.base_offset)
                check_by_replay(store, files, segment, options, replayed, end_offset=end_offset)
            except StorageError as error:
                report_unreadable(segment.log.name, error, store, options, replayed)
            all_findings += replayed.findings()
    return facts, all_findings


def fold_partition(
    store: LogStore,
    files: PartitionFiles,
    facts: Sequence[SegmentFacts],
    context: DirectoryContext,
    options: VerifyOptions,
    checkpoints: PartitionCheckpoints,
) -> tuple[PartitionFacts, list[Finding]]:
    """Check the rules that concern all segments of a partition together.

    Args:
        facts: Facts of its segments, in order.
    """
    findings = FindingCollector()
    check_names(files, findings)
    whole = _put_together(
        facts, max(checkpoints.log_start_offset or 0, _metadata_start(store, files))
    )
    if isinstance(store, LocalStore):
        entries = store.scan()
        for entry in entries:
            if not is_text(entry.name):
                findings.add(Code.FILE_UNKNOWN, NOT_TEXT, file=entry.name)
        folders = [entry.name for entry in entries if entry.is_folder]
        check_folders(folders, files, log_end_offset=whole.log_end_offset, findings=findings)
        if context.user is not None:
            last_base = files.segments[-1].base_offset if files.segments else 0
            check_rights(entries, context.user, last_base=last_base, findings=findings)
    check_side_files(files.segments, findings)
    # With that snapshot alone a quorum begins: a controller's start makes the log.
    is_begun_anew = False
    if not files.segments and files.names != {BOOTSTRAP_SNAPSHOT}:
        is_begun_anew = _report_no_segment(store, files, whole, context, checkpoints, findings)
    _check_renamed(files, checkpoints.log_start_offset or 0, findings)
    _check_overlaps(facts, findings)
    check_gaps(facts, whole.log_start_offset, checkpoints, context, findings)
    check_epochs(
        store,
        [run for segment in facts for run in segment.epochs],
        has_file=LEADER_EPOCH_FILE in files.names,
        log_start_offset=whole.log_start_offset,
        findings=findings,
        is_tiered=context.is_tiered,
    )
    tier_start = checkpoints.log_start_offset
    if context.is_tiered and whole.log_end_offset > (tier_start or 0):
        check_tier(
            store,
            has_file=LEADER_EPOCH_FILE in files.names,
            tier_start_offset=tier_start,
            findings=findings,
        )
    _check_transactions(store, files, facts, whole.log_start_offset, options, findings)
    if not options.is_live:
        _check_coordinator(store, files, whole.log_start_offset, findings)
    check_snapshots(store, files, log_end_offset=whole.log_end_offset, findings=findings)
    # Of a log that was deleted up to its end no producer is left to forget.
    has_producers = any(
        segment.has_producers and segment.last_offset >= whole.log_start_offset for segment in facts
    )
    if has_producers and not files.snapshots and context.is_clean:
        message = "idempotent producers wrote to this log, and there is no snapshot of them"
        findings.add(Code.SNAPSHOT_MISSING, message)
    _check_metadata(store, files, findings)
    if not options.is_live and not is_begun_anew:
        check_checkpoints(
            whole.log_start_offset, whole.log_end_offset, checkpoints, context, findings
        )
    return whole, findings.findings()


def _metadata_start(store: LogStore, files: PartitionFiles) -> int:
    """Return where the cluster's metadata log begins, 0 for other logs.

    No checkpoint has its start: a node deletes its records up to the oldest snapshot that it keeps,
    which may end inside of a segment.
    """
    if store.location.rstrip("/").rpartition("/")[2] != CLUSTER_METADATA_DIRECTORY:
        return 0
    ends = [parsed[0] for name in files.names if (parsed := parse_cluster_snapshot(name))]
    return min(ends, default=0)


def _put_together(facts: Sequence[SegmentFacts], log_start_offset: int) -> PartitionFacts:
    first_base = facts[0].base_offset if facts else 0
    ends = [max(segment.last_offset + 1, segment.base_offset) for segment in facts]
    return PartitionFacts(
        segments=len(facts),
        size_bytes=sum(segment.size_bytes for segment in facts),
        batches=sum(segment.batches for segment in facts),
        records=sum(segment.records for segment in facts),
        log_start_offset=max(log_start_offset, first_base),
        log_end_offset=max(ends, default=log_start_offset),
        read_bytes=sum(segment.end_position for segment in facts),
        read_seconds=sum(segment.read_seconds for segment in facts),
    )


def _check_coordinator(
    store: LogStore, files: PartitionFiles, log_start_offset: int, findings: FindingCollector
) -> None:
    """Report a coordinator's records that Kafka 4.4 cannot read."""
    topic = PurePath(store.location).name.rpartition("-")[0]
    if topic not in COORDINATOR_TOPICS:
        return
    bases = [segment.base_offset for segment in files.segments]
    try:
        kinds = find_undecoded(store, topic, start_offset=log_start_offset)
    except StorageError:
        return  # the verification of its segments has found it
    for kind in kinds:
        name = kind.type or ("no type" if kind.type_id is None else f"type {kind.type_id}")
        more = f"; {kind.count} such records" if kind.count > 1 else ""
        stops = kind.stops_load(topic)
        is_warning = not stops and topic == TRANSACTION_STATE_TOPIC
        findings.add(
            Code.COORDINATOR_NOT_LOADED if stops else Code.COORDINATOR_RECORD_IGNORED,
            f"record of {name} at offset {kind.first_offset}: {kind.reason}{more}",
            file=log_file(max(base for base in bases if base <= kind.first_offset)),
            offset=kind.first_offset,
            severity=Severity.WARN if is_warning else None,
        )


def _check_renamed(
    files: PartitionFiles, log_start_offset: int, findings: FindingCollector
) -> None:
    """Report segments that another program compressed or renamed where they lay."""
    bases = [segment.base_offset for segment in files.segments]
    for name in sorted(files.names):
        base = base_of_renamed(name)
        if base is None or base in bases:
            continue
        after = min((other for other in bases if other > base), default=None)
        is_missed = after is None or after > log_start_offset
        findings.add(
            Code.SEGMENT_RENAMED,
            f"there is no {log_file(base)}",
            file=name,
            offset=base,
            severity=None if is_missed else Severity.INFO,
        )


def _report_no_segment(
    store: LogStore,
    files: PartitionFiles,
    whole: PartitionFacts,
    context: DirectoryContext,
    checkpoints: PartitionCheckpoints,
    findings: FindingCollector,
) -> bool:
    """Report a log without a segment; return whether it begins anew."""
    marks = (checkpoints.recovery_point, checkpoints.high_watermark)
    end = find_former_end(files.names, *marks)
    if end is None or end <= whole.log_end_offset:
        findings.add(Code.NO_SEGMENT, "expected at least one .log file")
        return False
    name = log_file(end)
    place = f"{store.location}/{name}"
    fix = (
        "if the log was empty, as one is whose records were purged, make the file of 0 bytes that "
        f"keeps its offsets, as the broker's user: touch {quote(place)}; else bring its .log files "
        "back from a backup, or start the other replicas first, so that this one does not lead"
    )
    if context.is_copy:
        fix = "copy it again, with its files of 0 bytes"
    findings.add(
        Code.NO_SEGMENT,
        f"expected at least one .log file, {name} if it was empty: a broker begins the log anew at "
        f"offset {whole.log_end_offset}, though its checkpoints and snapshots end it at {end}",
        file=name,
        offset=whole.log_end_offset,
        severity=context.copy_severity(Severity.ERROR),
        fix=fix,
    )
    return True


def _check_overlaps(facts: Sequence[SegmentFacts], findings: FindingCollector) -> None:
    largest, holder = -1, ""
    epoch = -1
    for segment in facts:
        name = log_file(segment.base_offset)
        if segment.base_offset <= largest:
            findings.add(
                Code.SEGMENTS_OVERLAP,
                f"begins at offset {segment.base_offset}, but {holder} reaches up to {largest}",
                file=name,
                offset=segment.base_offset,
            )
        if segment.last_offset > largest:
            largest, holder = segment.last_offset, name
        if segment.epochs:
            first = segment.epochs[0]
            if first.epoch < epoch:
                findings.add(
                    Code.EPOCH_GOES_BACK,
                    f"leader epoch {first.epoch} follows {epoch} of the segment before",
                    file=name,
                    offset=first.first_offset,
                )
            epoch = segment.epochs[-1].epoch


def check_gaps(
    facts: Sequence[SegmentFacts],
    log_start_offset: int,
    checkpoints: PartitionCheckpoints,
    context: DirectoryContext,
    findings: FindingCollector,
) -> None:
    """Look for segments that are gone from the middle of the log.

    A segment begins where the one before ended. Compaction removes records at a segment's end, but
    only below its checkpoint; and below the log start nobody misses anything.
    """
    explained = max(log_start_offset, checkpoints.cleaner_offset or 0)
    for before, after in pairwise(facts):
        # The end of a segment is unknown if it ends in bytes that are no batch.
        if before.end_position < before.size_bytes or before.bad_batches:
            continue
        first_missing = max(before.last_offset + 1, before.base_offset)
        if first_missing < after.base_offset and after.base_offset > explained:
            findings.add(
                Code.OFFSETS_MISSING,
                f"offsets {first_missing} to {after.base_offset - 1} are missing before it; "
                f"the log was compacted up to {checkpoints.cleaner_offset or 0}",
                file=log_file(after.base_offset),
                offset=first_missing,
                severity=Severity.INFO if context.is_copy else None,
            )


def _check_transactions(
    store: LogStore,
    files: PartitionFiles,
    facts: Sequence[SegmentFacts],
    log_start_offset: int,
    options: VerifyOptions,
    findings: FindingCollector,
) -> None:
    transactions = fold_transactions(segment.transactions for segment in facts)
    by_base = {segment.base_offset: segment for segment in files.segments}
    for segment, aborted in zip(facts, transactions.aborted, strict=True):
        listed = by_base.get(segment.base_offset)
        if listed is None:
            continue
        # Nothing below the log start is read: nobody misses it.
        aborted = tuple(txn for txn in aborted if txn.last_offset >= log_start_offset)  # noqa: PLW2901
        markers = segment.transactions.abort_markers
        try:
            check_transaction_index(store, listed, aborted, markers, findings)
        except StorageError as error:
            name = listed.txn_index.name if listed.txn_index else listed.log.name
            report_unreadable(name, error, store, options, findings)
    describe_open(
        transactions,
        now_ms=options.now_ms,
        max_transaction_timeout_ms=options.transaction_timeout_ms,
        findings=findings,
    )


def _check_metadata(store: LogStore, files: PartitionFiles, findings: FindingCollector) -> None:
    name = PARTITION_METADATA_FILE
    if name not in files.names:
        findings.add(Code.PARTITION_METADATA_MISSING, "the file is not there", file=name)
        return
    try:
        content = store.read_file(name, limit_bytes=MAX_PARTITION_METADATA_BYTES)
        if not content:
            findings.add(Code.PARTITION_METADATA_EMPTY, "expected a topic's id", file=name)
            return
        parse_partition_metadata(content, file=name)
    except StorageError as error:
        findings.add(Code.FILE_UNREADABLE, error.reason, file=name)
    except CheckpointError as error:
        findings.add(Code.PARTITION_METADATA_BROKEN, str(error), file=name)


def check_checkpoints(
    start: int,
    end: int,
    checkpoints: PartitionCheckpoints,
    context: DirectoryContext,
    findings: FindingCollector,
) -> None:
    """Report entries of the checkpoints that lie outside of the log."""
    for code, file, offset in (
        (Code.RECOVERY_POINT_BEYOND_END, RECOVERY_POINT_FILE, checkpoints.recovery_point),
        (Code.LOG_START_BEYOND_END, LOG_START_FILE, checkpoints.log_start_offset),
        (Code.HIGH_WATERMARK_BEYOND_END, REPLICATION_FILE, checkpoints.high_watermark),
    ):
        if offset is not None and offset > end:
            findings.add(
                code,
                f"the checkpoint says {offset}, the log ends at {end}",
                file=file,
                offset=end,
                severity=context.copy_severity(severity_of(code)),
            )
    point = checkpoints.cleaner_offset
    if point is not None and not start <= point <= end:
        # With both policies, deletion regularly overtakes the cleaner.
        findings.add(
            Code.CLEANER_POINT_OUTSIDE_LOG,
            f"the checkpoint says {point}, the log is {start} to {end}",
            file=CLEANER_FILE,
            offset=point,
            severity=Severity.INFO if point < start else None,
        )
