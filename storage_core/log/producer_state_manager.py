"""Producer snapshots of a directory and the state they give. The state follows from the newest
snapshot and the log behind it.

The counterpart of Kafka's ProducerStateManager while a log is loaded, recovered or truncated. All
changes go to a directory view; nothing is written.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Sequence
from contextlib import closing

from storage_core.errors import CorruptSnapshotError
from storage_core.filenames import (
    OFFSET_INDEX_SUFFIX,
    log_file,
    segment_file,
    snapshot_file,
)
from storage_core.log.batch_search import find_position, read_offset_index
from storage_core.log.directory_view import DirectoryView
from storage_core.log.log_segment import segments_from
from storage_core.log.producer_events import events_of_windows
from storage_core.log.producer_snapshot import (
    MAX_SNAPSHOT_BYTES,
    encode_producer_snapshot,
    parse_producer_snapshot,
)
from storage_core.log.producer_state import ProducerState
from storage_core.records.reader import scan_headers

_REPLAY_WINDOW_BYTES = 8 << 20


class ProducerStateManager:
    """Producers of one partition, and the snapshots on its disk.

    Attributes:
        snapshots: Offsets of the snapshots that this manager knows of, ascending.
    """

    def __init__(self, view: DirectoryView, *, now_ms: int, expiration_ms: int) -> None:
        self._view = view
        self._now_ms = now_ms
        self._expiration_ms = expiration_ms
        self._last_snapshot = 0
        self.state = ProducerState()
        self.map_end = 0
        self.snapshots = view.snapshot_offsets()

    def remove_strays(self, base_offsets: Sequence[int]) -> None:
        """Keep the newest snapshot at no segment's base, unless buried."""
        self.snapshots = self._view.snapshot_offsets()
        strays = sorted(set(self.snapshots) - set(base_offsets))
        for offset in strays[:-1]:
            self._remove(offset, "stray: no segment begins here, and a newer one is there")
        if strays and base_offsets and strays[-1] < base_offsets[-1]:
            self._remove(strays[-1], "stray: no segment begins here")

    def forget_segment(self, base_offset: int) -> None:
        """Remove the snapshot of a segment that is removed."""
        if self._knows(base_offset):
            self._remove(base_offset, "its segment is removed")

    def forget_swept(self, base_offsets: Collection[int]) -> None:
        """Take note that the snapshots of some segments went with them."""
        self.snapshots = [offset for offset in self.snapshots if offset not in base_offsets]

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Start over, without producers, at an offset."""
        for snapshot in self.snapshots.copy():
            self._remove(snapshot, f"the log starts over at {offset}")
        self.state = ProducerState()
        self._last_snapshot = 0
        self.map_end = offset

    def take_snapshot(self) -> None:
        """Write the state down unless a snapshot reaches as far already."""
        if self.map_end <= self._last_snapshot:
            return
        content = encode_producer_snapshot(self.state.producers.values())
        self._view.write(snapshot_file(self.map_end), content, "producers as of this offset")
        if not self._knows(self.map_end):
            insort(self.snapshots, self.map_end)
        self._last_snapshot = self.map_end

    def rebuild(
        self,
        base_offsets: Sequence[int],
        *,
        log_start_offset: int,
        end_offset: int,
        after_clean_shutdown: bool,
    ) -> None:
        """Bring the state to an offset by newest snapshot and replay.

        Args:
            log_start_offset: Snapshots at or below it go.
            end_offset: Where the state has to be complete; snapshots above it go.
            after_clean_shutdown: Whether a log without any snapshot counts as one without
                producers.
        """
        snapshot_at = [*base_offsets[-2:], end_offset]
        if after_clean_shutdown and not self.snapshots:
            for offset in snapshot_at:
                self.map_end = offset
                self.take_snapshot()
            return
        is_new_log = self.state.is_empty and self.map_end >= end_offset
        self._truncate_and_reload(log_start_offset, end_offset)
        if end_offset > self.map_end and not is_new_log:
            self._replay(base_offsets, log_start_offset, end_offset, set(snapshot_at))
        self.map_end = end_offset
        self.take_snapshot()

    def _truncate_and_reload(self, log_start_offset: int, end_offset: int) -> None:
        kept_from = bisect_right(self.snapshots, log_start_offset)
        kept_to = max(kept_from, bisect_right(self.snapshots, end_offset))
        for offset in (*self.snapshots[:kept_from], *self.snapshots[kept_to:]):
            self._remove(offset, f"outside of the log, which is {log_start_offset} to {end_offset}")
        if end_offset != self.map_end:
            self._load_newest(log_start_offset)
        else:
            self.state.transactions.advance_high_watermark(log_start_offset)
            self.map_end = max(self.map_end, log_start_offset)
            self._last_snapshot = self.snapshots[-1] if self.snapshots else log_start_offset

    def _load_newest(self, log_start_offset: int) -> None:
        self.state = ProducerState()
        while self.snapshots:
            offset = self.snapshots[-1]
            name = snapshot_file(offset)
            try:
                data = self._view.read(name, limit_bytes=MAX_SNAPSHOT_BYTES)
                entries = parse_producer_snapshot(name, data)
            except CorruptSnapshotError as error:
                self._remove(offset, str(error))
                continue
            self.state.load(entries, now_ms=self._now_ms, expiration_ms=self._expiration_ms)
            self._last_snapshot = self.map_end = offset
            return
        self._last_snapshot = self.map_end = log_start_offset

    def _remove(self, offset: int, reason: str) -> None:
        if self._knows(offset):
            del self.snapshots[bisect_left(self.snapshots, offset)]
        if snapshot_file(offset) in self._view:
            self._view.delete(snapshot_file(offset), reason)

    def _knows(self, offset: int) -> bool:
        place = bisect_left(self.snapshots, offset)
        return place < len(self.snapshots) and self.snapshots[place] == offset

    def _replay(
        self,
        base_offsets: Sequence[int],
        log_start_offset: int,
        end_offset: int,
        snapshot_at: set[int],
    ) -> None:
        place = bisect_right(base_offsets, end_offset)
        holder = base_offsets[place - 1] if place else None
        for base in segments_from(base_offsets, self.map_end):
            if base >= end_offset:
                break
            begin = max(base, self.map_end, log_start_offset)
            self.map_end = begin
            if base in snapshot_at:
                self.take_snapshot()
            name = log_file(base)
            index = read_offset_index(self._view, base, segment_file(base, OFFSET_INDEX_SUFFIX))
            position = find_position(self._view, name, begin, index.look_up(begin))
            if position is None:
                continue
            stop = None
            if base == holder:
                stop = find_position(self._view, name, end_offset, index.look_up(end_offset))
            with closing(self._view.open(name)) as reader:
                windows = scan_headers(
                    reader, start=position, end=stop, window_bytes=_REPLAY_WINDOW_BYTES
                )
                self.state.replay(name, events_of_windows(windows))
