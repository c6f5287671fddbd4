"""Which batches and records of a window stay: the cleaner's retention rules over arrays."""

import sys
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import ChangedWhileReadError, UnsupportedFormatError
from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.kernels.batch_filter import (
    BY_BITS,
    DROP,
    FILTER,
    TO_FILTER,
    filter_records,
    preview_batches,
)
from storage_core.kernels.batch_judge import (
    MORE_LEGACY,
    MORE_RECORDS,
    NO_ROW,
    NOT_DIRTY,
    decide_fates,
    judge_batches,
    note_batches,
    place_records,
)
from storage_core.kernels.batch_scan import HAS_LEGACY
from storage_core.kernels.batch_write import GONE, HEADER_ONLY, REBUILT, VERBATIM
from storage_core.kernels.offset_table import ABSENT, mark_latest
from storage_core.kernels.record_scan import DONE, HAS_STRAY, HAS_TOMBSTONE, INDEXED, OPENED
from storage_core.maintenance.compaction.buffers import WindowBuffers
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
from storage_core.records.batch_table import BatchTable
from storage_core.records.payload import Payload, open_batches
from storage_core.records.reader import Window

_NO_WORDS = np.zeros(1, np.uint64)
_LOWEST_OFFSET = -(2**63)
_MAX_TIMESTAMP = 2**63 - 1
# A segment that pass one has not read.
_NOT_READ = IndexedSegment(
    base_offset=0,
    start_position=sys.maxsize,
    flags=np.empty(0, np.uint8),
    legacy_counts=np.empty(0, np.int64),
    record_count=0,
    bytes_read=0,
    messages_read=0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFates:
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
        self._dirty = index.segments.get(base_offset, _NOT_READ)
        modified_ms = plan.by_base_offset[base_offset].modified_ms
        self._keeps_legacy_tombstones = modified_ms > plan.legacy_delete_horizon_ms
        self._number = index.numbers.get(base_offset, 0)
        # Rows of the dirty part and their ordinals seen so far.
        self._next_flag = 0
        self._next_ordinal = 0
        self._next_legacy = 0
        self._words = _NO_WORDS
        if self._dirty.word_count:
            self._words = index.bitmap_of(base_offset)
        self._known = known
        self._tells_keys = tells_keys
        self._noted_keys: Halves | None = None
        if known is not None:
            self._words = known.words
            self._noted_keys = known.sidecar.low, known.sidecar.high
        elif self._dirty is not _NOT_READ and tells_keys:
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

    def judge(
        self,
        judged: "JudgedWindow",
        first_row: int,
        buffers: WindowBuffers,
        *,
        checks_crc: bool = False,
    ) -> WindowFates:
        """Return the verdict on the rows of a window from first_row on, as many as memory allows.

        Any thread may ask.

        Args:
            judged: What is known of the window.
            first_row: 0, or where the verdict before ended.
            buffers: For what the verdict is made of; the verdict is valid until it is used again.
            checks_crc: Whether to look at checksums where keys are looked up, as `KeyBlock.read`.

        Raises:
            BadBytesError: A record that has to be read is malformed, or a checksum is wrong.
            ChangedWhileReadError: The segment is not what pass one read.
        """
        window = judged.window
        plan = self._plan
        payload = None
        if first_row == 0:
            payload = self._index.kept.take(window, judged.needs_records)
        if payload is None:
            payload = open_batches(
                window, judged.needs_records, first_row, plan.limits, buffers.arena
            )
        end_row = payload.end_row
        batches = payload.batches
        count = len(batches)
        first_record = np.empty(count, np.int64)
        places, messages_read, row = place_records(
            judged.action,
            judged.flags,
            judged.needs_records.view(np.uint8),
            judged.record_count,
            batches.record_count,
            payload.first_row,
            end_row,
            first_record,
        )
        if row != NO_ROW:
            raise ChangedWhileReadError(
                window.file,
                f"{judged.record_count[row]} records in a batch",
                f"{batches.record_count[row]} in the second pass",
            )
        local_words, local_bit, local_keys = self._look_up(
            judged, payload, buffers.keys, checks_crc=checks_crc
        )
        kept = judged.kept
        kept_tombstones = np.zeros(count, np.int64)
        keep = np.empty(places, np.uint8)
        invalid, status, row, position = filter_records(
            window.data,
            payload.arena,
            payload.in_arena,
            payload.start,
            payload.end,
            batches.record_count,
            batches.base_offset,
            judged.action,
            judged.keeps_tombstones,
            judged.step,
            self._index.latest_offset,
            self._words,
            judged.first_bit,
            judged.is_looked_up.view(np.uint8),
            local_words,
            local_bit,
            first_record,
            payload.first_row,
            end_row,
            plan.max_record_bytes,
            keep,
            kept,
            kept_tombstones,
        )
        if status != DONE:
            raise payload.error(status, row, position)
        fate, horizon = self._decide_fate(judged, kept_tombstones)
        _refuse_empty_legacy(window, fate, slice(payload.first_row, end_row))
        keys = None
        if self._tells_keys:
            keys = self._keys_of(judged, kept_tombstones, fate, horizon)
            keys = replace(
                keys,
                first_hash=np.where(judged.is_looked_up, local_bit, judged.first_bit),
                looked_up=local_keys,
            )
        return WindowFates(
            keys=keys,
            payload=payload,
            fate=fate,
            kept=kept,
            keep=keep,
            first_record=first_record,
            delete_horizon_ms=horizon,
            messages_read=messages_read,
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
        marks = np.empty((8, count), np.uint8)
        action, retains_empty, loses_transaction, is_rebuilt = marks[:4]
        keeps_tombstones, needs_records, is_looked_up, step = marks[4:]
        kept = np.empty(count, np.int64)
        judge_batches(
            batches.columns,
            discard.view(np.uint8),
            self._producers.is_last_batch(batches).view(np.uint8),
            noted.flags,
            noted.record_count,
            self._words,
            noted.first_bit,
            self._index.latest_offset,
            self._plan.high_watermark,
            self._plan.now_ms,
            self._keeps_legacy_tombstones,
            self._plan.recompresses_all,
            action,
            retains_empty,
            loses_transaction,
            is_rebuilt,
            keeps_tombstones,
            needs_records,
            is_looked_up,
            step,
            kept,
        )
        return JudgedWindow(
            window=window,
            action=action,
            retains_empty=retains_empty,
            loses_transaction=loses_transaction,
            is_rebuilt=is_rebuilt,
            keeps_tombstones=keeps_tombstones,
            kept=kept,
            step=step,
            needs_records=needs_records.view(np.bool_),
            is_looked_up=is_looked_up.view(np.bool_),
            first_bit=noted.first_bit,
            own_ordinal=noted.own_ordinal,
            flags=noted.flags,
            keeps_all_tombstones=noted.keeps_all_tombstones,
            record_count=noted.record_count,
        )

    def note(self, window: Window) -> "WindowNotes":
        """Return what pass one noted of the batches of the segment's next window.

        Raises:
            ChangedWhileReadError: The segment is not what pass one read.
        """
        batches = window.batches
        count = len(batches)
        known = self._known
        if known is not None:
            here = known.rows_of(window)
            return WindowNotes(
                flags=known.flags[here],
                first_bit=known.sidecar.first_key[here],
                own_ordinal=np.full(count, NOT_DIRTY, np.int64),
                record_count=batches.record_count,
                keeps_all_tombstones=known.keeps_all_tombstones[here],
            )
        dirty = self._dirty
        notes = WindowNotes(
            flags=np.empty(count, np.uint8),
            first_bit=np.empty(count, np.int64),
            own_ordinal=np.empty(count, np.int64),
            record_count=np.empty(count, np.int64),
            keeps_all_tombstones=np.zeros(count, bool),
        )
        found, legacy, self._next_ordinal = note_batches(
            batches.columns,
            dirty.start_position - window.file_position,
            dirty.flags[self._next_flag :],
            dirty.legacy_counts[self._next_legacy :],
            self._next_ordinal,
            dirty.record_count,
            notes.flags,
            notes.record_count,
            notes.first_bit,
            notes.own_ordinal,
        )
        if found == MORE_LEGACY:
            raise ChangedWhileReadError(
                window.file, "the batches of the first pass", "more of formats v0 and v1"
            )
        if found == MORE_RECORDS:
            raise ChangedWhileReadError(
                window.file, f"{dirty.record_count} records", "more of them in the second pass"
            )
        self._next_flag += found
        self._next_legacy += legacy
        return notes

    def _look_up(
        self, judged: "JudgedWindow", payload: Payload, keys: KeyBlock, *, checks_crc: bool
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
        keys.read(
            payload,
            wanted,
            self._plan.limits,
            first_offset=_LOWEST_OFFSET,
            first_rank=0,
            checks_crc=checks_crc,
        )
        counts = np.where(wanted, batches.record_count, 0)
        first_bit = np.cumsum(counts) - counts
        words = np.zeros(max(1, words_for(int(counts.sum()))), np.uint64)
        is_dirty = judged.own_ordinal != NOT_DIRTY
        has_ordinals = (judged.flags & OPENED) != 0
        own_rank = judged.own_ordinal + rank_of(self._number, 0)
        mark_latest(
            self._index.offset_map.table,
            self._index.offset_map.seen(),
            keys.low,
            keys.high,
            keys.batch,
            keys.rank,
            keys.count,
            payload.first_row,
            first_bit,
            np.where(is_dirty, own_rank, ABSENT),
            (has_ordinals & is_dirty).view(np.uint8),
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
        is_noted = has_keys & ((judged.flags & (OPENED | INDEXED)) == OPENED | INDEXED)
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
        # Kafka adds in 64 bits: a sum that wraps around is negative, and such a horizon is none.
        new_horizon = self._plan.now_ms + self._plan.delete_retention_ms
        if new_horizon > _MAX_TIMESTAMP:
            new_horizon = NO_TIMESTAMP
        fate = np.empty(len(judged.kept), np.uint8)
        delete_horizon_ms = np.empty(len(judged.kept), np.int64)
        decide_fates(
            judged.window.batches.columns,
            judged.action,
            judged.retains_empty,
            judged.loses_transaction,
            judged.is_rebuilt,
            judged.kept,
            kept_tombstones,
            new_horizon,
            fate,
            delete_horizon_ms,
        )
        return fate, delete_horizon_ms


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


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowNotes:
    """What pass one noted of a window's batches.

    Attributes:
        flags: uint8[n], as noted, 0 where pass one did not look.
        first_bit: int64[n], where each batch's bits begin.
        own_ordinal: int64[n], the ordinal of its first record, or of the last record before it
            where it has none, NOT_DIRTY before the dirty part.
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
    retains_empty: NDArray[np.uint8]
    loses_transaction: NDArray[np.uint8]
    is_rebuilt: NDArray[np.uint8]  # whatever it loses
    keeps_tombstones: NDArray[np.uint8]
    kept: NDArray[np.int64]
    step: NDArray[np.uint8]
    needs_records: NDArray[np.bool_]
    is_looked_up: NDArray[np.bool_]
    first_bit: NDArray[np.int64]
    own_ordinal: NDArray[np.int64]
    flags: NDArray[np.uint8]  # as noted
    keeps_all_tombstones: NDArray[np.bool_]
    record_count: NDArray[np.int64]
