"""Purge a broker's log directory of deleted files and partitions.

The broker has put them aside to remove them itself.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

from pylog_spark.options import JobOptions
from pylog_spark.schemas import Reason
from pylog_spark.tasks.ahead import PURGES_AT_ONCE, map_ahead
from pylog_spark.tasks.failures import error_of
from pylog_spark.tasks.listing import reason_to_leave
from pylog_spark.tasks.purge_rows import Gone, Row, apply_purge, purge_row
from storage_core.catalog.log_directories import DirectoryKind
from storage_core.catalog.off_switch import OFF_SWITCH_FILE, is_switched_off
from storage_core.catalog.topic_catalog import TopicCatalog
from storage_core.commit.purge import Purge, plan_purge_directory, plan_purge_partition
from storage_core.config import LogConfig
from storage_core.errors import GuardRefusedError, PylogError
from storage_core.filenames import TopicPartition
from storage_core.roots.root import HeldRoot

_DEFAULT_DELAY_MS: Final = LogConfig().file_delete_delay_ms
_SWEPT: Final = frozenset({DirectoryKind.PARTITION, DirectoryKind.FUTURE, DirectoryKind.STRAY})


def purge_broker(
    rows: Sequence[Mapping[str, Any]],
    catalog: TopicCatalog,
    options: JobOptions,
    root: HeldRoot | None,
) -> Iterator[Row]:
    """Purge the partition directories of a log directory, several at once.

    Args:
        rows: What lies in it, of ``tasks.listing.list_partitions``.
        catalog: What is known of its topics.
        options: The clock, and whether this is a dry run.
        root: It under its lock; None in a dry run.

    Yields:
        Columns of ``schemas.RESULT`` of each directory in which something was to be purged, in the
        order of the rows.
    """
    deleted = _DeletedPartitions(rows, options.now_ms, root)

    def purge(row: Mapping[str, Any]) -> Row | None:
        name = {key: row.get(key) for key in ("root", "topic", "partition", "directory")}
        error = error_of({"error_class": None, **row})
        if error is not None:
            return name | error
        kind = DirectoryKind(row["kind"])
        if reason_to_leave(row, {}) is not None:
            return None
        if kind in _SWEPT:
            plan = partial(_plan_partition, row, catalog, options.now_ms)
            work = partial(_purge, plan, None, root, dry_run=options.dry_run)
        elif kind is DirectoryKind.DELETE:
            plan = partial(_plan_directory, row, options.now_ms)
            begin = partial(deleted.forget, row)
            work = partial(_purge, plan, begin, root, dry_run=options.dry_run)
        else:
            return None
        return purge_row(name, work, dry_run=options.dry_run)

    yield from filter(None, map_ahead(purge, rows, at_once=PURGES_AT_ONCE))


def _purge(
    plan: Callable[[], Purge],
    begin: Callable[[], None] | None,
    root: HeldRoot | None,
    *,
    dry_run: bool,
) -> Gone:
    """Remove the files of a plan; call ``begin`` before the first."""
    purge = plan()
    _check_switch(purge)
    if begin is not None and purge.plans and not dry_run:
        begin()
    return apply_purge(purge, dry_run=dry_run, fence=None if root is None else root.validate)


def _plan_partition(row: Mapping[str, Any], catalog: TopicCatalog, now_ms: int) -> Purge:
    return plan_purge_partition(
        Path(row["directory"]), now_ms=now_ms, delay_ms=_delay_ms(catalog, row["topic"])
    )


def _plan_directory(row: Mapping[str, Any], now_ms: int) -> Purge:
    # The topic is gone, and its config with it.
    return plan_purge_directory(Path(row["directory"]), now_ms=now_ms, delay_ms=_DEFAULT_DELAY_MS)


class _DeletedPartitions:
    """The deleted partitions of one log directory, to drop from checkpoints.

    A broker does that when it renames the directory. One that died in between has not, and entries
    of a partition that is created again would count for the new one: so they go before any of its
    files does. Those of all directories that this purge removes go together, for each time every
    checkpoint is read whole, and the log directory listed. Whoever comes meanwhile waits for that.

    Args:
        rows: What lies in the log directory.
        now_ms: The run's clock, epoch milliseconds.
        root: The log directory under its lock; None in a dry run.
    """

    def __init__(
        self, rows: Sequence[Mapping[str, Any]], now_ms: int, root: HeldRoot | None
    ) -> None:
        self._rows = rows
        self._now_ms = now_ms
        self._root = root
        self._forgotten: set[TopicPartition] = set()
        self._forgetting = threading.Lock()

    def forget(self, row: Mapping[str, Any]) -> None:
        """Drop the checkpoint entries of this and all later directories.

        Later ones are those that the same purge removes after it.
        """
        partition = _partition_of(row)
        with self._forgetting:
            if self._root is not None and partition not in self._forgotten:
                going = self._due | {partition}
                self._root.drop_entries(going)
                if self._root.failure is not None:
                    raise self._root.failure
                self._forgotten |= going

    @cached_property
    def _due(self) -> frozenset[TopicPartition]:
        """Those whose directories go in this purge.

        The plans are made again when it is their turn: together they name every file.
        """
        return frozenset(
            _partition_of(row)
            for row in self._rows
            if row.get("kind") == DirectoryKind.DELETE and self._goes(row)
        )

    def _goes(self, row: Mapping[str, Any]) -> bool:
        try:
            found = _plan_directory(row, self._now_ms)
            _check_switch(found)
        except (PylogError, OSError):
            return False  # its own row will say why
        return bool(found.plans)


def _partition_of(row: Mapping[str, Any]) -> TopicPartition:
    return TopicPartition(row["topic"], row["partition"])


def _delay_ms(catalog: TopicCatalog, topic: str | None) -> int:
    """Return how long a broker waits before it deletes a file.

    It is Kafka's default where nobody knows the topic's config.

    That files with this suffix go is not a question of config: a broker's start drops them all.
    """
    config = None if topic is None else catalog.config_for(topic)
    return _DEFAULT_DELAY_MS if config is None else config.file_delete_delay_ms


def _check_switch(found: Purge) -> None:
    """Refuse to change what its owner has switched off.

    Raises:
        GuardRefusedError: There is something to remove, and the owner said no.
        StorageError: What the owner said cannot be read.
    """
    if found.plans and is_switched_off(str(found.location)):
        why = f"{found.location}: {OFF_SWITCH_FILE}"
        raise GuardRefusedError(Reason.SWITCHED_OFF.value, why)
