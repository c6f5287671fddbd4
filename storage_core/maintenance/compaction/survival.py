"""Which batches and records of a window stay: the cleaner's retention rules over arrays."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import ChangedWhileReadError, UnsupportedFormatError
from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.kernels.batch_filter import (
    BY_BITS,
    DISCARD_RECORDS,
    DROP,
    FILTER,
    KEEP_RECORDS,
    SETTLED,
    TO_FILTER,
    filter_records,
    preview_batches,
)
from storage_core.kernels.batch_scan import HAS_LEGACY
from storage_core.kernels.batch_write import GONE, HEADER_ONLY, REBUILT, VERBATIM
from storage_core.kernels.offset_table import ABSENT, mark_latest
from storage_core.kernels.record_scan import DONE, HAS_STRAY, HAS_TOMBSTONE, INDEXED, OPENED
from storage_core.maintenance.compaction.index import (
    CompactionIndex,
    IndexedSegment,
    rank_of,
    words_for,
)
from storage_core.maintenance.compaction.key_sidecar import (
    LOOKED_UP,
    NO_KEYS,
    NOTED,
    NOWHERE,
    BlockKeys,
    Halves,
)
from storage_core.maintenance.compaction.known_segment import Foresight, KnownSegment
from storage_core.maintenance.compaction.offset_map import KeyBlock
from storage_core.maintenance.compaction.plan import CompactionPlan
from storage_core.maintenance.compaction.rooms import Room
from storage_core.records.batch_table import BatchTable
from storage_core.records.payload import Payload, open_batches
from storage_core.records.reader import Window

_NO_WORDS = np.zeros(1, np.uint64)
_LOWEST_OFFSET = -(2**63)
_MAX_TIMESTAMP = 2**63 - 1
# In place of an ordinal: the record lies before the dirty part.
_NOT_DIRTY = -(2**62)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of batches [first_row, end_row) of a window.

    Arrays have one element a batch of the whole window, but for keep.

    Attributes:
        payload: Where the records of the rebuilt ones lie.
        fate: uint8[], batch_write.GONE and so on.
        kept: int64[], records that stay.
        keep: uint8[], by record, where first_record says.
        first_record: int64[], where in keep a batch begins.
        delete_horizon_ms: int64[], of the rebuilt ones, NO_TIMESTAMP for none.
        messages_read: Records looked at.
        invalid_messages: Records without a key that were dropped.
        keys: Hashes of the keys, None where nobody asks for them.
    """

    payload: Payload
    fate: NDArray[np.uint8]
    kept: NDArray[np.int64]
    keep: NDArray[np.uint8]
    first_record: NDArray[np.int64]
    delete_horizon_ms: NDArray[np.int64]
    messages_read: int
    invalid_messages: int
    keys: BlockKeys | None = None


class ProducerLookup:
    """The batches that keep the sequences of live producers alive."""

    def __init__(self, plan: CompactionPlan) -> None:
        by_id = sorted(plan.producers, key=lambda producer: producer.producer_id)
        self._ids = np.array([producer.producer_id for producer in by_id], np.int64)
        self._epochs = np.array([producer.producer_epoch for producer in by_id], np.int64)
        self._offsets = np.array([producer.last_data_offset for producer in by_id], np.int64)

    def is_last_batch(self, batches: BatchTable) -> NDArray[np.bool_]:
        """Return which batches are the last of their producer.

        A producer without a remembered data batch has its markers of the current epoch instead.
        """
        if not len(self._ids):
            return np.zeros(len(batches), bool)
        slot = np.minimum(np.searchsorted(self._ids, batches.producer_id), len(self._ids) - 1)
        is_known = batches.has_producer_id & (self._ids[slot] == batches.producer_id)
        by_offset = self._offsets[slot] == batches.last_offset
        by_epoch = batches.is_control & (self._epochs[slot] == batches.producer_epoch)
        is_last: NDArray[np.bool_] = is_known & np.where(
            self._offsets[slot] >= 0, by_offset, by_epoch
        )
        return is_last


class SegmentFilter:
    """Judges the windows of one source segment: `note` in order, the rest beside each other.

    Args:
        plan: The round.
        index: Its pass one.
        producers: Those alive.
        base_offset: Which segment.
        known: What a sidecar told of it, None where it was not asked.
        tells_keys: Whether verdicts have the hashes of the keys.
    """

    def __init__(
        self,
        plan: CompactionPlan,
        index: CompactionIndex,
        producers: ProducerLookup,
        base_offset: int,
        *,
        known: KnownSegment | None = None,
        tells_keys: bool = False,
    ) -> None:
        self._plan = plan
        self._index = index
        self._producers = producers
        self._dirty: IndexedSegment | None = index.segments.get(base_offset)
        modified_ms = plan.by_base_offset[base_offset].modified_ms
        self._keeps_legacy_tombstones = modified_ms > plan.legacy_delete_horizon_ms
        self._number = index.numbers.get(base_offset, 0)
        # Rows of the dirty part and their ordinals seen so far.
        self._next_flag = 0
        self._next_ordinal = 0
        self._next_legacy = 0
        self._words = _NO_WORDS
        if self._dirty is not None and self._dirty.word_count:
            self._words = index.bitmap_of(base_offset)
        self._known = known
        self._tells_keys = tells_keys
        self._noted_keys: Halves | None = None
        if known is not None:
            self._words = known.words
            self._noted_keys = known.sidecar.low, known.sidecar.high
        elif self._dirty is not None and tells_keys:
            self._noted_keys = index.hashes.take(base_offset, self._dirty.record_count)

    def foresee(self, known: KnownSegment, discard: NDArray[np.bool_]) -> Foresight:
        """Say of each batch of a segment with a sidecar whether its records have to be read.

        Args:
            known: What the sidecar tells.
            discard: bool[batches], what the transaction tracker says of all of them.
        """
        window = known.window()
        judged = self.observe(window, self.note(window), discard)
        fate, _ = self._decide_fate(judged, np.zeros(len(discard), np.int64))
        is_settled = ~judged.needs_records & ((fate == VERBATIM) | (fate == GONE))
        return Foresight(
            is_settled=is_settled, stays=fate == VERBATIM, was_read=judged.action != DROP
        )

    def judge(self, judged: "JudgedWindow", first_row: int, room: Room) -> Verdict:
        """Return the verdict on the rows of a window from first_row on, as many as memory allows.

        Any thread may ask.

        Args:
            judged: What is known of the window.
            first_row: 0, or where the verdict before ended.
            room: For what the verdict is made of; the verdict is valid until it is used again.

        Raises:
            BadBytesError: A record that has to be read is malformed.
            ChangedWhileReadError: The segment is not what pass one read.
        """
        window = judged.window
        plan = self._plan
        payload = None
        if first_row == 0:
            payload = self._index.kept.take(window, judged.needs_records)
        if payload is None:
            payload = open_batches(window, judged.needs_records, first_row, plan.limits, room.arena)
        end_row = payload.end_row
        batches = payload.batches
        self._check_counts(judged, payload)
        kept, step = judged.kept, judged.step
        local_words, local_bit, local_keys = self._look_up(judged, payload, room.keys)
        is_local = judged.is_looked_up[first_row:end_row]
        invalid = 0
        kept_tombstones = np.zeros(len(batches), np.int64)
        counted = np.where(judged.needs_records, batches.record_count, 0)
        counted[:first_row] = 0
        counted[end_row:] = 0
        first_record = np.cumsum(counted) - counted
        keep = np.empty(int(counted.sum()), np.uint8)
        for words, first_bit, rows in (
            (self._words, judged.first_bit, ~is_local),
            (local_words, local_bit, is_local),
        ):
            chosen = np.zeros(len(batches), np.uint8)
            chosen[first_row:end_row] = np.where(rows, step[first_row:end_row], SETTLED)
            found, status, row, position = filter_records(
                window.data,
                payload.arena,
                payload.in_arena,
                payload.start,
                payload.end,
                batches.record_count,
                batches.base_offset,
                judged.action,
                judged.keeps_tombstones,
                chosen,
                self._index.latest_offset,
                words,
                first_bit,
                first_record,
                first_row,
                end_row,
                plan.max_record_bytes,
                keep,
                kept,
                kept_tombstones,
            )
            if status != DONE:
                raise payload.error(status, row, position)
            invalid += found
        fate, horizon = self._decide_fate(judged, kept_tombstones)
        here = slice(first_row, end_row)
        _refuse_empty_legacy(window, fate, here)
        was_read = judged.action[here] != DROP
        read_counts = np.where(judged.needs_records, batches.record_count, judged.record_count)
        keys = None
        if self._tells_keys:
            keys = self._keys_of(judged, kept_tombstones, fate, horizon)
            keys = replace(
                keys,
                first_hash=np.where(judged.is_looked_up, local_bit, judged.first_bit),
                looked_up=local_keys,
            )
        return Verdict(
            keys=keys,
            payload=payload,
            fate=fate,
            kept=kept,
            keep=keep,
            first_record=first_record,
            delete_horizon_ms=horizon,
            messages_read=int(read_counts[here][was_read].sum()),
            invalid_messages=invalid,
        )

    def observe(
        self, window: Window, noted: "WindowNotes", discard: NDArray[np.bool_]
    ) -> "JudgedWindow":
        """Settle what headers and bitmaps settle of a window; any thread may ask.

        Args:
            window: The window.
            noted: What `note` returned for it.
            discard: bool[n], what the transaction tracker says of each batch.
        """
        batches = window.batches
        count = len(batches)
        has_horizon = batches.has_delete_horizon
        horizon_passed = has_horizon & (batches.base_timestamp <= self._plan.now_ms)
        loses_records = discard & (~batches.is_control | horizon_passed)
        retains_empty = self._producers.is_last_batch(batches) | (
            batches.last_offset + 1 == self._plan.high_watermark
        )
        action = np.full(count, FILTER, np.uint8)
        action[batches.is_control] = KEEP_RECORDS
        action[loses_records] = np.where(retains_empty[loses_records], DISCARD_RECORDS, DROP)
        flags, first_bit = noted.flags, noted.first_bit
        kept = np.zeros(count, np.int64)
        step = np.zeros(count, np.uint8)
        preview_batches(
            action,
            flags,
            batches.last_offset,
            noted.record_count,
            self._index.latest_offset,
            self._words,
            first_bit,
            0,
            count,
            kept,
            step,
        )
        # A sidecar says so of control batches, nobody else: then their records stay.
        is_marker = (action == KEEP_RECORDS) & ((flags & INDEXED) != 0) & ~discard
        kept[is_marker], step[is_marker] = noted.record_count[is_marker], SETTLED
        is_legacy = batches.is_legacy
        is_rebuilt = np.full(count, self._plan.recompresses_all) & ~batches.is_control
        # Even one of which all stays is written anew, of an older format in v2.
        step[(is_legacy | is_rebuilt) & (step == SETTLED) & (kept > 0)] = BY_BITS
        keeps_tombstones = np.where(is_legacy, self._keeps_legacy_tombstones, ~horizon_passed)
        is_looked_up = (
            (action == FILTER)
            & ((flags & INDEXED) == 0)
            & batches.may_reach_below(self._index.latest_offset + 1)
        )
        return JudgedWindow(
            window=window,
            action=action,
            retains_empty=retains_empty,
            loses_transaction=discard & batches.is_control,
            is_rebuilt=is_rebuilt | is_legacy,
            keeps_tombstones=keeps_tombstones.astype(np.uint8),
            kept=kept,
            step=step,
            needs_records=step != SETTLED,
            is_looked_up=is_looked_up,
            first_bit=first_bit,
            own_ordinal=noted.own_ordinal,
            flags=flags,
            keeps_all_tombstones=noted.keeps_all_tombstones,
            has_ordinals=(flags & OPENED) != 0,
            record_count=noted.record_count,
        )

    def note(self, window: Window) -> "WindowNotes":
        """Return what pass one noted of the batches of the segment's next window.

        Raises:
            ChangedWhileReadError: The segment is not what pass one read.
        """
        batches = window.batches
        count = len(batches)
        flags = np.zeros(count, np.uint8)
        own_ordinal = np.full(count, _NOT_DIRTY, np.int64)
        no_tombstones = np.zeros(count, bool)
        if self._known is not None:
            here = self._known.rows_of(window)
            return WindowNotes(
                self._known.flags[here],
                self._known.sidecar.first_key[here],
                own_ordinal,
                batches.record_count,
                self._known.keeps_all_tombstones[here],
            )
        dirty = self._dirty
        if dirty is None:
            first_bit = np.zeros(count, np.int64)
            return WindowNotes(flags, first_bit, own_ordinal, batches.record_count, no_tombstones)
        positions = batches.position + window.file_position
        first = int(np.searchsorted(positions, dirty.start_position))
        noted = dirty.flags[self._next_flag : self._next_flag + count - first]
        self._next_flag += count - first
        flags[first : first + len(noted)] = noted
        has_ordinals = (flags & OPENED) != 0
        record_count = self._take_counts(window, has_ordinals)
        counts = np.where(has_ordinals, record_count, 0)
        first_bit = self._next_ordinal + np.cumsum(counts) - counts
        self._next_ordinal += int(counts.sum())
        if int(counts.min(initial=0)) < 0 or self._next_ordinal > dirty.record_count:
            raise ChangedWhileReadError(
                window.file, f"{dirty.record_count} records", "more of them in the second pass"
            )
        own_ordinal[first:] = np.where(has_ordinals, first_bit, first_bit - 1)[first:]
        return WindowNotes(flags, first_bit, own_ordinal, record_count, no_tombstones)

    def _take_counts(self, window: Window, has_ordinals: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return how many records the batches of a window have, legacy ones by pass one."""
        batches = window.batches
        is_noted = batches.is_legacy & has_ordinals
        noted_count = int(is_noted.sum())
        if self._dirty is None or not noted_count:
            return batches.record_count
        first = self._next_legacy
        noted = self._dirty.legacy_counts[first : first + noted_count]
        if len(noted) != noted_count:
            raise ChangedWhileReadError(
                window.file, "the batches of the first pass", "more of formats v0 and v1"
            )
        self._next_legacy += noted_count
        record_count = batches.record_count.copy()
        record_count[is_noted] = noted
        return record_count

    def _check_counts(self, judged: "JudgedWindow", payload: Payload) -> None:
        """See that opened batches have the records that their bits were counted by."""
        here = slice(payload.first_row, payload.end_row)
        expected = judged.record_count[here]
        found = payload.batches.record_count[here]
        is_other = judged.needs_records[here] & judged.has_ordinals[here] & (expected != found)
        if is_other.any():
            raise ChangedWhileReadError(
                judged.window.file,
                f"{expected[is_other][0]} records in a batch",
                f"{found[is_other][0]} in the second pass",
            )

    def _look_up(
        self, judged: "JudgedWindow", payload: Payload, keys: KeyBlock
    ) -> tuple[NDArray[np.uint64], NDArray[np.int64], Halves]:
        """Return bitmaps, for the rows that have none yet, of who is the newest of its key.

        And where the bits of each row begin, and the hashes of the keys by bit, if those are told.
        """
        batches = payload.batches
        here = slice(payload.first_row, payload.end_row)
        wanted = np.zeros(len(batches), bool)
        wanted[here] = judged.is_looked_up[here]
        first_bit = np.zeros(len(batches), np.int64)
        if not wanted.any():
            return _NO_WORDS, first_bit, NO_KEYS
        keys.read(payload, wanted, self._plan.limits, first_offset=_LOWEST_OFFSET, first_rank=0)
        counts = np.where(wanted, batches.record_count, 0)
        first_bit = np.cumsum(counts) - counts
        words = np.zeros(max(1, words_for(int(counts.sum()))), np.uint64)
        is_dirty = judged.own_ordinal != _NOT_DIRTY
        own_rank = judged.own_ordinal + rank_of(self._number, 0)
        mark_latest(
            self._index.offset_map.table,
            keys.low,
            keys.high,
            keys.batch,
            keys.rank,
            keys.count,
            payload.first_row,
            first_bit,
            np.where(is_dirty, own_rank, ABSENT),
            (judged.has_ordinals & is_dirty).view(np.uint8),
            words,
        )
        self._settle(judged, payload, wanted, keys.flags, words, first_bit)
        return words, first_bit, _by_bit(keys, int(counts.sum())) if self._tells_keys else NO_KEYS

    def _settle(  # what is known of the rows
        self,
        judged: "JudgedWindow",
        payload: Payload,
        wanted: NDArray[np.bool_],
        flags: NDArray[np.uint8],
        words: NDArray[np.uint64],
        first_bit: NDArray[np.int64],
    ) -> None:
        """Leave to the bitmaps what they settle of the rows that were looked up: as in `observe`.

        Args:
            judged: The window; kept and step of such rows become theirs.
            payload: Some of its batches.
            wanted: bool[n], which were looked up.
            flags: uint8[rows of the payload], what was seen of their records.
            words: Bitmaps of them.
            first_bit: int64[n], where in them the bits of a row begin.
        """
        batches = payload.batches
        seen = np.zeros(len(batches), np.uint8)
        seen[payload.first_row : payload.end_row] = flags
        kept = np.zeros(len(batches), np.int64)
        step = np.zeros(len(batches), np.uint8)
        preview_batches(
            judged.action,
            seen,
            batches.last_offset,
            batches.record_count,
            self._index.latest_offset,
            words,
            first_bit,
            payload.first_row,
            payload.end_row,
            kept,
            step,
        )
        # Of whom the header tells the truth.
        is_settled = wanted & (step != TO_FILTER) & ((seen & HAS_STRAY) == 0)
        judged.kept[is_settled], judged.step[is_settled] = kept[is_settled], BY_BITS

    def _keys_of(
        self,
        judged: "JudgedWindow",
        kept_tombstones: NDArray[np.int64],
        fate: NDArray[np.uint8],
        horizon: NDArray[np.int64],
    ) -> BlockKeys:
        """Return the hashes of the keys of a block, and what a sidecar says of its batches."""
        batches = judged.window.batches
        stays = (fate == VERBATIM) | (fate == REBUILT)
        new_horizon = np.where(fate == VERBATIM, batches.delete_horizon_ms, horizon)
        # Without a horizon it would be asked for one again.
        is_final = (kept_tombstones == 0) | (new_horizon >= 0)
        is_fit = stays & is_final & ~batches.is_legacy
        has_keys = is_fit & (judged.action == FILTER)
        has_keys &= batches.last_offset <= self._index.latest_offset
        is_noted = has_keys & judged.has_ordinals & ((judged.flags & INDEXED) != 0)
        place = np.full(len(batches), NOWHERE, np.uint8)
        if self._noted_keys is not None:
            place[is_noted] = NOTED
        place[has_keys & judged.is_looked_up] = LOOKED_UP
        flags = np.zeros(len(batches), np.uint8)
        flags[is_fit & batches.is_control] = INDEXED
        flags[place != NOWHERE] = INDEXED | OPENED
        # Where all tombstones stay, nobody has looked for them.
        has_tombstone = (kept_tombstones > 0) | judged.keeps_all_tombstones
        flags[(place != NOWHERE) & has_tombstone] |= HAS_TOMBSTONE
        return BlockKeys(
            flags=flags,
            place=place,
            first_hash=judged.first_bit,
            is_chosen=judged.needs_records.astype(np.uint8),
            noted=self._noted_keys or NO_KEYS,
            looked_up=NO_KEYS,
        )

    def _decide_fate(
        self, judged: "JudgedWindow", kept_tombstones: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return (fate, delete_horizon_ms) of every batch of a window."""
        batches = judged.window.batches
        has_records = judged.kept > 0
        horizon = batches.delete_horizon_ms
        needs_horizon = (
            has_records
            & ~batches.has_delete_horizon
            & ((kept_tombstones > 0) | judged.loses_transaction)
        )
        # Kafka adds in 64 bits: a sum that wraps around is negative, and such a horizon is none.
        new_horizon = self._plan.now_ms + self._plan.delete_retention_ms
        if new_horizon > _MAX_TIMESTAMP:
            new_horizon = NO_TIMESTAMP
        horizon = np.where(needs_horizon, new_horizon, horizon)
        is_whole = judged.kept == batches.record_count
        fate = np.full(len(batches), GONE, np.uint8)
        fate[~has_records & judged.retains_empty] = HEADER_ONLY
        fate[has_records] = REBUILT
        fate[has_records & is_whole & ~needs_horizon & ~judged.is_rebuilt] = VERBATIM
        fate[judged.action == DROP] = GONE
        return fate, np.where((fate == REBUILT) & (horizon >= 0), horizon, NO_TIMESTAMP)


def _refuse_empty_legacy(window: Window, fate: NDArray[np.uint8], here: slice) -> None:
    """Refuse to keep a batch without records that has no such form."""
    if not window.batches.kinds & HAS_LEGACY:
        return
    is_bad = (fate[here] == HEADER_ONLY) & window.batches.is_legacy[here]
    for row in (np.flatnonzero(is_bad)[:1] + here.start).tolist():
        raise UnsupportedFormatError(
            window.file,
            window.position_of(row),
            f"the message at offset {window.batches.last_offset[row]} ends at the high watermark "
            "and has to stay, without any record, which message format "
            f"v{window.batches.magic[row]} cannot say; Kafka's cleaner fails here too",
            offset=int(window.batches.last_offset[row]),
        )


def _by_bit(keys: KeyBlock, count: int) -> Halves:
    """Return the hashes of a block by the number of their record."""
    low, high = np.zeros((2, count), np.uint64)
    bit = keys.rank[: keys.count]
    low[bit], high[bit] = keys.low[: keys.count], keys.high[: keys.count]
    return low, high


@dataclass(frozen=True, slots=True)
class WindowNotes:
    """What pass one noted of a window's batches.

    Attributes:
        flags: uint8[n], as noted, 0 where pass one did not look.
        first_bit: int64[n], where each batch's bits begin.
        own_ordinal: int64[n], the ordinal of its first record, or of the last record before it
            where it has none, _NOT_DIRTY before the dirty part.
        record_count: int64[n], how many records it has, UNKNOWN_COUNT where neither its header nor
            pass one says.
        keeps_all_tombstones: bool[n], of a segment with a sidecar, whether a batch has tombstones,
            and all of its records stay.
    """

    flags: NDArray[np.uint8]
    first_bit: NDArray[np.int64]
    own_ordinal: NDArray[np.int64]
    record_count: NDArray[np.int64]
    keeps_all_tombstones: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedWindow:
    """What is known of a window's batches before their records are opened."""

    window: Window
    action: NDArray[np.uint8]
    retains_empty: NDArray[np.bool_]
    loses_transaction: NDArray[np.bool_]
    is_rebuilt: NDArray[np.bool_]  # whatever it loses
    keeps_tombstones: NDArray[np.uint8]
    kept: NDArray[np.int64]
    step: NDArray[np.uint8]
    needs_records: NDArray[np.bool_]
    is_looked_up: NDArray[np.bool_]
    first_bit: NDArray[np.int64]
    own_ordinal: NDArray[np.int64]
    flags: NDArray[np.uint8]  # as noted
    keeps_all_tombstones: NDArray[np.bool_]
    has_ordinals: NDArray[np.bool_]
    record_count: NDArray[np.int64]
