"""Entries of a log's small files: indexes, producer snapshots, checkpoints."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from storage_core.checkpoint.broker_files import (
    MAX_META_PROPERTIES_BYTES,
    MAX_QUORUM_STATE_BYTES,
    parse_clean_shutdown,
    parse_meta_properties,
    parse_quorum_state,
)
from storage_core.checkpoint.checkpoint_files import (
    MAX_OFFSET_CHECKPOINT_BYTES,
    MAX_PARTITION_METADATA_BYTES,
    parse_leader_epochs,
    parse_offset_checkpoint,
    parse_partition_metadata,
)
from storage_core.filenames import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_FILE,
    LEADER_EPOCH_FILE,
    LOG_START_FILE,
    META_PROPERTIES_FILE,
    OFFSET_INDEX_SUFFIX,
    PARTITION_METADATA_FILE,
    QUORUM_STATE_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    kind_of,
    offset_of,
)
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY, TXN_INDEX_ENTRY
from storage_core.index.segment_indexes import read_entries
from storage_core.index.transaction_index import read_transactions
from storage_core.log.batch_search import MAX_INDEX_BYTES
from storage_core.log.producer_snapshot import MAX_SNAPSHOT_BYTES, parse_producer_snapshot
from storage_core.store.base import LogStore

# What a line says: its type, then its fields under Kafka's names in snake case.
Entry = tuple[str, dict[str, Any]]
EntryParser = Callable[[LogStore, str], Iterator[Entry]]

# Of an index, as Python's objects: those take many times the room of the file.
_ENTRIES_AT_A_TIME: Final = 1 << 12


def parser_of(name: str) -> EntryParser | None:
    """Return the parser for a file's name, None without one."""
    return _BY_NAME.get(name) or _BY_SUFFIX.get(kind_of(name) or "")


def _offset_index(store: LogStore, name: str) -> Iterator[Entry]:
    for row, (relative, position) in enumerate(_pairs(store, name, OFFSET_INDEX_ENTRY)):
        if _is_padding(row, relative):
            return
        yield "index", {"offset": _base(name) + relative, "position": position}


def _time_index(store: LogStore, name: str) -> Iterator[Entry]:
    for row, (timestamp, relative) in enumerate(_pairs(store, name, TIME_INDEX_ENTRY)):
        if _is_padding(row, relative):
            return
        yield "timeindex", {"timestamp": timestamp, "offset": _base(name) + relative}


def _transaction_index(store: LogStore, name: str) -> Iterator[Entry]:
    position = 0
    for entries in _entries(store, name, TXN_INDEX_ENTRY):
        for transaction in read_transactions(name, _base(name), entries, start=position):
            yield "txnindex", asdict(transaction)
        position += entries.nbytes


def _small_file(
    limit_bytes: int,
    rows_of: Callable[[bytes, str], Iterable[dict[str, Any]]],
    kind: str = "checkpoint",
) -> EntryParser:
    """Return the parser of a file that is read whole.

    Args:
        limit_bytes: Of how many bytes it may be.
        rows_of: Returns the fields of each entry; it gets the content, and the name for errors.
    """

    def parse(store: LogStore, name: str) -> Iterator[Entry]:
        for fields in rows_of(store.read_file(name, limit_bytes=limit_bytes), name):
            yield kind, fields

    return parse


def _pairs(store: LogStore, name: str, entry: np.dtype[Any]) -> Iterator[tuple[int, int]]:
    for entries in _entries(store, name, entry):
        yield from entries.tolist()


def _entries(store: LogStore, name: str, entry: np.dtype[Any]) -> Iterator[NDArray[np.void]]:
    for piece in read_entries(store, name, entry, limit_bytes=MAX_INDEX_BYTES):
        for start in range(0, len(piece), _ENTRIES_AT_A_TIME):
            yield piece[start : start + _ENTRIES_AT_A_TIME]


def _base(name: str) -> int:
    return offset_of(name) or 0


def _is_padding(row: int, relative_offset: int) -> bool:
    """Whether an entry is padding: zeros at a preallocated index's end."""
    return row > 0 and relative_offset == 0


_OFFSET_CHECKPOINT: Final = _small_file(
    MAX_OFFSET_CHECKPOINT_BYTES,
    lambda data, file: (
        asdict(partition) | {"offset": offset}
        for partition, offset in parse_offset_checkpoint(data, file=file).items()
    ),
)
_BY_SUFFIX: Final[dict[str, EntryParser]] = {
    OFFSET_INDEX_SUFFIX: _offset_index,
    TIME_INDEX_SUFFIX: _time_index,
    TXN_INDEX_SUFFIX: _transaction_index,
    SNAPSHOT_SUFFIX: _small_file(
        MAX_SNAPSHOT_BYTES,
        lambda data, file: map(asdict, parse_producer_snapshot(file, data)),
        kind="snapshot",
    ),
}
_BY_NAME: Final[dict[str, EntryParser]] = {
    LEADER_EPOCH_FILE: _small_file(
        MAX_OFFSET_CHECKPOINT_BYTES,
        lambda data, file: (
            {"epoch": entry.epoch, "start_offset": entry.start_offset}
            for entry in parse_leader_epochs(data, file=file)
        ),
    ),
    PARTITION_METADATA_FILE: _small_file(
        MAX_PARTITION_METADATA_BYTES,
        lambda data, file: [asdict(parse_partition_metadata(data, file=file))],
    ),
    RECOVERY_POINT_FILE: _OFFSET_CHECKPOINT,
    LOG_START_FILE: _OFFSET_CHECKPOINT,
    CLEANER_FILE: _OFFSET_CHECKPOINT,
    REPLICATION_FILE: _OFFSET_CHECKPOINT,
    CLEAN_SHUTDOWN_FILE: _small_file(
        MAX_META_PROPERTIES_BYTES, lambda data, _: [asdict(parse_clean_shutdown(data))]
    ),
    META_PROPERTIES_FILE: _small_file(
        MAX_META_PROPERTIES_BYTES,
        lambda data, file: [asdict(parse_meta_properties(data, file=file))],
    ),
    QUORUM_STATE_FILE: _small_file(
        MAX_QUORUM_STATE_BYTES, lambda data, file: [parse_quorum_state(data, file=file)]
    ),
}
