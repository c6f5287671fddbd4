"""A line about preallocated indexes: how much of the disk they hold, and what trims them.

A broker makes the indexes of a segment it appends to as long as they may become, and cuts those of
partitions to their entries when it closes them. After a crash they stay as they are, sparse or not.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import numpy as np

from pylog_spark.report import size_text
from storage_core.catalog.log_directories import DirectoryKind
from storage_core.errors import PylogError
from storage_core.filenames import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    kind_of,
    offset_of,
)
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from storage_core.maintenance.inspection import RootView
from storage_core.store.base import FileInfo, LogStore
from storage_core.store.open_store import open_store
from storage_core.wording import count_text

_ENTRY_BYTES: Final = {
    OFFSET_INDEX_SUFFIX: OFFSET_INDEX_ENTRY.itemsize,
    TIME_INDEX_SUFFIX: TIME_INDEX_ENTRY.itemsize,
}
_TRIMMED_BY: Final = {
    DirectoryKind.PARTITION: "`pylog recover`, or a broker's start and stop, trims that",
    # Even after a clean stop they may be there.
    DirectoryKind.METADATA: "that log is its broker's alone, and pylog trims nothing of it",
}
# What ``stat`` counts in, whatever the block size of the filesystem is.
_BLOCK_BYTES: Final = 512


def describe_preallocated(views: Iterable[RootView]) -> Iterator[str]:
    """Yield a line for the preallocated indexes of partitions, and one for those of the metadata.

    Args:
        views: Brokers' log directories.
    """
    count = dict.fromkeys(_TRIMMED_BY, 0)
    held = dict.fromkeys(_TRIMMED_BY, 0)
    for view in views:
        for entry in view.entries:
            if entry.kind in _TRIMMED_BY:
                for size in _held_bytes(entry.path):
                    count[entry.kind] += 1
                    held[entry.kind] += size
    for kind, trimmed in _TRIMMED_BY.items():
        if count[kind]:
            whose = "the cluster's metadata" if kind is DirectoryKind.METADATA else "partitions"
            files = count_text(count[kind], "preallocated index", "preallocated indexes")
            yield f"{size_text(held[kind])} of the disk are held by {files} of {whose}: {trimmed}"


def _held_bytes(directory: str) -> Iterator[int]:
    """Yield what each preallocated index has of the disk; only the newest segment has any."""
    with suppress(PylogError, OSError):
        store = open_store(directory)
        indexes = [file for file in store.list_files() if kind_of(file.name) in _ENTRY_BYTES]
        newest = max((offset_of(file.name) or 0 for file in indexes), default=0)
        for file in indexes:
            if offset_of(file.name) == newest and _ends_in_zeros(store, file):
                yield (Path(directory) / file.name).lstat().st_blocks * _BLOCK_BYTES


def _ends_in_zeros(store: LogStore, file: FileInfo) -> bool:
    last = np.ones(_ENTRY_BYTES[kind_of(file.name) or ""], np.uint8)
    at = file.size_bytes - last.size
    if at < 0:
        return False
    with closing(store.open_file(file.name)) as reader:
        return reader.read_into(at, last) == last.size and not last.any()
