"""Entries of a log's small files: indexes, producer snapshots, checkpoints."""

from collections.abc import Callable, Iterator
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

_CHECKPOINT: Final = "checkpoint"
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


def _snapshot(store: LogStore, name: str) -> Iterator[Entry]:
    data = store.read_file(name, limit_bytes=MAX_SNAPSHOT_BYTES)
    for entry in parse_producer_snapshot(name, data):
        yield "snapshot", asdict(entry)


def _offset_checkpoint(store: LogStore, name: str) -> Iterator[Entry]:
    data = store.read_file(name, limit_bytes=MAX_OFFSET_CHECKPOINT_BYTES)
    for partition, offset in parse_offset_checkpoint(data, file=name).items():
        yield _CHECKPOINT, asdict(partition) | {"offset": offset}


def _leader_epochs(store: LogStore, name: str) -> Iterator[Entry]:
    data = store.read_file(name, limit_bytes=MAX_OFFSET_CHECKPOINT_BYTES)
    for entry in parse_leader_epochs(data, file=name):
        yield _CHECKPOINT, {"epoch": entry.epoch, "start_offset": entry.start_offset}


def _partition_metadata(store: LogStore, name: str) -> Iterator[Entry]:
    data = store.read_file(name, limit_bytes=MAX_PARTITION_METADATA_BYTES)
    yield _CHECKPOINT, asdict(parse_partition_metadata(data, file=name))


def _meta_properties(store: LogStore, name: str) -> Iterator[Entry]:
    data = store.read_file(name, limit_bytes=MAX_META_PROPERTIES_BYTES)
    yield _CHECKPOINT, asdict(parse_meta_properties(data, file=name))


def _clean_shutdown(store: LogStore, name: str) -> Iterator[Entry]:
    data = store.read_file(name, limit_bytes=MAX_META_PROPERTIES_BYTES)
    yield _CHECKPOINT, asdict(parse_clean_shutdown(data))


def _quorum_state(store: LogStore, name: str) -> Iterator[Entry]:
    data = store.read_file(name, limit_bytes=MAX_QUORUM_STATE_BYTES)
    yield _CHECKPOINT, parse_quorum_state(data, file=name)


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


_BY_SUFFIX: Final[dict[str, EntryParser]] = {
    OFFSET_INDEX_SUFFIX: _offset_index,
    TIME_INDEX_SUFFIX: _time_index,
    TXN_INDEX_SUFFIX: _transaction_index,
    SNAPSHOT_SUFFIX: _snapshot,
}
_BY_NAME: Final[dict[str, EntryParser]] = {
    LEADER_EPOCH_FILE: _leader_epochs,
    PARTITION_METADATA_FILE: _partition_metadata,
    RECOVERY_POINT_FILE: _offset_checkpoint,
    LOG_START_FILE: _offset_checkpoint,
    CLEANER_FILE: _offset_checkpoint,
    REPLICATION_FILE: _offset_checkpoint,
    CLEAN_SHUTDOWN_FILE: _clean_shutdown,
    META_PROPERTIES_FILE: _meta_properties,
    QUORUM_STATE_FILE: _quorum_state,
}
