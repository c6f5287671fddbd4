"""Write one generation of a managed partition as a plain directory; safe to kill and to repeat.

A small file of ours in the directory says which generation it is to hold: it is written first,
and whoever goes on after a crash goes on with that one. Each file is written under another name,
synced, and then takes its own; one that has its name, length and time is whole.
"""

import json
import os
import stat
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.checkpoint.partition_metadata import PartitionMetadata, encode_partition_metadata
from storage_core.errors import GuardRefusedError, ManifestError, StorageError
from storage_core.filenames import PARTITION_METADATA_FILE, SCRATCH_PREFIX, TEMPORARY_SUFFIX
from storage_core.local_files import PUBLIC_FILE_MODE, create_in, facts_of, open_folder
from storage_core.store.base import FileInfo
from storage_core.store.json_fields import parse_json_object
from storage_core.store.local import PUBLIC_MODE, LocalStore, make_folder, storage_errors
from storage_core.store.managed_store import ManagedStore
from storage_core.store.manifest import validate_file_name

# Kafka ignores names like this one, and removes none.
PIN_FILE: Final = f"{SCRATCH_PREFIX}materialize"
_TEMPORARY: Final = f"{SCRATCH_PREFIX}part-"
_WINDOW_BYTES: Final = 16 << 20
_MAX_PIN_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Materialized:
    """What a directory holds now.

    Attributes:
        generation: Of the partition.
        checkpoints: Of that generation.
        files: How many files it has.
        written_files: How many of them were written now; the others were there.
        record_bytes: Bytes of all ``.log`` files.
        segments: How many there are.
    """

    generation: int
    checkpoints: PartitionCheckpoints
    files: int
    written_files: int
    record_bytes: int
    segments: int


def read_pin(directory: Path) -> int | None:
    """Return the generation that a directory was begun with, None where it was not begun.

    Raises:
        StorageError: The file that says so is damaged, or cannot be read.
    """
    path = directory / PIN_FILE
    store = LocalStore(directory)
    if not store.has(PIN_FILE):
        return None
    content = store.read_file(PIN_FILE, limit_bytes=_MAX_PIN_BYTES)
    try:
        return parse_json_object(content, str(path)).integer("generation", least=1)
    except ManifestError as error:
        raise StorageError(str(path), "says no generation; remove its directory") from error


def materialize_partition(source: ManagedStore, directory: Path) -> Materialized:
    """Write all files of a generation.

    Args:
        source: The partition, opened at the generation that ``read_pin`` returned, if it did.
        directory: Named ``<topic>-<n>``; absent, empty, or begun by a former call.

    Raises:
        GuardRefusedError: The directory has files that are not the partition's.
        PartitionNotFoundError: The generation is not there any more.
        StorageError: A store failed.
    """
    manifest = source.manifest
    files = [file for file in source.list_files() if validate_file_name(file.name)]
    with storage_errors(directory):
        make_folder(directory, mode=PUBLIC_MODE)
    target = LocalStore(directory)
    _refuse_foreign(target, files)
    if read_pin(directory) is None:
        pin = {"generation": manifest.generation, "source": source.location}
        target.write_file(PIN_FILE, json.dumps(pin).encode())
    written = 0
    for file in files:
        if not _is_there(directory / file.name, file):
            _write(source, file, directory)
            written += 1
    if manifest.topic_id is not None and not target.has(PARTITION_METADATA_FILE):
        metadata = PartitionMetadata(version=0, topic_id=manifest.topic_id)
        target.write_file(PARTITION_METADATA_FILE, encode_partition_metadata(metadata))
    for file in target.list_files():
        if file.name.startswith(_TEMPORARY) or file.name.endswith(TEMPORARY_SUFFIX):
            target.delete(file.name)
    target.sync_directory()
    logs = [file for file in files if file.name.endswith(".log")]
    return Materialized(
        generation=manifest.generation,
        checkpoints=manifest.checkpoints,
        files=len(files),
        written_files=written,
        record_bytes=sum(file.size_bytes for file in logs),
        segments=len(logs),
    )


def release_partition(directory: Path) -> None:
    """Remove the file that says which generation a finished directory holds."""
    store = LocalStore(directory)
    store.delete(PIN_FILE)
    store.sync_directory()


def _refuse_foreign(target: LocalStore, files: list[FileInfo]) -> None:
    """Refuse a directory that has more than a former call may have left."""
    known: set[str] = set()
    if read_pin(target.directory) is not None:
        known = {file.name for file in files} | {PARTITION_METADATA_FILE}
        known.add(PARTITION_METADATA_FILE + TEMPORARY_SUFFIX)
    for file in target.list_files():
        if file.name not in known and not file.name.startswith(SCRATCH_PREFIX):
            raise GuardRefusedError(
                "TARGET_NOT_EMPTY",
                f"{target.location}/{file.name} is not what this program has written there",
            )


def _is_there(path: Path, file: FileInfo) -> bool:
    with storage_errors(path):
        facts = facts_of(path)
    if facts is None or not stat.S_ISREG(facts.st_mode):
        return False
    return (facts.st_size, facts.st_mtime_ns // 1_000_000) == (file.size_bytes, file.modified_ms)


def _write(source: ManagedStore, file: FileInfo, directory: Path) -> None:
    temporary = f"{_TEMPORARY}{file.name}"
    buffer = np.empty(min(_WINDOW_BYTES, max(1, file.size_bytes)), np.uint8)
    with (
        closing(source.open_file(file.name)) as reader,
        storage_errors(directory / file.name),
        open_folder(directory) as folder,
    ):
        with os.fdopen(create_in(folder, temporary, mode=PUBLIC_FILE_MODE), "wb") as out:
            position = 0
            while position < file.size_bytes:
                wanted = min(buffer.size, file.size_bytes - position)
                count = reader.read_into(position, buffer[:wanted])
                if count < wanted:
                    raise StorageError(
                        f"{source.location}/{file.name}",
                        f"ends after {position + count} of its {file.size_bytes} bytes",
                    )
                out.write(buffer[:count].data)
                position += count
            out.flush()
            nanoseconds = file.modified_ms * 1_000_000
            os.utime(out.fileno(), ns=(nanoseconds, nanoseconds))
            os.fsync(out.fileno())
        os.replace(temporary, file.name, src_dir_fd=folder, dst_dir_fd=folder)
