"""Splitting a segment whose offsets do not fit it, as Kafka does when it loads such a log.

Old brokers could compact segments into one whose offsets lie more than 2^31 - 1 above its base.
Batch by batch it is copied into as many segments as that takes, each named by its first batch's
base offset; then they are swapped in as compaction does it.
"""

from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import CorruptRecordError
from storage_core.filenames import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    log_file,
    segment_file,
)
from storage_core.formats.index_entries import MAX_RELATIVE_OFFSET
from storage_core.index.index_builder import IndexBuilder
from storage_core.log.batch_search import first_offset_of
from storage_core.log.directory_view import DirectoryView
from storage_core.records.payload import Limits
from storage_core.records.reader import CrcCheck, Tail, Window, scan_windows

_NEW_SUFFIXES = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One segment that comes of a split: where in the old one it begins, and its indexes."""

    base_offset: int
    start: int
    indexes: IndexBuilder

    def takes(self, last_offset: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which batches fit it."""
        relative = last_offset - self.base_offset
        fits: NDArray[np.bool_] = (relative >= 0) & (relative <= MAX_RELATIVE_OFFSET)
        return fits


def split_segment(
    view: DirectoryView,
    base_offset: int,
    *,
    index_interval_bytes: int,
    max_index_bytes: int,
    limits: Limits,
) -> list[int]:
    """Plan to replace a segment by parts whose offsets fit; return their base offsets.

    Args:
        view: The partition directory.
        base_offset: Of the segment.
        index_interval_bytes: ``index.interval.bytes``.
        max_index_bytes: ``segment.index.bytes``.
        limits: How large records and batches may become when they are decompressed.

    Raises:
        CorruptRecordError: The segment does not end with a whole batch, or a batch ends below
            where it begins: Kafka does not load such a log.
        CorruptIndexError: Offsets do not rise.
        IndexFullError: An index has no room.
    """
    name = log_file(base_offset)
    size_bytes = view.source(name).size_bytes
    parts: list[_Part] = []
    end = 0
    with closing(view.open(name)) as reader:
        for window in scan_windows(reader, crc=CrcCheck.SKIP, tail=Tail.STOP):
            row = 0
            while row < len(window.batches):
                if not parts or not parts[-1].takes(window.batches.last_offset[row : row + 1])[0]:
                    first = first_offset_of(window, row, limits)
                    indexes = IndexBuilder(
                        log_file(first),
                        first,
                        interval_bytes=index_interval_bytes,
                        max_index_bytes=max_index_bytes,
                    )
                    start = window.position_of(row)
                    parts.append(_Part(base_offset=first, start=start, indexes=indexes))
                row = _fill(parts[-1], window, row)
            end = window.file_position + window.data.size
    if end != size_bytes:
        raise CorruptRecordError(
            name, end, f"expected whole batches up to {size_bytes}, where the segment ends"
        )
    _plan(view, base_offset, parts, size_bytes)
    return sorted({part.base_offset for part in parts})


def _fill(part: _Part, window: Window, row: int) -> int:
    """Give a part the batches from row on that fit; return the row after them."""
    rest = window.batches.rows(row, len(window.batches))
    misfits = np.flatnonzero(~part.takes(rest.last_offset))
    count = int(misfits[0]) if misfits.size else len(rest)
    if count == 0:
        raise CorruptRecordError(
            window.file,
            window.position_of(row),
            f"expected a batch that begins at offset {part.base_offset} to end at most "
            f"{MAX_RELATIVE_OFFSET} above it, found {rest.last_offset[0]}",
        )
    taken = rest.rows(0, count)
    part.indexes.add(taken.size, taken.last_offset, taken.max_timestamp)
    return row + count


def _plan(view: DirectoryView, base_offset: int, parts: list[_Part], size_bytes: int) -> None:
    old = log_file(base_offset)
    new = f"split of the segment {base_offset}, whose offsets do not fit it"
    modified_ms = view.source(old).modified_ms
    ends = [*(part.start for part in parts[1:]), size_bytes]
    for part, end in zip(parts, ends, strict=True):
        target = log_file(part.base_offset) + CLEANED_SUFFIX
        view.copy(old, part.start, end - part.start, target, new)
        contents = part.indexes.finish()
        for suffix, content in zip(_NEW_SUFFIXES[1:], contents, strict=True):
            index_name = segment_file(part.base_offset, suffix) + CLEANED_SUFFIX
            view.write_now(index_name, content, modified_ms, new)
    view.sync("the parts are complete")
    for part in reversed(parts):
        for suffix in _NEW_SUFFIXES:
            name = segment_file(part.base_offset, suffix)
            view.rename(name + CLEANED_SUFFIX, name + SWAP_SUFFIX, "from here on it counts")
    view.sync("from here on they count")
    replaced = [
        name for suffix in SEGMENT_SUFFIXES if (name := segment_file(base_offset, suffix)) in view
    ]
    for name in replaced:
        view.rename(name, name + DELETED_SUFFIX, "split into parts that fit")
    view.sync("what was split is gone")
    for part in parts:
        for suffix in _NEW_SUFFIXES:
            name = segment_file(part.base_offset, suffix)
            view.rename(name + SWAP_SUFFIX, name, new)
    view.sync("the swap is complete")
    for name in replaced:
        view.delete_now(name + DELETED_SUFFIX, "split into parts that fit")
