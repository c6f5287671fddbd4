"""A whole log directory, opened by Kafka's own LogManager: would a broker start on it?

Every function works on a copy and leaves the directory as it is.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jpype

from tests.oracle.consumer import consume
from tests.oracle.jvm import KafkaFailure, java, java_file, java_map, kafka_failures
from tests.oracle.kafka import (
    MAX_TRANSACTION_TIMEOUT_MS,
    PRODUCER_ID_CHECK_MS,
    Kafka,
    log_config,
)
from tests.oracle.partition import LOG, OpenPartition, PartitionAnswer
from tests.oracle.records import NewBatch, ReadRecord
from tests.oracle.stand_ins import NeverStray

CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"
CLUSTER_METADATA: Final = "__cluster_metadata"
NEVER_MS: Final = 2**62

Settings = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedDirectory:
    """What Kafka's LogManager made of a log directory.

    Partitions and errors go by directory name. One error keeps a broker from using the directory:
    then there are no partitions, error "" is what stopped it, and the others name the partitions
    that do not open by themselves. changed_files: relative paths of files that loading and a clean
    shutdown changed, added or removed inside partition directories. After a broker's own shutdown
    there are few, such as a snapshot of producers that expired since, but not always none.
    """

    had_clean_shutdown: bool
    partitions: Mapping[str, PartitionAnswer]
    errors: Mapping[str, str]
    changed_files: tuple[str, ...]


def load_log_directory(
    directory: Path,
    *,
    now_ms: int,
    defaults: Settings | None = None,
    topics: Mapping[str, Settings] | None = None,
) -> LoadedDirectory:
    """Have Kafka's LogManager load every partition and shut down cleanly, on a copy.

    It goes by the directory's own clean-shutdown marker, recovery points and log starts, and
    refuses what a broker refuses: a subdirectory that is no partition, a held lock, two
    directories of one partition. ``__cluster_metadata`` is not its business.

    Args:
        defaults: The broker's default topic settings.
        topics: Settings of topics that differ from them.
    """
    had_clean_shutdown = (directory / CLEAN_SHUTDOWN_FILE).exists()
    with _loaded(directory, now_ms, defaults or {}, topics or {}) as (copy, logs, error):
        answers = {} if error else {name: _answer(log) for name, log in logs.items()}
    errors = {}
    if error:
        errors = {"": error} | _errors_one_by_one(directory, now_ms, had_clean_shutdown)
    return LoadedDirectory(
        had_clean_shutdown=had_clean_shutdown,
        partitions=answers,
        errors=errors,
        changed_files=copy.changed_files,
    )


def consumed_records(
    directory: Path, *, now_ms: int, read_committed: bool = True
) -> dict[str, list[ReadRecord]]:
    """Return what a consumer gets of every partition, by directory name, in offset order."""
    with _loaded(directory, now_ms, {}, {}) as (_, logs, error):
        if error:
            raise KafkaFailure("LogManager.loadLogs", error, "")
        for partition in logs.values():
            partition.set_high_watermark()
        return {
            name: consume(partition, read_committed=read_committed)
            for name, partition in logs.items()
        }


def load_and_die(
    directory: Path,
    *,
    now_ms: int,
    topics: Mapping[str, Settings],
    batches: Mapping[str, NewBatch],
) -> None:
    """Load every log in place as a starting broker does, append, and leave all as a kill does.

    A broker that is killed before it first writes its checkpoints, which is some seconds after it
    has loaded its logs: no checkpoint says of it, its lock file is left, and the indexes that it
    appended to are as long as they may become.

    Args:
        directory: A log directory; its checkpoints and its marker are gone by.
    """
    kafka = Kafka(now_ms=now_ms)
    starts, points = (
        _entries(directory / name)
        for name in ("log-start-offset-checkpoint", "recovery-point-offset-checkpoint")
    )
    (directory / ".lock").touch()
    marker = directory / CLEAN_SHUTDOWN_FILE
    was_clean = marker.exists()
    marker.unlink(missing_ok=True)
    for topic, settings in topics.items():
        name = f"{topic}-0"
        partition = kafka.open_partition(
            directory / name,
            config=settings,
            clean_shutdown=was_clean,
            log_start_offset=starts.get(name, 0),
            recovery_point=points.get(name, 0),
        )
        if name in batches:
            epoch = partition.answer().latest_epoch or 0
            partition.append_as_leader(batches[name], leader_epoch=epoch)
        sizes = {path: path.stat().st_size for path in (directory / name).iterdir()}
        partition.abandon()
        # It has cut its indexes to what is in them, which nobody does who is killed.
        for path, size in sizes.items():
            if path.stat().st_size != size:
                os.truncate(path, size)


def _entries(checkpoint: Path) -> dict[str, int]:
    """Return the entries of a checkpoint file by partition directory; none without the file."""
    if not checkpoint.exists():
        return {}
    entries = (line.split() for line in checkpoint.read_text().splitlines()[2:])
    return {f"{topic}-{number}": int(offset) for topic, number, offset in entries}


def latest_by_key(records: list[ReadRecord]) -> dict[bytes, ReadRecord]:
    """Return the last record of each key; a key whose last record is a tombstone is not there.

    What compaction must keep of a topic: equal before and after, whatever else goes. Records
    without a key do not count. Timestamps and headers are part of the answer.
    """
    latest: dict[bytes, ReadRecord] = {}
    for record in records:
        if record.key is not None:
            latest[record.key] = record
    return {key: record for key, record in latest.items() if record.value is not None}


def latest_committed_by_key(
    directory: Path, *, now_ms: int, is_wanted: Callable[[str], bool] = lambda _name: True
) -> dict[str, dict[bytes, ReadRecord]]:
    """Return the latest committed record of each key, for each partition asked for.

    Args:
        directory: A log directory; it stays as it is.
        now_ms: The time that Kafka sees while it loads.
        is_wanted: Chooses partitions by their directory's name; default all.
    """
    return {
        name: latest_by_key(records)
        for name, records in consumed_records(directory, now_ms=now_ms).items()
        if is_wanted(name)
    }


@dataclass(slots=True)
class _Copy:
    """A copy of the log directory and, once it was shut down, what that changed."""

    changed_files: tuple[str, ...] = ()


@contextmanager
def _loaded(
    directory: Path, now_ms: int, defaults: Settings, topics: Mapping[str, Settings]
) -> Iterator[tuple[_Copy, dict[str, OpenPartition], str]]:
    """Load a copy; yield it, its open partitions by name, and the error that stopped Kafka."""
    with tempfile.TemporaryDirectory(prefix="oracle-") as scratch:
        copied = Path(scratch) / "log-directory"
        shutil.copytree(directory, copied)
        before, copy = _partition_files(copied), _Copy()
        kafka, error = Kafka(now_ms=now_ms), ""
        manager = _log_manager(kafka, copied, defaults)
        overrides = java_map((topic, log_config(s)) for topic, s in topics.items())
        try:
            try:
                with kafka_failures():
                    manager.loadLogs(log_config(defaults), overrides, NeverStray())
            except KafkaFailure as failure:
                error = f"{failure.java_class}: {failure.message}"
            if not error and kafka.failure_channel.hasOfflineLogDir(str(copied)):
                error = "an I/O error took the log directory offline"
            logs = {str(log.dir().getName()): OpenPartition(log) for log in manager.allLogs()}
            yield copy, logs, error
        finally:
            with kafka_failures():
                manager.shutdown()
                for log in manager.allLogs():
                    log.removeLogMetrics()
        after = _partition_files(copied)
        changed = {f for f in before.keys() | after.keys() if before.get(f) != after.get(f)}
        copy.changed_files = tuple(sorted(changed))
        for log in _logs_to_be_deleted(manager):
            OpenPartition(log).abandon()


def _logs_to_be_deleted(manager: Any) -> list[Any]:
    """Return the logs of ``-delete`` directories, which a shutdown leaves open."""
    waiting = manager.getClass().getDeclaredField("logsToBeDeleted")
    waiting.setAccessible(True)
    return [entry.getKey() for entry in waiting.get(manager)]


def _answer(partition: OpenPartition) -> PartitionAnswer:
    partition.set_high_watermark()
    return partition.answer()


def _errors_one_by_one(directory: Path, now_ms: int, clean_shutdown: bool) -> dict[str, str]:
    """Find out which partitions Kafka does not open; a second copy keeps the first's damage out."""
    errors = {}
    with tempfile.TemporaryDirectory(prefix="oracle-") as scratch:
        for source in sorted(p for p in directory.iterdir() if p.is_dir()):
            if source.name.startswith(CLUSTER_METADATA + "-"):
                continue
            copied = Path(scratch) / source.name
            shutil.copytree(source, copied)
            try:
                partition = Kafka(now_ms=now_ms).open_partition(
                    copied, config={}, clean_shutdown=clean_shutdown
                )
            except KafkaFailure as failure:
                errors[source.name] = f"{failure.java_class}: {failure.message}"
            else:
                partition.abandon()
    return errors


def _log_manager(kafka: Kafka, directory: Path, defaults: Settings) -> Any:
    with kafka_failures():
        return java(LOG + "LogManager")(
            java("java.util.List").of(java_file(directory)),
            java("java.util.List").of(),
            None,  # topic configs are handed to loadLogs
            log_config(defaults),
            java(LOG + "CleanerConfig")(False),
            1,  # recovery threads
            *[jpype.JLong(NEVER_MS)] * 4,
            MAX_TRANSACTION_TIMEOUT_MS,
            kafka.producer_config,
            PRODUCER_ID_CHECK_MS,
            kafka.scheduler,
            kafka.topic_stats,
            kafka.failure_channel,
            kafka.time,
            False,
            jpype.JLong(0),
            None,  # no cleaner is built
        )


def _partition_files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.glob("*/**/*")
        if path.is_file()
    }
