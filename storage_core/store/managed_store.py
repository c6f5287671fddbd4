"""A managed root's partition: reads one generation, prepares the next.

A generation is what one manifest names; it never changes, so whoever opened one reads on, whatever
is committed meanwhile. The methods that change files change a manifest that is only in memory and
upload new objects under the name of this attempt, which nobody sees. ``publish`` copies the present
manifest into the history and replaces it by one conditional PUT: before that nothing has happened,
after it everything, and of several writers one wins. A crash leaves objects that no manifest names;
purge finds them.
"""

import json
import os
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.clock import Clock, SystemClock
from storage_core.errors import (
    InvalidNameError,
    LeaseLostError,
    PartitionNotFoundError,
    StorageError,
)
from storage_core.filenames import (
    COMPANIONS_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TopicPartition,
    kind_of,
    log_file,
    offset_of,
    segment_file,
    settled_name,
)
from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.formats.index_entries import TIME_INDEX_ENTRY
from storage_core.json_values import parse_json
from storage_core.local_files import facts_of, open_file
from storage_core.store.base import FileInfo, FileReader
from storage_core.store.copying import may_be_gap
from storage_core.store.generations import (
    FileEntry,
    Head,
    Manifest,
    commit_generation,
    data_key,
    partition_location,
    read_generation,
    read_head,
    split_adopted,
    validate_file_name,
)
from storage_core.store.local import storage_errors
from storage_core.store.object_files import BytesReader, EntryReader
from storage_core.store.object_store import ObjectStore

# Upload one task's data objects for another task's commit to name. That commit puts them into a
# manifest.
#
# What a task has uploaded travels to the commit as a location, a text that says where the bytes
# are: ``pylog-object:`` and the JSON of a file's entry in a manifest. The small files of a segment
# go into one object, one after another: requests are what an object store charges for.

UPLOADED_PREFIX: Final = "pylog-object:"
PARTITION_STEM: Final = "partition"
_MAX_LOCATION_BYTES: Final = 1 << 16


def upload_file(  # the object, its owner, and the way to upload it
    objects: ObjectStore,
    partition: TopicPartition,
    attempt_id: str,
    path: Path,
    name: str,
    *,
    largest_timestamp: int | None = None,
    put: Callable[[str, str], str] | None = None,
) -> str:
    """Upload a finished local file as one object; return its location.

    Args:
        attempt_id: Id of the task's attempt; no name is uploaded twice under one id.
        path: Path of the local file; its modification time becomes the file's.
        largest_timestamp: Largest timestamp of a segment's records, if it is known.
        put: Makes an object of that key by the file of that path and returns its tag, as
            ``put_file``; None for that.
    """
    with storage_errors(path):
        facts = facts_of(path)
    if facts is None:
        raise StorageError(str(path), "No such file or directory")
    key = data_key(partition, attempt_id, name)
    etag = (put or objects.put_file)(key, str(path)) if facts.st_size else ""
    return encode_location(
        FileEntry(
            key=key if facts.st_size else "",
            start=0,
            size_bytes=facts.st_size,
            etag=etag,
            modified_ms=facts.st_mtime_ns // 1_000_000,
            largest_timestamp=largest_timestamp,
        )
    )


def upload_companions(
    objects: ObjectStore, key: str, contents: Mapping[str, tuple[bytes, int]]
) -> dict[str, FileEntry]:
    """Upload small files as one object.

    Args:
        contents: By name: bytes, and modification time in epoch milliseconds.

    Returns:
        Their entries by name; files without bytes need no object.
    """
    packed = b"".join(content for content, _ in contents.values())
    etag = objects.put(key, packed) if packed else ""
    entries = {}
    start = 0
    for name, (content, modified_ms) in contents.items():
        is_empty = not content
        entries[name] = FileEntry(
            key="" if is_empty else key,
            start=0 if is_empty else start,
            size_bytes=len(content),
            etag="" if is_empty else etag,
            modified_ms=modified_ms,
        )
        start += len(content)
    return entries


def is_log(name: str) -> bool:
    """Tell whether a file is a segment's log, under any transient suffix."""
    return kind_of(settled_name(name)) == LOG_SUFFIX


def object_stem(name: str) -> str:
    """Return the stem of a file's object: its log's or segment's name. Small files of a segment
    share an object, named after the segment."""
    offset = offset_of(name)
    if offset is None:
        return PARTITION_STEM
    return log_file(offset) if is_log(name) else f"{offset:020d}"


def object_name(stem: str, number: int) -> str:
    """Return an attempt's object name from its stem and a number. The number counts the
    attempt's objects of that stem."""
    again = f"-{number}" if number else ""
    if stem.endswith(LOG_SUFFIX):
        return f"{stem.removesuffix(LOG_SUFFIX)}{again}{LOG_SUFFIX}"
    return f"{stem}{again}{COMPANIONS_SUFFIX}"


def encode_location(entry: FileEntry) -> str:
    """Return the location of an uploaded file, for ``PromoteFile``."""
    return UPLOADED_PREFIX + json.dumps(asdict(entry), separators=(",", ":"))


def parse_location(location: str) -> FileEntry:
    """Parse the location of an uploaded file."""
    try:
        text = location.removeprefix(UPLOADED_PREFIX)
        entry = parse_json(text, limit_bytes=_MAX_LOCATION_BYTES)
        return FileEntry(**{field.name: entry[field.name] for field in fields(FileEntry)})
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidNameError(location[:80], "is no location of an uploaded object") from error


def last_timestamp(time_index: bytes) -> int | None:
    """Return the largest timestamp that a closed segment's time index tells.

    Returns:
        The last entry's; NO_TIMESTAMP for an index without entries; None for one that says
        nothing: of a length that no index has, or that ends in zeros.
    """
    if len(time_index) % TIME_INDEX_ENTRY.itemsize:
        return None
    stamps = np.frombuffer(time_index, TIME_INDEX_ENTRY)["timestamp"]
    if not stamps.size:
        return NO_TIMESTAMP
    if stamps[-1] <= 0 or (stamps.size > 1 and stamps[-1] <= stamps[-2]):
        return None
    return int(stamps[-1])


@dataclass(frozen=True, slots=True)
class WaitingFile:
    """A small file that has no object yet."""

    content: bytes
    modified_ms: int  # its modification time, epoch milliseconds


def size_of(file: FileEntry | WaitingFile) -> int:
    """Return a file's length in bytes."""
    return len(file.content) if isinstance(file, WaitingFile) else file.size_bytes


def cut_file(
    file: FileEntry | WaitingFile, start: int, size_bytes: int, modified_ms: int
) -> FileEntry | WaitingFile:
    """Return a range of a file as another, without largest timestamp."""
    if isinstance(file, WaitingFile):
        return WaitingFile(file.content[start : start + size_bytes], modified_ms)
    return FileEntry(
        key=file.key if size_bytes else "",
        start=file.start + start if size_bytes else 0,
        size_bytes=size_bytes,
        etag=file.etag if size_bytes else "",
        modified_ms=modified_ms,
    )


def recorded_timestamps(files: Mapping[str, FileEntry | WaitingFile]) -> dict[int, int]:
    """Return the largest timestamps of segments in manifest entries, if any.

    Returns:
        By base offset; -1 for a segment whose records have none.
    """
    timestamps = {}
    for name, file in files.items():
        offset = offset_of(name)
        if (
            isinstance(file, FileEntry)
            and offset is not None
            and kind_of(name) == LOG_SUFFIX
            and file.largest_timestamp is not None
        ):
            timestamps[offset] = file.largest_timestamp
    return timestamps


def waiting_timestamps(files: Mapping[str, FileEntry | WaitingFile]) -> dict[int, int]:
    """Return largest timestamps from waiting time indexes, where the manifest has none."""
    recorded = recorded_timestamps(files)
    timestamps = {}
    for name, file in files.items():
        offset = offset_of(name)
        if (
            isinstance(file, WaitingFile)
            and offset is not None
            and kind_of(name) == TIME_INDEX_SUFFIX
            and offset not in recorded
        ):
            timestamp = last_timestamp(file.content)
            if timestamp is not None:
                timestamps[offset] = timestamp
    return timestamps


# Small files wait in memory for their shared object, up to this many bytes.
_WAITING_BYTES: Final = 64 << 20
# A promoted file up to this size waits, too; logs never do.
_SMALL_BYTES: Final = 16 << 20
_UPLOADS_AT_ONCE: Final = 8


class ManagedStore:
    """The files of one partition of a managed root.

    Args:
        generation: The one to read; None for the current one when it is first needed.
        attempt_id: Names what is uploaded; None for a new name that nobody else has.
        is_new: Whether a partition without a manifest is an empty one that a publish creates.
        clock: For the times of files that are written without one.
    """

    def __init__(
        self,
        objects: ObjectStore,
        partition: TopicPartition,
        *,
        generation: int | None = None,
        attempt_id: str | None = None,
        is_new: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.objects = objects
        self.partition = partition
        self.attempt_id = validate_file_name(attempt_id or secrets.token_hex(16))
        self._generation = generation
        self._is_new = is_new
        self._clock = clock or SystemClock()
        self._reader = EntryReader(objects)
        self._loaded: Head | None = None
        self._files: dict[str, FileEntry | WaitingFile] = {}
        self._waiting_bytes = 0
        self._checkpoints = PartitionCheckpoints()
        self._topic_id: str | None = None
        self._object_counts: dict[str, int] = {}
        self._moved: dict[str, None] = {}  # in the order of the calls
        self._seen_keys: set[str] = set()

    # Reading.

    @property
    def location(self) -> str:
        """Location of the partition, with the generation once that is settled."""
        generation = self._generation
        if self._loaded is not None and self._loaded.manifest.generation:
            generation = self._loaded.manifest.generation
        return partition_location(self.objects, self.partition, generation)

    @property
    def manifest(self) -> Manifest:
        """The generation that is read, without the changes since."""
        return self._head().manifest

    @property
    def checkpoints(self) -> PartitionCheckpoints:
        """The checkpoints, with the changes since."""
        self._head()
        return self._checkpoints

    def go_on_with(self, head: Head) -> None:
        """Start changes from a generation just read by the caller."""
        self._settle(head)

    def list_files(self) -> list[FileInfo]:
        """Return the files, sorted by name; the manifest knows them all."""
        return sorted(
            FileInfo(name, size_of(file), file.modified_ms)
            for name, file in self._changed().items()
        )

    def entry_of(self, name: str) -> FileEntry | None:
        """Return a file's location; None without a file or its object."""
        file = self._changed().get(name)
        return file if isinstance(file, FileEntry) else None

    def stretch_to_copy(self, name: str, start: int, size_bytes: int) -> FileEntry | None:
        """Return the location of a range; None if it cannot be copied. Some object stores copy
        no ranges, or no short ones."""
        entry = self.entry_of(name)
        if entry is None or not may_be_gap(self.objects, size_bytes):
            return None
        return replace(
            entry, start=entry.start + start, size_bytes=size_bytes, largest_timestamp=None
        )

    def largest_timestamps(self) -> dict[int, int]:
        """Return the largest timestamps of the manifest's segments, as far as recorded.

        Returns:
            By base offset; -1 for a segment whose records have none.
        """
        return recorded_timestamps(self._changed())

    def read_file(self, name: str, *, limit_bytes: int) -> bytes:
        """Return a small file whole."""
        file = self._find(name)
        if size_of(file) > limit_bytes:
            raise StorageError(
                self._path(name), f"is longer than the {limit_bytes} bytes it may have"
            )
        if isinstance(file, WaitingFile):
            return file.content
        return self._reader.read(name, file)

    def open_file(self, name: str) -> FileReader:
        """Open a file for ranged reads."""
        file = self._find(name)
        if isinstance(file, WaitingFile):
            return BytesReader(name, file.content)
        return self._reader.open(name, file)

    # Changes for the next generation.

    def write_file(self, name: str, content: bytes, *, modified_ms: int | None = None) -> None:
        """Create or replace a small file."""
        self._set(name, WaitingFile(bytes(content), self._time(modified_ms)))

    def copy_range(
        self, source: str, start: int, size_bytes: int, target: str, *, modified_ms: int
    ) -> None:
        """Make a range of a file another file of its object, uncopied."""
        file = self._find(source)
        if start + size_bytes > size_of(file):
            raise StorageError(
                self._path(source),
                f"ends after {size_of(file)} bytes, expected {start + size_bytes} of them",
            )
        self._set(target, cut_file(file, start, size_bytes, modified_ms))

    def create_empty(self, name: str) -> None:
        """Create an empty file unless there is one of that name."""
        if name not in self._changed():
            self._set(name, cut_file(WaitingFile(b"", 0), 0, 0, self._time(None)))

    def promote(self, scratch_path: str, name: str) -> None:
        """Add a finished file: a local one or an object of ``uploads``. A local file is uploaded
        now, or by the publish if small, which then removes it."""
        if scratch_path.startswith(UPLOADED_PREFIX):
            entry = parse_location(scratch_path)
            self._require_uploaded(entry)
            self._set(name, entry)
            return
        path = Path(scratch_path)
        if scratch_path in self._moved:
            raise StorageError(scratch_path, "was moved into the partition before")
        with storage_errors(path), os.fdopen(open_file(path), "rb") as file:
            facts = os.fstat(file.fileno())
            is_small = facts.st_size <= _SMALL_BYTES and not is_log(name)
            content = file.read() if is_small else None
        modified_ms = facts.st_mtime_ns // 1_000_000
        if content is not None:
            self._set(name, WaitingFile(content, modified_ms))
        else:
            key = self._new_key(object_stem(name))
            etag = self.objects.put_file(key, scratch_path)
            self._set(
                name,
                FileEntry(
                    key=key,
                    start=0,
                    size_bytes=facts.st_size,
                    etag=etag,
                    modified_ms=modified_ms,
                ),
            )
        self._moved[scratch_path] = None

    def adopt(self, name: str, entry: FileEntry) -> None:
        """Add an object of any place by its URL, without a copy."""
        split_adopted(entry.key, self.objects.url)
        self._set(name, entry)

    def rename(self, source: str, target: str) -> None:
        """Rename a file, replacing the target if there is one."""
        file = self._find(source)
        self.delete(source)
        self._set(target, file)

    def delete(self, name: str) -> None:
        """Leave a file out; one that is not there is no error."""
        self._waiting_bytes -= _waiting_bytes(self._changed().pop(name, None))

    def truncate(self, name: str, size_bytes: int) -> None:
        """Cut a file to size_bytes; its object stays as it is."""
        file = self._find(name)
        if size_bytes > size_of(file):
            raise StorageError(
                self._path(name), f"has {size_of(file)} bytes, fewer than {size_bytes}"
            )
        self._set(name, cut_file(file, 0, size_bytes, self._time(None)))

    def sync_file(self, name: str) -> None:
        """Do nothing: an object is durable when its PUT was answered."""

    def sync_directory(self) -> None:
        """Do nothing: the manifest is the directory."""

    def set_checkpoints(self, checkpoints: PartitionCheckpoints) -> None:
        """Set the checkpoints of the next generation."""
        self._changed()
        self._checkpoints = checkpoints

    def set_topic_id(self, topic_id: str | None) -> None:
        """Set the topic id of the next generation."""
        self._changed()
        self._topic_id = topic_id

    def set_largest_timestamps(self, timestamps: Mapping[int, int]) -> None:
        """Set the largest timestamps of uploaded segments, by base offset."""
        for offset, timestamp in timestamps.items():
            name = segment_file(offset, LOG_SUFFIX)
            file = self._changed().get(name)
            if isinstance(file, FileEntry):
                self._files[name] = replace(file, largest_timestamp=timestamp)

    def restore(self, manifest: Manifest) -> None:
        """Make the next generation a copy of another one, its checkpoints included. Each object
        missing from the present generation is checked by one HEAD."""
        self._seen_keys.update(entry.key for entry in self.manifest.files.values())
        for entry in manifest.files.values():
            self._require_uploaded(entry)
        self._take(manifest)
        self._checkpoints = manifest.checkpoints
        self._topic_id = manifest.topic_id

    # The commit.

    def publish(
        self,
        *,
        run_id: str,
        fencing_token: int = 0,
        fence: Callable[[], None] | None = None,
        result: Mapping[str, Any] | None = None,
    ) -> Manifest:
        """Make the changes the partition's current generation, by one conditional PUT. Nothing is
        written without changes or a result to keep.

        Args:
            fencing_token: Token of its lease; a manifest with a higher one is not replaced.
            fence: Called right before the PUT; raises if the lease is not held any more.
            result: The commit's result, for the manifest.

        Returns:
            The manifest that is current now; this store reads it from here on.
        """
        head = self._head()
        before = head.manifest
        if before.fencing_token > fencing_token:
            raise LeaseLostError(
                self.location,
                f"run {run_id}",
                f"has token {fencing_token}, but run {before.run_id} committed with token "
                f"{before.fencing_token}",
            )
        self.upload_waiting()
        manifest = Manifest(
            partition=self.partition,
            topic_id=self._topic_id,
            generation=before.generation + 1,
            run_id=run_id,
            attempt_id=self.attempt_id,
            fencing_token=fencing_token,
            committed_ms=self._clock.now_ms(),
            files={name: file for name, file in self._files.items() if isinstance(file, FileEntry)},
            checkpoints=self._checkpoints,
            result=result or {},
        )
        is_unchanged = (manifest.files, manifest.checkpoints, manifest.topic_id) == (
            before.files,
            before.checkpoints,
            before.topic_id,
        )
        if result is None and head.etag and is_unchanged:
            return before
        self._settle(commit_generation(self.objects, head, manifest, fence))
        for path in self._moved:
            Path(path).unlink(missing_ok=True)
        self._moved.clear()
        return manifest

    def upload_waiting(self) -> None:
        """Upload the small files in memory, one object a segment."""
        groups: dict[str, dict[str, tuple[bytes, int]]] = {}
        for name, file in sorted(self._changed().items()):
            if isinstance(file, WaitingFile):
                group = groups.setdefault(object_stem(name), {})
                group[name] = (file.content, file.modified_ms)
        keys = [self._new_key(stem) for stem in groups]
        timestamps = waiting_timestamps(self._files)
        with ThreadPoolExecutor(_UPLOADS_AT_ONCE) as pool:
            for entries in pool.map(
                lambda key, group: upload_companions(self.objects, key, group),
                keys,
                groups.values(),
            ):
                self._files.update(entries)
                self._reader.note(entries.values())
        self._waiting_bytes = sum(map(_waiting_bytes, self._files.values()))
        self.set_largest_timestamps(timestamps)

    def _head(self) -> Head:
        if self._loaded is None:
            return self._settle(self._load())
        return self._loaded

    def _settle(self, head: Head) -> Head:
        """Set the generation for reads and as the base of changes."""
        self._take(head.manifest)
        self._checkpoints = head.manifest.checkpoints
        self._topic_id = head.manifest.topic_id
        # Last: for reading threads that share this store it stands for all of the above.
        self._loaded = head
        return head

    def _take(self, manifest: Manifest) -> None:
        self._files = dict(manifest.files)
        self._waiting_bytes = 0
        self._reader.note(manifest.files.values())

    def _load(self) -> Head:
        if self._generation is not None:
            return read_generation(self.objects, self.partition, self._generation)
        try:
            return read_head(self.objects, self.partition)
        except PartitionNotFoundError:
            if self._is_new:
                return Head(manifest=Manifest(partition=self.partition))
            raise

    def _changed(self) -> dict[str, FileEntry | WaitingFile]:
        """Return the files as they will be, the generation read first."""
        self._head()
        return self._files

    def _set(self, name: str, file: FileEntry | WaitingFile) -> None:
        try:
            validate_file_name(name)
        except InvalidNameError as error:
            raise StorageError(self._path(name), error.reason) from error
        files = self._changed()
        self._waiting_bytes += _waiting_bytes(file) - _waiting_bytes(files.get(name))
        files[name] = file
        if isinstance(file, FileEntry):
            self._reader.note([file])
        if self._waiting_bytes > _WAITING_BYTES:
            self.upload_waiting()

    def _find(self, name: str) -> FileEntry | WaitingFile:
        file = self._changed().get(name)
        if file is None:
            raise StorageError(self._path(name), "there is no such file in this generation")
        return file

    def _path(self, name: str) -> str:
        return f"{self.location}/{name}"

    def _time(self, modified_ms: int | None) -> int:
        return self._clock.now_ms() if modified_ms is None else modified_ms

    def _new_key(self, stem: str) -> str:
        """Return a key new to this attempt: objects are never overwritten."""
        number = self._object_counts.get(stem, 0)
        self._object_counts[stem] = number + 1
        return data_key(self.partition, self.attempt_id, object_name(stem, number))

    def _require_uploaded(self, entry: FileEntry) -> None:
        """Check by one HEAD that another task's or generation's object exists."""
        if not entry.size_bytes or entry.key in self._seen_keys:
            return
        objects, key = self._reader.place_of(entry)
        info = objects.head(key)
        if info.etag != entry.etag or info.size_bytes < entry.start + entry.size_bytes:
            raise StorageError(
                f"{objects.url}/{key}",
                f"expected version {entry.etag} with at least {entry.start + entry.size_bytes} "
                f"bytes, found version {info.etag} with {info.size_bytes}",
            )
        self._seen_keys.add(entry.key)


def _waiting_bytes(file: FileEntry | WaitingFile | None) -> int:
    """Return a waiting file's bytes in memory; 0 after its upload."""
    return len(file.content) if isinstance(file, WaitingFile) else 0
