"""One round of compaction over decoded batches: what must be left, and nothing more.

This says which batches and records survive and what the headers of the survivors are. It knows
nothing of files, groups or memory: segments and their indexes only matter for where scans begin,
where aborted transactions are looked up, and where the offset map may end.
"""

import enum
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.kit.decode import DecodedBatch, DecodedRecord
from tests.reference.offset_map import OffsetMap

LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x08, 0x10, 0x20, 0x40
CODEC = 0x07
ABORT, COMMIT = 0, 1
NO_TIMESTAMP = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTxn:
    """An entry of a transaction index."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRecord:
    """Of a producer that the log still remembers.

    Attributes:
        last_data_offset: Last offset of its last data batch; None if there is none.
        producer_epoch: Its epoch.
    """

    last_data_offset: int | None
    producer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A segment.

    Attributes:
        base_offset: Of the segment.
        batches: All of them, in order.
        modified_ms: When its file was last modified.
        offset_index: (offset, position) of each entry of its offset index.
        aborted: The entries of its transaction index.
    """

    base_offset: int
    batches: tuple[DecodedBatch, ...]
    modified_ms: int = 0
    offset_index: tuple[tuple[int, int], ...] = ()
    aborted: tuple[AbortedTxn, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What decides a round, besides the log.

    Attributes:
        first_dirty_offset: Where the map begins.
        first_uncleanable_offset: Base offset of the first segment that stays as it is.
        now_ms: The clock.
        delete_retention_ms: How long a tombstone or marker stays after its first visit.
        high_watermark: A batch that ends just below it stays, empty if need be.
        log_start_offset: Aborted transactions that ended below it are not known to the round.
        producers: Those alive, by id.
        map_capacity: How many keys the map takes; None for any number.
        identity: What the map knows a key by; the key itself, or a digest of it.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    now_ms: int
    delete_retention_ms: int
    high_watermark: int
    log_start_offset: int = 0
    producers: Mapping[int, LastRecord] = field(default_factory=dict)
    map_capacity: int | None = None
    identity: Callable[[bytes], Hashable] = bytes


class Fate(enum.Enum):
    """What became of a batch that is still there."""

    VERBATIM = "byte for byte as it was"
    REBUILT = "written anew"
    EMPTIED = "only its header is left"


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivor:
    """A batch after the round; header has no length and no CRC."""

    fate: Fate
    header: dict[str, int]
    records: tuple[DecodedRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a round leaves and answers.

    Attributes:
        survivors: All batches below next_offset's segment, in order.
        aborted: Entries that the new transaction indexes have, in order.
        next_offset: The new cleaner point.
        map_messages_read: Records looked at for the map.
        messages_read: Records of the batches that were not dropped whole.
        messages_written: Records of the survivors.
        invalid_messages_read: Records without a key that were dropped.
    """

    survivors: tuple[Survivor, ...]
    aborted: tuple[AbortedTxn, ...]
    next_offset: int
    map_messages_read: int
    messages_read: int
    messages_written: int
    invalid_messages_read: int


class Transactions:
    """Which transactional batches were aborted, and which markers still have data before them."""

    def __init__(self) -> None:
        self.waiting: list[AbortedTxn] = []
        self.aborting: dict[int, AbortedTxn] = {}
        self.aborting_with_data: set[int] = set()
        self.committing_with_data: set[int] = set()

    def expect(self, aborted: Sequence[AbortedTxn]) -> None:
        """Learn of aborted transactions, by their first offsets."""
        self.waiting = sorted([*self.waiting, *aborted], key=lambda entry: entry.first_offset)

    def advance(self, batch: DecodedBatch) -> None:
        """Begin the aborted transactions that start in this batch or before."""
        while self.waiting and self.waiting[0].first_offset <= batch.last_offset:
            entry = self.waiting.pop(0)
            if entry.producer_id not in self.aborting:
                self.aborting[entry.producer_id] = entry

    def is_aborted_data(self, batch: DecodedBatch) -> bool:
        """Note a data batch; return whether its transaction was aborted."""
        self.advance(batch)
        producer_id = batch.header["producer_id"]
        if not batch.header["attributes"] & TRANSACTIONAL:
            return False
        if producer_id in self.aborting:
            self.aborting_with_data.add(producer_id)
            return True
        self.committing_with_data.add(producer_id)
        return False

    def is_spent_marker(self, batch: DecodedBatch) -> tuple[bool, AbortedTxn | None]:
        """Note a control batch.

        Returns:
            Whether it marks the end of a transaction of which no data are left; and the entry for
            the new transaction index, if it ends an aborted transaction of which there are.
        """
        self.advance(batch)
        producer_id = batch.header["producer_id"]
        if not batch.records:
            return True, None
        control_type = int.from_bytes((batch.records[0].key or b"")[2:4], "big", signed=True)
        if control_type == ABORT:
            entry = self.aborting.pop(producer_id, None)
            if entry is None or producer_id not in self.aborting_with_data:
                return True, None
            self.aborting_with_data.discard(producer_id)
            return False, entry
        if control_type == COMMIT:
            had_data = producer_id in self.committing_with_data
            self.committing_with_data.discard(producer_id)
            return not had_data, None
        return False, None


class EmptyLegacyBatchError(Exception):
    """A batch of an old format would have to stay without records."""


def is_legacy(batch: DecodedBatch) -> bool:
    """Whether a batch is of a format before v2."""
    return batch.header["magic"] < 2


def keeps_legacy_tombstones(segments: Sequence[Segment], segment: Segment, job: Round) -> bool:
    """Whether the file of a segment is young enough for tombstones of old formats to stay."""
    clean = [one for one in segments if one.base_offset < job.first_dirty_offset]
    limit = clean[-1].modified_ms - job.delete_retention_ms if clean else 0
    return segment.modified_ms > limit


def is_control(batch: DecodedBatch) -> bool:
    """Whether a batch holds a control record instead of data."""
    return bool(batch.header["attributes"] & CONTROL)


def horizon_of(batch: DecodedBatch) -> int | None:
    """Return a batch's delete horizon, None if it has none."""
    if batch.header["attributes"] & DELETE_HORIZON:
        return batch.header["base_timestamp"]
    return None


def aborted_between(
    segments: Sequence[Segment], job: Round, first_offset: int, end_offset: int
) -> list[AbortedTxn]:
    """Collect entries that reach into a range of offsets, from the transaction indexes.

    As Kafka does: it begins with the index of the segment that holds first_offset, but leaves out
    of that only what ended below the log start offset, not what ended below first_offset.
    """
    floor = max(
        (segment.base_offset for segment in segments if segment.base_offset <= first_offset),
        default=None,
    )
    found: list[AbortedTxn] = []
    for segment in segments:
        if floor is None or segment.base_offset < floor:
            continue
        for entry in segment.aborted:
            if entry.last_offset >= job.log_start_offset and entry.first_offset < end_offset:
                found.append(entry)
            if entry.last_stable_offset >= end_offset:
                return found
    return found


def batches_from(segment: Segment, offset: int) -> list[DecodedBatch]:
    """Return the batches from the offset index's entry for an offset on, or all."""
    positions = [at for entry_offset, at in segment.offset_index if entry_offset <= offset]
    start = max(positions, default=0)
    return [batch for batch in segment.batches if batch.position >= start]


def map_offsets(segments: Sequence[Segment], job: Round) -> tuple[OffsetMap, int]:
    """Make pass one; return the map and how many records were looked at."""
    offsets = OffsetMap(capacity=job.map_capacity)
    start, end = job.first_dirty_offset, job.first_uncleanable_offset
    dirty = [
        segment
        for i, segment in enumerate(segments)
        if segment.base_offset < end
        and (i + 1 == len(segments) or segments[i + 1].base_offset > start)
    ]
    ends = [*(segment.base_offset for segment in dirty[1:]), end][: len(dirty)]
    transactions = Transactions()
    transactions.expect(aborted_between(segments, job, start, end))
    messages = 0
    for segment, segment_end in zip(dirty, ends, strict=True):
        for batch in batches_from(segment, start):
            if is_control(batch):
                transactions.is_spent_marker(batch)
                messages += 1
            elif transactions.is_aborted_data(batch):
                messages += batch.header["record_count"]
            else:
                for record in batch.records:
                    if record.key is not None and record.offset >= start:
                        if offsets.is_full:
                            return offsets, messages
                        offsets.put(job.identity(record.key), record.offset)
                    messages += 1
            if batch.last_offset >= start:
                offsets.latest_offset = batch.last_offset
        offsets.latest_offset = segment_end - 1
    return offsets, messages


def compact(segments: Sequence[Segment], job: Round) -> Outcome:
    """Make a round over the segments of a log."""
    offsets, map_messages = map_offsets(segments, job)
    next_offset = offsets.latest_offset + 1
    transactions = Transactions()
    survivors: list[Survivor] = []
    aborted: list[AbortedTxn] = []
    messages_read = invalid = 0
    for i, segment in enumerate(segments):
        if segment.base_offset >= next_offset:
            break
        after = segments[i + 1].base_offset if i + 1 < len(segments) else next_offset
        transactions.expect(aborted_between(segments, job, segment.base_offset, after))
        keeps_old = keeps_legacy_tombstones(segments, segment, job)
        for batch in segment.batches:
            verdict = judge(batch, job, offsets, transactions, keeps_legacy_tombstones=keeps_old)
            messages_read += verdict.messages_read
            invalid += verdict.invalid
            if verdict.survivor is not None:
                survivors.append(verdict.survivor)
            if verdict.aborted is not None:
                aborted.append(verdict.aborted)
    return Outcome(
        survivors=tuple(survivors),
        aborted=tuple(aborted),
        next_offset=next_offset,
        map_messages_read=map_messages,
        messages_read=messages_read,
        messages_written=sum(len(survivor.records) for survivor in survivors),
        invalid_messages_read=invalid,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of a batch, None for a survivor that is none."""

    survivor: Survivor | None
    aborted: AbortedTxn | None
    messages_read: int
    invalid: int


def judge(
    batch: DecodedBatch,
    job: Round,
    offsets: OffsetMap,
    transactions: Transactions,
    *,
    keeps_legacy_tombstones: bool,
) -> Verdict:
    """Decide on one batch."""
    entry = None
    if is_control(batch):
        is_spent, entry = transactions.is_spent_marker(batch)
        horizon = horizon_of(batch)
        discards_records = is_spent and horizon is not None and horizon <= job.now_ms
    else:
        is_spent = False
        discards_records = transactions.is_aborted_data(batch)
    stays_if_empty = is_last_of_producer(batch, job) or batch.last_offset + 1 == job.high_watermark
    if discards_records and not stays_if_empty:
        return Verdict(survivor=None, aborted=entry, messages_read=0, invalid=0)

    kept: list[DecodedRecord] = []
    invalid = 0
    for record in batch.records:
        if discards_records:
            continue
        keeps_tombstone = keeps_legacy_tombstones if is_legacy(batch) else is_young(batch, job)
        if is_control(batch) or is_retained(record, job, offsets, keeps_tombstone=keeps_tombstone):
            kept.append(record)
        elif record.key is None:
            invalid += 1
    survivor = None
    if kept:
        survivor = retained(batch, kept, job, sets_horizon=is_spent)
    elif stays_if_empty:
        survivor = emptied(batch)
    return Verdict(
        survivor=survivor, aborted=entry, messages_read=len(batch.records), invalid=invalid
    )


def is_last_of_producer(batch: DecodedBatch, job: Round) -> bool:
    """Whether a batch holds the sequence, or the epoch, that its producer goes on from."""
    last = job.producers.get(batch.header["producer_id"])
    if last is None or batch.header["producer_id"] < 0:
        return False
    if last.last_data_offset is not None:
        return batch.last_offset == last.last_data_offset
    return is_control(batch) and batch.header["producer_epoch"] == last.producer_epoch


def is_young(batch: DecodedBatch, job: Round) -> bool:
    """Whether the delete horizon of a batch lies ahead, or there is none."""
    horizon = horizon_of(batch)
    return horizon is None or job.now_ms < horizon


def is_retained(
    record: DecodedRecord, job: Round, offsets: OffsetMap, *, keeps_tombstone: bool
) -> bool:
    """Whether a data record stays."""
    if record.offset > offsets.latest_offset:
        return True
    if record.key is None or record.offset < offsets.get(job.identity(record.key)):
        return False
    return record.value is not None or keeps_tombstone


def retained(
    batch: DecodedBatch, kept: list[DecodedRecord], job: Round, *, sets_horizon: bool
) -> Survivor:
    """Return what is left of a batch with records; sets_horizon for a marker without data."""
    horizon = horizon_of(batch)
    has_tombstone = any(record.value is None for record in kept)
    needs_horizon = horizon is None and (sets_horizon or has_tombstone)
    header = without_bytes(batch.header)
    if is_legacy(batch):
        header["magic"] = 2
        header["base_offset"] = kept[0].offset
        header["last_offset_delta"] = kept[-1].offset - kept[0].offset
    elif len(kept) == len(batch.records) and not needs_horizon:
        return Survivor(fate=Fate.VERBATIM, header=header, records=batch.records)
    if needs_horizon:
        horizon = job.now_ms + job.delete_retention_ms
    timestamp_type = batch.header["attributes"] & LOG_APPEND_TIME
    header["attributes"] &= CODEC | LOG_APPEND_TIME | TRANSACTIONAL | CONTROL
    header["attributes"] |= 0 if horizon is None else DELETE_HORIZON
    header["base_timestamp"] = kept[0].timestamp if horizon is None else horizon
    if not timestamp_type:
        header["max_timestamp"] = max(record.timestamp for record in kept)
    header["record_count"] = len(kept)
    return Survivor(fate=Fate.REBUILT, header=header, records=tuple(kept))


def emptied(batch: DecodedBatch) -> Survivor:
    """Return the bare header of a batch."""
    if is_legacy(batch):
        raise EmptyLegacyBatchError(batch.base_offset)
    header = without_bytes(batch.header)
    header["attributes"] &= LOG_APPEND_TIME | TRANSACTIONAL | CONTROL
    header["base_timestamp"] = NO_TIMESTAMP
    header["record_count"] = 0
    return Survivor(fate=Fate.EMPTIED, header=header, records=())


def without_bytes(header: dict[str, int]) -> dict[str, int]:
    """Return a header without what depends on the bytes of the records."""
    return {name: value for name, value in header.items() if name not in {"batch_length", "crc"}}
