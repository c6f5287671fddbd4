"""Random logs of transactional producers, with what a committed consumer sees of them.

The model knows nothing of indexes or segments: it keeps, per producer, the offsets written since
its transaction began, and learns at the marker whether they count.
"""

from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

from storage_core.formats.control import ControlType
from tests.kit.builders import BatchSpec, RecordSpec, end_txn_marker
from tests.kit.directories import (
    DEFAULT_INDEX_INTERVAL_BYTES,
    AbortedTxnSpec,
    ProducerSpec,
    SegmentSpec,
    write_partition,
)

_PRODUCERS = 3
_NO_PRODUCER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLog:
    """A log and the truth about it."""

    segments: tuple[SegmentSpec, ...]  # what to write
    committed: tuple[int, ...]  # offsets that a committed consumer gets, ascending
    everything: tuple[int, ...]  # offsets of all data records, ascending
    last_stable_offset: int  # where committed data ends
    end_offset: int  # where the log ends

    def write(
        self,
        directory: Path,
        *,
        with_companions: bool,
        index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
    ) -> Path:
        """Write the partition; without companions there are .log files only, as in an archive."""
        write_partition(directory, self.segments, index_interval_bytes=index_interval_bytes)
        if not with_companions:
            for path in directory.iterdir():
                if path.suffix != ".log":
                    path.unlink()
        return directory


@st.composite
def transaction_logs(draw: st.DrawFn) -> TransactionLog:
    """Logs of a few producers, some transactional, over up to four segments."""
    writer = _Writer()
    for _ in range(draw(st.integers(1, 25))):
        step = draw(st.sampled_from(["data", "data", "data", "commit", "abort", "roll"]))
        producer = draw(st.integers(_NO_PRODUCER, _PRODUCERS - 1))
        if step == "data":
            writer.append_data(producer, draw(st.integers(1, 3)))
        elif step == "roll":
            writer.roll()
        else:
            writer.end(producer, ControlType.COMMIT if step == "commit" else ControlType.ABORT)
    return writer.result()


class _Writer:
    def __init__(self) -> None:
        self._offset = 0
        self._open: dict[int, list[int]] = {}
        self._first: dict[int, int] = {}
        self._sequences: dict[int, int] = {}
        self._committed: list[int] = []
        self._everything: list[int] = []
        self._segments: list[SegmentSpec] = []
        self._batches: list[BatchSpec] = []
        self._aborted: list[AbortedTxnSpec] = []
        self._base = 0
        self._producers: list[ProducerSpec] = []

    def append_data(self, producer: int, count: int) -> None:
        offsets = list(range(self._offset, self._offset + count))
        records = tuple(RecordSpec(key=b"%d" % offset, value=b"v") for offset in offsets)
        if producer == _NO_PRODUCER:
            self._batches.append(BatchSpec(base_offset=self._offset, records=records))
            self._committed += offsets
        else:
            sequence = self._sequences.get(producer, 0)
            self._batches.append(
                BatchSpec(
                    base_offset=self._offset,
                    records=records,
                    producer_id=producer,
                    producer_epoch=0,
                    base_sequence=sequence,
                    is_transactional=True,
                )
            )
            self._sequences[producer] = sequence + count
            self._first.setdefault(producer, self._offset)
            self._open.setdefault(producer, []).extend(offsets)
        self._everything += offsets
        self._offset += count

    def end(self, producer: int, kind: ControlType) -> None:
        if producer not in self._open:
            return
        self._batches.append(
            end_txn_marker(
                base_offset=self._offset,
                producer_id=producer,
                producer_epoch=0,
                control_type=kind,
            )
        )
        written = self._open.pop(producer)
        first = self._first.pop(producer)
        if kind is ControlType.COMMIT:
            self._committed += written
        else:
            stable = min(self._first.values(), default=self._offset + 1)
            self._aborted.append(
                AbortedTxnSpec(
                    producer_id=producer,
                    first_offset=first,
                    last_offset=self._offset,
                    last_stable_offset=stable,
                )
            )
        self._offset += 1

    def roll(self) -> None:
        if not self._batches:
            return
        self._close()
        self._base = self._offset
        self._batches, self._aborted = [], []
        self._producers = [
            ProducerSpec(
                producer_id=producer,
                last_sequence=sequence - 1,
                last_offset=self._offset - 1,
                last_timestamp=1,
                current_txn_first_offset=self._first.get(producer, -1),
            )
            for producer, sequence in self._sequences.items()
        ]

    def result(self) -> TransactionLog:
        self._close()
        stable = min(self._first.values(), default=self._offset)
        return TransactionLog(
            segments=tuple(self._segments),
            committed=tuple(sorted(offset for offset in self._committed if offset < stable)),
            everything=tuple(self._everything),
            last_stable_offset=stable,
            end_offset=self._offset,
        )

    def _close(self) -> None:
        self._segments.append(
            SegmentSpec(
                base_offset=self._base,
                batches=tuple(self._batches),
                aborted=tuple(self._aborted),
                producers=tuple(self._producers) if self._segments else None,
            )
        )
