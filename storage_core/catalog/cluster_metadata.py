"""A cluster's topics, configs and brokers, from the files of ``__cluster_metadata-0``.

The newest snapshot gives the state up to its end offset; the segments of the log give the rest.
A broker or controller holds a copy of that log, so a stopped broker's own directory is enough. Two
limits lie in the matter: the copy may be behind the cluster's, and where there are several
controllers, the last records of it may never have been committed; neither can be seen in the files.

A node's start cuts its log at the first batch that is none. ``read_cluster_metadata`` refuses a log
that has records behind such a place: they were committed, and may change any config. Zeros alone up
to the log's end are passed over, and bytes that a crash leaves there in a log that was not closed:
the snapshot of its producers says where a closed log ends. A look that wants to know what the start
goes on with says ``is_recovered``.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from storage_core.catalog.metadata_image import (
    ClearElrRecord,
    ConfigRecord,
    MetadataImage,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    ResourceType,
    TopicMetadata,
    TopicRecord,
    decode_metadata_record,
)
from storage_core.errors import CorruptClusterMetadataError, CorruptRecordError, PylogError
from storage_core.filenames import (
    CLEAN_SHUTDOWN_FILE,
    CLUSTER_METADATA_TOPIC,
    LOG_SUFFIX,
    MAX_OFFSET,
    SNAPSHOT_SUFFIX,
    TopicPartition,
    kind_of,
    log_file,
    offset_of,
    parse_cluster_snapshot,
)
from storage_core.formats.batch_v2 import (
    BATCH_HEADER,
    HEADER_BYTES,
    HEADER_UP_TO_MAGIC_BYTES,
    LENGTH_OVERHEAD,
    MAGIC_V2,
)
from storage_core.formats.control import ControlType
from storage_core.messages.internal_records import DecodedRecord, decode_internal_record
from storage_core.messages.schema import NO_UUID, Fields
from storage_core.records.checked_headers import BatchFinder
from storage_core.records.payload import Limits, decode_records
from storage_core.records.reader import CrcCheck, Large, Tail, Window, find_zeros, scan_windows
from storage_core.store.base import FileReader
from storage_core.store.local import LocalStore
from storage_core.wording import time_text

# Controllers write batches of at most 8 MiB.
_LIMITS: Final = Limits(max_record_bytes=1 << 26, max_batch_bytes=1 << 26)
_ABOUT_THE_QUORUM: Final = frozenset(
    {ControlType.KRAFT_VERSION, ControlType.KRAFT_VOTERS, ControlType.LEADER_CHANGE}
)
CLUSTER_METADATA_DIRECTORY: Final = str(TopicPartition(CLUSTER_METADATA_TOPIC, 0))
# So many zeros are in no record: blocks of the file that a crash left unwritten.
_UNWRITTEN_BYTES: Final = 64
_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataBatch:
    """One batch."""

    base_offset: int
    last_offset: int
    timestamp_ms: int
    control_type: int | None  # number of its first control record's type, None for a batch of data
    # The records' offsets and values; none of a control batch.
    values: tuple[tuple[int, bytes], ...] = ()
    controls: tuple[tuple[int, bytes, bytes], ...] = ()


class MetadataFile:
    """A segment or snapshot.

    Args:
        may_be_torn: Whether bytes at its end that make no whole, valid batch are what a crash
            leaves of the batch being written; else they are corruption.
        may_be_cut: Whether the file may end inside of a batch, as Kafka's own reader of snapshots
            accepts it; any other damage is corruption.
    """

    def __init__(self, path: Path, *, may_be_torn: bool, may_be_cut: bool = False) -> None:
        self._path = path
        self._may_be_torn = may_be_torn
        self._may_be_cut = may_be_cut
        self._torn_at: int | None = None
        self._size_bytes = 0

    @property
    def torn_at(self) -> int | None:
        """Position behind the last whole batch, if bytes follow. Its value is set once all
        batches were read."""
        return self._torn_at

    @property
    def size_bytes(self) -> int:
        """Bytes of the file; known when the batches were read."""
        return self._size_bytes

    def batches(self, start: int = 0) -> Iterator[MetadataBatch]:
        """Yield the batches in file order."""
        self._torn_at = None
        with closing(self.open()) as reader:
            position = start
            end = self._size_bytes = reader.size_bytes
            while position < end:
                try:
                    for window, row_count in self._windows(reader, position, end):
                        yield from self._decode(window, row_count)
                        if row_count < len(window.batches):
                            self._torn_at = window.position_of(row_count)
                            return
                        position = window.file_position + len(window.data)
                    end = position
                except CorruptRecordError as error:
                    if not self._may_be_torn:
                        raise CorruptRecordError(
                            str(self._path), error.position, error.reason
                        ) from error
                    # Batches before the damage may not have been read yet: read up to it.
                    end = error.position
            if position < reader.size_bytes:
                self._torn_at = position
                if self._may_be_cut:
                    self._require_magic(reader, position)

    def _require_magic(self, reader: FileReader, position: int) -> None:
        """Refuse a cut batch without a magic, as Kafka does."""
        head = np.zeros(HEADER_UP_TO_MAGIC_BYTES, np.uint8)
        count = reader.read_into(position, head)
        is_batch = count == len(head) and head[-1] <= MAGIC_V2
        if not is_batch and (position == 0 or count == len(head)):
            reason = f"expected a batch, found {count} bytes of none"
            raise CorruptRecordError(self._path.name, position, reason)

    def open(self) -> FileReader:
        """Open it."""
        return LocalStore(self._path.parent).open_file(self._path.name)

    def _windows(self, reader: FileReader, start: int, end: int) -> Iterator[tuple[Window, int]]:
        """Yield windows, each with its number of batches before a bad CRC."""
        if not self._may_be_torn:
            cut = Tail.STOP if self._may_be_cut else Tail.RAISE
            for window in scan_windows(reader, start=start, end=end, tail=cut):
                yield window, len(window.batches)
            return
        windows = scan_windows(
            reader, start=start, end=end, crc=CrcCheck.NOTE, tail=Tail.ZEROS, large=Large.VALID
        )
        for window in windows:
            bad = np.flatnonzero(window.batches.crc_ok == 0)
            yield window, int(bad[0]) if bad.size else len(window.batches)

    def _decode(self, window: Window, row_count: int) -> Iterator[MetadataBatch]:
        batches = window.batches
        wanted = np.arange(len(batches)) < row_count
        are_control = batches.is_control.tolist()
        values: dict[int, list[tuple[int, bytes]]] = {}
        controls: dict[int, list[tuple[int, bytes, bytes]]] = {}
        for columns in decode_records(window, wanted, _LIMITS):
            rows, offsets = columns.batch.tolist(), columns.offset.tolist()
            for row, offset, (key, value) in zip(rows, offsets, columns.pairs(), strict=True):
                if (key is not None) != are_control[row] or value is None:
                    keys = "with" if are_control[row] else "without"
                    reason = f"expected a record {keys} a key and with a value"
                    raise CorruptClusterMetadataError(str(self._path), offset, reason)
                if key is None:
                    values.setdefault(row, []).append((offset, value))
                else:
                    controls.setdefault(row, []).append((offset, key, value))
        for row in range(row_count):
            yield MetadataBatch(
                base_offset=int(batches.base_offset[row]),
                last_offset=int(batches.last_offset[row]),
                timestamp_ms=int(batches.max_timestamp[row]),
                control_type=int(batches.control_type[row]) if are_control[row] else None,
                values=tuple(values.get(row, ())),
                controls=tuple(controls.get(row, ())),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataCut:
    """Where a start cuts the log, other than a torn end."""

    segment: int
    position: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMetadata:
    """The cluster's state concerning logs on disk."""

    topics: Mapping[str, TopicMetadata]
    # Settings of topics that Kafka 4.4 knows, by topic name.
    topic_configs: Mapping[str, Mapping[str, str]]
    # Names of other settings of topics, by topic name; Kafka 4.4 passes over them as well.
    ignored_topic_keys: Mapping[str, tuple[str, ...]]
    # Broker-wide settings that concern us, by node id as text; the empty text holds those of all
    # nodes. Settings that may be secrets are not among them.
    broker_configs: Mapping[str, Mapping[str, str]]
    brokers: Mapping[int, RegisterBrokerRecord]  # registered brokers, by node id
    feature_levels: Mapping[str, int]  # levels of features such as ``metadata.version``, by name
    snapshot: str | None  # name of the snapshot that was read, None if there was none
    end_offset: int  # offset after the last record that counts
    # Time of the last batch, epoch milliseconds, -1 if there is none: as old as that is what stands
    # here.
    last_timestamp_ms: int
    skipped: Mapping[int, int]  # numbers of records of types that concern no log, by type
    unknown: Mapping[int, int]  # numbers of records of types that Kafka 4.4 does not know, by type
    notes: tuple[str, ...]  # notes for a person: a torn end, an unfinished transaction
    next_producer_id: int = 0  # the first producer id that no broker has got
    # Position behind the last whole batch of the snapshot with which the quorum began, if that was
    # read and has lost its end; None where it is whole.
    bootstrap_cut_at: int | None = None
    # Where the start that ``is_recovered`` is about cuts the log; None for nowhere.
    cut: MetadataCut | None = None
    group_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    client_metrics_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def topics_by_name(self) -> dict[str, TopicMetadata]:
        """Return the topics by name."""
        return {topic.name: topic for topic in self.topics.values()}


def read_cluster_metadata(
    directory: Path, *, is_recovered: bool = False, may_be_new: bool = False
) -> ClusterMetadata:
    """Read the metadata of a cluster.

    Args:
        directory: A ``__cluster_metadata-0``.
        is_recovered: Read what a node has left of it after its start: the log up to the first batch
            that is none, whatever segment that lies in.
        may_be_new: Whether a directory without snapshot and log is that of an empty cluster, as an
            only controller takes it.
    """
    replay = _ImageFeed(directory)
    snapshot = _read_files(replay, directory, is_recovered=is_recovered, may_be_new=may_be_new)
    return replay.result(snapshot)


def read_broker_metadata(directories: Sequence[Path]) -> ClusterMetadata:
    """Read the metadata on which all copies of a broker agree.

    A broker with two copies does not start, and no file says which one is old: it was left behind
    when ``metadata.log.dir`` was moved.

    Args:
        directories: Each ``__cluster_metadata-0`` in the broker's log directories; at least one.
    """
    if len(directories) == 1:
        return read_cluster_metadata(directories[0])
    copies = [read_cluster_metadata(directory, is_recovered=True) for directory in directories]
    for directory, copy in zip(directories, copies, strict=True):
        if not _are_same(copies[0], copy):
            reason = (
                f"ends at offset {copies[0].end_offset} (last record {_time(copies[0])}), and the "
                f"same broker's copy {directory} at {copy.end_offset} ({_time(copy)}): they "
                "differ, and only one of them counts"
            )
            raise CorruptClusterMetadataError(str(directories[0]), None, reason)
    # Each may be damaged at another place.
    first, *_ = [read_cluster_metadata(directory) for directory in directories]
    return first


def _time(metadata: ClusterMetadata) -> str:
    at = metadata.last_timestamp_ms
    return time_text(at) if at >= 0 else "of no time"


def _are_same(one: ClusterMetadata, other: ClusterMetadata) -> bool:
    """Whether two copies say the same, by whatever snapshots and logs."""
    return _without_origin(one) == _without_origin(other)


def _without_origin(metadata: ClusterMetadata) -> ClusterMetadata:
    return replace(
        metadata,
        snapshot=None,
        last_timestamp_ms=-1,
        skipped={},
        unknown={},
        notes=(),
        bootstrap_cut_at=None,
        cut=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRecords:
    """Readable records that a start cuts off the log."""

    records: int
    end_offset: int
    topics: tuple[str, ...]
    # Settings that they change, ``topic audit: retention.ms`` or ``broker 1: KEY``.
    configs: tuple[str, ...]
    # The last first producer id that no broker has got; None where none is said.
    producer_ids: int | None

    def describe(self) -> str:
        """Return it as a sentence has it."""
        parts = [
            f"{label} {', '.join(names[:_MOST_NAMED])}"
            + (f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else "")
            for label, names in (("topics", self.topics), ("configs of", self.configs))
            if names
        ]
        if self.producer_ids is not None:
            parts.append(f"producer ids up to {self.producer_ids - 1}")
        return "; ".join(parts) or "neither topics, configs nor ids"


def read_cut_records(directory: Path, metadata: ClusterMetadata) -> CutRecords:
    """Read the records that a start cuts off the log.

    Args:
        directory: A ``__cluster_metadata-0``.
        metadata: What ``read_cluster_metadata`` says of it, of a recovered log with a cut.
    """
    cut = metadata.cut
    assert cut is not None  # noqa: S101  # the caller has seen it
    names = {topic.topic_id: topic.name for topic in metadata.topics.values()}
    topics: dict[str, None] = {}
    configs: dict[str, None] = {}
    producer_ids: int | None = None
    count, end = 0, cut.offset
    for batch in _batches_behind(directory, cut):
        for offset, value in batch.values:
            if offset < end:
                continue
            count, end = count + 1, offset + 1
            try:
                record = decode_metadata_record(value, file=str(directory), offset=offset)
            except PylogError:
                continue  # a newer release's: it counts, and that is all there is to say of it
            match record:
                case TopicRecord():
                    names[record.topic_id] = record.name
                    topics[f"{record.name} (made, {record.topic_id})"] = None
                case RemoveTopicRecord():
                    name = names.get(record.topic_id, "of an unknown name")
                    topics[f"{name} (deleted, {record.topic_id})"] = None
                case ConfigRecord():
                    kind = "topic" if record.resource_type == ResourceType.TOPIC else "broker"
                    if record.resource_type not in {*ResourceType}:
                        kind = f"resource of type {record.resource_type}"
                    configs[f"{kind} {record.resource_name or '(all)'}: {record.key}"] = None
                case ProducerIdsRecord():
                    producer_ids = record.next_producer_id
        count += len(batch.controls)
        end = max(end, batch.last_offset + 1)
    return CutRecords(
        records=count,
        end_offset=end,
        topics=tuple(topics),
        configs=tuple(configs),
        producer_ids=producer_ids,
    )


def _batches_behind(directory: Path, cut: MetadataCut) -> Iterator[MetadataBatch]:
    """Yield the valid batches behind a cut, of the log's rising offsets."""
    bases = [base for base in _segment_bases(_names(directory)) if base >= cut.segment]
    reached = cut.offset
    for base in bases:
        path = directory / log_file(base)
        file = MetadataFile(path, may_be_torn=True)
        position: int | None = cut.position if base == cut.segment else 0
        while position is not None:
            try:
                for batch in file.batches(position):
                    if batch.base_offset >= reached:
                        reached = batch.last_offset + 1
                        yield batch
            except PylogError:
                break  # a record that is malformed in a valid batch
            position = None if file.torn_at is None else _find_batch(file, reached)


def _find_batch(file: MetadataFile, first_offset: int) -> int | None:
    """Return where the next valid batch behind damage begins, None without one."""
    damaged = file.torn_at
    assert damaged is not None  # noqa: S101  # the file was read up to there
    with closing(file.open()) as reader:
        return BatchFinder(reader, reader.size_bytes).find(damaged + 1, first_offset, MAX_OFFSET)


def _names(directory: Path) -> list[str]:
    return [file.name for file in LocalStore(directory).list_files()]


def _segment_bases(names: Iterable[str]) -> list[int]:
    return sorted(
        base
        for name in names
        if kind_of(name) == LOG_SUFFIX and (base := offset_of(name)) is not None
    )


def _read_files(
    replay: "_ImageFeed", directory: Path, *, is_recovered: bool, may_be_new: bool = False
) -> str | None:
    """Replay the newest snapshot and its later log; return the snapshot's name."""
    names = _names(directory)
    snapshot = _newest_snapshot(names)
    segments = _segment_bases(names)
    if snapshot is None and not segments and not may_be_new:
        raise CorruptClusterMetadataError(str(directory), None, "expected a snapshot or a log")
    if snapshot is not None:
        replay.read_snapshot(*snapshot, may_be_empty=is_recovered)
    replay.read_segments(segments, is_recovered=is_recovered)
    if not is_recovered:
        replay.check_end(names)
    return None if snapshot is None else snapshot[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionVersion:
    """A partition as a record of the metadata log made it."""

    topic: str
    state: PartitionRecord
    # Offset of the record; None for what a snapshot has, whose past is not known.
    offset: int | None
    timestamp_ms: int  # time of the record's batch, epoch milliseconds, -1 for none


def list_partition_versions(directory: Path) -> list[PartitionVersion]:
    """Return every version of every partition, in order of the metadata log.

    Args:
        directory: A ``__cluster_metadata-0``.
    """
    history = _History(directory)
    _read_files(history, directory, is_recovered=True)
    return history.versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Voter:
    """A voter of the controllers' quorum."""

    node_id: int
    # Id of its directory with the metadata log; None where the quorum does not tell voters apart by
    # it.
    directory_id: str | None = None
    # Where it listens, ``name://host:port``; empty where nothing says it.
    endpoints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumRecords:
    """The control records of a copy of the metadata log."""

    kraft_version: int = 0  # level of ``kraft.version``: from 1 on the log has the voters
    voters: tuple[Voter, ...] = ()  # voters by the last record about them; empty without one
    # Who could vote in the last election; empty where a snapshot has replaced its record.
    electors: tuple[Voter, ...] = ()


def read_quorum(directory: Path) -> tuple[ClusterMetadata, QuorumRecords]:
    """Read a cluster's metadata and control records as a start leaves them.

    Args:
        directory: A ``__cluster_metadata-0``.
    """
    feed = _QuorumFeed(directory)
    snapshot = _read_files(feed, directory, is_recovered=True)
    return feed.result(snapshot), feed.records


def _last_offset_at(file: MetadataFile) -> int:
    """Return the last offset in a damaged batch's header.

    It is believed of a batch that ends with the file; else it is above all offsets.
    """
    assert file.torn_at is not None  # noqa: S101  # the caller has seen it
    header = np.zeros(1, BATCH_HEADER)
    with closing(file.open()) as reader:
        count = reader.read_into(file.torn_at, header.view(np.uint8))
        end = file.torn_at + LENGTH_OVERHEAD + int(header["batch_length"][0])
        base, delta = int(header["base_offset"][0]), int(header["last_offset_delta"][0])
        fits = count == HEADER_BYTES and end == reader.size_bytes and base >= 0 <= delta
    return base + delta if fits else MAX_OFFSET


def _is_torn_end(file: MetadataFile, directory: Path) -> bool:
    """Whether nothing behind the last whole batch was ever committed.

    That is the space of a preallocated segment, all of it zeros; or what a crash leaves: the
    beginning of a batch, with blocks of zeros that were never written. A log that was closed has
    only the first.
    """
    position = file.torn_at
    if position is None:
        return False
    with closing(file.open()) as reader:
        size = reader.size_bytes
        zeros = find_zeros(reader, position, size)
        if zeros == position:
            return True
        if LocalStore(directory.parent).has_file(CLEAN_SHUTDOWN_FILE):
            return False
        header = np.zeros(1, BATCH_HEADER)
        if reader.read_into(position, header.view(np.uint8)) < HEADER_BYTES:
            return True
    length = int(header["batch_length"][0])
    if header["magic"][0] != MAGIC_V2 or length < HEADER_BYTES - LENGTH_OVERHEAD:
        return False
    end = position + LENGTH_OVERHEAD + length
    return end > size or (zeros < end and size - zeros >= _UNWRITTEN_BYTES)


def _newest_snapshot(names: list[str]) -> tuple[str, int] | None:
    """Return name and end offset of the newest finished snapshot."""
    snapshots = [(parsed, name) for name in names if (parsed := parse_cluster_snapshot(name))]
    if not snapshots:
        return None
    (end_offset, _), name = max(snapshots)
    return name, end_offset


class _ImageFeed:
    """Feeds files to an image, in order."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._image = MetadataImage()
        self._end_offset = 0
        self._last_timestamp_ms = -1
        self._notes: list[str] = []
        self._bootstrap_cut_at: int | None = None
        self._cut: MetadataCut | None = None

    def read_snapshot(self, name: str, end_offset: int, *, may_be_empty: bool = False) -> None:
        """Replay a snapshot; its records' own offsets mean nothing.

        As in Kafka, a snapshot of no bytes has no records. That with which a quorum began ends
        before offset 0: its records are in the log too, and so it may have lost its end. A broker
        reads it up to there, but for one in which not even the first batch's magic is left.
        """
        path = self._directory / name
        last_control = None
        is_bootstrap = end_offset == 0
        file = MetadataFile(path, may_be_torn=False, may_be_cut=is_bootstrap)
        for batch in file.batches():
            last_control = batch.control_type
            self._apply(batch, path, first_offset=0)
        if last_control != ControlType.SNAPSHOT_FOOTER and is_bootstrap:
            cut_at = file.size_bytes if file.torn_at is None else file.torn_at
            self._bootstrap_cut_at = cut_at
            self._notes.append(f"{name} has lost its end, from byte {cut_at} on")
        elif last_control != ControlType.SNAPSHOT_FOOTER and (file.size_bytes or not may_be_empty):
            raise CorruptClusterMetadataError(str(path), None, "the snapshot has no footer")
        self._end_offset = end_offset

    def read_segments(self, bases: list[int], *, is_recovered: bool) -> None:
        """Replay the segments' records from the end of the snapshot on."""
        if bases and bases[0] > self._end_offset:
            reason = f"records {self._end_offset} to {bases[0] - 1} are missing"
            raise CorruptClusterMetadataError(str(self._directory), None, reason)
        following = [*bases[1:], None] if bases else []
        for base, next_base in zip(bases, following, strict=True):
            if next_base is not None and next_base <= self._end_offset and not is_recovered:
                continue
            path = self._directory / log_file(base)
            file = MetadataFile(path, may_be_torn=True)
            self._read_batches(file, path, is_recovered=is_recovered)
            while file.torn_at is not None and not is_recovered:
                damaged, position = file.torn_at, self._skip_covered(file, base, next_base)
                if position is None:
                    break
                self._read_batches(file, path, start=position, damaged=damaged)
            if file.torn_at is not None:
                is_torn = next_base is None and _is_torn_end(file, self._directory)
                if is_recovered and not is_torn:
                    self._cut = MetadataCut(
                        segment=base, position=file.torn_at, offset=self._end_offset
                    )
                self._notes.append(
                    f"{path.name}: bytes {file.torn_at} to {file.size_bytes - 1} are no whole "
                    "batch and do not count"
                )
                return

    def check_end(self, names: Iterable[str]) -> None:
        """Refuse a log that ends below a snapshot of its producers."""
        for name in names:
            offset = offset_of(name) if kind_of(name) == SNAPSHOT_SUFFIX else None
            if offset is not None and offset > self._end_offset:
                reason = f"the log ends at offset {self._end_offset}, and {name} was written at its"
                raise CorruptClusterMetadataError(
                    str(self._directory),
                    None,
                    f"{reason} end: records {self._end_offset} to {offset - 1} are missing",
                )

    def _read_batches(
        self,
        file: MetadataFile,
        path: Path,
        *,
        start: int = 0,
        damaged: int | None = None,
        is_recovered: bool = False,
    ) -> None:
        """Replay a segment's batches up to the first one that is none.

        Args:
            damaged: Position of bytes before it that are none; None without any.
            is_recovered: Whether missing offsets are passed over, as a start does.
        """
        for batch in file.batches(start):
            if batch.base_offset > self._end_offset and not is_recovered:
                last = batch.base_offset - 1
                reason = f"records {self._end_offset} to {last} are missing"
                if damaged is not None:
                    reason = f"position {damaged}: records {self._end_offset} to {last} are damaged"
                raise CorruptClusterMetadataError(str(path), None, reason)
            if batch.last_offset >= self._end_offset:
                self._apply(batch, path, first_offset=self._end_offset)
                self._end_offset = batch.last_offset + 1

    def _skip_covered(self, file: MetadataFile, base: int, next_base: int | None) -> int | None:
        """Return where to read on behind damage below the snapshot's end.

        Returns:
            The position; None at the end of a log that a crash has torn.
        """
        damaged = file.torn_at
        assert damaged is not None  # noqa: S101  # the caller has seen it
        position = _find_batch(file, base)
        if position is not None:
            return position  # its offset says whether any of those that count are missing
        if next_base is None and (
            _is_torn_end(file, self._directory) or _last_offset_at(file) < self._end_offset
        ):
            return None
        raise CorruptRecordError(
            str(self._directory / log_file(base)),
            damaged,
            f"expected a batch, and {file.size_bytes - damaged} bytes from here are none; a start "
            "cuts the log here",
        )

    def result(self, snapshot: str | None) -> ClusterMetadata:
        """Return the state after all files."""
        image = self._image
        if image.in_transaction:
            self._notes.append("the last transaction has no end; what it changed does not count")
        return ClusterMetadata(
            topics=image.topics(),
            topic_configs=image.topic_configs,
            ignored_topic_keys={
                topic: tuple(sorted(keys))
                for topic, keys in image.ignored_topic_keys.items()
                if keys
            },
            broker_configs=image.broker_configs,
            brokers=image.brokers,
            feature_levels=image.feature_levels,
            snapshot=snapshot,
            end_offset=self._end_offset,
            last_timestamp_ms=self._last_timestamp_ms,
            skipped=dict(image.skipped),
            unknown=dict(image.unknown),
            notes=tuple(self._notes),
            next_producer_id=image.next_producer_id,
            bootstrap_cut_at=self._bootstrap_cut_at,
            cut=self._cut,
            group_configs=image.group_configs,
            client_metrics_configs=image.client_metrics_configs,
        )

    def _note(self, record: MetadataRecord, offset: int, timestamp_ms: int) -> None:
        """Take note of a record that was applied."""

    def _apply(self, batch: MetadataBatch, path: Path, *, first_offset: int) -> None:
        file = str(path)
        for offset, value in batch.values:
            if offset >= first_offset:
                record = decode_metadata_record(value, file=file, offset=offset)
                self._image.apply(record, file=file, offset=offset)
                self._note(record, offset, batch.timestamp_ms)
        self._last_timestamp_ms = max(self._last_timestamp_ms, batch.timestamp_ms)


class _History(_ImageFeed):
    """Keeps every version of the partitions.

    Args:
        directory: A ``__cluster_metadata-0``.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.versions: list[PartitionVersion] = []
        self._last: dict[tuple[str, int], PartitionRecord] = {}
        self._touched: dict[tuple[str, int], None] = {}
        self._is_in_snapshot = False

    def read_snapshot(self, name: str, end_offset: int, *, may_be_empty: bool = False) -> None:
        """Replay a snapshot: its records have no offsets in the log."""
        self._is_in_snapshot = True
        super().read_snapshot(name, end_offset, may_be_empty=may_be_empty)
        self._is_in_snapshot = False

    def _note(self, record: MetadataRecord, offset: int, timestamp_ms: int) -> None:
        if isinstance(record, PartitionRecord | PartitionChangeRecord):
            self._touched[record.topic_id, record.partition] = None
        elif isinstance(record, ClearElrRecord):
            self._touched |= dict.fromkeys(self._last)
        if self._image.in_transaction:
            return
        for key in self._touched:
            partition = self._image.partition(*key)
            if partition is not None and partition[1] != self._last.get(key):
                self._last[key] = partition[1]
                version = PartitionVersion(
                    topic=partition[0],
                    state=partition[1],
                    offset=None if self._is_in_snapshot else offset,
                    timestamp_ms=timestamp_ms,
                )
                self.versions.append(version)
        self._touched.clear()


class _QuorumFeed(_ImageFeed):
    """Keeps what the control records say.

    Args:
        directory: A ``__cluster_metadata-0``.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.records = QuorumRecords()

    def _apply(self, batch: MetadataBatch, path: Path, *, first_offset: int) -> None:
        super()._apply(batch, path, first_offset=first_offset)
        for offset, key, value in batch.controls:
            record = decode_internal_record(CLUSTER_METADATA_TOPIC, key, value)
            if offset >= first_offset and record.type_id in _ABOUT_THE_QUORUM:
                self._note_control(record, str(path), offset)

    def _note_control(self, record: DecodedRecord, file: str, offset: int) -> None:
        if record.value is None:
            raise CorruptClusterMetadataError(file, offset, record.reason)
        fields = record.value
        match record.type_id:
            case ControlType.KRAFT_VERSION:
                self.records = replace(self.records, kraft_version=fields["kraft_version"])
            case ControlType.KRAFT_VOTERS:
                self.records = replace(self.records, voters=_voters(fields["voters"]))
            case ControlType.LEADER_CHANGE:
                self.records = replace(self.records, electors=_voters(fields["voters"]))


def _voters(rows: Iterable[Fields]) -> tuple[Voter, ...]:
    return tuple(map(_voter, rows))


def _voter(row: Fields) -> Voter:
    directory_id = row.get("voter_directory_id")
    return Voter(
        node_id=row["voter_id"],
        directory_id=None if directory_id == NO_UUID else directory_id,
        endpoints=tuple(
            f"{each['name']}://{each['host']}:{each['port']}" for each in row.get("endpoints", ())
        ),
    )
