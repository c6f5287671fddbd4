"""Give the tier of a lost cluster (KIP-405) to a new one.

A broker reads a tier by the records of ``__remote_log_metadata``, and goes on where the tier ends:
at the base offset of its local log. Both are written here, as the directories of one replica. All
of it follows from the tier, so that a second call writes the same bytes.

::

    TOPIC-N                    an empty segment at the end of the tier; the leader epochs; the
                               producers at that end; the topic id
    __remote_log_metadata-N    two records a segment: its copy has started, and has finished

The end of a segment is the offset before the next one's base, also where compaction has removed the
last records: a broker finds no segment for an offset between two others. Sources:
``RemoteLogManager``, ``RemoteLogMetadataCache``, ``TopicBasedRemoteLogMetadataManager`` of Kafka
4.4; ``SegmentCustomMetadataSerde`` of Aiven's plugin 1.0.
"""

import enum
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from storage_core.checkpoint.checkpoints import (
    EpochEntry,
    PartitionMetadata,
    encode_leader_epochs,
    encode_partition_metadata,
    encode_uuid,
)
from storage_core.cluster.transplant.replica import BuiltReplicas
from storage_core.commit import CommitPlan, SyncDirectory, WriteFile, commit
from storage_core.coordinators.remote_log import RemoteSegment, SegmentState, metadata_partition
from storage_core.errors import PylogError
from storage_core.filenames import (
    LEADER_EPOCH_FILE,
    LOG_SUFFIX,
    MAX_OFFSET,
    OFFSET_INDEX_SUFFIX,
    PARTITION_METADATA_FILE,
    REMOTE_LOG_TOPIC,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TopicPartition,
    log_file,
    segment_file,
    snapshot_file,
)
from storage_core.local_files import is_there
from storage_core.log.loaded_log import LogBounds
from storage_core.log.producer_snapshot import NO_OFFSET, ProducerEntry, parse_producer_snapshot
from storage_core.maintenance.verification.tier import has_holes
from storage_core.messages.fields import FieldWriter
from storage_core.records.batch_builder import BatchSettings, build_batches
from storage_core.records.new_records import ByteColumn, NewRecords
from storage_core.store.local import LocalStore, make_folder_like
from storage_core.store.tier_archive import (
    Pieces,
    Tier,
    TierFolder,
    TierPiece,
    TierSegment,
    choose_pieces,
)

_SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
_NAMED_OFFSETS: Final = 5


class AttachReason(enum.StrEnum):
    """Why a tier is not given to a cluster."""

    TIER_SEGMENT_INCOMPLETE = "TIER_SEGMENT_INCOMPLETE"
    TIER_HISTORIES_DIFFER = "TIER_HISTORIES_DIFFER"
    TIER_SEGMENT_MISSING = "TIER_SEGMENT_MISSING"
    TARGET_HAS_TOPIC = "TARGET_HAS_TOPIC"
    TOPIC_ID_TAKEN = "TOPIC_ID_TAKEN"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachRules:
    """What a person allows."""

    takes_newest: bool = False  # also without an incomplete newest segment, or a second history
    allows_loss: bool = False  # also without segments between others


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDirectory(LogBounds):
    """A partition directory that a broker gets."""

    partition: TopicPartition
    home: Path  # its log directory
    files: Mapping[str, bytes]

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.home / str(self.partition)

    def is_written(self) -> bool:
        """Return whether the directory is there with just these files."""
        if not is_there(self.path, may_be_link=True):
            return False
        store = LocalStore(self.path)
        sizes = {file.name: file.size_bytes for file in store.list_files()}
        return sizes == {name: len(content) for name, content in self.files.items()} and all(
            store.read_file(name, limit_bytes=len(content)) == content
            for name, content in self.files.items()
        )

    def build(self, scratch: Path) -> BuiltReplicas:
        """Write the directory into a scratch folder of its log directory; all durable."""
        directory = scratch / str(self.partition)
        make_folder_like(LocalStore(self.home, may_be_link=True), directory)
        reason = "the log goes on behind its tier"
        plan = CommitPlan(
            location=str(directory),
            operations=(
                *(
                    WriteFile(name=name, content=content, reason=reason)
                    for name, content in sorted(self.files.items())
                ),
                SyncDirectory(reason=reason),
            ),
        )
        commit(plan, LocalStore(directory))
        return BuiltReplicas(
            partition=self.partition,
            homes=(self.home,),
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            begins_in_tier=self.log_start_offset < self.log_end_offset,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedLog(LogBounds):
    """A partition whose log goes on where its tier ends. Records from there on were on the disks
    of brokers only."""

    partition: TopicPartition
    topic_id: str
    home: Path  # the log directory that gets it
    epochs: tuple[EpochEntry, ...] = ()
    segments: tuple[RemoteSegment, ...] = ()  # what brokers read of the tier, in order
    # The segment with the producers at the end; None where none has them.
    newest: TierSegment | None = None
    left_out: int = 0  # segments in the tier that no broker will read, whole or not
    open_transactions: tuple[ProducerEntry, ...] = ()  # those without an end in the tier
    notes: tuple[str, ...] = ()
    reason: AttachReason | None = None  # why it cannot be given; None where it can
    detail: str = ""  # the same in words
    error: PylogError | None = None  # why it cannot be read; None where it can

    @property
    def is_refused(self) -> bool:
        """Whether it cannot be given."""
        return self.reason is not None or self.error is not None

    def directory(self, tier: Tier) -> NewDirectory:
        """Return its directory."""
        end = self.log_end_offset
        files = {segment_file(end, suffix): b"" for suffix in _SEGMENT_SUFFIXES}
        files[LEADER_EPOCH_FILE] = encode_leader_epochs(self.epochs)
        files[PARTITION_METADATA_FILE] = _metadata_file(self.topic_id)
        if self.newest is not None:
            files[snapshot_file(end)] = tier.read_small(self.newest, SNAPSHOT_SUFFIX)
        return NewDirectory(
            partition=self.partition,
            home=self.home,
            files=files,
            log_start_offset=self.log_start_offset,
            log_end_offset=end,
        )


def plan_log(
    tier: Tier, folder: TierFolder, rules: AttachRules, *, home: Path, node: int
) -> AttachedLog:
    """Return what becomes of a partition of a tier. Nothing is written.

    Args:
        home: The log directory that gets it, of the broker with that node id.
    """
    segments = tier.segments(folder)
    chosen = choose_pieces(tier, segments, None)
    pieces = chosen.pieces
    log = AttachedLog(
        partition=folder.partition,
        topic_id=folder.topic_id,
        home=home,
        log_start_offset=pieces[0].start if pieces else 0,
        log_end_offset=pieces[-1].end if pieces else 0,
        epochs=chosen.lineage,
        left_out=len(segments) - len(pieces),
    )
    incomplete = [each for each in segments if not each.is_complete]
    incomplete = [each for each in incomplete if each.base_offset >= log.log_end_offset]
    notes = []
    if incomplete:
        text = f"the segment at offset {incomplete[0].base_offset} is not whole: "
        text += incomplete[0].problem
        if not rules.takes_newest:
            return replace(log, reason=AttachReason.TIER_SEGMENT_INCOMPLETE, detail=text)
        notes.append(text)
    strangers = [each.segment for each in chosen.candidates if each.good_end < each.end]
    if strangers:
        text = f"{_offsets_text(strangers)} of another history than the newest"
        if not rules.takes_newest:
            return replace(log, reason=AttachReason.TIER_HISTORIES_DIFFER, detail=text)
        notes.append(text)
        notes += _overruns(chosen)
    gaps = list(_gaps(tier, pieces))
    if gaps:
        text = f"no whole segment has {', '.join(gaps)}"
        if not rules.allows_loss:
            return replace(log, reason=AttachReason.TIER_SEGMENT_MISSING, detail=text)
        notes.append(text)
    newest = _newest(tier, chosen)
    producers: Sequence[ProducerEntry] = ()
    if newest is not None:
        file = snapshot_file(log.log_end_offset)
        producers = parse_producer_snapshot(file, tier.read_small(newest, SNAPSHOT_SUFFIX))
    ends = [*(piece.start for piece in pieces[1:]), log.log_end_offset]
    return replace(
        log,
        segments=tuple(
            _remote_segment(tier, piece, end=end, lineage=chosen.lineage, node=node)
            for piece, end in zip(pieces, ends, strict=False)
        ),
        newest=newest,
        open_transactions=tuple(
            each for each in producers if each.current_txn_first_offset != NO_OFFSET
        ),
        notes=tuple(notes),
    )


def plan_metadata_topic(
    segments: Iterable[RemoteSegment],
    homes: Sequence[Path],
    *,
    count: int,
    cluster_id: str,
) -> Iterator[NewDirectory]:
    """Yield the directories of ``__remote_log_metadata``.

    Args:
        homes: Log directories, which take turns.
        count: How many partitions it has: what the brokers' settings say.
    """
    by_partition: dict[int, list[RemoteSegment]] = {}
    for segment in segments:
        identity = segment.identity
        number = metadata_partition(identity.topic_id, identity.partition.partition, count)
        by_partition.setdefault(number, []).append(segment)
    # Always the same for a cluster, so that a second call writes the same.
    name = f"kafka://{cluster_id}/{REMOTE_LOG_TOPIC}"
    topic_id = encode_uuid(uuid.uuid5(uuid.NAMESPACE_URL, name).bytes)
    for number in range(count):
        own = by_partition.get(number, [])
        records = [(each.event_ms, value) for each in own for value in each.records()]
        yield NewDirectory(
            partition=TopicPartition(REMOTE_LOG_TOPIC, number),
            home=homes[number % len(homes)],
            files={
                **{segment_file(0, suffix): b"" for suffix in _SEGMENT_SUFFIXES},
                log_file(0): _encode_log(records),
                LEADER_EPOCH_FILE: encode_leader_epochs([EpochEntry(0, 0)] if records else []),
                PARTITION_METADATA_FILE: _metadata_file(topic_id),
            },
            log_start_offset=0,
            log_end_offset=len(records),
        )


def custom_metadata(prefix: str, key: str, size_bytes: int) -> bytes:
    """Return what Aiven's plugin notes of a segment in a metadata record.

    Args:
        prefix: What stands before all keys of the tier.
        key: Of the segment's objects, without prefix and suffix.
        size_bytes: Of these objects together.
    """
    size, first, second, all_fields = (FieldWriter() for _ in range(4))
    size.unsigned_varint(2 * size_bytes)  # a signed varint of a positive number
    first.nullable_compact_string(prefix)
    second.nullable_compact_string(key)
    all_fields.tagged_fields(list(enumerate((size.data, first.data, second.data))))
    return all_fields.data


def _metadata_file(topic_id: str) -> bytes:
    return encode_partition_metadata(PartitionMetadata(version=0, topic_id=topic_id))


def _encode_log(records: Sequence[tuple[int, bytes]]) -> bytes:
    """Return the batches of records without keys, each with its time in epoch milliseconds."""
    if not records:
        return b""
    times, values = zip(*records, strict=True)
    columns = NewRecords.of(
        keys=ByteColumn.nulls(len(values)),
        values=ByteColumn.from_arrow(pa.array(values, pa.large_binary())),
        timestamps=np.array(times, np.int64),
    )
    settings = BatchSettings(base_offset=0, leader_epoch=0)
    return b"".join(built.data.tobytes() for built in build_batches(columns, settings))


def _remote_segment(
    tier: Tier, piece: TierPiece, *, end: int, lineage: Sequence[EpochEntry], node: int
) -> RemoteSegment:
    """Return a segment as a broker is to know it.

    Args:
        end: Where the next segment begins, or the tier ends.
    """
    segment = piece.segment
    start = segment.base_offset
    following = [*(entry.start_offset for entry in lineage[1:]), MAX_OFFSET]
    return RemoteSegment(
        identity=segment.identity,
        base_offset=start,
        end_offset=end - 1,
        max_timestamp_ms=tier.max_timestamp(segment),
        epochs=tuple(
            EpochEntry(entry.epoch, max(entry.start_offset, start))
            for entry, until in zip(lineage, following, strict=False)
            if entry.start_offset < end and until > start
        ),
        size_bytes=tier.log_bytes(segment),
        is_txn_index_empty=not tier.has_transactions(segment),
        broker_id=node,
        event_ms=tier.modified_ms(segment),
        custom=_custom_metadata(tier, segment),
        state=SegmentState.COPY_SEGMENT_FINISHED,
    )


def _custom_metadata(tier: Tier, segment: TierSegment) -> bytes | None:
    """Return what the plugin would note of a segment, None in the layout without manifests."""
    if segment.manifest is None:
        return None
    identity = segment.identity
    key = (
        f"{identity.partition.topic}-{identity.topic_id}/{identity.partition.partition}/"
        f"{segment.base_offset:020d}-{identity.segment_id}"
    )
    whole = tier.key_in_store(segment)
    sizes = sum(each.size_bytes for each in segment.objects.values())
    return custom_metadata(whole.removesuffix(f"{key}{LOG_SUFFIX}"), key, sizes)


def _newest(tier: Tier, chosen: Pieces) -> TierSegment | None:
    """Return the segment with the producers at the end; None where none has them, or the last
    segment goes on in another history."""
    last = chosen.pieces[-1] if chosen.pieces else None
    has_end = last is not None and any(
        each.segment is last.segment and each.end == last.end for each in chosen.candidates
    )
    if last is None or not has_end or not tier.small_bytes(last.segment, SNAPSHOT_SUFFIX):
        return None
    return last.segment


def _gaps(tier: Tier, pieces: Sequence[TierPiece]) -> Iterator[str]:
    """Yield which offsets no whole segment has. Those that compaction removed are none: a manifest
    counts them, and elsewhere segments with fewer records than offsets show it."""
    gaps = [(one.end, other.start) for one, other in pairwise(pieces) if one.end < other.start]
    if not gaps or (
        pieces[0].segment.manifest is None and any(has_holes(tier, piece) for piece in pieces)
    ):
        return
    for start, end in gaps[:_NAMED_OFFSETS]:
        yield f"offsets {start} to {end - 1}"
    if len(gaps) > _NAMED_OFFSETS:
        yield "others"


def _overruns(chosen: Pieces) -> Iterator[str]:
    """Yield where a broker may read on into the other history: it reads segments to their end."""
    ends = {id(each.segment): each.end for each in chosen.candidates}
    for piece in chosen.pieces:
        end = ends[id(piece.segment)]
        if piece.end < end:
            yield (
                f"brokers may give readers the other history's records at offsets {piece.end} to "
                f"{end - 1}: they read the segment at offset {piece.segment.base_offset} to its end"
            )


def _offsets_text(segments: Sequence[TierSegment]) -> str:
    offsets = [str(each.base_offset) for each in segments[:_NAMED_OFFSETS]]
    more = " and others" if len(segments) > _NAMED_OFFSETS else ""
    if len(segments) == 1:
        return f"the segment at offset {offsets[0]} is"
    return f"the segments at offsets {', '.join(offsets)}{more} are"
