"""Read the batches of a damaged segment, also safely behind damage.

Kafka's own reader ends at the first bytes that are no batch. Here the search for the next one goes
on, and only what cannot be chance counts as a batch: the bytes of format v2, a length that fits, an
offset that follows, a checksum that is right.
"""

import enum
from collections.abc import Generator
from contextlib import closing
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import CorruptRecordError
from storage_core.formats.index_entries import MAX_RELATIVE_OFFSET
from storage_core.maintenance.verification.collector import FindingCollector
from storage_core.maintenance.verification.findings import Code
from storage_core.records.batch_finder import BatchFinder
from storage_core.records.checked_headers import scan_checked_headers
from storage_core.records.reader import CrcCheck, Large, Tail, Window, find_zeros, scan_windows
from storage_core.store.base import FileReader

_MAX_GAPS: Final = 64


class TailKind(enum.StrEnum):
    """The bytes behind the last batch of a segment."""

    NOTHING = "nothing"
    TORN = "torn"  # the start of a batch
    ZEROS = "zeros"
    GARBAGE = "garbage"  # it is already reported as a finding
    SHRUNK = "shrunk"  # nothing: the file was cut during the read


class BatchStream:
    """Windows of whole batches of one segment. It is iterated once, and then tells how the segment
    ended.

    Args:
        window_bytes: How much to hold at a time.
        keeps_records: Whether the windows have the records, too, not only what headers say.
        threads: How many threads check what is read without its records.

    Attributes:
        end_position: Just past the last batch that was yielded.
        tail: The content behind it.
    """

    def __init__(
        self,
        reader: FileReader,
        base_offset: int,
        *,
        window_bytes: int,
        keeps_records: bool,
        threads: int,
        findings: FindingCollector,
    ) -> None:
        self.end_position = 0
        self.tail = TailKind.NOTHING
        self._reader = reader
        self._base_offset = base_offset
        self._window_bytes = window_bytes
        self._keeps_records = keeps_records
        self._threads = threads
        self._findings = findings
        self._largest_offset = base_offset - 1
        self._finder = BatchFinder(reader, reader.size_bytes)

    def __iter__(self) -> Generator[Window]:
        size = self._reader.size_bytes
        for _ in range(_MAX_GAPS):
            reason = yield from self._read_on()
            start = self.end_position
            if reason is None and start == size:
                return
            if not self._read(size - 1, 1).size:  # the file was longer when it was opened
                remaining = self._read(self.end_position, self._window_bytes).size
                yield from self._read_on(end=self.end_position + remaining)
                self.tail = TailKind.SHRUNK
                return
            if find_zeros(self._reader, start, size) == start:
                self.tail = TailKind.ZEROS
                return
            following = self._finder.find(
                start + 1,
                self._largest_offset + 1,
                self._base_offset + MAX_RELATIVE_OFFSET + 1,
            )
            if following is None:
                self.tail = TailKind.TORN if reason is None else TailKind.GARBAGE
                if reason is not None:
                    self._report(start, f"{reason}; no batch follows in {size - start} bytes")
                return
            skipped = following - start
            text = reason or "the batch says that it is longer than the rest of the file"
            self._report(start, f"{text}; the next batch was found {skipped} bytes further on")
            self.end_position = following
        self.tail = TailKind.GARBAGE
        self._report(self.end_position, f"more than {_MAX_GAPS} gaps: the rest was not read")

    def note_offset(self, last_offset: int) -> None:
        """Note the last good offset as floor for later batches."""
        self._largest_offset = max(self._largest_offset, last_offset)

    def _read_on(self, end: int | None = None) -> Generator[Window, None, str | None]:
        """Yield windows from end_position on; return the reason for the end. The reason is None
        at a tail or at the end of the file."""
        try:
            with closing(self._windows(end)) as windows:
                for window in windows:
                    self.end_position = window.file_position + window.size_bytes
                    yield window
        except CorruptRecordError as error:
            return error.reason
        return None

    def _windows(self, end: int | None) -> Generator[Window]:
        if not self._keeps_records:
            return scan_checked_headers(
                self._reader,
                start=self.end_position,
                end=end,
                window_bytes=self._window_bytes,
                large=Large.VALID,
                threads=self._threads,
            )
        return scan_windows(
            self._reader,
            start=self.end_position,
            end=end,
            window_bytes=self._window_bytes,
            crc=CrcCheck.NOTE,
            tail=Tail.STOP,
            large=Large.VALID,
        )

    def _report(self, position: int, message: str) -> None:
        self._findings.add(
            Code.BATCH_LENGTH_IMPOSSIBLE,
            message,
            file=self._reader.name,
            position=position,
            offset=self._largest_offset + 1,
        )

    def _read(self, position: int, size_bytes: int) -> NDArray[np.uint8]:
        target = np.empty(size_bytes, np.uint8)
        return target[: self._reader.read_into(position, target)]
