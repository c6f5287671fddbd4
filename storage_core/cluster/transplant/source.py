"""Open logs of a source as their broker's start would leave them.

A directory that a broker has set aside as stray is a source as well: what becomes of a disk that
was put into another cluster. Several directories may hold one partition; the longest log counts.
"""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from storage_core.catalog.log_directories import DirectoryKind
from storage_core.checkpoint.checkpoints import EpochEntry, PartitionCheckpoints, read_checkpoints
from storage_core.cluster.places import ANY_INDEX_BYTES
from storage_core.config import CleanerConfig, LogConfig
from storage_core.coordinators.coordinator_log import (
    ReplayedRecord,
    TransactionEnd,
    replay_partition,
)
from storage_core.coordinators.groups import CommitKey, GroupImage
from storage_core.coordinators.transactions import (
    TransactionCoordinators,
    TransactionEntry,
    TransactionImage,
    TransactionOutcome,
    name_absent_coordinators,
)
from storage_core.errors import (
    ChangedWhileReadError,
    InconsistentTopicIdError,
    PylogError,
    RecoveryRequiredError,
    located,
)
from storage_core.filenames import (
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    log_file,
)
from storage_core.formats.batch_v2 import MAGIC_V2, NO_TIMESTAMP
from storage_core.local_files import folder_names
from storage_core.log.leader_epoch_cache import find_last_epoch, read_epoch_runs
from storage_core.log.loaded_log import LogBounds
from storage_core.log.loading_log import read_epochs
from storage_core.log.log_loader import LogLoader
from storage_core.log.producer_snapshot import NO_OFFSET, ProducerEntry
from storage_core.log.settled_store import PlannedStore
from storage_core.maintenance.recovery.salvage import measure_cuts
from storage_core.records.reader import scan_windows
from storage_core.roots.broker import BrokerRoot
from storage_core.roots.open_root import observe_root
from storage_core.store import FileInfo
from storage_core.store.local import LocalStore, storage_errors
from storage_core.wording import count_text, time_text

_KINDS: Final = frozenset({DirectoryKind.PARTITION, DirectoryKind.STRAY})


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlace:
    """A directory with a log."""

    partition: TopicPartition  # its partition in the source's cluster
    location: str
    topic_id: str | None  # its topic's id, None where no file says it
    is_stray: bool  # whether a broker has set it aside
    is_clean: bool  # whether its log was closed
    checkpoints: PartitionCheckpoints
    # Whether its cluster's metadata has it in the ISR or ELR; None where they say nothing of it.
    is_in_sync: bool | None = None
    in_sync_nodes: tuple[int, ...] = ()  # the nodes that they have there
    metadata_epoch: int = -1  # the partition's leader epoch that they know


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLog(LogBounds):
    """A log, as its broker's start would leave it."""

    place: SourcePlace
    store: PlannedStore
    base_offsets: tuple[int, ...]
    last_epoch: int  # its last leader epoch, -1 without any
    producers: tuple[ProducerEntry, ...]
    sizes: Mapping[str, int]
    cut_bytes: int
    cut_records: int  # how many records among them are readable
    cut_end: tuple[int, int]  # epoch and end of the last of these; (-1, 0) without one
    files: Sequence[FileInfo]  # its directory's files when it was opened

    @property
    def end(self) -> tuple[int, int]:
        """Epoch and end, by which brokers elect one of several logs."""
        return self.last_epoch, self.log_end_offset

    @property
    def is_out_of_sync(self) -> bool:
        """Whether it may lack acknowledged records. Metadata older than the log do not tell."""
        return self.place.is_in_sync is False and self.last_epoch <= self.place.metadata_epoch

    def require_unchanged(self) -> None:
        """Refuse a log that somebody has changed since it was opened."""
        before = {file.name: file for file in self.files}
        now = {file.name: file for file in LocalStore(Path(self.place.location)).list_files()}
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                raise ChangedWhileReadError(
                    f"{self.place.location}/{name}",
                    _file_text(before.get(name)),
                    _file_text(now.get(name)),
                )

    @property
    def open_producers(self) -> tuple[ProducerEntry, ...]:
        """Producers with an open transaction, the oldest first."""
        some = [each for each in self.producers if each.current_txn_first_offset != NO_OFFSET]
        return tuple(sorted(some, key=lambda each: each.current_txn_first_offset))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFacts:
    """What the batches of a log say."""

    largest_bytes: int = 0  # size of the largest batch, 0 without one
    has_legacy: bool = False  # whether one is of a message format before v2
    newest_ms: int = NO_TIMESTAMP  # largest timestamp, epoch milliseconds, NO_TIMESTAMP without one
    # Records in each open transaction, by producer.
    open_records: Mapping[int, int] = field(default_factory=dict)


def find_places(root: Path, *, only_strays: bool = False) -> list[SourcePlace]:
    """Return the logs in a log directory.

    Args:
        only_strays: Leave out those that its broker serves.
    """
    broker_root = BrokerRoot(root)
    with storage_errors(root):
        names = folder_names(root)
    state = observe_root(broker_root, names)
    checkpoints = read_checkpoints(broker_root)
    places = []
    for entry in state.entries:
        is_stray = entry.kind is DirectoryKind.STRAY
        if entry.kind not in _KINDS or entry.topic_partition is None:
            continue
        if is_stray or not only_strays:
            place = SourcePlace(
                partition=entry.topic_partition,
                location=entry.path,
                topic_id=entry.topic_id,
                is_stray=is_stray,
                # Neither the marker nor a checkpoint is about a log that was set aside.
                is_clean=state.clean_shutdown is not None and not is_stray,
                checkpoints=PartitionCheckpoints()
                if is_stray
                else checkpoints.of(entry.topic_partition),
            )
            places.append(place)
    return places


def find_namesakes(places: Iterable[SourcePlace]) -> dict[str, InconsistentTopicIdError]:
    """Return an error for each name that several topics have.

    Their logs are no replicas, nor partitions, of one topic. A log without a topic id contradicts
    nothing.
    """
    topic_ids: dict[str, str] = {}
    errors: dict[str, InconsistentTopicIdError] = {}
    for place in places:
        topic = place.partition.topic
        if place.topic_id is not None:
            wanted = topic_ids.setdefault(topic, place.topic_id)
            if place.topic_id != wanted:
                errors[topic] = InconsistentTopicIdError(place.location, wanted, place.topic_id)
    return errors


@located
def open_source(place: SourcePlace, *, now_ms: int) -> SourceLog:
    """Open a log as its broker's start does, without writing."""
    directory = LocalStore(Path(place.location))
    files = directory.list_files()
    loader = LogLoader(
        directory,
        # What its topic allows is not asked: the target builds indexes anew.
        config=LogConfig(segment_index_bytes=ANY_INDEX_BYTES),
        cleaner=CleanerConfig(),
        now_ms=now_ms,
        log_start_checkpoint=place.checkpoints.log_start_offset or 0,
        recovery_point=place.checkpoints.recovery_point or 0,
        clean_shutdown=place.is_clean,
    )
    loading = loader.load()
    loaded = loading.close()
    store = PlannedStore(loading.view)
    bases = tuple(loading.base_offsets)
    cut_records, cut_end = measure_cuts(directory, loaded.repairs.cuts)
    return SourceLog(
        place=place,
        store=store,
        base_offsets=bases,
        log_start_offset=loaded.log_start_offset,
        log_end_offset=loaded.log_end_offset,
        last_epoch=loaded.epochs[-1].epoch if loaded.epochs else -1,
        producers=loaded.producers,
        sizes={name: loading.view.source(name).size_bytes for name in map(log_file, bases)},
        cut_bytes=loaded.repairs.lost_bytes,
        cut_records=cut_records,
        cut_end=cut_end,
        files=files,
    )


def _file_text(file: FileInfo | None) -> str:
    """Return what tells a file from a changed one, in words."""
    if file is None:
        return "no such file"
    return f"{count_text(file.size_bytes, 'byte')} of {time_text(file.modified_ms)}"


def open_longest(
    places: Sequence[SourcePlace], *, now_ms: int
) -> tuple[SourceLog | None, dict[str, PylogError]]:
    """Return the longest log of a partition, and errors by path.

    The longest is that of the latest leader epoch that is believed, then of the highest offset: as
    brokers elect.
    One that its start cuts is an error if readable records behind the cut lie beyond the longest.
    """
    logs: list[SourceLog] = []
    errors: dict[str, PylogError] = {}
    for place in places:
        try:
            logs.append(open_source(place, now_ms=now_ms))
        except PylogError as error:
            errors[place.location] = error
    if len({log.last_epoch for log in logs}) > 1:
        lineages = [read_epochs(LocalStore(Path(log.place.location))).entries for log in logs]
        logs = [_with_last_epoch(log, number, lineages) for number, log in enumerate(logs)]
    longest = max(logs, key=lambda log: log.end, default=None)
    for log in logs:
        if (
            longest is not None
            and (log is longest or log.cut_end > longest.end)
            and log.cut_records
        ):
            errors[log.place.location] = _loss(log, places)
    return longest, errors


def open_current(
    places: Sequence[SourcePlace], *, now_ms: int
) -> tuple[SourceLog | None, dict[str, PylogError]]:
    """Return the longest log of a partition that was in sync, and errors by path. Where none of
    them was in sync, the longest is returned."""
    log, errors = open_longest(places, now_ms=now_ms)
    in_sync = [place for place in places if place.is_in_sync]
    if log is None or errors or not in_sync or not log.is_out_of_sync:
        return log, errors
    return open_longest(in_sync, now_ms=now_ms)


def _with_last_epoch(
    log: SourceLog, number: int, lineages: Sequence[Sequence[EpochEntry]]
) -> SourceLog:
    """Return a log with the newest leader epoch that is believed.

    Args:
        number: Its number among all that hold the partition.
    """
    runs = read_epoch_runs(log.store.open_file, log.base_offsets)
    others = [entries for other, entries in enumerate(lineages) if other != number]
    return replace(log, last_epoch=find_last_epoch(runs, [lineages[number], *others]).epoch)


def _loss(log: SourceLog, places: Sequence[SourcePlace]) -> RecoveryRequiredError:
    """Return an error for a log whose readable records would stay behind."""
    own = Path(log.place.location)
    others = [str(Path(each.location).parent) for each in places if each is not log.place]
    donors = [word for other in others or ["DIR"] for word in ("--donor", other)]
    records = count_text(log.cut_records, "readable record")
    reason = (
        f"a start would cut {records} behind damage, up to offset {log.cut_end[1] - 1}; "
        f"`{shlex.join(['pylog', 'heal', str(own.parent), *donors])}` first"
    )
    return RecoveryRequiredError(str(own), reason)


def read_facts(log: SourceLog) -> BatchFacts:
    """Read all batches of a log, and check them."""
    facts = BatchFacts()
    open_records = {each.producer_id: 0 for each in log.open_producers}
    for name in log.sizes:
        with closing(log.store.open_file(name)) as reader:
            for window in scan_windows(reader):
                batches = window.batches
                facts = replace(
                    facts,
                    largest_bytes=max(facts.largest_bytes, int(batches.size.max())),
                    has_legacy=facts.has_legacy or bool((batches.magic < MAGIC_V2).any()),
                    newest_ms=max(facts.newest_ms, int(batches.max_timestamp.max())),
                )
                data = batches.is_transactional & ~batches.is_control
                for each in log.open_producers:
                    own = data & (batches.producer_id == each.producer_id)
                    own &= batches.base_offset >= each.current_txn_first_offset
                    open_records[each.producer_id] += int(batches.counted_records[own].sum())
    return replace(facts, open_records=open_records)


def read_transactions(
    places: Sequence[SourcePlace], *, partition_count: int | None, now_ms: int
) -> TransactionCoordinators:
    """Return what the coordinators' newest records say of transactions.

    A partition of ``__transaction_state`` that is not whole tells nothing: the record that decides
    may be the one that is not there.

    Args:
        places: All logs of the cluster; those of ``__transaction_state`` are read.
        partition_count: How many partitions that topic has; None where that is not known.
    """
    own = [place for place in places if place.partition.topic == TRANSACTION_STATE_TOPIC]
    namesake = find_namesakes(own).get(TRANSACTION_STATE_TOPIC)
    if namesake is not None:
        return TransactionCoordinators(absent=str(namesake))
    entries: list[TransactionEntry] = []
    bad, whole = "", set[int]()
    for partition, some in group_places(own):
        image = TransactionImage()
        log, errors = open_longest(some, now_ms=now_ms)
        if log is not None and not errors:
            errors = _replay(log, image.apply)
        if log is None or errors or image.undecoded:
            where = next(iter(errors), some[0].location)
            bad = bad or str(errors.get(where, f"{where}: a record of it is not understood"))
            continue
        whole.add(partition.partition)
        entries += image.entries
    return TransactionCoordinators.of(
        entries, absent=bad or name_absent_coordinators(whole, partition_count)
    )


def _replay(
    log: SourceLog, apply: Callable[[ReplayedRecord | TransactionEnd], None]
) -> dict[str, PylogError]:
    """Replay a coordinator's log; return the error that stops it."""
    start = log.log_start_offset
    try:
        for event in replay_partition(log.store, log.place.partition.topic, start_offset=start):
            apply(event)
    except PylogError as error:
        return {log.place.location: error}
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCommits:
    """The groups' committed offsets."""

    offsets: Mapping[CommitKey, int]
    # Those in open transactions that the coordinators' records do not decide.
    undecided: Sequence[CommitKey] = ()
    reason: str = ""  # why these are not decided, in words
    errors: Mapping[str, PylogError] = field(default_factory=dict)


def read_commits(
    places: Sequence[SourcePlace], coordinators: TransactionCoordinators, *, now_ms: int
) -> GroupCommits:
    """Return the groups' committed offsets. A commit inside an open transaction counts once its
    coordinator has decided to commit that.

    Args:
        places: All logs; those of ``__consumer_offsets`` are read.
    """
    offsets: dict[CommitKey, int] = {}
    undecided: list[CommitKey] = []
    errors: dict[str, PylogError] = {}
    reason = ""
    namesake = find_namesakes(places).get(CONSUMER_OFFSETS_TOPIC)
    if namesake is not None:
        return GroupCommits(offsets=offsets, errors={namesake.path: namesake})
    for partition, own in group_places(places):
        if partition.topic != CONSUMER_OFFSETS_TOPIC:
            continue
        log, failures = open_current(own, now_ms=now_ms)
        errors |= failures
        if log is None:
            continue
        image = GroupImage()
        errors |= _replay(log, image.apply)
        for producer in log.open_producers:
            producer_id = producer.producer_id
            outcome, why = coordinators.decide(partition, producer_id, producer.producer_epoch)
            if outcome is TransactionOutcome.COMMIT:
                end = log.log_end_offset
                image.apply(TransactionEnd(offset=end, producer_id=producer_id, is_commit=True))
            elif outcome is TransactionOutcome.UNDECIDED:
                reason = why
                undecided += [c.key for c in image.pending if c.producer_id == producer_id]
        offsets |= {key: commit.offset for key, commit in image.offsets.items()}
    return GroupCommits(offsets=offsets, undecided=undecided, reason=reason, errors=errors)


def group_places(
    places: Iterable[SourcePlace],
) -> Iterator[tuple[TopicPartition, list[SourcePlace]]]:
    """Yield partitions in order, each with its places."""
    by_partition: dict[TopicPartition, list[SourcePlace]] = {}
    for place in places:
        by_partition.setdefault(place.partition, []).append(place)
    yield from sorted(by_partition.items())
