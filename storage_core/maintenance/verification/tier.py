"""Scrub a partition's segments in a tier: what is missing, doubled, unread or damaged.

The listing and the manifests say most of it. Brokers upload and delete meanwhile, and no listing
shows one moment: what a first look finds counts only if a second look finds it again. An unfinished
upload counts once its newest object is older than a grace.

``__remote_log_metadata`` says what brokers know of each segment. It is read after one listing and
before another. A broker records the begin of an upload before the first byte, and the begin of a
deletion before the first object goes: so a segment without a record in both listings is unknown to
brokers. One that both lack is lost if it was recorded as uploaded before the first of them, and
still is behind it. One that has fewer objects in the second is being deleted.

The deep look reads every object. It checks a segment as ``verify`` checks one in a log directory,
and what the tier adds: chunks, the manifest's epochs, the last offset.
"""

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from storage_core.catalog.roles import Role
from storage_core.checkpoint.checkpoints import EpochEntry
from storage_core.coordinators.remote_log import RemoteSegment, SegmentState
from storage_core.errors import (
    BadBytesError,
    CheckpointError,
    ConfigError,
    CorruptSnapshotError,
    ObjectNotFoundError,
    PylogError,
)
from storage_core.filenames import (
    INDEX_SUFFIXES,
    LEADER_EPOCH_FILE,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TXN_INDEX_SUFFIX,
    kind_of,
    log_file,
    segment_file,
    snapshot_file,
)
from storage_core.log.leader_epoch_cache import LeaderEpochCache
from storage_core.log.producer_snapshot import parse_producer_snapshot
from storage_core.maintenance.verification.collector import FindingCollector
from storage_core.maintenance.verification.epochs_and_snapshots import check_epochs, judge_epochs
from storage_core.maintenance.verification.files import SegmentFiles, sort_files
from storage_core.maintenance.verification.finding_kinds import KINDS
from storage_core.maintenance.verification.findings import (
    Code,
    DirectoryContext,
    Finding,
    Severity,
    VerifyOptions,
)
from storage_core.maintenance.verification.indexes import check_transaction_index
from storage_core.maintenance.verification.partition import verify_segment
from storage_core.maintenance.verification.segment_scan import SegmentFacts
from storage_core.maintenance.verification.transactions import fold_transactions
from storage_core.store.base import FileInfo, FileReader, ReadOnlyStore, read_limited
from storage_core.store.object_files import BytesReader
from storage_core.store.tier_archive import (
    Candidate,
    Pieces,
    Tier,
    TierFolder,
    TierPiece,
    TierSegment,
    choose_among,
    find_newest,
    measure,
)
from storage_core.store.tier_chunks import CorruptChunkError

# A closed segment: its indexes are finished, and no follower's copy is behind.
_CONTEXT: Final = DirectoryContext(role=Role.BROKER, is_clean=True)
# What it means that a segment lacks objects, by what brokers know of it.
_INCOMPLETE: Final = {
    SegmentState.COPY_SEGMENT_STARTED: Code.TIER_UPLOAD_STOPPED,
    SegmentState.COPY_SEGMENT_FINISHED: Code.TIER_SEGMENT_LOST,
    SegmentState.DELETE_SEGMENT_STARTED: Code.TIER_DELETION_STOPPED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubOptions:
    """Depth and limits of a scrub."""

    verify: VerifyOptions
    is_deep: bool  # also read every object
    grace_ms: int  # an unfinished upload or deletion younger than this may be under way

    def is_old(self, at_ms: int) -> bool:
        """Whether something unfinished of that time has been left."""
        return self.verify.now_ms - at_ms >= self.grace_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What brokers know of a partition's segments."""

    segments: tuple[RemoteSegment, ...]
    # By id, how many objects of a segment lay in the tier before those were read.
    listed: Mapping[str, int]
    # Ids of those that were recorded as uploaded before that listing, if it lacks any.
    uploaded: Set[str]

    @property
    def by_id(self) -> dict[str, RemoteSegment]:
        """The segments that are not deleted, by id."""
        return {
            each.identity.segment_id: each
            for each in self.segments
            if each.state is not SegmentState.DELETE_SEGMENT_FINISHED
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TierLook:
    """A partition as its listing, its manifests and the brokers' records show it."""

    chosen: Pieces
    size_bytes: int  # of the complete segments' logs
    findings: tuple[Finding, ...]


def look_at_folder(
    tier: Tier, folder: TierFolder | None, recorded: Recorded | None, options: ScrubOptions
) -> TierLook:
    """Judge a partition without reading its objects, but for manifests and the end of each log
    without one.

    Args:
        folder: Its objects; None where there are none.
        recorded: What brokers know of it; None where that is not known.
    """
    findings = FindingCollector()
    records = {} if recorded is None else recorded.by_id
    uploaded = {
        segment_id
        for segment_id, record in records.items()
        if record.state is SegmentState.COPY_SEGMENT_FINISHED
    }
    segments = [] if folder is None else tier.segments(folder)
    candidates = []
    for segment in segments:
        record = records.get(segment.identity.segment_id)
        if not segment.is_complete:
            listed = {} if recorded is None else recorded.listed
            is_going = len(segment.objects) < listed.get(segment.identity.segment_id, 0)
            if not is_going:
                _report_incomplete(segment, record, options, findings)
            continue
        try:
            measured = measure(tier, segment)
            candidates.append(_with_record(tier, measured, record, findings))
        except PylogError as error:
            _report_error(segment, error, findings)
    # Of two equal segments the one counts that brokers read.
    candidates.sort(key=lambda each: each.segment.identity.segment_id not in uploaded)
    chosen = choose_among(candidates, _lineage(tier, candidates, findings))
    for each in candidates:
        _check_small_files(each.segment, findings)
    _check_gaps(tier, chosen, records, findings)
    _check_others(chosen, findings)
    if recorded is not None:
        _check_records(segments, recorded, options, findings)
    return TierLook(
        chosen=chosen,
        size_bytes=sum(tier.log_bytes(each.segment) for each in candidates),
        findings=tuple(findings.findings()),
    )


def _with_record(
    tier: Tier, measured: Candidate, record: RemoteSegment | None, findings: FindingCollector
) -> Candidate:
    """Return a segment with the end that brokers know of it, if it has the length that they know;
    report another length."""
    if record is None:
        return measured
    size_bytes = tier.log_bytes(measured.segment)
    if size_bytes != record.size_bytes:
        findings.add(
            Code.TIER_OBJECT_SIZE_WRONG,
            f"expected {record.size_bytes} bytes, as the brokers' record says, found {size_bytes}",
            file=key_of(measured.segment, "log"),
            offset=measured.segment.base_offset,
        )
        return measured
    # Compaction may have removed the last records.
    end = max(measured.end, record.end_offset + 1)
    return replace(measured, end=end, good_end=end)


def _report_incomplete(
    segment: TierSegment,
    record: RemoteSegment | None,
    options: ScrubOptions,
    findings: FindingCollector,
) -> None:
    newest = max(stored.modified_ms for stored in segment.objects.values())
    if segment.missing and not options.is_old(newest):
        return
    code, kind = Code.TIER_MANIFEST_BROKEN, "rsm-manifest"
    if segment.missing:
        code, kind = Code.TIER_SEGMENT_INCOMPLETE, min(segment.objects)
        if record is not None:
            code = _INCOMPLETE[record.state]
    elif segment.manifest is not None:
        code, kind = Code.TIER_OBJECT_SIZE_WRONG, "log"
    findings.add(code, segment.problem, file=key_of(segment, kind), offset=segment.base_offset)


def _check_records(
    segments: Sequence[TierSegment],
    recorded: Recorded,
    options: ScrubOptions,
    findings: FindingCollector,
) -> None:
    """Compare the segments of a partition with what brokers know of them."""
    records = recorded.by_id
    hidden = find_hidden(recorded.segments)
    here = {segment.identity.segment_id: segment for segment in segments}
    for segment_id, segment in here.items():
        record = records.get(segment_id)
        file = key_of(segment, "log")
        if not segment.is_complete:
            continue  # it is reported
        if record is None:
            if segment_id in recorded.listed:
                message = "no broker knows the segment"
                findings.add(
                    Code.TIER_SEGMENT_UNRECORDED, message, file=file, offset=segment.base_offset
                )
        elif record.state is not SegmentState.COPY_SEGMENT_FINISHED:
            if options.is_old(record.event_ms):
                message = f"broker {record.broker_id} began it, and it has not ended"
                code = _INCOMPLETE[record.state]
                findings.add(code, message, file=file, offset=segment.base_offset)
        elif segment_id in hidden:
            message = f"hidden by a later upload from offset {segment.base_offset}"
            findings.add(Code.TIER_SEGMENT_LEAKED, message, file=file, offset=segment.base_offset)
    for segment_id, record in records.items():
        is_gone = segment_id in recorded.uploaded - recorded.listed.keys() - here.keys()
        if is_gone and record.state is SegmentState.COPY_SEGMENT_FINISHED:
            findings.add(
                Code.TIER_SEGMENT_LOST,
                f"there is no object of segment {segment_id}, offsets {record.base_offset} to "
                f"{record.end_offset}",
                offset=record.base_offset,
            )


def find_hidden(segments: Iterable[RemoteSegment]) -> set[str]:
    """Return the ids of uploaded segments that no list of a leader epoch has.

    A later upload takes the place of segments of its epoch that begin where it does or behind. They
    stay in the epoch's list, to be deleted, unless the epoch had reached further than the later
    upload: then its first one is forgotten. Source: ``RemoteLogLeaderEpochState``.
    """
    uploaded = [
        each
        for each in segments
        if each.state is SegmentState.COPY_SEGMENT_FINISHED and each.epochs
    ]
    lists: dict[int, _EpochList] = {}
    for each in sorted(uploaded, key=lambda each: each.event_ms):
        ends = [entry.start_offset - 1 for entry in each.epochs[1:]]
        for entry, end in zip(each.epochs, [*ends, each.end_offset], strict=True):
            of_epoch = lists.setdefault(entry.epoch, _EpochList())
            of_epoch.add(each.identity.segment_id, entry.start_offset, end)
    listed = {segment_id for of_epoch in lists.values() for segment_id in of_epoch.ids()}
    return {each.identity.segment_id for each in uploaded} - listed


class _EpochList:
    """The uploaded segments of one leader epoch, as a broker keeps them."""

    def __init__(self) -> None:
        self._starts: list[int] = []  # rising
        self._at: dict[int, str] = {}
        self._replaced: set[str] = set()
        self._highest = -1

    def add(self, segment_id: str, start: int, end: int) -> None:
        while self._starts and self._starts[-1] >= start and self._highest <= end:
            self._replaced.add(self._at.pop(self._starts.pop()))
        if start not in self._at:
            insort(self._starts, start)
        self._at[start] = segment_id
        self._highest = max(self._highest, end)

    def ids(self) -> set[str]:
        return {*self._at.values(), *self._replaced}


def _report_error(segment: TierSegment, error: PylogError, findings: FindingCollector) -> None:
    """Report why a segment cannot be read."""
    code, file, position = Code.TIER_FILE_BROKEN, _small_file(segment), None
    if isinstance(error, BadBytesError) and not isinstance(error, CorruptSnapshotError):
        is_chunk = isinstance(error, CorruptChunkError)
        code = Code.TIER_CHUNK_BROKEN if is_chunk else Code.BATCH_LENGTH_IMPOSSIBLE
        kinds = [kind for kind in segment.objects if error.file.endswith(f".{kind}")]
        file = key_of(segment, next(iter(kinds), "log"))
        position = error.position
    elif not isinstance(error, CheckpointError | CorruptSnapshotError):
        file = key_of(segment, "log")
    findings.add(code, str(error), file=file, position=position, offset=segment.base_offset)


def _lineage(
    tier: Tier, candidates: Sequence[Candidate], findings: FindingCollector
) -> tuple[EpochEntry, ...]:
    """Return the epochs of the newest segment whose own can be read. Without its key an encrypted
    one gives those of its manifest."""
    remaining = list(candidates)
    while (newest := find_newest(remaining)) is not None:
        try:
            return tier.lineage(newest.segment)
        except ConfigError:
            return newest.epochs
        except PylogError as error:
            _report_error(newest.segment, error, findings)
            remaining.remove(newest)
    return ()


def _check_small_files(segment: TierSegment, findings: FindingCollector) -> None:
    if segment.manifest is None:
        return
    stored = segment.objects["indexes"]
    places = segment.manifest.small_files.values()
    expected = max((start + size_bytes for start, size_bytes in places), default=0)
    if stored.size_bytes != expected:
        findings.add(
            Code.TIER_OBJECT_SIZE_WRONG,
            f"expected {expected} bytes, as its manifest says, found {stored.size_bytes}",
            file=stored.key,
            offset=segment.base_offset,
        )


def _check_gaps(
    tier: Tier,
    chosen: Pieces,
    records: Mapping[str, RemoteSegment],
    findings: FindingCollector,
) -> None:
    for before, after in pairwise(chosen.pieces):
        if before.end >= after.start:
            continue
        # Where nothing names the end of a segment, compaction may have removed its last batch.
        is_named = (
            before.segment.manifest is not None or before.segment.identity.segment_id in records
        )
        is_compacted = not is_named and has_holes(tier, before)
        findings.add(
            Code.TIER_OFFSETS_MISSING,
            f"offsets {before.end} to {after.start - 1} are in no complete segment",
            file=key_of(after.segment, "log"),
            offset=before.end,
            severity=Severity.HARMLESS if is_compacted else None,
        )


def has_holes(tier: Tier, piece: TierPiece) -> bool:
    """Whether a segment has fewer records than offsets."""
    segment = piece.segment
    with closing(tier.open_log(segment, log_file(segment.base_offset))) as reader:
        records = sum(batch.records for batch in tier.walk(segment, reader, 0))
    return records < piece.end - segment.base_offset


def _check_others(chosen: Pieces, findings: FindingCollector) -> None:
    """Report complete segments of which not everything counts."""
    starts = {id(piece.segment): piece.start for piece in chosen.pieces}
    # Of equal segments, one that counts.
    counting = {
        (each.segment.base_offset, each.end): each.segment
        for each in chosen.candidates
        if each.good_end == each.end and starts.get(id(each.segment)) == each.segment.base_offset
    }
    for each in chosen.candidates:
        segment, base_offset = each.segment, each.segment.base_offset
        file = key_of(segment, "log")
        if each.good_end < each.end:
            first = max(base_offset, each.good_end)
            findings.add(
                Code.TIER_HISTORY_UNREAD,
                f"offsets {first} to {each.end - 1} are of leader epochs "
                f"{_epochs_text(each.epochs, first)}, those of the log are "
                f"{_epochs_text(chosen.lineage, first, each.end)}",
                file=file,
                offset=first,
            )
        elif each.end > base_offset and starts.get(id(segment)) != base_offset:
            twin = counting.get((base_offset, each.end))
            if twin is not None:
                findings.add(
                    Code.TIER_SEGMENT_TWIN,
                    f"offsets {base_offset} to {each.end - 1} are also in segment "
                    f"{twin.identity.segment_id}",
                    file=file,
                    offset=base_offset,
                )
                continue
            last = starts.get(id(segment), each.end) - 1
            findings.add(
                Code.TIER_SEGMENTS_OVERLAP,
                f"offsets {base_offset} to {last} are also in other segments",
                file=file,
                offset=base_offset,
            )


def _epochs_text(entries: Sequence[EpochEntry], start: int, end: int | None = None) -> str:
    """Return the epochs of a range of offsets, for a sentence."""
    within = [
        entry.epoch
        for entry, after in zip(entries, [*entries[1:], None], strict=True)
        if (after is None or after.start_offset > start)
        and (end is None or entry.start_offset < end)
    ]
    return ", ".join(map(str, within)) or "unknown"


# The deep look: every object is read.


@dataclass(frozen=True, slots=True, kw_only=True)
class TierRead:
    """What reading a partition's objects has shown."""

    findings: tuple[Finding, ...]
    records: int
    read_bytes: int
    read_seconds: float
    # Why objects could not be read at all, such as a key that is not there; None if they could.
    error: PylogError | None


def read_segments(tier: Tier, chosen: Pieces, options: ScrubOptions) -> TierRead:
    """Read every complete segment, whether it counts or not, and check it as a closed one."""
    all_findings: list[Finding] = []
    facts: dict[int, SegmentFacts] = {}
    error: PylogError | None = None
    for each in chosen.candidates:
        try:
            known, findings = _read_segment(tier, each, options)
        except ConfigError as failure:
            error = error or failure
            continue
        if findings and not _is_as_listed(tier, each.segment):
            continue
        all_findings += findings
        if known is not None:
            facts[id(each.segment)] = known
    for run in _neighbours(chosen.pieces, facts):
        all_findings += _check_transactions(tier, run, facts)
    return TierRead(
        findings=tuple(all_findings),
        records=sum(each.records for each in facts.values()),
        read_bytes=sum(each.end_position for each in facts.values()),
        read_seconds=sum(each.read_seconds for each in facts.values()),
        error=error,
    )


def _is_as_listed(tier: Tier, segment: TierSegment) -> bool:
    """Whether a segment's objects are there, as long as they were listed. They are not where a
    broker has deleted them meanwhile, or was writing the last one during the listing."""
    try:
        return all(
            tier.objects.head(stored.key).size_bytes == stored.size_bytes
            for stored in segment.objects.values()
        )
    except ObjectNotFoundError:
        return False


def _read_segment(
    tier: Tier, candidate: Candidate, options: ScrubOptions
) -> tuple[SegmentFacts | None, list[Finding]]:
    """Return facts about a segment, None where its end could not be read, and what was found."""
    segment = candidate.segment
    findings = FindingCollector()
    found: list[Finding] = []
    facts = None
    try:
        store = _SegmentStore(tier, candidate)
        files = store.segment_files()
        facts, found = verify_segment(store, files, _CONTEXT, options.verify)
        check_epochs(
            store,
            facts.epochs,
            has_file=True,
            log_start_offset=segment.base_offset,
            findings=findings,
        )
        snapshot = snapshot_file(candidate.end)
        parse_producer_snapshot(snapshot, tier.read_small(segment, SNAPSHOT_SUFFIX))
    except ConfigError:
        raise
    except PylogError as error:
        _report_error(segment, error, findings)
    own = FindingCollector()
    if facts is not None:
        _check_manifest_epochs(candidate, facts, own)
        if facts.end_position == facts.size_bytes and not facts.bad_batches:
            _check_end(candidate, facts, own)
    placed = _placed(segment, [*found, *findings.findings()])
    return facts, [*placed, *own.findings()]


def _check_manifest_epochs(
    candidate: Candidate, facts: SegmentFacts, findings: FindingCollector
) -> None:
    """Report epochs of a manifest that its batches do not have."""
    if candidate.segment.manifest is None:
        return
    base_offset = candidate.segment.base_offset
    of_manifest = FindingCollector()
    cache = LeaderEpochCache(candidate.epochs)
    judge_epochs(candidate.epochs, cache, facts.epochs, base_offset, of_manifest)
    for found in of_manifest.findings():
        if found.code is Code.EPOCH_FILE_WRONG:
            findings.add(
                found.code,
                found.message,
                file=key_of(candidate.segment, "rsm-manifest"),
                offset=found.offset,
            )


def _check_end(candidate: Candidate, facts: SegmentFacts, findings: FindingCollector) -> None:
    """Report a segment whose last batch is not where its manifest says."""
    base_offset = candidate.segment.base_offset
    last = max(facts.last_offset, base_offset - 1)
    expected = candidate.end - 1
    if last == expected:
        return
    is_compacted = last < expected and facts.records < last + 1 - base_offset
    findings.add(
        Code.TIER_END_WRONG,
        f"expected offset {expected} as its last one, found {last}",
        file=key_of(candidate.segment, "log"),
        position=facts.end_position,
        offset=last + 1,
        severity=Severity.HARMLESS if is_compacted else None,
    )


def _neighbours(
    pieces: Iterable[TierPiece], facts: dict[int, SegmentFacts]
) -> Iterator[list[TierPiece]]:
    """Yield runs of whole pieces that were read, without a gap: what a transaction index says is
    known of these alone."""
    run: list[TierPiece] = []
    for piece in pieces:
        is_read = piece.is_whole and id(piece.segment) in facts
        if run and (not is_read or run[-1].end != piece.start):
            yield run
            run = []
        if is_read:
            run.append(piece)
    if run:
        yield run


def _check_transactions(
    tier: Tier, run: Sequence[TierPiece], facts: dict[int, SegmentFacts]
) -> list[Finding]:
    """Check the transaction indexes of segments that follow each other."""
    transactions = [facts[id(piece.segment)].transactions for piece in run]
    all_findings = []
    aborted_of = fold_transactions(transactions).aborted
    for piece, of_segment, aborted in zip(run, transactions, aborted_of, strict=True):
        findings = FindingCollector()
        candidate = Candidate(segment=piece.segment, epochs=(), end=piece.end, good_end=piece.end)
        try:
            store = _SegmentStore(tier, candidate)
            files = store.segment_files()
            check_transaction_index(store, files, aborted, of_segment.abort_markers, findings)
        except PylogError as error:
            _report_error(piece.segment, error, findings)
        placed = _placed(piece.segment, findings.findings())
        if placed and _is_as_listed(tier, piece.segment):
            all_findings += placed
    return all_findings


class _SegmentStore(ReadOnlyStore):
    """One segment of a tier as the files of a partition directory."""

    def __init__(self, tier: Tier, candidate: Candidate) -> None:
        self._tier, self._candidate = tier, candidate

    @property
    def location(self) -> str:
        return f"{self._tier.objects.url}/{key_of(self._candidate.segment, 'log')}"

    def segment_files(self) -> SegmentFiles:
        """Return them sorted; the segment is closed."""
        (files,) = sort_files(self.list_files()).segments
        return replace(files, next_base_offset=self._candidate.end)

    def list_files(self) -> list[FileInfo]:
        tier, segment = self._tier, self._candidate.segment
        sizes = {LOG_SUFFIX: tier.log_bytes(segment)}
        sizes |= {suffix: tier.small_bytes(segment, suffix) for suffix in INDEX_SUFFIXES}
        modified_ms = tier.modified_ms(segment)
        return [
            FileInfo(segment_file(segment.base_offset, suffix), size_bytes, modified_ms)
            for suffix, size_bytes in sizes.items()
            # Of the indexes it is there only where something was aborted.
            if size_bytes or suffix != TXN_INDEX_SUFFIX
        ]

    def read_file(self, name: str, *, limit_bytes: int) -> bytes:
        with closing(self.open_file(name)) as reader:
            return read_limited(reader, f"{self.location}: {name}", limit_bytes)

    def open_file(self, name: str) -> FileReader:
        segment = self._candidate.segment
        suffix = kind_of(name)
        if suffix == LOG_SUFFIX:
            return self._tier.open_log(segment, name)
        return BytesReader(name, self._tier.read_small(segment, suffix or name))


def _placed(segment: TierSegment, findings: Iterable[Finding]) -> list[Finding]:
    """Return findings about a segment's files as findings about its objects."""
    return [
        replace(
            each,
            file=_object_of(segment, each.file),
            severity=min(each.severity, Severity.ERROR, key=lambda severity: severity.rank),
            # The fixes of the kinds are for a broker's log directory.
            fix=KINDS[Code.TIER_CHUNK_BROKEN].fix,
        )
        for each in findings
    ]


def _object_of(segment: TierSegment, name: str) -> str:
    if kind_of(name) == LOG_SUFFIX:
        return key_of(segment, "log")
    if segment.manifest is not None:
        return key_of(segment, "indexes")
    kind = "leader_epoch_checkpoint" if name == LEADER_EPOCH_FILE else name.rpartition(".")[2]
    return key_of(segment, kind)


def _small_file(segment: TierSegment) -> str:
    return key_of(segment, "indexes" if segment.manifest is not None else "leader_epoch_checkpoint")


def key_of(segment: TierSegment, kind: str) -> str:
    """Return the key of one of a segment's objects, whether it is there or not."""
    some = next(iter(segment.objects.values()))
    return f"{some.key.rpartition('.')[0]}.{kind}"
