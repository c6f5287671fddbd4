"""A managed root's partition: reads one generation, prepares the next.

A generation is what one manifest names; it never changes, so whoever opened one reads on, whatever
is committed meanwhile. The methods that change files change a manifest that is only in memory and
upload new objects under the name of this attempt, which nobody sees. ``publish`` copies the present
manifest into the history and replaces it by one conditional PUT: before that nothing has happened,
after it everything, and of several writers one wins. A crash leaves objects that no manifest names;
purge finds them.
"""

import os
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.clock import Clock, SystemClock
from storage_core.errors import (
    InvalidNameError,
    LeaseLostError,
    PartitionNotFoundError,
    StorageError,
)
from storage_core.filenames import LOG_SUFFIX, TopicPartition, segment_file
from storage_core.local_files import open_file
from storage_core.store.base import FileInfo, FileReader
from storage_core.store.gaps import may_be_gap
from storage_core.store.generations import (
    Head,
    commit_generation,
    partition_location,
    read_generation,
    read_head,
)
from storage_core.store.local import storage_errors
from storage_core.store.manifest import (
    FileEntry,
    Manifest,
    data_key,
    split_adopted,
    validate_file_name,
)
from storage_core.store.object_files import BytesReader, EntryReader
from storage_core.store.object_store import ObjectStore
from storage_core.store.uploads import (
    UPLOADED_PREFIX,
    WaitingFile,
    cut_file,
    is_log,
    object_name,
    object_stem,
    parse_location,
    recorded_timestamps,
    size_of,
    upload_companions,
    waiting_timestamps,
)

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
