"""Logs as an Arrow dataset: a query engine hands it columns and a filter, and it reads what they
leave.

Which segments a filter leaves is Arrow's to say. Each segment is described by an expression that
holds for all of its records, and Arrow drops those whose expression contradicts the filter.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from storage_core.errors import PylogError
from storage_core.filenames import MAX_OFFSET, TopicPartition
from storage_core.reading.ranges import COLUMN_TYPES
from storage_core.reading.request import EARLIEST, LATEST
from storage_core.records.reader import Scanned, scanned_bytes
from storage_core.store.tier_archive import names_archive
from storage_core.values.registry_columns import Misfits, RegistryColumns

# Columns that cost next to nothing beside the others.
_CHEAP: Final = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})
# Arrow's fragments are of files; none of these is ever opened.
_FORMAT: Final = ds.ParquetFileFormat()
_NOWHERE: Final = LocalFileSystem()
_TIME: Final = COLUMN_TYPES["timestamp"]
# A part of a segment that is read or left.
_PIECE_BYTES: Final = 4 << 20
# Times that a filter may begin with.
_EARLIEST: Final = datetime(1970, 1, 2, tzinfo=UTC)
_LATEST: Final = datetime(2262, 1, 1, tzinfo=UTC)
# Of a record whose time no calendar has.
_UNTIMED: Final = ds.field("timestamp").is_null()
_MILLISECOND: Final = timedelta(milliseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_log: Final = logging.getLogger(__name__)

# Offsets of partitions.
_Offsets = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Times:
    """Between which times a filter's records lie, to the millisecond."""

    first: datetime | None  # None for no bound
    last: datetime | None  # likewise

    @property
    def are_bounds(self) -> bool:
        """Whether there is one of them."""
        return self.first is not None or self.last is not None

    def milliseconds(self) -> tuple[int, int]:
        """Return both since the epoch."""
        first = -MAX_OFFSET if self.first is None else (self.first - _EPOCH) // _MILLISECOND
        last = MAX_OFFSET if self.last is None else -((_EPOCH - self.last) // _MILLISECOND)
        return first, last


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """Offsets of a segment that are read or left."""

    partition: TopicPartition
    first: int
    past: int | None  # just past the last one; None where the log's end is not known
    size_bytes: int  # about

    def size_between(self, start: int, end: int) -> int:
        """Return about how many bytes some of its offsets have."""
        if self.past is None or self.past <= self.first:
            return self.size_bytes
        return self.size_bytes * (end - start) // (self.past - self.first)


class LogDataset(ds.Dataset):  # type: ignore[misc]  # Arrow has no types
    """The records of some topics, as a table of DuckDB.

    Args:
        logs: The ``kafka_log.Logs``.
        topics: As for ``Logs.read``.
        read: What else ``Logs.read`` is told.
        texts: By the name of a column, what makes text of its bytes, in a batch that also names
            its records.
        typed: What makes columns of keys or values; none that ``texts`` has.
        lateness: How much older than a record before it a record may be; None for no bound.

    Attributes:
        failure: What ended the last reading; a query engine makes an error of its own of it.
        read_bytes: How many bytes of segments were read, by all readings. What one of them looks at
            several times, as the end of a small log, counts once.
        size_bytes: How many bytes the segments have.
        planned_bytes: About how many of them all readings have to go through.
        done_bytes: How many of those they have read, or left out by the headers of batches.
        doubtful_bytes: How many were read of batches that are newer than a filter's latest time,
            and may have older records all the same; 0 with a lateness, which bounds that.
        on_read: Called when some have been read.
    """

    failure: PylogError | None = None
    read_bytes = size_bytes = planned_bytes = done_bytes = doubtful_bytes = 0
    on_read: Callable[[], object] | None = None

    def __init__(
        self,
        logs: Any,
        topics: Any,
        read: Mapping[str, Any],
        texts: Mapping[str, Callable[[pa.RecordBatch], pa.Array]] | None = None,
        *,
        typed: RegistryColumns | None = None,
        lateness: timedelta | None = None,
    ) -> None:
        # Arrow's own constructor makes none but its own datasets.
        self._logs, self._topics, self._read, self._texts = logs, topics, read, texts or {}
        self._typed, self._lateness = typed, lateness
        plain = pa.schema(COLUMN_TYPES)
        whole = plain if typed is None else typed.schema(plain)
        self._schema = pa.schema(
            {each.name: each.type for each in whole} | dict.fromkeys(self._texts, pa.large_string())
        )

    @property
    def schema(self) -> pa.Schema:
        """The columns, as a query sees them."""
        return self._schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: Any = None,  # noqa: A002  # the names are Arrow's
        **_: Any,
    ) -> "LogScanner":
        """Return what reads these columns of the records that pass a filter."""
        return LogScanner(self, self.schema.names if columns is None else list(columns), filter)

    def batches(self, names: Sequence[str], condition: Any) -> Iterator[pa.RecordBatch]:
        """Yield columns of the records that pass a filter."""
        for table in self.unfiltered(self._needed(names, condition), condition):
            passing = table if condition is None else table.filter(condition)
            yield from passing.select(names).to_batches()

    def unfiltered(self, names: Collection[str], condition: Any) -> Iterator[pa.Table]:
        """Yield columns, in the order of the schema, of the records that may pass a filter."""
        tables = self._tables([name for name in self.schema.names if name in names], condition)
        read = Scanned()
        try:
            while True:
                before = scanned_bytes()
                try:
                    table = next(tables, None)
                finally:
                    self._count(read, scanned_bytes() - before)
                if table is None:
                    return
                yield table
        except PylogError as error:
            self.failure = error
            raise
        finally:
            _log.info("%s: read %d of %d bytes", self._topics, self.read_bytes, self.size_bytes)

    def _count(self, read: Scanned, more: Scanned) -> None:
        """Add what a reading has scanned to what it had before."""
        known = min(read.size_bytes, self.size_bytes)
        read += more
        new_bytes = min(read.size_bytes, self.size_bytes) - known
        self.read_bytes += new_bytes
        self.done_bytes += new_bytes + more.left_out_bytes
        if self._lateness is None:
            self.doubtful_bytes += more.doubtful_bytes
        if self.on_read is not None:
            self.on_read()

    def _tables(self, names: Sequence[str], condition: Any) -> Iterator[pa.Table]:
        schema = pa.schema([self.schema.field(name) for name in names])
        sources = names if self._typed is None else self._typed.needed(names)
        misfits = Misfits()
        times = _Times(
            first=self._edge(condition, lambda time: ds.field("timestamp") < time),
            last=self._edge(condition, lambda time: ds.field("timestamp") > time, is_last=True),
        )
        for start, end in self._bounds(condition, times):
            records = self._logs.read(
                partitions=start, start=start, end=end, columns=sources, **self._read
            )
            if times.are_bounds:
                records = records.sifted(times.milliseconds())
            for batch in records:
                shown = {
                    name: self._texts[name](batch) if name in self._texts else batch.column(name)
                    for name in sources
                }
                if self._typed is None:
                    yield pa.table(shown)
                    continue
                typed = self._typed.decode(pa.record_batch(shown), schema, misfits)
                yield pa.Table.from_batches([typed])
        if misfits.count:
            _log.warning("%s", misfits)

    def _needed(self, names: Sequence[str], condition: Any) -> list[str]:
        """Return the columns that a query needs. Whether a filter needs others than these, Arrow
        alone can tell."""
        is_simple = condition is None and self._texts.keys().isdisjoint(names)
        wanted = {*names, *(() if is_simple else _CHEAP)} or {"offset"}
        needed = [name for name in self.schema.names if name in wanted]
        if condition is not None:
            try:
                pa.schema([self.schema.field(name) for name in needed]).empty_table().filter(
                    condition
                )
            except pa.ArrowInvalid:
                return list(self.schema.names)
        return needed

    def _bounds(self, condition: Any, times: _Times) -> Iterator[tuple[_Offsets, _Offsets]]:
        """Yield where reading starts and ends, by partition, as often as a partition has gaps
        between what is read."""
        rows = {
            TopicPartition(row["topic"], row["partition"]): row
            for row in self._logs.partitions(self._topics).to_pylist()
        }
        timed = self._timed(rows, condition, times)
        ranges: dict[TopicPartition, list[tuple[int, int]]] = {}
        for piece in self._left(rows, condition):
            partition = piece.partition
            log_start, log_end = (
                rows[partition][f"log_{edge}_offset"] for edge in ("start", "end")
            )
            if log_start is None or log_end is None:  # reading says what is wrong with it
                ranges[partition] = [(EARLIEST, LATEST)]
                continue
            least, most = timed.get(partition, (log_start, log_end))
            start = max(piece.first, log_start, least)
            end = min(log_end if piece.past is None else piece.past, log_end, most)
            self.planned_bytes += piece.size_between(start, max(start, end))
            before = ranges.setdefault(partition, [])
            if before and before[-1][1] == start:
                start = before.pop()[0]
            if start < end:
                before.append((start, end))
        while ranges := {partition: each for partition, each in ranges.items() if each}:
            taken = {partition: each.pop(0) for partition, each in ranges.items()}
            yield (
                {partition: start for partition, (start, _) in taken.items()},
                {partition: end for partition, (_, end) in taken.items()},
            )

    def _timed(
        self, rows: Mapping[TopicPartition, Mapping[str, Any]], condition: Any, times: _Times
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return the offsets between which a filter's times lie, by partition; none where they
        bound nothing. Partitions that it rules out have none."""
        first, past = times.first, None
        if times.last is not None and self._lateness is not None:
            # In whole milliseconds, as records have them.
            past = times.last + self._lateness + _MILLISECOND
        if first is None and past is None:
            return {}
        places = list(rows)
        chosen = [places[n] for n in _agreeing(list(map(_in, places)), self.schema, condition)]
        if not chosen:
            return {}
        found: dict[TopicPartition, tuple[int, int]] = self._logs.offsets(
            partitions=chosen,
            start=first,
            end=past,
            fail_on_data_loss=self._read.get("fail_on_data_loss", True),
        )
        # Offsets in a tier are there to be read, or to be named as missing.
        return (
            found if first is not None else {place: (0, end) for place, (_, end) in found.items()}
        )

    def _left(
        self, rows: Mapping[TopicPartition, Mapping[str, Any]], condition: Any
    ) -> Iterator[_Piece]:
        """Yield the pieces of segments that a filter leaves, in order."""
        segments: dict[TopicPartition, dict[int, Mapping[str, Any]]] = {each: {} for each in rows}
        self.size_bytes = 0
        for row in self._logs.segments(self._topics).to_pylist():
            self.size_bytes += row["size_bytes"]
            partition = TopicPartition(row["topic"], row["partition"])
            segments.setdefault(partition, {})[row["base_offset"]] = row
        are_timed = condition is not None and not self._may_hold(_UNTIMED, condition)
        pieces: list[_Piece] = []
        guarantees: list[Any] = []
        for partition, by_base in segments.items():
            if partition not in rows:
                continue
            # In a tier segments overlap, and those on the disk beside it are not among these.
            is_tier = names_archive(rows[partition]["location"])
            place = _in(partition)
            bases = [0, *sorted(base for base in by_base if base > 0)]
            ends = [*bases[1:], rows[partition]["log_end_offset"]]
            for base, end in zip(bases, ends, strict=True):
                segment = by_base.get(base, {})
                newest = segment.get("newest_timestamp")
                # The time index of a closed segment ends with its newest record.
                is_bounded = are_timed and base != bases[-1] and newest is not None and not is_tier
                size = segment.get("size_bytes") or 0
                edges = list(_split(base, end, size))
                for first, past in edges:
                    holds = place & (ds.field("offset") >= first)
                    if past is not None:
                        holds &= ds.field("offset") < past
                    if is_bounded:
                        holds &= ds.field("timestamp") <= pa.scalar(newest, _TIME)
                    pieces.append(
                        _Piece(
                            partition=partition,
                            first=first,
                            past=past,
                            size_bytes=size // len(edges),
                        )
                    )
                    guarantees.append(holds)
        yield from (pieces[number] for number in _agreeing(guarantees, self.schema, condition))

    def _edge(
        self, condition: Any, beyond: Callable[[Any], Any], *, is_last: bool = False
    ) -> datetime | None:
        """Return the outermost time that may pass a filter, to the millisecond; None for none."""
        if condition is None or self._may_hold(_UNTIMED, condition):
            return None
        outer, inner = (_LATEST, _EARLIEST) if is_last else (_EARLIEST, _LATEST)
        if self._may_hold(beyond(pa.scalar(outer, _TIME)), condition):
            return None
        while abs(inner - outer) > _MILLISECOND:
            middle = outer + (inner - outer) / 2
            may_hold = self._may_hold(beyond(pa.scalar(middle, _TIME)), condition)
            outer, inner = (outer, middle) if may_hold else (middle, inner)
        return outer

    def _may_hold(self, guarantee: Any, condition: Any) -> bool:
        return any(True for _ in _agreeing([guarantee], self.schema, condition))


def _in(partition: TopicPartition) -> Any:
    """Return what holds for the records of a partition."""
    number = pa.scalar(partition.partition, pa.int32())
    return (ds.field("topic") == partition.topic) & (ds.field("partition") == number)


def _split(base: int, end: int | None, size_bytes: int) -> Iterator[tuple[int, int | None]]:
    """Yield the offsets of a segment in ranges of some MiB each, if they are spread evenly."""
    count = -(-size_bytes // _PIECE_BYTES)
    if end is None or count < 2 or end - base < count:  # noqa: PLR2004  # one range
        yield base, end
        return
    edges = [base + (end - base) * number // count for number in range(count)]
    yield from zip(edges, [*edges[1:], end], strict=True)


def _agreeing(guarantees: Sequence[Any], schema: pa.Schema, condition: Any) -> Iterator[int]:
    """Yield which of some expressions may hold together with a filter."""
    fragments = [
        _FORMAT.make_fragment(str(number), _NOWHERE, partition_expression=each)
        for number, each in enumerate(guarantees)
    ]
    everything = ds.FileSystemDataset(fragments, schema, _FORMAT, _NOWHERE)
    for fragment in everything.get_fragments(filter=condition):
        yield int(fragment.path)


class LogScanner:
    """Reads columns of the records that pass a filter, batch by batch."""

    def __init__(self, dataset: LogDataset, names: Sequence[str], condition: Any) -> None:
        self._dataset, self._names, self._condition = dataset, names, condition

    @property
    def projected_schema(self) -> pa.Schema:
        """The columns that are read."""
        return pa.schema([self._dataset.schema.field(name) for name in self._names])

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the records, read on demand."""
        batches = self._dataset.batches(self._names, self._condition)
        return pa.RecordBatchReader.from_batches(self.projected_schema, batches)

    def to_table(self) -> pa.Table:
        """Return all of the records, in memory."""
        return self.to_reader().read_all()
