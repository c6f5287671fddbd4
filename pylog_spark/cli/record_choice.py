"""Which records a command line asks for, read by ``storage_core.kafka_log``."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from pylog_spark.options.choices import BytesFormat, Isolation
from pylog_spark.options.declared import (
    ALLOW_DATA_LOSS,
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
from pylog_spark.record_text import parse_bytes_text
from pylog_spark.report import partition_name
from pylog_spark.tasks.coordinators import (
    CoordinatorSettings,
    observe_transactions,
    views_beside,
)
from storage_core.catalog.cluster_metadata import read_cluster_metadata
from storage_core.clock import SystemClock
from storage_core.config import BrokerConfig
from storage_core.coordinators.transactions import TransactionOutcome
from storage_core.errors import ConfigError, PylogError
from storage_core.kafka_log import Logs, Position, Records, TopicPartition, open_logs
from storage_core.reading.inspection import group_by_broker, inspect_root
from storage_core.reading.planning import find_places
from storage_core.reading.request import DEFAULT_RANGE_BYTES

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
        return line
    values: dict[Option[Any], Any] = {ROOTS: list(roots)}
    if TOPIC in line:
        raise ConfigError(ROOT_OF_TOPIC.label, roots[0], f"{usage}, without --root")
    if len(arguments) != 1 + needs_out or OUT in line:
        raise ConfigError("TOPIC", " ".join(arguments), usage)
    values[TOPIC] = [arguments[0]]
    if needs_out:
        values[OUT] = Path(arguments[1])
    return line.with_written(values)


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
    line: CommandLine, columns: Iterable[str], *, range_bytes: int = DEFAULT_RANGE_BYTES
) -> Records:
    """Return the records of topics that a command line asks for.

    Args:
        range_bytes: How much of the files is read in one go.
    """
    logs = open_logs(*line[ROOTS])
    topics, numbers = line[TOPIC], line[PARTITIONS]
    return logs.read(
        None if numbers else topics,
        partitions=[TopicPartition(topic, number) for topic in topics for number in numbers]
        or None,
        start=_position(logs, line, FROM.label, line[FROM]),
        end=_position(logs, line, UNTIL.label, line[UNTIL]),
        keys=keys_of(line),
        columns=columns,
        isolation=line[ISOLATION].value,
        fail_on_data_loss=not line[ALLOW_DATA_LOSS],
        range_bytes=range_bytes,
    )


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
