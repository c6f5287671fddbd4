"""Write generations of managed partitions as plain directories, killable and repeatable.

A file of ours in the target, which Kafka ignores, says which managed root the target is from and
what is in it; only an absent, an empty or such a directory is written. It stays when all is done: a
second run sees that there is nothing to do.

Another small file in each partition's directory says which generation it is to hold: it is written
first, and whoever goes on after a crash goes on with that one. Each file is written under another
name, synced, and then takes its own; one that has its name, length and time is whole.
"""

import fcntl
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

import numpy as np

from storage_core.checkpoint.checkpoints import (
    PartitionCheckpoints,
    PartitionMetadata,
    encode_partition_metadata,
)
from storage_core.errors import (
    GuardRefusedError,
    InvalidNameError,
    ManifestError,
    StorageError,
)
from storage_core.filenames import (
    PARTITION_METADATA_FILE,
    SCRATCH_PREFIX,
    TEMPORARY_SUFFIX,
    parse_partition_directory,
)
from storage_core.json_values import (
    ONE_LINE,
    SPREAD_WITHOUT_END,
    JsonFile,
    MismatchError,
    SystemText,
    whole,
)
from storage_core.local_files import (
    PUBLIC_FILE_MODE,
    create_in,
    facts_of,
    open_folder,
    require_as_private,
    scan_folder,
)
from storage_core.store.base import FileInfo
from storage_core.store.generations import validate_file_name
from storage_core.store.local import PUBLIC_MODE, LocalStore, make_folder, storage_errors
from storage_core.store.managed_store import ManagedStore

STATE_FILE: Final = "pylog-materialize.json"
_MAX_STATE_BYTES: Final = 256 << 20
# Kafka ignores names like this one, and removes none.
PIN_FILE: Final = f"{SCRATCH_PREFIX}materialize"
_TEMPORARY: Final = f"{SCRATCH_PREFIX}part-"
_WINDOW_BYTES: Final = 16 << 20
_MAX_PIN_BYTES: Final = 4096
_Generation = Annotated[int, whole(1)]


def _read_directory_name(value: object) -> str:
    try:
        return str(parse_partition_directory(str(value)))
    except InvalidNameError as error:
        raise MismatchError(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializedTarget:
    """The root and generations that a target directory holds."""

    root: SystemText  # path or URL of the managed root
    root_id: SystemText
    # What finished runs have written, by partition's directory.
    generations: Mapping[Annotated[str, _read_directory_name], _Generation]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pin:
    """The generation for a directory, and its partition's location."""

    generation: _Generation
    source: SystemText


_STATE: Final = JsonFile(
    MaterializedTarget, "pylog-materialize", layout=SPREAD_WITHOUT_END, is_open=True
)
_PIN: Final = JsonFile(_Pin, layout=ONE_LINE, is_open=True)


@contextmanager
def hold_target(directory: Path, *, root: str, root_id: str) -> Iterator[MaterializedTarget]:
    """Hold a target directory for the block, against other runs."""
    state = read_target(directory, root=root, root_id=root_id)
    with storage_errors(directory):
        make_folder(directory, mode=PUBLIC_MODE)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with storage_errors(directory):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise GuardRefusedError(
                    "TARGET_IN_USE", f"another run writes {directory} at this moment"
                ) from None
        state = read_target(directory, root=root, root_id=root_id)
        if not LocalStore(directory, may_be_link=True).has(STATE_FILE):
            write_target(directory, state)
        yield state
    finally:
        os.close(descriptor)


def read_target(directory: Path, *, root: str, root_id: str) -> MaterializedTarget:
    """Return a target directory's state; an absent or empty one is new."""
    with storage_errors(directory):
        is_there = directory.exists()
        entries = scan_folder(directory, may_be_link=True) if is_there else []
    names = {entry.name for entry in entries}
    # A run that was killed in its first write has left this much.
    if names <= {STATE_FILE + TEMPORARY_SUFFIX}:
        return MaterializedTarget(root=root, root_id=root_id, generations={})
    if STATE_FILE not in names:
        raise GuardRefusedError(
            "TARGET_NOT_EMPTY",
            f"{directory} has {min(names)} and was not begun by this program; name an empty one",
        )
    path = directory / STATE_FILE
    _require_ours(path)
    content = LocalStore(directory, may_be_link=True).read_file(
        STATE_FILE, limit_bytes=_MAX_STATE_BYTES
    )
    try:
        state = _STATE.parse(content, str(path))
    except ManifestError as error:
        raise StorageError(str(path), f"is not what this program writes: {error}") from error
    if state.root_id != root_id:
        raise GuardRefusedError(
            "TARGET_NOT_EMPTY",
            f"{directory} was written from {state.root}, which is another managed root than {root}",
        )
    return state


def write_target(directory: Path, state: MaterializedTarget) -> None:
    """Write the state file of a target directory."""
    ordered = replace(state, generations=dict(sorted(state.generations.items())))
    LocalStore(directory, may_be_link=True).write_file(STATE_FILE, _STATE.encode(ordered))


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializeResult:
    """The result of a materialized partition."""

    generation: int
    checkpoints: PartitionCheckpoints
    files: int
    written_files: int  # how many of them were written now; the others were there
    record_bytes: int
    segments: int


def read_pin(directory: Path) -> int | None:
    """Return a begun directory's generation, None for others."""
    path = directory / PIN_FILE
    store = LocalStore(directory)
    if not store.has(PIN_FILE):
        return None
    _require_ours(path)
    content = store.read_file(PIN_FILE, limit_bytes=_MAX_PIN_BYTES)
    try:
        return _PIN.parse(content, str(path)).generation
    except ManifestError as error:
        raise StorageError(str(path), "says no generation; remove its directory") from error


def _require_ours(path: Path) -> None:
    with storage_errors(path):
        require_as_private(path.lstat(), path.parent.stat())


def materialize_partition(source: ManagedStore, directory: Path) -> MaterializeResult:
    """Write all files of a generation.

    Args:
        source: The partition, opened at the generation that ``read_pin`` returned, if it did.
        directory: Named ``<topic>-<n>``; absent, empty, or begun by a former call.
    """
    manifest = source.manifest
    files = [file for file in source.list_files() if validate_file_name(file.name)]
    with storage_errors(directory):
        make_folder(directory, mode=PUBLIC_MODE)
    target = LocalStore(directory)
    _refuse_foreign(target, files)
    if read_pin(directory) is None:
        pin = _Pin(generation=manifest.generation, source=source.location)
        target.write_file(PIN_FILE, _PIN.encode(pin))
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
    return MaterializeResult(
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
    """Refuse a directory with more than a former call's files."""
    own_names: set[str] = set()
    if read_pin(target.directory) is not None:
        own_names = {file.name for file in files} | {PARTITION_METADATA_FILE}
        own_names.add(PARTITION_METADATA_FILE + TEMPORARY_SUFFIX)
    for file in target.list_files():
        if file.name not in own_names and not file.name.startswith(SCRATCH_PREFIX):
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
