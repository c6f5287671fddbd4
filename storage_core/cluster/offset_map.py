"""Read maps from a topic's offsets to another cluster's copy's offsets.

::

    topic, partition, upstream_offset, downstream_offset
    orders, 0, 0, 0
    orders, 0, 1000, 1004

Topic and partition are the original's. MirrorMaker 2 writes such pairs to its topic of offset
syncs; each is of one record. Where it began anew with older records, pairs before that do not count
any more from that offset on, as in ``OffsetSyncStore``.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.cluster.log_batches import LogReader, ReadDepth
from storage_core.cluster.resting_log import RestingLog
from storage_core.errors import ConfigError, InvalidNameError, MalformedMessageError
from storage_core.filenames import MAX_OFFSET, MAX_PARTITION, TopicPartition, validate_topic
from storage_core.messages.fields import FieldReader
from storage_core.messages.schema import INT32, INT64, STRING, Field, Message, Struct

COLUMNS: Final = ("topic", "partition", "upstream_offset", "downstream_offset")
MAX_MAP_BYTES: Final = 64 << 20
# Users with a larger map need only some of its pairs.
_MOST_PAIRS: Final = 1_000_000
_OPTION: Final = "--offset-map"
_WHOLE: Final = re.compile(r"[0-9]{1,19}", re.ASCII)
_SHOWN: Final = 80

# Records of MirrorMaker's topic ``mm2-offset-syncs.<alias>.internal``, which have no version, as
# ``org.apache.kafka.connect.mirror.OffsetSync`` writes them.
OFFSET_SYNC_KEY: Final = Message(
    fields=Struct(Field("topic", STRING), Field("partition", INT32)), flexible_since=None
)
OFFSET_SYNC_VALUE: Final = Message(
    fields=Struct(Field("upstream_offset", INT64), Field("offset", INT64)), flexible_since=None
)

# Pairs of a partition, int64[n, 2]: offset in the original, rising, and in the copy.
OffsetMap = Mapping[TopicPartition, NDArray[np.int64]]
_Pairs = Iterable[tuple[TopicPartition, int, int]]


def parse_offset_map(content: bytes, file: str) -> OffsetMap:
    """Read an offset map from CSV."""
    if len(content) > MAX_MAP_BYTES:
        raise ConfigError(_OPTION, file, f"is longer than the {MAX_MAP_BYTES:,} bytes it may have")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(_OPTION, file, f"byte {error.start}: expected UTF-8") from error
    offset_map = {}
    for partition, pairs in _collect(_parse(text, file), file).items():
        syncs = offset_map[partition] = pairs[np.argsort(pairs[:, 0], kind="stable")]
        twice = np.flatnonzero(np.diff(syncs[:, 0]) == 0)
        if twice.size:
            reason = f"offset {syncs[twice[0], 0]} of {partition} has two lines; expected one"
            raise ConfigError(_OPTION, file, reason)
    return offset_map


def _parse(text: str, file: str) -> Iterator[tuple[TopicPartition, int, int]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        names = next(reader, [])
        if tuple(names) != COLUMNS:
            header = ",".join(names)
            reason = f"line 1: expected {','.join(COLUMNS)}, found {header!r:.{_SHOWN}}"
            raise ConfigError(_OPTION, file, reason)
        for cells in reader:
            if cells:
                yield _parse_line(cells, reader.line_num, file)
    except csv.Error as error:
        raise ConfigError(_OPTION, file, f"line {reader.line_num}: {error}") from error


def _parse_line(cells: list[str], line: int, file: str) -> tuple[TopicPartition, int, int]:
    if len(cells) != len(COLUMNS):
        reason = f"line {line}: expected {len(COLUMNS)} cells, found {len(cells)}"
        raise ConfigError(_OPTION, file, reason)
    try:
        topic = validate_topic(cells[0])
    except InvalidNameError as error:
        raise ConfigError(_OPTION, file, f"line {line}: {error!s:.{_SHOWN}}") from error
    numbers = []
    most = (MAX_PARTITION, MAX_OFFSET, MAX_OFFSET)
    for name, cell, largest in zip(COLUMNS[1:], cells[1:], most, strict=True):
        if not _WHOLE.fullmatch(cell) or int(cell) > largest:
            expected = f"expected {name} as a whole number up to {largest}"
            raise ConfigError(_OPTION, file, f"line {line}: {expected}, found {cell!r:.{_SHOWN}}")
        numbers.append(int(cell))
    return TopicPartition(topic, numbers[0]), numbers[1], numbers[2]


def read_offset_syncs(log: RestingLog) -> OffsetMap:
    """Read an offset map from the log of MirrorMaker's offset syncs."""
    directory = log.place.directory
    if log.error or log.view is None:
        raise ConfigError(_OPTION, directory, log.error or "is no partition's directory")
    offset_map = _collect(_read(log), directory)
    return {partition: _current(syncs) for partition, syncs in offset_map.items()}


def _read(log: RestingLog) -> Iterator[tuple[TopicPartition, int, int]]:
    reader = LogReader(log.view, log.base_offsets, ReadDepth.CHECKSUMS)
    while True:
        reader.fill()
        if reader.is_at_end:
            return
        rows = reader.rows
        is_wanted = ~rows.batches.is_control & (rows.batches.crc_ok != 0)
        for group in rows.take(is_wanted).groups():
            table = group.records().select(["offset", "key", "value"])
            for offset, key, value in zip(*(each.to_pylist() for each in table), strict=True):
                if value is not None:
                    yield _decode(log.place.directory, offset, key, value)
        reader.rows = rows.take(np.zeros(len(rows), np.bool_))


def _decode(
    directory: str, offset: int, key: bytes | None, value: bytes
) -> tuple[TopicPartition, int, int]:
    readers = FieldReader(key or b""), FieldReader(value)
    try:
        of_key = OFFSET_SYNC_KEY.read(readers[0], 0)
        of_value = OFFSET_SYNC_VALUE.read(readers[1], 0)
        for reader in readers:
            reader.require_end()
        topic = validate_topic(of_key["topic"] or "")
    except (MalformedMessageError, InvalidNameError) as error:
        reason = f"offset {offset}: expected an offset sync of MirrorMaker: {error!s:.{_SHOWN}}"
        raise ConfigError(_OPTION, directory, reason) from error
    numbers = of_key["partition"], of_value["upstream_offset"], of_value["offset"]
    if min(numbers) < 0:
        actual = ", ".join(map(str, numbers))
        reason = f"offset {offset}: expected a partition and two offsets, found {actual}"
        raise ConfigError(_OPTION, directory, reason)
    return TopicPartition(topic, numbers[0]), numbers[1], numbers[2]


def _collect(pairs: _Pairs, file: str) -> dict[TopicPartition, NDArray[np.int64]]:
    """Return the pairs of each partition, as they came."""
    partitions: dict[TopicPartition, list[tuple[int, int]]] = {}
    rows = iter(pairs)
    for partition, upstream, downstream in islice(rows, _MOST_PAIRS):
        partitions.setdefault(partition, []).append((upstream, downstream))
    if next(rows, None) is not None:
        raise ConfigError(_OPTION, file, f"has more than {_MOST_PAIRS:,} pairs: leave some out")
    return {partition: np.array(each, np.int64) for partition, each in partitions.items()}


def _current(syncs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the pairs in force: none before a later, older record's."""
    upstream = syncs[:, 0]
    later = np.minimum.accumulate(np.append(upstream, MAX_OFFSET)[::-1])[::-1][1:]
    current: NDArray[np.int64] = syncs[upstream < later]
    return current
