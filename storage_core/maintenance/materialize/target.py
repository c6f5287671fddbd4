"""The directory that partitions are written into: whose it is, and its checkpoint files.

A file of ours, which Kafka ignores, says which managed root the directory is from and what is in
it; only an absent, an empty or such a directory is written. It stays when all is done: a second
run finds that there is nothing to do.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from storage_core.checkpoint.checkpoints import merge_entries, read_checkpoints
from storage_core.checkpoint.offset_checkpoint import encode_offset_checkpoint
from storage_core.errors import (
    GuardRefusedError,
    InvalidNameError,
    ManifestError,
    StorageError,
)
from storage_core.filenames import TEMPORARY_SUFFIX, TopicPartition, parse_partition_directory
from storage_core.local_files import scan_folder
from storage_core.roots.broker import BrokerRoot
from storage_core.store.json_fields import parse_json_object
from storage_core.store.local import PUBLIC_MODE, LocalStore, make_folder, storage_errors

STATE_FILE: Final = "pylog-materialize.json"
_FORMAT: Final = "pylog-materialize"
_VERSION: Final = 1
_MAX_STATE_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """What the directory says of itself.

    Attributes:
        root: Path or URL of the managed root.
        root_id: Its id.
        generations: What finished runs have written, by partition's directory.
    """

    root: str
    root_id: str
    generations: Mapping[str, int]


@contextmanager
def hold_target(directory: Path, *, root: str, root_id: str) -> Iterator[TargetState]:
    """Make the directory ours, if it may be, for the time of the block.

    Raises:
        GuardRefusedError: It has somebody else's files, is from another root, or another run
            writes it at this moment.
        StorageError: It cannot be read, written or locked.
    """
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


def read_target(directory: Path, *, root: str, root_id: str) -> TargetState:
    """Return what a directory says of itself; one that is absent or empty says nothing yet.

    Raises:
        GuardRefusedError: It has somebody else's files, or is from another root.
        StorageError: It cannot be read.
    """
    with storage_errors(directory):
        is_there = directory.exists()
        entries = scan_folder(directory, may_be_link=True) if is_there else []
    names = {entry.name for entry in entries}
    # A run that was killed in its first write has left this much.
    if names <= {STATE_FILE + TEMPORARY_SUFFIX}:
        return TargetState(root=root, root_id=root_id, generations={})
    if STATE_FILE not in names:
        raise GuardRefusedError(
            "TARGET_NOT_EMPTY",
            f"{directory} has {min(names)} and was not begun by this program; name an empty one",
        )
    content = LocalStore(directory, may_be_link=True).read_file(
        STATE_FILE, limit_bytes=_MAX_STATE_BYTES
    )
    state = _parse(content, directory / STATE_FILE)
    if state.root_id != root_id:
        raise GuardRefusedError(
            "TARGET_NOT_EMPTY",
            f"{directory} was written from {state.root}, which is another managed root than {root}",
        )
    return state


def write_target(directory: Path, state: TargetState) -> None:
    """Write down what the directory holds."""
    content: dict[str, Any] = {
        "format": _FORMAT,
        "version": _VERSION,
        "root": state.root,
        "root_id": state.root_id,
        "generations": dict(sorted(state.generations.items())),
    }
    LocalStore(directory, may_be_link=True).write_file(
        STATE_FILE, json.dumps(content, indent=1).encode()
    )


def write_checkpoints(directory: Path, files: Mapping[str, Mapping[TopicPartition, int]]) -> None:
    """Write a log directory's checkpoint files; lines of other partitions stay.

    Args:
        directory: The log directory.
        files: By the name of the file: offsets by partition.

    Raises:
        CheckpointError: A file that is there is malformed.
        StorageError: The disk failed.
    """
    store = LocalStore(directory, may_be_link=True)
    read = read_checkpoints(BrokerRoot(directory), files)
    for name, offsets in files.items():
        known = read.entries.get(name)
        merged = merge_entries(known or {}, offsets)
        if merged != known:
            store.write_file(name, encode_offset_checkpoint(merged))


def _parse(content: bytes, path: Path) -> TargetState:
    try:
        fields = parse_json_object(content, str(path))
        fields.require_format(_FORMAT, _VERSION)
        generations = fields.fields("generations")
        return TargetState(
            root=fields.text("root"),
            root_id=fields.text("root_id"),
            generations={
                str(parse_partition_directory(name)): generations.integer(name, least=1)
                for name in generations.names()
            },
        )
    except (ManifestError, InvalidNameError) as error:
        raise StorageError(str(path), f"is not what this program writes: {error}") from error
