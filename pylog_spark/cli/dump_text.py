"""Dumped batches and records as a person reads them."""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pylog_spark.cli.dump_internal import meaning_text
from pylog_spark.cli.dump_records import HEADERS, KEY, OFFSET, VALUE, record_rows
from pylog_spark.cli.dump_segment import DecodedBatches, FileContent, TornTail
from pylog_spark.options.choices import BytesFormat
from pylog_spark.record_text import (
    NotInFormatError,
    ValueFormat,
    format_of_headers,
    format_value,
    is_json,
    not_in_format,
)
from pylog_spark.text import escaped, readable_bytes
from storage_core.errors import BadBytesError
from storage_core.filenames import CLUSTER_METADATA_TOPIC
from storage_core.formats.batch_v2 import MAGIC_V2, NO_PRODUCER_ID, NO_SEQUENCE
from storage_core.kernels.batch_scan import UNKNOWN_COUNT
from storage_core.records.batch_table import (
    TIMESTAMP_TYPES,
    BatchTable,
    codec_name,
    control_name,
)
from storage_core.records.columns import RecordColumns
from storage_core.wording import LAST_MS, time_text

# How much of a key, a value or a header is shown.
_SHOWN_BYTES: Final = 120
_RECORDS_AT_A_TIME: Final = 1024


class TextLines:
    """The lines of one file, its name first.

    Args:
        topic: The internal topic whose records it holds; None for other ones.
        keys: How keys are written: anything but raw.
        is_full: Whether they are written whole, however long they are.
    """

    def __init__(
        self,
        file: str,
        topic: str | None = None,
        *,
        keys: ValueFormat = BytesFormat.TEXT,
        values: ValueFormat = BytesFormat.TEXT,
        is_full: bool = False,
    ) -> None:
        self._topic = topic
        self._keys, self._values = keys, values
        self._limit = None if is_full else _SHOWN_BYTES
        self._heading = f"{escaped(file)}\n"

    def lines(self, content: FileContent) -> Iterator[str]:
        """Yield output lines for batches, a tail, an entry or an error. The lines of batches
        include their records."""
        yield self._heading
        self._heading = ""
        match content:
            case DecodedBatches():
                yield from self._batches(content)
            case TornTail():
                what = "no whole batch: the end of the log"
                if content.is_zeros:
                    what = (
                        "zeros: the end of the log; a broker put them there ahead, or a crash left "
                        "them"
                    )
                size, position = content.size_bytes, content.position
                yield f"  {size} bytes from position {position} on are {what}\n"
            case BadBytesError():
                yield f"  ERROR at position {content.position}: {escaped(content.reason)}\n"
            case (_, entry):
                facts = (f"{name} {escaped(str(value))}" for name, value in entry.items())
                yield f"  {'  '.join(facts)}\n"

    def _batches(self, decoded: DecodedBatches) -> Iterator[str]:
        rows = decoded.batches.rows(decoded.first_row, decoded.end_row)
        start = 0
        control_lines = _OF_QUORUM if self._topic == CLUSTER_METADATA_TOPIC else _OF_CONTROL
        for row, end in enumerate(decoded.record_ends):
            yield _batch_line(rows, row, decoded.window.file_position)
            while start < end:
                stop = min(end, start + _RECORDS_AT_A_TIME)
                lines = control_lines if rows.is_control[row] else self
                yield from lines._record_lines(decoded.records, start, stop)  # noqa: SLF001  # of this class
                start = stop

    def _record_lines(self, records: RecordColumns, start: int, stop: int) -> Iterator[str]:
        times = _times_text(records.timestamp[start:stop])
        for row, time in zip(record_rows(records, start, stop), times, strict=True):
            try:
                key, value = self._text(row[KEY], self._keys), self._text(row[VALUE], self._values)
            except NotInFormatError as error:
                raise not_in_format(str(row[OFFSET]), error) from error
            of_headers = format_of_headers(self._values)
            named = [f"{escaped(name)}={self._text(v, of_headers)}" for name, v in row[HEADERS]]
            headers = f"  [{', '.join(named)}]" if named else ""
            yield f"    {row[OFFSET]}  {time}  {key} = {value}{headers}\n"
            if self._topic is not None:
                yield f"      {meaning_text(self._topic, row[KEY], row[VALUE])}\n"

    def _text(self, data: memoryview | None, how: ValueFormat) -> str:
        if data is None:
            return "null"
        limit = len(data) if self._limit is None else self._limit
        if how is BytesFormat.TEXT:
            text = f'"{readable_bytes(bytes(data[: limit + 1]), limit=limit)}"'
        else:
            whole = format_value(bytes(data), how)
            text = whole if is_json(how) else whole.strip('"')
            text = escaped(text if self._limit is None else text[:limit])
            text += "..." if self._limit is not None and len(whole) > limit else ""
        return text + (f" ({len(data)} bytes)" if len(data) > limit else "")


def _batch_line(rows: BatchTable, row: int, file_position: int) -> str:
    facts = [
        f"  batch {rows.base_offset[row]}..{rows.last_offset[row]}",
        *_format_facts(rows, row),
        f"{rows.size[row]} bytes at {rows.position[row] + file_position}",
        codec_name(int(rows.codec[row])),
        _times_of_batch(rows, row),
    ]
    if not rows.is_legacy[row]:
        facts.append(f"leader epoch {rows.leader_epoch[row]}")
    if rows.producer_id[row] != NO_PRODUCER_ID:
        facts.append(f"producer {rows.producer_id[row]} epoch {rows.producer_epoch[row]}")
    if rows.base_sequence[row] != NO_SEQUENCE:
        facts.append(f"sequences {rows.base_sequence[row]}..{rows.last_sequence[row]}")
    if rows.is_transactional[row]:
        facts.append("transactional")
    if rows.is_control[row]:
        facts.append(f"control {control_name(int(rows.control_type[row])) or 'without a record'}")
    if rows.has_delete_horizon[row]:
        facts.append(f"delete horizon {time_text(int(rows.base_timestamp[row]))}")
    if rows.crc_ok[row] != 1:
        facts.append("CRC WRONG")
    return ", ".join(facts) + "\n"


def _format_facts(rows: BatchTable, row: int) -> list[str]:
    """Return a batch's number of records, if known, and unusual magic."""
    facts = [] if rows.magic[row] == MAGIC_V2 else [f"magic {rows.magic[row]}"]
    # A legacy entry counts no records, and is not counted where it is not opened.
    if not rows.is_legacy[row] or rows.record_count[row] != UNKNOWN_COUNT:
        facts.append(f"{rows.record_count[row]} records")
    return facts


def _times_of_batch(rows: BatchTable, row: int) -> str:
    kind = TIMESTAMP_TYPES[int(rows.timestamp_type_id[row])]
    if not rows.has_timestamps[row]:
        return kind
    return f"{kind} up to {time_text(int(rows.max_timestamp[row]))}"


def _times_text(epoch_ms: NDArray[np.int64]) -> list[str]:
    """Return the result of time_text for each time, fast. Times of our days are formatted all at
    once."""
    usual = (epoch_ms >= 0) & (epoch_ms <= LAST_MS)
    shown = np.datetime_as_string(np.where(usual, epoch_ms, 0).astype("M8[ms]"), timezone="UTC")
    texts: list[str] = shown.tolist()
    for row in np.flatnonzero(~usual).tolist():
        texts[row] = time_text(int(epoch_ms[row]))
    return texts


# The records of markers, whose keys and values are Kafka's own.
_OF_CONTROL: Final = TextLines("")
_OF_QUORUM: Final = TextLines("", CLUSTER_METADATA_TOPIC)
