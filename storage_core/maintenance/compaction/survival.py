"""Choose a window's surviving batches and records, over arrays. The rules are those of Kafka's
cleaner for retention."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import ChangedWhileReadError, UnsupportedFormatError
from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.kernels.batch_filter import (
    DROP,
    FILTER,
    filter_records,
    settle_look_ups,
)
from storage_core.kernels.batch_judge import (
    MORE_LEGACY,
    MORE_RECORDS,
    NO_ROW,
    decide_fates,
    judge_batches,
    note_batches,
    place_records,
    sift_batches,
)
from storage_core.kernels.batch_notes import (
    IS_LOOKED_UP,
    KEEPS_ALL_TOMBSTONES,
    NEEDS_RECORDS,
    NOT_DIRTY,
    NOTED_BIT,
    NOTED_BIT_END,
    NOTED_COUNT,
    NOTED_FLAG,
    NOTED_FLAG_END,
    NOTED_LEGACY,
    NOTED_LEGACY_END,
    NOTED_RANK,
    NOTED_START,
)
from storage_core.kernels.batch_scan import HAS_LEGACY, NO_ROOM
from storage_core.kernels.batch_write import GONE, HEADER_ONLY, REBUILT, VERBATIM
from storage_core.kernels.offset_table import LOOK_UP_BLOCK, ORDINAL_BITS, mark_latest
from storage_core.kernels.record_scan import DONE, HAS_TOMBSTONE, INDEXED, OPENED
from storage_core.kernels.survivors import LOOKED_UP, NOTED, NOWHERE
from storage_core.log.loaded_log import SegmentState
from storage_core.maintenance.compaction.index import (
    BASE_OFFSET,
    BATCHES,
    LEGACY_SETS,
    RECORDS,
    START_POSITION,
    CompactionIndex,
    RoundBuffers,
    WindowBuffers,
    words_for,
)
from storage_core.maintenance.compaction.key_sidecar import (
    NO_KEYS,
    BlockKeys,
    Foresight,
    Halves,
    KnownSegment,
)
from storage_core.maintenance.compaction.offset_map import KeyBlock
from storage_core.maintenance.compaction.plan import CompactionPlan
from storage_core.records.batch_table import BatchNotes, BatchTable
from storage_core.records.payload import Payload, open_batches
from storage_core.records.reader import Window, WindowRoom

_NO_WORDS = np.zeros(1, np.uint64)
_LOWEST_OFFSET = -(2**63)
_MAX_TIMESTAMP = 2**63 - 1
_NO_FLAGS = np.empty(0, np.uint8)
_NO_COUNTS = np.empty(0, np.int64)
# By what note_batches returns: what pass one found, and pass two.
_CHANGES = {
    MORE_LEGACY: ("the batches of the first pass", "more of formats v0 and v1"),
    MORE_RECORDS: ("the records of the first pass", "more of them in the second pass"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFates:
    """What becomes of batches [first_row, end_row) of a window."""

    payload: Payload  # the batches, with all notes, and where the records of the rebuilt ones lie
    keep: NDArray[np.uint8]  # uint8[], by record, where FIRST_RECORD says: whether it stays
    messages_read: int
    invalid_messages: int  # records without a key that were dropped
    keys: BlockKeys | None = None  # hashes of the keys, None where nobody asks for them


class ProducerLookup:
    """The batches that keep the sequences of live producers alive.

    Attributes:
        retained: int64[], last offsets of batches of data whose headers may stay, as they rise:
            those of the producers, and that of the batch at the high watermark.
    """

    def __init__(self, plan: CompactionPlan) -> None:
        by_id = sorted(plan.producers, key=lambda producer: producer.producer_id)
        self._ids = np.array([producer.producer_id for producer in by_id], np.int64)
        self._epochs = np.array([producer.producer_epoch for producer in by_id], np.int64)
        self._offsets = np.array([producer.last_data_offset for producer in by_id], np.int64)
        self.retained = np.sort(np.append(self._offsets, plan.high_watermark - 1))

    def is_last_batch(self, batches: BatchTable) -> NDArray[np.bool_]:
        """Return which batches are the last of their producer. A producer without a remembered
        data batch has its markers of the current epoch instead."""
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
    """Judge the windows of a run of source segments. Call `note` in order; the other methods may
    run beside each other.

    Args:
        run: The segments, alike as ``CompactionPlan.runs_of`` tells; several lie in one window.
        known_segment: What a sidecar told of the only one, None where it was not asked.
        tells_keys: Whether verdicts have the hashes of the keys; then it is one segment.

    Attributes:
        left_out: How many records `sift` has left out of the last window.
    """

    def __init__(
        self,
        plan: CompactionPlan,
        index: CompactionIndex,
        producers: ProducerLookup,
        run: Sequence[SegmentState],
        *,
        known_segment: KnownSegment | None = None,
        tells_keys: bool = False,
    ) -> None:
        self._plan = plan
        self._index = index
        self._producers = producers
        self._file = run[0].log_file
        # Pass one has looked at checksums; where the map was full, only up to there.
        self.checks_crc = plan.verify_crc
        self._keeps_legacy_tombstones = plan.keeps_legacy_tombstones(run[0])
        self._tells_keys = tells_keys
        self._known_segment = known_segment
        self._words = _NO_WORDS
        self._noted_keys: Halves | None = None
        self._noted = np.zeros((NOTED_COUNT, len(run)), np.int64)
        self._noted[NOTED_START] = sys.maxsize  # of a segment that pass one has not read
        self._flags = _NO_FLAGS
        self._legacy_counts = _NO_COUNTS
        self.left_out = 0
        if known_segment is not None:
            self._words = known_segment.words
            self._noted_keys = known_segment.sidecar.low, known_segment.sidecar.high
        elif run[0].base_offset in index.segments.numbers:
            self._take_notes(index.segments.numbers[run[0].base_offset], len(run))

    def _take_notes(self, first: int, count: int) -> None:
        """Take what pass one noted of some of its segments."""
        index, noted = self._index, self._noted
        segments = index.segments.between(first, first + count)
        columns, base_offset = segments.columns, int(segments.columns[BASE_OFFSET, -1])
        if columns[START_POSITION, 0] == 0:
            self.checks_crc &= self._plan.end_of(base_offset) > index.end_offset
        self._words, noted[NOTED_BIT] = index.bitmaps_of(first, first + count)
        if not self._words.size:
            self._words = _NO_WORDS
        self._flags, self._legacy_counts = segments.flags, segments.legacy_counts
        noted[NOTED_START] = columns[START_POSITION]
        np.cumsum(columns[BATCHES], out=noted[NOTED_FLAG_END])
        noted[NOTED_FLAG, 1:] = noted[NOTED_FLAG_END, :-1]
        np.cumsum(columns[LEGACY_SETS], out=noted[NOTED_LEGACY_END])
        noted[NOTED_LEGACY, 1:] = noted[NOTED_LEGACY_END, :-1]
        np.add(noted[NOTED_BIT], columns[RECORDS], out=noted[NOTED_BIT_END])
        noted[NOTED_RANK] = np.arange(first, first + count) << ORDINAL_BITS
        if self._tells_keys:
            self._noted_keys = index.hashes.take(base_offset, int(columns[RECORDS, -1]))

    def foresee(self, known_segment: KnownSegment, discard: NDArray[np.bool_]) -> Foresight:
        """Return which batches of a sidecar segment need their records read.

        Args:
            known_segment: What the sidecar tells.
            discard: bool[batches], what the transaction tracker says of all of them.
        """
        window = known_segment.window()
        notes = BatchNotes.empty(len(window.batches))
        self.note(window, notes)
        self.observe(window, notes, discard)
        notes.tombstones[:] = 0
        self._decide_fates(window.batches, notes)
        stays = notes.fate == VERBATIM
        return Foresight(
            is_settled=~notes.have(NEEDS_RECORDS) & (stays | (notes.fate == GONE)),
            stays=stays,
            was_read=notes.action != DROP,
        )

    def judge(
        self,
        window: Window,
        notes: BatchNotes,
        first_row: int,
        buffers: WindowBuffers,
        *,
        checks_crc: bool = False,
    ) -> WindowFates:
        """Judge a window's rows from first_row on, as many as fit. The limit is memory. Any thread
        may ask.

        Args:
            notes: What is known of it, as `observe` left them; what becomes of the rows is added.
            first_row: 0, or where the verdict before ended.
            buffers: For what the verdict is made of; the verdict is valid until it is used again.
            checks_crc: Whether to look at checksums where keys are looked up, as `KeyBlock.read`.
        """
        plan, index = self._plan, self._index
        needs_records = notes.have(NEEDS_RECORDS)
        payload = None
        if first_row == 0:
            payload = index.records.take(window, needs_records, notes)
        if payload is None:
            payload = open_batches(
                window, needs_records, first_row, plan.limits, buffers.arena, notes
            )
        batches = payload.batches.rows(first_row, payload.end_row)
        notes = notes.rows(first_row, payload.end_row)
        places, messages_read, row = place_records(batches.columns, notes.columns)
        if row != NO_ROW:
            raise ChangedWhileReadError(
                window.place_of(first_row + row)[0],
                f"{notes.pass_one_count[row]} records in a batch",
                f"{batches.record_count[row]} in the second pass",
            )
        look_up_words, looked_up = self._look_up(payload, buffers.keys, checks_crc=checks_crc)
        keep = np.empty(places, np.uint8)
        invalid, status, row, position = filter_records(
            window.data,
            payload.arena,
            batches.columns,
            notes.columns,
            self._words,
            look_up_words,
            index.latest_offset,
            plan.max_record_bytes,
            keep,
        )
        if status != DONE:
            raise payload.error(status, first_row + row, position)
        self._decide_fates(batches, notes)
        _refuse_empty_legacy(window, notes, first_row)
        keys = None
        if self._tells_keys:
            self._note_keys(batches, notes)
            keys = BlockKeys(noted=self._noted_keys or NO_KEYS, looked_up=looked_up)
        return WindowFates(
            payload=payload,
            keep=keep,
            messages_read=messages_read,
            invalid_messages=invalid,
            keys=keys,
        )

    def observe(self, window: Window, notes: BatchNotes, discard: NDArray[np.bool_]) -> None:
        """Settle a window's batches by headers and bitmaps, as far as possible. Any thread may ask.

        Args:
            notes: As `note` left them; what is settled is added.
            discard: bool[n], what the transaction tracker says of each batch.
        """
        judge_batches(
            window.batches.columns,
            notes.columns,
            discard.view(np.uint8),
            self._producers.is_last_batch(window.batches).view(np.uint8),
            self._words,
            self._index.latest_offset,
            self._plan.high_watermark,
            self._plan.now_ms,
            self._keeps_legacy_tombstones,
            self._plan.recompresses_all,
        )

    def note(self, window: Window, notes: BatchNotes) -> None:
        """Copy pass one's notes for the batches of the next window."""
        batches = window.batches
        known_segment = self._known_segment
        if known_segment is not None:
            here = known_segment.rows_of(window)
            notes.flags[:] = known_segment.flags[here]
            notes.first_bit[:] = known_segment.sidecar.first_key[here]
            notes.own_rank[:] = NOT_DIRTY
            notes.pass_one_count[:] = batches.record_count
            notes.marks[:] = np.where(
                known_segment.keeps_all_tombstones[here], KEEPS_ALL_TOMBSTONES, 0
            )
            return
        status, row = note_batches(
            batches.columns,
            notes.columns,
            window.row_bounds(),
            window.begins,
            self._noted,
            self._flags,
            self._legacy_counts,
        )
        if status != DONE:
            expected, actual = _CHANGES[status]
            raise ChangedWhileReadError(window.place_of(row)[0], expected, actual)

    @property
    def can_sift(self) -> bool:
        """Whether `sift` may leave batches out: nobody else looks at them."""
        return bool(self._flags.size) and not self.checks_crc

    def sift(
        self, pool: RoundBuffers, room: WindowRoom, buffer: NDArray[np.uint8], position: int
    ) -> tuple[int, int]:
        """Find the batches of the segment's next window, and note them as `note` does. Those of
        which nothing stays are left out, the first one never.

        Args:
            pool: Of which the following buffers get the notes.
            room: Gets the headers.
            position: Where in the segment the buffer lies.

        Returns:
            As ``WindowRoom.find_batches``.
        """
        room.joined = None
        notes = pool.following.more_notes()
        while True:
            noted = self._noted.copy()
            count, used, status, left_out = sift_batches(
                buffer,
                room.table,
                notes.columns,
                noted[NOTED_START, 0] - position,
                noted,
                self._flags,
                self._legacy_counts,
                self._words,
                self._index.latest_offset,
                self._producers.retained,
            )
            if status != NO_ROOM:
                break
            if count == room.table.shape[1]:
                room.grow()
            notes = pool.following.more_notes(count)
        if status in _CHANGES:
            raise ChangedWhileReadError(self._file, *_CHANGES[status])
        self._noted, self.left_out = noted, left_out
        return count, used

    def _look_up(
        self, payload: Payload, keys: KeyBlock, *, checks_crc: bool
    ) -> tuple[NDArray[np.uint64], Halves]:
        """Look up the newest record of each key, as a bitmap. The bitmap is for the rows that have
        none yet.

        And the hashes of the keys by bit, if those are told. LOOK_UP_BIT of these rows is noted.
        """
        first_row, end_row = payload.first_row, payload.end_row
        batches = payload.batches.rows(first_row, end_row)
        notes = payload.notes.rows(first_row, end_row)
        is_looked_up = notes.have(IS_LOOKED_UP)
        if not is_looked_up.any():
            return _NO_WORDS, NO_KEYS
        wanted = np.zeros(len(payload.batches), bool)
        wanted[first_row:end_row] = is_looked_up
        keys.read(
            payload,
            wanted,
            self._plan.limits,
            first_offset=_LOWEST_OFFSET,
            checks_crc=checks_crc,
        )
        counts = np.where(is_looked_up, batches.record_count, 0)
        notes.look_up_bit[:] = np.cumsum(counts) - counts
        words = np.zeros(max(1, words_for(int(counts.sum()))), np.uint64)
        mark_latest(
            self._index.offset_map.table,
            self._index.offset_map.hash_bits(),
            keys.low[: keys.count],
            keys.high[: keys.count],
            keys.batch[: keys.count],
            keys.rank[: keys.count],
            notes.columns,
            np.empty(LOOK_UP_BLOCK, np.int64),
            words,
        )
        latest_offset = self._index.latest_offset
        settle_look_ups(batches.columns, notes.columns, keys.flags, latest_offset, words)
        return words, _by_bit(keys, int(counts.sum())) if self._tells_keys else NO_KEYS

    def _note_keys(self, batches: BatchTable, notes: BatchNotes) -> None:
        """Note the sidecar flags of batches, and their hashes' source."""
        is_verbatim = notes.fate == VERBATIM
        stays = is_verbatim | (notes.fate == REBUILT)
        new_horizon = np.where(is_verbatim, batches.delete_horizon_ms, notes.delete_horizon_ms)
        # Without a horizon it would be asked for one again.
        is_final = (notes.tombstones == 0) | (new_horizon >= 0)
        is_fit = stays & is_final & ~batches.is_legacy
        has_keys = is_fit & (notes.action == FILTER)
        has_keys &= batches.last_offset <= self._index.latest_offset
        is_noted = has_keys & ((notes.flags & (OPENED | INDEXED)) == OPENED | INDEXED)
        hashes, flags = notes.hashes, notes.sidecar_flags
        hashes[:] = NOWHERE
        if self._noted_keys is not None:
            hashes[is_noted] = NOTED
        hashes[has_keys & notes.have(IS_LOOKED_UP)] = LOOKED_UP
        flags[:] = np.where(is_fit & batches.is_control, INDEXED, 0)
        flags[hashes != NOWHERE] = INDEXED | OPENED
        # Where all tombstones stay, nobody has looked for them.
        has_tombstone = (notes.tombstones > 0) | notes.have(KEEPS_ALL_TOMBSTONES)
        flags[(hashes != NOWHERE) & has_tombstone] |= HAS_TOMBSTONE

    def _decide_fates(self, batches: BatchTable, notes: BatchNotes) -> None:
        """Note what becomes of batches, and their delete horizon."""
        # Kafka adds in 64 bits: a sum that wraps around is negative, and such a horizon is none.
        new_horizon = self._plan.now_ms + self._plan.delete_retention_ms
        if new_horizon > _MAX_TIMESTAMP:
            new_horizon = NO_TIMESTAMP
        decide_fates(batches.columns, notes.columns, new_horizon)


def _refuse_empty_legacy(window: Window, notes: BatchNotes, first_row: int) -> None:
    """Refuse to keep a batch without records that has no such form."""
    if not window.batches.kinds & HAS_LEGACY:
        return
    batches = window.batches.rows(first_row, first_row + len(notes))
    is_bad = (notes.fate == HEADER_ONLY) & batches.is_legacy
    for row in (np.flatnonzero(is_bad)[:1] + first_row).tolist():
        raise UnsupportedFormatError(
            *window.place_of(row),
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
