"""Verify one segment: every batch, its indexes, and facts for the partition.

A segment is the unit of work. It is read once; with ``is_deep`` its records are decoded in the same
pass. What no segment can judge alone (overlaps, open transactions, epochs against the epoch file)
is handed on as facts, small enough to travel between tasks.
"""

import time
from contextlib import closing
from pathlib import PurePath

import numpy as np

from storage_core.errors import StorageError
from storage_core.filenames import CLUSTER_METADATA_TOPIC
from storage_core.formats.batch_v2 import MAX_BATCH_BYTES
from storage_core.formats.index_entries import (
    OFFSET_INDEX_ENTRY,
    TIME_INDEX_ENTRY,
)
from storage_core.index.segment_indexes import UsedBytes, read_used
from storage_core.maintenance.verification.collector import FindingCollector
from storage_core.maintenance.verification.files import SegmentFiles
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
    drop_beyond_log,
)
from storage_core.maintenance.verification.segment_scan import SegmentFacts, SegmentPass, TailKind
from storage_core.store.base import FileInfo, LogStore


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
