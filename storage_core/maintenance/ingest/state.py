"""What a mirror's directory of one partition holds, and what is known of its segments."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from storage_core.checkpoint.leader_epoch_file import EpochEntry
from storage_core.filenames import (
    INDEX_SUFFIXES,
    LEADER_EPOCH_FILE,
    LOG_SUFFIX,
    PARTITION_METADATA_FILE,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    kind_of,
    log_file,
    offset_of,
    segment_file,
    snapshot_file,
)
from storage_core.store.listing import ListedFile


class Left(enum.StrEnum):
    """Why a segment of the mirror is not taken now; the values are stable."""

    OPEN = "OPEN"  # the newest one: a broker may still write it
    NOT_SETTLED = "NOT_SETTLED"  # it differed between the two listings, or stands behind such a one
    ABOVE_HIGH_WATERMARK = "ABOVE_HIGH_WATERMARK"  # not all of it is known to be replicated


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSegment:
    """The files of one segment.

    Attributes:
        base_offset: Names its files.
        log: Its records.
        companions: Its indexes and the producer snapshot at its base, as far as there are.
    """

    base_offset: int
    log: ListedFile
    companions: tuple[ListedFile, ...]

    @property
    def files(self) -> tuple[ListedFile, ...]:
        """All of them."""
        return (self.log, *self.companions)


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorListing:
    """The files of a partition's directory by what they are.

    Attributes:
        segments: In order of base offsets.
        snapshots: Producer snapshots by their offset.
        epoch_file: The leader epochs, None without.
        metadata_file: The topic's id, None without.
        unfinished: Files of a swap that the broker had not finished when they were copied.
    """

    segments: tuple[MirrorSegment, ...]
    snapshots: dict[int, ListedFile]
    epoch_file: ListedFile | None
    metadata_file: ListedFile | None
    unfinished: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEdges:
    """What the first and the last batches of a segment say.

    Attributes:
        first_offset: Of the first batch, the base offset of a segment without any.
        next_offset: After the last batch, the same of a segment without any.
        first_epoch: Leader epoch of the first batch, -1 where it is not known.
        last_epoch: Of the last one.
        largest_timestamp: Of the last entry of the time index, epoch milliseconds; None where it
            has none.
    """

    first_offset: int
    next_offset: int
    first_epoch: int
    last_epoch: int
    largest_timestamp: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attested:
    """What the mirror's own files say of the partition as a whole; None where they do not.

    Attributes:
        topic_id: Of ``partition.metadata``.
        epochs: Of the leader epoch file; empty where there is none.
        high_watermark: Of the mirror's checkpoint, or said by its owner.
        log_start_offset: Of the mirror's checkpoint.
        cleaner_offset: Of the mirror's checkpoint.
    """

    topic_id: str | None
    epochs: tuple[EpochEntry, ...]
    high_watermark: int | None
    log_start_offset: int | None
    cleaner_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """What the managed partition has already; of a new one the defaults.

    Attributes:
        end_offset: Up to where the mirror's segments were taken, None before the first.
        topic_id: As its manifest has it.
        epochs: Of its own leader epoch file.
    """

    end_offset: int | None = None
    topic_id: str | None = None
    epochs: tuple[EpochEntry, ...] = ()


def group_files(files: Iterable[ListedFile]) -> MirrorListing:
    """Sort the files of a directory by what they are; names of no use are left out.

    Only names as Kafka writes them count: 20 digits and one of its suffixes.
    """
    by_name = {file.name: file for file in files}
    snapshots = {}
    segments = []
    for name, file in sorted(by_name.items()):
        offset = offset_of(name)
        if offset is None:
            continue
        if kind_of(name) == LOG_SUFFIX and name == log_file(offset):
            names = [segment_file(offset, suffix) for suffix in INDEX_SUFFIXES]
            companions = [by_name[other] for other in names if other in by_name]
            segments.append((offset, file, companions))
        elif kind_of(name) == SNAPSHOT_SUFFIX and name == snapshot_file(offset):
            snapshots[offset] = file
    return MirrorListing(
        segments=tuple(
            MirrorSegment(
                base_offset=base,
                log=log,
                companions=(*companions, *([snapshots[base]] if base in snapshots else [])),
            )
            for base, log, companions in segments
        ),
        snapshots=snapshots,
        epoch_file=by_name.get(LEADER_EPOCH_FILE),
        metadata_file=by_name.get(PARTITION_METADATA_FILE),
        unfinished=tuple(name for name in sorted(by_name) if name.endswith(SWAP_SUFFIX)),
    )
