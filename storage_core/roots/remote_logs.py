"""Ask ``__remote_log_metadata`` in some log directories what of a log is in its tier.

The partitions of that topic are spread over the brokers: those that are in none of the directories
are named. Nothing is read before the first question, and then only what has the answer.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from storage_core.checkpoint.checkpoints import (
    MAX_LEADER_EPOCH_BYTES,
    EpochEntry,
    PartitionCheckpoints,
    parse_leader_epochs,
)
from storage_core.coordinators.coordinator_log import replay_partition
from storage_core.coordinators.remote_log import (
    RemoteLog,
    RemoteSegment,
    SegmentState,
    metadata_partition,
)
from storage_core.errors import InvalidNameError, PylogError
from storage_core.filenames import (
    LEADER_EPOCH_FILE,
    REMOTE_INDEX_CACHE_DIRECTORY,
    REMOTE_LOG_TOPIC,
    TopicPartition,
    parse_partition_directory,
)
from storage_core.roots.own_catalog import read_own_catalog
from storage_core.roots.root import Root
from storage_core.store import LogStore, open_store
from storage_core.store.log_identity import topic_id_of
from storage_core.store.tier_archive import agrees_up_to
from storage_core.wording import count_text

_PREFIX: Final = f"{REMOTE_LOG_TOPIC}-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploads:
    """What the tier has of a log, by the records that are here."""

    segments: tuple[RemoteSegment, ...] = ()  # in every state, by base offset
    lineage: tuple[EpochEntry, ...] = ()  # the log's leader epochs; empty where they are not known
    source: str = ""  # the partitions of the topic that were read; empty without any
    # Why not all that the brokers said of the log is known; empty where it is.
    gap: str = ""

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The offsets that a broker reads in the tier: first, and just past the last."""
        joined: list[tuple[int, int]] = []
        for segment in self.segments:
            if segment.state is not SegmentState.COPY_SEGMENT_FINISHED:
                continue
            start, end = segment.base_offset, segment.end_offset + 1
            if self.lineage:
                # Epochs below the log start are cut off the file.
                known = max(start, self.lineage[0].start_offset)
                end = agrees_up_to(segment.epochs, self.lineage, known, end)
            if joined and start <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(end, joined[-1][1])
            elif start < end:
                joined.append((start, end))
        return joined

    @property
    def end_offset(self) -> int | None:
        """Just past the last offset in the tier, None without any."""
        ranges = self.ranges
        return ranges[-1][1] if ranges else None

    def missing(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return those of the offsets [start, end) that the tier lacks too."""
        missing = []
        for first, behind in [*self.ranges, (end, end)]:
            if start < min(first, end):
                missing.append((start, min(first, end)))
            start = max(start, behind)
        return missing

    def problem(self, start: int, end: int) -> str:
        """Return why the offsets [start, end) may not be in the tier, empty where they are."""
        missing = self.missing(start, end)
        if self.gap or not (self.source and missing):
            return self.gap
        spans = ", ".join(f"{first} to {behind - 1}" for first, behind in missing)
        return f"{self.source} has no segment for {spans}"

    def tell(self, start: int, end: int) -> str:
        """Return what is known of the offsets [start, end), for behind a sentence about them."""
        problem = self.problem(start, end)
        if problem or not self.source:
            return f"; but {problem}" if problem else ""
        inside = sum(
            segment.state is SegmentState.COPY_SEGMENT_FINISHED
            and segment.base_offset < end
            and segment.end_offset >= start
            for segment in self.segments
        )
        return f", in {count_text(inside, 'segment')} by {self.source}"


class RemoteLogs:
    """The records of the topic in some log directories, of one or of several brokers.

    Args:
        roots: They are asked for with the first question.
    """

    def __init__(self, roots: Iterable[Root]) -> None:
        self._given = roots
        # What each partition of the topic says, and why that may not be all.
        self._read: dict[int, tuple[RemoteLog, str]] = {}

    @property
    def has_tier(self) -> bool:
        """Whether a broker kept indexes or records of a tier here."""
        return bool(self._places) or any(
            REMOTE_INDEX_CACHE_DIRECTORY in names for names in self._names
        )

    @property
    def has_records(self) -> bool:
        """Whether a partition of the topic is here."""
        return bool(self._places)

    def uploads(self, store: LogStore, partition: TopicPartition) -> Uploads:
        """Return what the tier has of a log.

        Args:
            store: The log's own directory, which has its topic id and leader epochs.
        """
        if not self._places and not self._count:
            return Uploads()
        topic_id = topic_id_of(store)
        if topic_id is None:
            return Uploads(gap=f"{partition} has no topic id, by which {REMOTE_LOG_TOPIC} names it")
        return self.uploads_of(topic_id, partition, lineage=_lineage_of(store))

    def uploads_of(
        self, topic_id: str, partition: TopicPartition, *, lineage: tuple[EpochEntry, ...] = ()
    ) -> Uploads:
        """Return what the tier has of a partition.

        Args:
            lineage: Its log's leader epochs, if they are known.
        """
        numbers: Sequence[int] = sorted(self._places)
        if self._count:
            numbers = [metadata_partition(topic_id, partition.partition, self._count)]
        found = [self._log(number) for number in numbers]
        problems = [problem for _, problem in found if problem]
        segments = tuple(
            segment
            for log, _ in found
            for segment in log.segments_of(topic_id, partition.partition)
        )
        if not segments and not self._count:
            problems.append(
                f"no partition of {REMOTE_LOG_TOPIC} in these log directories names it, and how "
                "many the topic has is not known"
            )
        return Uploads(
            segments=segments,
            lineage=lineage,
            source=f"{REMOTE_LOG_TOPIC}-{numbers[0]}" if len(numbers) == 1 else REMOTE_LOG_TOPIC,
            gap="; ".join(problems),
        )

    def partitions(self) -> set[tuple[str, TopicPartition]]:
        """Return all partitions of which there are records here, with their topic ids."""
        return {
            (segment.identity.topic_id, segment.identity.partition)
            for number in self._places
            for segment in self._log(number)[0].segments()
        }

    def uploaded_ids(self) -> frozenset[str]:
        """Return the ids of all segments that are recorded as uploaded, and not as deleted."""
        return frozenset(
            segment.identity.segment_id
            for number in self._places
            for segment in self._log(number)[0].segments()
            if segment.state is SegmentState.COPY_SEGMENT_FINISHED
        )

    def tier_start(
        self,
        store: LogStore,
        partition: TopicPartition,
        own: PartitionCheckpoints,
        local_start: int,
        *,
        is_tiered: Callable[[], bool | None],
    ) -> int | None:
        """Return a log start in a tier, None where all of the log is on the disk.

        A tiered log has an entry in the checkpoint. Without one the log may begin anywhere.

        Args:
            store: The log's own directory.
            own: What the checkpoint files say of the log.
            local_start: The first offset on the disk.
            is_tiered: Whether the topic is tiered; None if unknown. It is asked last: mostly the
                offsets tell.
        """
        start = own.start_in_tier(local_start)
        has_entry = own.log_start_offset is not None
        if start is None and (has_entry or not local_start or not self.has_tier):
            return None
        by_config = is_tiered()
        # A live broker writes checkpoints every minute: of any other topic an entry may be old.
        if by_config is False or start is not None:
            return None if by_config is False else start
        ranges = self.uploads(store, partition).ranges
        if ranges:
            return ranges[0][0] if ranges[0][0] < local_start else None
        return 0 if by_config else None

    @cached_property
    def _roots(self) -> list[Root]:
        return list({root.location: root for root in self._given}.values())

    @cached_property
    def _names(self) -> list[list[str]]:
        return [root.directories() for root in self._roots]

    @cached_property
    def _places(self) -> dict[int, list[str]]:
        """The directories of each partition of the topic."""
        places: dict[int, list[str]] = {}
        for root, names in zip(self._roots, self._names, strict=True):
            for name in names:
                if not name.startswith(_PREFIX):
                    continue
                try:
                    partition = parse_partition_directory(name)
                except InvalidNameError:
                    continue  # a directory that is being deleted, or none of Kafka's
                if partition.topic == REMOTE_LOG_TOPIC:
                    places.setdefault(partition.partition, []).append(root.locate(name))
        return places

    @cached_property
    def _count(self) -> int:
        """How many partitions the topic has, 0 where no metadata here says it."""
        for root in self._roots:
            try:
                entry = read_own_catalog(root).topics.get(REMOTE_LOG_TOPIC)
            except PylogError:
                continue  # other readers report its damage
            if entry is not None and entry.replicas:
                return len(entry.replicas)
        return 0

    def _log(self, number: int) -> tuple[RemoteLog, str]:
        if number not in self._read:
            log = RemoteLog()
            self._read[number] = log, self._replay(number, log)
        return self._read[number]

    def _replay(self, number: int, log: RemoteLog) -> str:
        """Read all copies of a partition of the topic; return what is wrong with them."""
        name = f"{_PREFIX}{number}"
        if number not in self._places:
            return f"{name}, which lists its segments, is in none of these log directories"
        try:
            for location in self._places[number]:
                log.replay(replay_partition(open_store(location), REMOTE_LOG_TOPIC))
        except PylogError as error:
            return f"{name}, which lists its segments, cannot be read to its end: {error}"
        if log.undecoded:
            first = log.undecoded[0]
            return (
                f"{name} has records that are not understood, the first at offset "
                f"{first.first_offset}: {first.reason}"
            )
        return ""


def _lineage_of(store: LogStore) -> tuple[EpochEntry, ...]:
    """Return a log's leader epochs, none where they cannot be read."""
    if all(file.name != LEADER_EPOCH_FILE for file in store.list_files()):
        return ()
    try:
        content = store.read_file(LEADER_EPOCH_FILE, limit_bytes=MAX_LEADER_EPOCH_BYTES)
        return tuple(parse_leader_epochs(content, file=LEADER_EPOCH_FILE))
    except PylogError:
        return ()
