"""Which records a command line asks for, read by ``storage_core.kafka_log``."""

import fnmatch
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.cli.tiers import with_tiers
from pylog_spark.options.choices import BytesFormat, Isolation
from pylog_spark.options.declared import (
    ALLOW_DATA_LOSS,
    COLUMNS,
    FROM,
    ISOLATION,
    KEY_FORMAT,
    KEYS,
    OUT,
    PARTITIONS,
    ROOT_OF_TOPIC,
    ROOTS,
    TOPIC,
    UNTIL,
)
from pylog_spark.options.option import CommandLine, Option
from pylog_spark.record_columns import BYTES, format_column, headers_beside
from pylog_spark.record_text import ValueFormat, format_of_headers, parse_bytes_text
from pylog_spark.report import partition_name
from pylog_spark.tasks.coordinators import CoordinatorSettings, observe_transactions, views_beside
from storage_core.catalog.cluster_metadata import read_cluster_metadata
from storage_core.catalog.topic_filter import is_pattern
from storage_core.clock import SystemClock
from storage_core.config import BrokerConfig
from storage_core.coordinators.transactions import TransactionOutcome
from storage_core.errors import ConfigError, PylogError
from storage_core.filenames import CLUSTER_METADATA_TOPIC
from storage_core.kafka_log import LATEST, Logs, Position, Records, TopicPartition, open_logs
from storage_core.reading.inspection import group_by_broker, inspect_root
from storage_core.reading.planning import find_places
from storage_core.reading.request import DEFAULT_RANGE_BYTES

# How a command line wants keys and values written.


# kcat's format strings, such as ``%t [%p] at %o: %k = %s\n``.
#
# Records are written by them.
#
# The letters are those of kcat (https://github.com/edenhill/kcat): ``%s`` value, ``%S`` its length
# or -1 for null, ``%R`` the same as a big-endian integer of four bytes, ``%k`` key, ``%K`` its
# length, ``%T`` timestamp in epoch milliseconds, ``%h`` headers as ``name=value,...``, ``%t``
# topic, ``%p`` partition, ``%o`` offset, ``%%`` a percent sign; ``\n``, ``\r``, ``\t``, ``\\``,
# ``\xNN``.

# The column of records that a letter is about.
_COLUMNS: Final = {
    "s": "value",
    "S": "value",
    "R": "value",
    "k": "key",
    "K": "key",
    "T": "timestamp",
    "h": "headers",
    "t": "topic",
    "p": "partition",
    "o": "offset",
}
_MICROSECONDS: Final = 1000
_ESCAPE: Final = re.compile(r"\\(?:x([0-9A-Fa-f]{1,2})|(.)|$)", re.DOTALL)
_ESCAPED: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}


class RecordFormat:
    """Records as bytes, by a format string.

    Args:
        text: kcat's format string.
        null: What stands for a key or value that is null.
    """

    def __init__(
        self, text: str, *, keys: ValueFormat, values: ValueFormat, null: bytes = b""
    ) -> None:
        self._parts = list(_parse(text))
        self._keys, self._values, self._null = keys, values, null

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are to be read; at least one."""
        letters = [part for part in self._parts if isinstance(part, str)]
        return tuple(dict.fromkeys(_COLUMNS[letter] for letter in letters)) or ("offset",)

    def render(self, batch: pa.RecordBatch) -> memoryview:
        """Return the records of a batch, one after the other."""
        empty = pa.repeat(pa.scalar(b"", BYTES), batch.num_rows)  # so that one is no scalar
        parts = [
            self._column(part, batch) if isinstance(part, str) else pa.scalar(part, BYTES)
            for part in self._parts
        ]
        joined = pc.binary_join_element_wise(empty, *parts, pa.scalar(b"", BYTES))
        _, offsets, data = joined.buffers()
        end = int(np.frombuffer(offsets, np.int64)[batch.num_rows])
        return memoryview(b"" if data is None else data)[:end]

    def _column(self, letter: str, batch: pa.RecordBatch) -> pa.Array:
        column = batch.column(_COLUMNS[letter])
        match letter:
            case "s" | "k":
                how = self._keys if letter == "k" else self._values
                shown = pc.fill_null(
                    format_column(column, how, headers_beside(batch, how)), self._null
                )
            case "S" | "K":
                shown = _numbers(_lengths(column))
            case "R":
                # The bytes of a fixed width follow each other.
                lengths = _lengths(column).to_numpy(zero_copy_only=False).astype(">i4")
                width = pa.binary(lengths.itemsize)
                buffers = [None, pa.py_buffer(lengths.tobytes())]
                shown = pa.Array.from_buffers(width, len(lengths), buffers).cast(BYTES)
            case "T":
                # Beyond the range of a calendar there is none; -1 is Kafka's own "no timestamp".
                ms = pc.divide(column.cast(pa.int64()), _MICROSECONDS)
                shown = _numbers(pc.fill_null(ms, -1))
            case "h":
                shown = _header_text(column, self._values)
            case "t":
                shown = column.cast(BYTES)
            case _:
                shown = _numbers(column)
        return shown


def _parse(text: str) -> list[str | bytes]:
    """Return a format's parts: letters as text, literals as bytes."""
    parts: list[str | bytes] = []
    # Literals and letters take turns; the letter is the first character behind a percent sign.
    literal = b""
    rest = text
    while True:
        before, mark, rest = rest.partition("%")
        literal += _unescape(before, text)
        if not mark:
            break
        letter, rest = rest[:1], rest[1:]
        if letter == "%":
            literal += b"%"
        elif letter in _COLUMNS and letter:
            parts += [literal, letter] if literal else [letter]
            literal = b""
        else:
            letters = ", ".join(f"%{name}" for name in _COLUMNS)
            raise ConfigError("--format", text, f"%{letter} is none of {letters}, %%")
    return [*parts, literal] if literal else parts


def _unescape(literal: str, whole: str) -> bytes:
    def bytes_of(match: re.Match[str]) -> str:
        code, letter = match[1], match[2]
        if code is not None:
            return chr(int(code, 16))
        if letter not in _ESCAPED:
            raise ConfigError(
                "--format", whole, f"{match[0]} is none of \\n, \\r, \\t, \\0, \\\\, \\xNN"
            )
        return _ESCAPED[letter].decode()

    # Bytes as characters of the same number, so that \xff is one byte.
    text = literal.encode("utf-8", "surrogateescape").decode("latin-1")
    return _ESCAPE.sub(bytes_of, text).encode("latin-1")


def _lengths(column: pa.Array) -> pa.Array:
    return pc.fill_null(pc.binary_length(column), -1)


def _numbers(column: pa.Array) -> pa.Array:
    return column.cast(pa.large_string()).cast(BYTES)


def _header_text(headers: pa.Array, how: ValueFormat) -> pa.Array:
    """Return headers in kcat's form: ``name=value``, with commas, NULL for null."""
    entries = headers.flatten()
    values = pc.fill_null(format_column(entries.field("value"), format_of_headers(how)), b"NULL")
    of_names = BytesFormat.RAW if how is BytesFormat.RAW else BytesFormat.TEXT
    names = format_column(entries.field("key").cast(BYTES), of_names)
    pairs = pc.binary_join_element_wise(names, values, pa.scalar(b"=", BYTES))
    counts = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False)
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(ends), pairs)
    return pc.binary_join(lists, pa.scalar(b",", BYTES))


_OPEN_ENDS: Final = {
    TransactionOutcome.COMMIT: "its coordinator has decided to commit it, and writes the marker "
    "when it runs; read_uncommitted has its records",
    TransactionOutcome.ABORT: "no commit of it was decided",
    TransactionOutcome.UNDECIDED: "`__transaction_state` of these directories does not say "
    "whether it was committed; read_uncommitted has its records",
}


def with_topic_and_roots(line: CommandLine, *, needs_out: bool = False) -> CommandLine:
    """Return a command line with topic and roots in their usual places. Each command reads them
    there.

    Both shapes are taken: ``ROOT... --topic TOPIC [--out DIR]``, and, as it was first written,
    ``TOPIC [DIR] --root ROOT...``.

    Args:
        line: Of ``cat`` or ``export``.
        needs_out: Whether a folder for the records is named too.
    """
    out = f" {OUT.flag} DIR" if needs_out else ""
    usage = f"expected ROOT... --topic TOPIC{out}"
    arguments, roots = line[ROOTS], line[ROOT_OF_TOPIC]
    if not roots:
        for option, name in ((TOPIC, "--topic"), *([(OUT, "--out")] if needs_out else [])):
            if option not in line:
                raise ConfigError(name, None, usage)
        return _with_topics(with_tiers(line))
    values: dict[Option[Any], Any] = {ROOTS: list(roots)}
    if TOPIC in line:
        raise ConfigError(ROOT_OF_TOPIC.label, roots[0], f"{usage}, without --root")
    if len(arguments) != 1 + needs_out or OUT in line:
        raise ConfigError("TOPIC", " ".join(arguments), usage)
    values[TOPIC] = [arguments[0]]
    if needs_out:
        values[OUT] = arguments[1]
    return _with_topics(with_tiers(line.with_written(values)))


_INTERNAL: Final = "__"
# What Python's names for a choice are on a command line.
_OPTIONS: Final = {"topics": TOPIC, "partitions": PARTITIONS, "columns": COLUMNS}


def _with_topics(line: CommandLine) -> CommandLine:
    """Return a command line with the topics that its patterns match, each topic once. As for a
    consumer, a pattern matches internal topics only if it names them: ``__*``."""
    if not any(map(is_pattern, line[TOPIC])):
        return line
    present = [each for each in open_logs(*line[ROOTS]).topics() if each != CLUSTER_METADATA_TOPIC]
    topics: dict[str, None] = {}
    for name in line[TOPIC]:
        matching = fnmatch.filter(present, name) if is_pattern(name) else [name]
        if not name.startswith(_INTERNAL):
            matching = [topic for topic in matching if not topic.startswith(_INTERNAL)]
        if not matching:
            raise ConfigError(TOPIC.label, name, f"matches no topic in {', '.join(line[ROOTS])}")
        topics |= dict.fromkeys(matching)
    return line.with_written({TOPIC: list(topics)})


def are_several_topics(line: CommandLine) -> bool:
    """Whether a command line may mean several topics, whatever its patterns match.

    Args:
        line: Of ``cat`` or ``export``, as it is written.
    """
    names = line[TOPIC] or line[ROOTS][:1]
    return len(set(names)) > 1 or any(map(is_pattern, names))


def locate_partition(root: str, topic: str, numbers: Sequence[int]) -> str:
    """Return the location of the one partition that a command line names."""
    places = {
        str(partition): of_partition[0].location
        for partition, of_partition in sorted(find_places([root]).items())
        if partition.topic == topic and (not numbers or partition.partition in numbers)
    }
    if not places:
        raise ConfigError("--topic", topic, f"no such topic or partition in {root}")
    if len(places) > 1:
        reason = f"{root} has {', '.join(places)}; say one with {PARTITIONS.label}"
        raise ConfigError("--topic", topic, reason)
    return next(iter(places.values()))


def read_chosen(
    line: CommandLine,
    columns: Iterable[str],
    *,
    range_bytes: int = DEFAULT_RANGE_BYTES,
    has_ends: bool = False,
) -> Records:
    """Return the records of topics that a command line asks for.

    Args:
        range_bytes: How much of the files is read in one go.
        has_ends: Whether the ends of the logs are looked up first: then the records' offsets can be
            counted.
    """
    logs = open_logs(*line[ROOTS])
    topics, numbers = line[TOPIC], line[PARTITIONS]
    end = _position(logs, line, UNTIL.label, line[UNTIL])
    try:
        return logs.read(
            None if numbers else topics,
            partitions=[TopicPartition(topic, number) for topic in topics for number in numbers]
            or None,
            start=_position(logs, line, FROM.label, line[FROM]),
            end=LATEST if end is None and has_ends else end,
            keys=keys_of(line),
            columns=columns,
            isolation=line[ISOLATION].value,
            fail_on_data_loss=not line[ALLOW_DATA_LOSS],
            range_bytes=range_bytes,
        )
    except ConfigError as error:
        if error.key not in _OPTIONS:
            raise
        raise ConfigError(_OPTIONS[error.key].label, error.value, error.reason) from None


def find_open_ends(line: CommandLine) -> Iterator[str]:
    """Yield where open transactions end a committed read of whole logs.

    Args:
        line: Of ``cat`` or ``export``. If it says where to end, it is not told.
    """
    if line[ISOLATION] is not Isolation.READ_COMMITTED or line[UNTIL] is not None:
        return
    numbers = line[PARTITIONS]
    for row in find_open_transactions(line[ROOTS], line[TOPIC]):
        if row["holds_stable_offset"] and (not numbers or row["partition"] in numbers):
            yield (
                f"{row['root']}: committed records of {partition_name(row)} end at offset "
                f"{row['first_offset']} of {row['log_end_offset']}: a transaction of producer "
                f"{row['producer_id']} is open; {_OPEN_ENDS[row['outcome']]}"
            )


def find_open_transactions(
    roots: Sequence[str], topics: Collection[str]
) -> Iterator[dict[str, Any]]:
    """Yield the transactions that are open in topics' logs, with what their coordinators say."""
    settings = CoordinatorSettings(now_ms=SystemClock().now_ms(), broker=BrokerConfig())
    brokers = group_by_broker([inspect_root(root) for root in roots])
    for views in brokers:
        rows = observe_transactions(
            views,
            settings,
            is_asked_for=frozenset(topics).__contains__,
            beside=views_beside(views, brokers),
        )
        yield from (row for kind, row in rows if kind == "open_transaction")


def missing_partitions(roots: Sequence[str], topics: Collection[str]) -> list[TopicPartition]:
    """Return partitions of topics in the cluster without logs in roots.

    Args:
        roots: Log directories; without the cluster's metadata in one of them nothing is known.
    """
    views = [inspect_root(root) for root in roots]
    wanted: set[TopicPartition] = set()
    for view in views:
        if view.metadata is not None:
            with suppress(PylogError):  # what is wrong with it is no matter of these records
                metadata = read_cluster_metadata(view.metadata, is_recovered=True)
                of_cluster = metadata.topics_by_name()
                wanted |= {
                    TopicPartition(topic, number)
                    for topic in topics
                    if topic in of_cluster
                    for number in of_cluster[topic].partitions
                }
    return sorted(wanted - find_places(roots).keys())


def keys_of(line: CommandLine) -> list[bytes] | None:
    """Return the keys of a command line; None for all records."""
    written = line[KEY_FORMAT] or BytesFormat.TEXT
    return [parse_bytes_text(KEYS.label, key, written) for key in line[KEYS]] or None


def first_rows(batches: Iterable[pa.RecordBatch], most: int | None) -> Iterator[pa.RecordBatch]:
    """Yield the first rows of batches; read no more than needed.

    Args:
        batches: None of them is empty.
        most: How many rows; at least one, or None for all.
    """
    remaining = most
    for batch in batches:
        if remaining is None:
            yield batch
            continue
        yield batch.slice(0, remaining)
        remaining -= batch.num_rows
        if remaining <= 0:
            return


def _position(logs: Logs, line: CommandLine, label: str, place: Position) -> Position:
    """Return a place for the reader. A place counted from the end becomes an offset for each
    log."""
    if not isinstance(place, int) or place >= 0:
        return place
    numbers = line[PARTITIONS]
    offsets: dict[TopicPartition, int] = {}
    for row in logs.partitions(line[TOPIC]).to_pylist():
        partition = TopicPartition(row["topic"], row["partition"])
        if numbers and partition.partition not in numbers:
            continue
        if row["log_end_offset"] is None or row["log_start_offset"] is None:
            raise ConfigError(label, place, f"the end of {partition} is not known: {row['error']}")
        offsets[partition] = max(row["log_end_offset"] + place, row["log_start_offset"])
    return offsets
