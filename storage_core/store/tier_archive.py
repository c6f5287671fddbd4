"""The tier of a cluster (KIP-405), read without the cluster.

A *tier* has the closed segments of a cluster's topics on an object store or a shared disk. Two
layouts are read: ``LocalTieredStorage``, which Kafka brings along, and that of Aiven's plugin
(``tier_manifest``). A partition in it is read as a directory of log files: `TierStore` has its
segments, and the log on a broker's disk that goes on where they end.

Not every segment that lies there counts. An upload may have stopped halfway, or been done twice; a
leader that was elected uncleanly has left a history that no replica has any more. One rule decides:
a batch counts if its leader epoch is that of the log's *lineage* at its offset. The lineage is the
leader epoch file of the local log or, without one, of the segment whose epochs reach furthest.
"""

import json
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from heapq import heappop, heappush
from threading import Lock
from typing import Any, Final, Self, TypeVar
from urllib.parse import parse_qsl, urlencode

import numpy as np
from numpy.typing import NDArray

from storage_core.checkpoint.checkpoints import (
    MAX_LEADER_EPOCH_BYTES,
    MAX_PARTITION_METADATA_BYTES,
    EpochEntry,
    PartitionMetadata,
    encode_leader_epochs,
    encode_partition_metadata,
    parse_leader_epochs,
    parse_partition_metadata,
    parse_uuid,
)
from storage_core.errors import (
    BadBytesError,
    ConfigError,
    InvalidNameError,
    ManifestError,
    PartitionNotFoundError,
    PylogError,
    StorageError,
)
from storage_core.filenames import (
    INDEX_SUFFIXES,
    LEADER_EPOCH_FILE,
    LOG_SUFFIX,
    MAX_OFFSET,
    OFFSET_INDEX_SUFFIX,
    PARTITION_METADATA_FILE,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    TopicPartition,
    kind_of,
    log_file,
    offset_of,
    parse_partition_directory,
    segment_file,
    snapshot_file,
)
from storage_core.formats.batch_v2 import BATCH_HEADER, LENGTH_OVERHEAD, MAGIC_V2
from storage_core.formats.index_entries import (
    OFFSET_INDEX_ENTRY,
    TIME_INDEX_ENTRY,
    TXN_INDEX_ENTRY,
)
from storage_core.redaction import TIER_LOCATION
from storage_core.store.base import (
    FileInfo,
    FileReader,
    LogStore,
    ReadOnlyStore,
    SliceReader,
    read_limited,
)
from storage_core.store.object_files import BytesReader, ObjectFileReader
from storage_core.store.object_store import ObjectInfo, ObjectStore
from storage_core.store.open_objects import is_url, open_object_store
from storage_core.store.tier_chunks import ChunkReader, KeyFile, Transformation
from storage_core.store.tier_manifest import (
    MAX_MANIFEST_BYTES,
    TierManifest,
    TierSegmentId,
    parse_manifest,
)

T = TypeVar("T")
R = TypeVar("R")
_ID: Final = r"[A-Za-z0-9_-]{22}"
# ``<topic>-<partition>-<topic id>/<base offset>-<segment id>.<kind>``
_LOCAL_LAYOUT: Final = re.compile(
    rf"(?P<folder>(?:.*/)?(?P<directory>[^/]+)-(?P<topic_id>{_ID}))/"
    rf"(?P<base>[0-9]{{20}})-(?P<segment>{_ID})"
    r"\.(?P<kind>log|index|timeindex|txnindex|snapshot|leader_epoch_checkpoint)"
)
# ``<prefix><topic>-<topic id>/<partition>/<base offset>-<segment id>.<kind>``
_AIVEN_LAYOUT: Final = re.compile(
    rf"(?P<folder>(?:.*/)?(?P<topic>[^/]+)-(?P<topic_id>{_ID})/(?P<partition>[0-9]+))/"
    rf"(?P<base>[0-9]{{20}})-(?P<segment>{_ID})"
    r"\.(?P<kind>log|indexes|rsm-manifest)"
)
_MD5: Final = re.compile(r"[0-9a-f]{32}")
_MANIFEST: Final = "rsm-manifest"
_LOG: Final = "log"
# What else a whole segment has, in each layout.
_LOCAL_KINDS: Final = ("index", "timeindex", "snapshot", "leader_epoch_checkpoint")
_AIVEN_KINDS: Final = ("indexes", _MANIFEST)
# Names of a log's files, in a partition directory and in the layout that Kafka brings along.
_LOCAL_NAMES: Final = {
    OFFSET_INDEX_SUFFIX: "index",
    TIME_INDEX_SUFFIX: "timeindex",
    TXN_INDEX_SUFFIX: "txnindex",
    SNAPSHOT_SUFFIX: "snapshot",
    LEADER_EPOCH_FILE: "leader_epoch_checkpoint",
}
# An index of a segment of 2 GiB, with an entry a batch of the smallest size, has less.
_MAX_SMALL_FILE_BYTES: Final = 256 << 20
_WALK_BYTES: Final = 1 << 16
_REQUESTS_AT_ONCE: Final = 16
_TIER_IDENTITY: Final = "tier:"
_HEADER_BYTES: Final = BATCH_HEADER.itemsize
# Of a folder so many manifests are asked whose it is, until one can be read.
_MANIFESTS_OF_FOLDER: Final = 4
# Entries at the end of an index that tell where the last batches are.
_INDEX_END_BYTES: Final = 512 * OFFSET_INDEX_ENTRY.itemsize
# The length of an object that was not listed.
_UNKNOWN: Final = -1
# Below every entry of a leader epoch file.
_NO_ENTRY: Final = EpochEntry(-1, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivePlace:
    """Where a tier is, and what it is read with.

    As a location it is ``archive+PLACE``; options stand in parentheses before the plus sign.
    """

    place: str  # path or URL, as ``open_object_store`` takes it
    with_local: tuple[str, ...] = ()  # a broker's log directories, where its logs go on
    decryption_key: str | None = None  # path of the private key of an encrypted tier
    topic_ids: tuple[str, ...] = ()  # which of several topics of one name
    folders: tuple[str, ...] = ()  # where the segments of one partition are; none: anywhere

    def __str__(self) -> str:
        named = [("local", root) for root in self.with_local]
        named += [("key", self.decryption_key)] if self.decryption_key else []
        named += [("topic-id", topic_id) for topic_id in self.topic_ids]
        named += [("folder", folder) for folder in self.folders]
        options = f"({urlencode(named)})" if named else ""
        return f"archive{options}+{self.place}"

    def open(self) -> "Tier":
        """Return the tier; nothing is asked yet."""
        key = KeyFile(self.decryption_key) if self.decryption_key else None
        return Tier(open_object_store(self.place), key, folders=self.folders)


def names_archive(location: str) -> bool:
    """Tell by its beginning whether a location names a tier, or a partition in one."""
    return TIER_LOCATION.match(location) is not None


def parse_archive(location: str) -> ArchivePlace:
    """Parse the location of a tier."""
    match = TIER_LOCATION.match(location)
    if match is None:
        raise InvalidNameError(location, "expected archive+PLACE")
    options: dict[str, list[str]] = {"local": [], "key": [], "topic-id": [], "folder": []}
    for name, value in parse_qsl(match["options"] or "", keep_blank_values=True):
        if name not in options:
            raise InvalidNameError(location, f"an archive has no option {name!r}")
        options[name].append(value)
    return ArchivePlace(
        place=location[match.end() :],
        with_local=tuple(options["local"]),
        decryption_key=next(iter(options["key"]), None),
        topic_ids=tuple(options["topic-id"]),
        folders=tuple(options["folder"]),
    )


def is_in_tier(file: FileInfo) -> bool:
    """Tell whether a segment's file lies in a tier, not on the disk beside it."""
    return file.identity.startswith(_TIER_IDENTITY)


def is_tier_key(key: str) -> bool:
    """Tell whether an object is named as those of a tier are."""
    return bool(_LOCAL_LAYOUT.fullmatch(key) or _AIVEN_LAYOUT.fullmatch(key))


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSegment:
    """A segment of a tier, as its objects show it."""

    identity: TierSegmentId
    base_offset: int
    objects: Mapping[str, ObjectInfo]  # by kind: what stands behind the last dot of their names
    manifest: TierManifest | None = None  # None in the layout that has none, or without one
    problem: str = ""  # why it is not whole; empty if it is
    missing: tuple[str, ...] = ()  # kinds of objects that it lacks

    @property
    def is_complete(self) -> bool:
        """Whether all of it was uploaded, and nothing of it deleted."""
        return not self.problem


@dataclass(frozen=True, slots=True, kw_only=True)
class TierFolder:
    """The objects of one partition of one topic, as they are listed."""

    key: str  # without a slash at the end
    topic_id: str
    partition: TopicPartition
    has_manifests: bool  # whether its layout is the one with manifests
    segments: Mapping[tuple[int, str], Mapping[str, ObjectInfo]]  # by base offset and id; by kind


class Tier:
    """The objects of a tier.

    Args:
        key: The private key, where it is encrypted.
        folders: Those that are looked at; none for all.
    """

    def __init__(
        self, objects: ObjectStore, key: KeyFile | None, *, folders: Sequence[str] = ()
    ) -> None:
        self.objects = objects
        self._key = key
        self._folders = tuple(folders)
        self._transformations: dict[str, Transformation] = {}
        self._manifests: dict[str, TierManifest] = {}
        self._lineages: dict[tuple[str, int], tuple[EpochEntry, ...]] = {}
        self._reading = Lock()
        self._last_offsets: dict[str, int] = {}

    def partition_folders(self) -> dict[str, list[str]]:
        """Return the keys of each partition's folders, by its name.

        Objects are not kept, unlike by ``listing``: this takes memory for each folder, not for each
        segment.
        """
        matches: dict[str, re.Match[str]] = {}
        manifests: dict[str, dict[tuple[int, str], dict[str, ObjectInfo]]] = {}
        for info in self._list():
            match = _LOCAL_LAYOUT.fullmatch(info.key) or _AIVEN_LAYOUT.fullmatch(info.key)
            if match is None:
                continue
            known = manifests.setdefault(match["folder"], {})
            if match["kind"] == _MANIFEST and len(known) < _MANIFESTS_OF_FOLDER:
                known[int(match["base"]), match["segment"]] = {_MANIFEST: info}
            matches.setdefault(match["folder"], match)
        folders: dict[str, list[str]] = {}
        for key, match in matches.items():
            owner = self._owner(match, manifests[key])
            if owner is not None:
                folders.setdefault(str(owner[1]), []).append(key)
        return folders

    @cached_property
    def listing(self) -> tuple[list[TierFolder], list[ObjectInfo]]:
        """The folders of partitions, by partition, and the objects that belong to none: about
        2 KiB of memory for each segment that is looked at."""
        found: dict[str, dict[tuple[int, str], dict[str, ObjectInfo]]] = {}
        matches: dict[str, re.Match[str]] = {}
        others = []
        for info in self._list():
            match = _LOCAL_LAYOUT.fullmatch(info.key) or _AIVEN_LAYOUT.fullmatch(info.key)
            if match is None or int(match["base"]) > MAX_OFFSET:
                others.append(info)
                continue
            name = int(match["base"]), match["segment"]
            found.setdefault(match["folder"], {}).setdefault(name, {})[match["kind"]] = info
            matches[match["folder"]] = match
        folders = []
        for key, segments in found.items():
            owner = self._owner(matches[key], segments)
            if owner is None:
                others += [info for kinds in segments.values() for info in kinds.values()]
                continue
            folders.append(
                TierFolder(
                    key=key,
                    topic_id=owner[0],
                    partition=owner[1],
                    has_manifests=matches[key].re is _AIVEN_LAYOUT,
                    segments=segments,
                )
            )
        folders.sort(key=lambda folder: (folder.partition, folder.topic_id))
        return folders, others

    def segments(self, folder: TierFolder) -> list[TierSegment]:
        """Return the segments of a partition, by base offset and id."""
        manifests = [kinds[_MANIFEST] for kinds in folder.segments.values() if _MANIFEST in kinds]

        def look(stored: ObjectInfo) -> None:
            with suppress(PylogError):  # it is told where the segment is looked at
                self._manifest(stored)

        self.ask_each(look, manifests)
        return [
            self._segment(folder, base_offset, segment_id, kinds)
            for (base_offset, segment_id), kinds in sorted(folder.segments.items())
        ]

    def ask_each(self, ask: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Return an answer for each of some items; of a URL they are requested side by side, as
        each takes its time."""
        if not is_url(self.objects.url) or len(items) < 2:  # noqa: PLR2004
            return [ask(item) for item in items]
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
            return list(pool.map(ask, items))

    def find_log(self, stored: ObjectInfo) -> TierSegment | None:
        """Return the complete segment whose log is one object, without a listing; None if it is
        gone. Of its other objects only the names are known."""
        match = _LOCAL_LAYOUT.fullmatch(stored.key) or _AIVEN_LAYOUT.fullmatch(stored.key)
        if match is None:
            return None
        stem, base_offset = stored.key.removesuffix(f".{_LOG}"), int(match["base"])
        kinds = {_LOG: stored}
        has_manifests = match.re is _AIVEN_LAYOUT
        for kind in _AIVEN_KINDS if has_manifests else (*_LOCAL_KINDS, "txnindex"):
            kinds[kind] = replace(stored, key=f"{stem}.{kind}", size_bytes=_UNKNOWN, etag="")
        owner = self._owner(match, {(base_offset, match["segment"]): kinds})
        if owner is None:
            return None
        folder = TierFolder(
            key=match["folder"],
            topic_id=owner[0],
            partition=owner[1],
            has_manifests=has_manifests,
            segments={},
        )
        segment = self._segment(folder, base_offset, match["segment"], kinds)
        return segment if segment.is_complete else None

    def open_log(self, segment: TierSegment, name: str) -> FileReader:
        """Open the log of a complete segment for ranged reads, under some name."""
        stored = segment.objects[_LOG]
        manifest = segment.manifest
        if manifest is not None:
            transformation = self._transformation(segment)
            if not transformation.is_none:
                return ChunkReader(
                    self.objects,
                    stored,
                    name=name,
                    chunks=manifest.chunks,
                    transformation=transformation,
                )
        reader = ObjectFileReader(
            self.objects, stored.key, name=name, size_bytes=stored.size_bytes, etag=stored.etag
        )
        if not is_url(self.objects.url):
            reader.block_bytes = stored.size_bytes  # of a disk the kernel reads ahead
        return reader

    def read_small(self, segment: TierSegment, suffix: str) -> bytes:
        """Return an index, the producers or the epochs of a complete segment; empty without.

        Args:
            suffix: Of the file in a partition directory, or its name there.
        """
        manifest = segment.manifest
        if manifest is None:
            stored = segment.objects.get(_LOCAL_NAMES[suffix])
            if stored is None:
                return b""
            if stored.size_bytes == _UNKNOWN:
                return self.objects.get(stored.key, limit_bytes=_MAX_SMALL_FILE_BYTES)
            return self._read(stored, 0, stored.size_bytes)
        place = manifest.small_files.get(suffix)
        if place is None or not place[1]:
            return b""
        stored = segment.objects["indexes"]
        data = self._read(stored, *place)
        return bytes(self._transformation(segment).decrypt(data, self._path(stored), place[0]))

    def small_bytes(self, segment: TierSegment, suffix: str) -> int:
        """Return the length of what ``read_small`` returns."""
        manifest = segment.manifest
        if manifest is None:
            stored = segment.objects.get(_LOCAL_NAMES[suffix])
            return 0 if stored is None else stored.size_bytes
        _, size_bytes = manifest.small_files.get(suffix, (0, 0))
        return self._transformation(segment).plain_bytes(size_bytes)

    def log_bytes(self, segment: TierSegment) -> int:
        """Return the length of a complete segment's log."""
        if segment.manifest is not None:
            return segment.manifest.chunks.size_bytes
        return segment.objects[_LOG].size_bytes

    def modified_ms(self, segment: TierSegment) -> int:
        """Return when the log of a segment was uploaded, epoch milliseconds."""
        return segment.objects[_LOG].modified_ms

    def end_offset(self, segment: TierSegment) -> int:
        """Return the last offset of a complete segment; of one without batches the one before its
        base offset."""
        if segment.manifest is not None:
            return segment.manifest.end_offset
        key = segment.objects[_LOG].key
        if key not in self._last_offsets:
            last = segment.base_offset - 1
            with closing(self.open_log(segment, log_file(segment.base_offset))) as reader:
                for batch in self.walk(segment, reader, MAX_OFFSET):
                    last = batch.last_offset
            self._last_offsets[key] = last
        return self._last_offsets[key]

    def max_timestamp(self, segment: TierSegment) -> int:
        """Return the largest timestamp of a complete segment, epoch milliseconds: by its time
        index, or the time of its upload if that is empty."""
        if segment.manifest is not None:
            return segment.manifest.max_timestamp
        content = self.read_small(segment, TIME_INDEX_SUFFIX)
        count = len(content) // TIME_INDEX_ENTRY.itemsize
        if not count:
            return self.modified_ms(segment)
        return int(np.frombuffer(content, TIME_INDEX_ENTRY, count)["timestamp"][-1])

    def has_transactions(self, segment: TierSegment) -> bool:
        """Return whether a complete segment has entries of aborted transactions."""
        if segment.manifest is not None:
            return TXN_INDEX_SUFFIX in segment.manifest.small_files
        return self.small_bytes(segment, TXN_INDEX_SUFFIX) > 0

    def key_in_store(self, segment: TierSegment) -> str:
        """Return the key of a segment's log in its bucket, or below the tier's folder."""
        key = segment.objects[_LOG].key
        if not is_url(self.objects.url):
            return key
        below = self.objects.url.partition("://")[2].partition("/")[2]
        return f"{below}/{key}" if below else key

    def epochs(self, segment: TierSegment) -> tuple[EpochEntry, ...]:
        """Return the leader epochs of a complete segment, from its base offset or before it on."""
        if segment.manifest is not None:
            return segment.manifest.epochs
        return self.lineage(segment)

    def lineage(self, segment: TierSegment) -> tuple[EpochEntry, ...]:
        """Return the leader epochs of the log up to the end of a complete segment.

        Objects with one MD5 as their tag have the same bytes: most segments have the epochs of the
        one before.
        """
        stored = segment.objects.get(_LOCAL_NAMES[LEADER_EPOCH_FILE])
        if stored is None or not (is_url(self.objects.url) and _MD5.fullmatch(stored.etag)):
            return self._read_lineage(segment)
        known = stored.etag, stored.size_bytes
        with self._reading:  # who asks meanwhile mostly wants the same
            if known not in self._lineages:
                self._lineages[known] = self._read_lineage(segment)
            return self._lineages[known]

    def _read_lineage(self, segment: TierSegment) -> tuple[EpochEntry, ...]:
        kind = "indexes" if segment.manifest is not None else "leader_epoch_checkpoint"
        file = self._path(segment.objects[kind])
        content = self.read_small(segment, LEADER_EPOCH_FILE)
        return tuple(parse_leader_epochs(content, file=file))

    def walk(self, segment: TierSegment, reader: FileReader, offset: int) -> Iterator["_Header"]:
        """Yield the headers of the batches from the last index entry below an offset on.

        Raises:
            CorruptSegmentError: There are bytes that begin no batch.
        """
        position, expected = self._indexed_place(segment, offset)
        if position >= reader.size_bytes:
            position, expected = 0, None
        data = np.empty(_WALK_BYTES, np.uint8)
        start, filled = 0, 0
        previous = -1
        while position < reader.size_bytes:
            if not start <= position <= start + filled - _HEADER_BYTES:
                start, filled = position, reader.read_into(position, data)
            batch = _header_at(data[:filled], position - start, position)
            if expected is not None:
                if batch is None or batch.last_offset != expected:
                    position, filled = 0, 0  # the index points to no such batch
                expected = None
                continue
            if batch is None or batch.end > reader.size_bytes or batch.base_offset <= previous:
                file = self._path(segment.objects[_LOG])
                raise CorruptSegmentError(file, position, "expected a batch with a higher offset")
            yield batch
            position, previous = batch.end, batch.base_offset

    def _list(self) -> Iterator[ObjectInfo]:
        if not self._folders:
            return self.objects.list()
        return (info for folder in self._folders for info in self.objects.list(f"{folder}/"))

    def _owner(
        self,
        match: re.Match[str],
        segments: Mapping[tuple[int, str], Mapping[str, ObjectInfo]],
    ) -> tuple[str, TopicPartition] | None:
        """Return whose a folder is; None if nobody's that can be told.

        A manifest says it. What stands before the topic in the name of its folder is the plugin's
        prefix, which ends as anybody liked.
        """
        for kinds in segments.values():
            if _MANIFEST in kinds:
                with suppress(BadBytesError, ManifestError, StorageError):
                    identity = self._manifest(kinds[_MANIFEST]).identity
                    return identity.topic_id, identity.partition
        named = match.groupdict()
        try:
            directory = named.get("directory") or f"{named['topic']}-{named['partition']}"
            return parse_uuid(match["topic_id"]), parse_partition_directory(directory)
        except (InvalidNameError, ValueError):
            return None

    def _segment(
        self,
        folder: TierFolder,
        base_offset: int,
        segment_id: str,
        kinds: Mapping[str, ObjectInfo],
    ) -> TierSegment:
        segment = TierSegment(
            identity=TierSegmentId(
                topic_id=folder.topic_id, partition=folder.partition, segment_id=segment_id
            ),
            base_offset=base_offset,
            objects=kinds,
        )
        wanted = (_LOG, *(_AIVEN_KINDS if folder.has_manifests else _LOCAL_KINDS))
        missing = [kind for kind in wanted if kind not in kinds]
        if missing:
            reason = f"has no object .{', .'.join(missing)}"
            return replace(segment, problem=reason, missing=tuple(missing))
        if not folder.has_manifests:
            return segment
        try:
            manifest = self._manifest(kinds[_MANIFEST])
        except PylogError as error:
            return replace(segment, problem=str(error))
        said = manifest.identity, manifest.base_offset
        if said != (segment.identity, base_offset):
            path = self._path(kinds[_MANIFEST])
            reason = (
                f"{path}: expected the segment that its name says, found that of "
                f"{manifest.identity.partition} at offset {manifest.base_offset}, topic id "
                f"{manifest.identity.topic_id}, segment {manifest.identity.segment_id}"
            )
            return replace(segment, problem=reason)
        expected = int(manifest.chunks.ends[-1]) if len(manifest.chunks.ends) else 0
        if kinds[_LOG].size_bytes != expected:
            reason = f"expected {expected} bytes, found {kinds[_LOG].size_bytes}"
            problem = f"{self._path(kinds[_LOG])}: {reason}"
            return replace(segment, manifest=manifest, problem=problem)
        return replace(segment, manifest=manifest)

    def _manifest(self, stored: ObjectInfo) -> TierManifest:
        content = self._manifests.get(stored.key)
        if content is None:
            data, _ = self.objects.get_with_etag(stored.key, limit_bytes=MAX_MANIFEST_BYTES)
            content = self._manifests[stored.key] = parse_manifest(data, self._path(stored))
        return content

    def _transformation(self, segment: TierSegment) -> Transformation:
        manifest = segment.manifest
        if manifest is None:
            raise AssertionError(segment)
        file = self._path(segment.objects[_MANIFEST])
        if file not in self._transformations:
            key, aad = b"", b""
            if manifest.encryption is not None:
                if self._key is None:
                    reason = f"{file} is encrypted for the key {manifest.encryption.key_id!r}"
                    raise ConfigError("--decryption-key", None, reason)
                key, aad = self._key.unwrap(manifest.encryption, file), manifest.encryption.aad
            self._transformations[file] = Transformation(
                is_compressed=manifest.is_compressed, key=key, aad=aad
            )
        return self._transformations[file]

    def _read(self, stored: ObjectInfo, start: int, size_bytes: int) -> bytes:
        path = self._path(stored)
        if size_bytes > _MAX_SMALL_FILE_BYTES:
            reason = f"has {size_bytes} bytes; expected at most {_MAX_SMALL_FILE_BYTES}"
            raise StorageError(path, reason)
        data = self.objects.get_range(stored.key, start, size_bytes, etag=stored.etag)
        if len(data) != size_bytes:
            reason = f"ends at {start + len(data)}; expected {start + size_bytes} bytes"
            raise StorageError(path, reason)
        return data

    def _path(self, stored: ObjectInfo) -> str:
        return f"{self.objects.url}/{stored.key}"

    def _indexed_place(self, segment: TierSegment, offset: int) -> tuple[int, int | None]:
        """Return where the last batch begins that the index has and that ends below an offset, and
        its last offset; (0, None) where it has none."""
        content = self._index_end(segment) if offset == MAX_OFFSET else b""
        content = content or self.read_small(segment, OFFSET_INDEX_SUFFIX)
        count = len(content) // OFFSET_INDEX_ENTRY.itemsize
        entries = np.frombuffer(content, OFFSET_INDEX_ENTRY, count)
        # An entry has the last offset of the batch that stands at its position.
        last_offsets = segment.base_offset + entries["relative_offset"].astype(np.int64)
        below = np.flatnonzero((entries["position"] > 0) & (last_offsets < offset))
        if not below.size:
            return 0, None
        return int(entries["position"][below[-1]]), int(last_offsets[below[-1]])

    def _index_end(self, segment: TierSegment) -> bytes:
        """Return the last entries of an index that is an object of its own; empty else."""
        stored = segment.objects.get(_LOCAL_NAMES[OFFSET_INDEX_SUFFIX])
        if segment.manifest is not None or stored is None or stored.size_bytes <= _INDEX_END_BYTES:
            return b""
        end = stored.size_bytes // OFFSET_INDEX_ENTRY.itemsize * OFFSET_INDEX_ENTRY.itemsize
        return self._read(stored, end - _INDEX_END_BYTES, _INDEX_END_BYTES)


class CorruptSegmentError(BadBytesError):
    """The log of a segment in a tier has bytes that begin no batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """Where a batch stands, by the beginning of its header."""

    position: int
    end: int
    base_offset: int
    last_offset: int
    records: int  # as it counts them


def _header_at(data: NDArray[np.uint8], start: int, position: int) -> _Header | None:
    """Return the header at a place in some bytes; None if those begin no batch.

    Args:
        position: The same place in the log.
    """
    if start + _HEADER_BYTES > data.size:
        return None
    header = np.frombuffer(data, BATCH_HEADER, 1, start)[0]
    length, base_offset = int(header["batch_length"]), int(header["base_offset"])
    is_batch = length >= _HEADER_BYTES - LENGTH_OVERHEAD and base_offset >= 0
    if not is_batch or header["magic"] != MAGIC_V2 or header["last_offset_delta"] < 0:
        return None
    return _Header(
        position=position,
        end=position + LENGTH_OVERHEAD + length,
        base_offset=base_offset,
        last_offset=base_offset + int(header["last_offset_delta"]),
        records=int(header["record_count"]),
    )


# Which segments count, and which part of each.


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPiece:
    """A part of a segment that counts: the batches from one offset up to another."""

    segment: TierSegment
    start: int  # the first offset
    end: int  # just past the last one
    is_whole: bool  # whether that is all of the segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A complete segment, and up to where its batches are of the lineage."""

    segment: TierSegment
    epochs: tuple[EpochEntry, ...]  # of ``Tier.epochs``
    end: int  # just past its last offset
    good_end: int  # just past the last offset that counts; its base offset or less where none does


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLog:
    """The log on a broker's disk that goes on where a tier ends."""

    store: LogStore
    base_offset: int  # of its first segment
    epochs: tuple[EpochEntry, ...]  # its leader epoch file
    topic_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """What counts of a partition's tier."""

    pieces: tuple[TierPiece, ...]
    lineage: tuple[EpochEntry, ...]
    candidates: tuple[Candidate, ...]  # all complete segments, whether they count or not


def choose_pieces(tier: Tier, segments: Iterable[TierSegment], local: LocalLog | None) -> Pieces:
    """Return the parts of a partition's segments that count, by offset; none overlap.

    Args:
        local: The log on a broker's disk that goes on where the tier ends; None without one.
    """
    complete = [segment for segment in segments if segment.is_complete]
    candidates = tier.ask_each(partial(measure, tier), complete)
    if local is not None:
        return choose_among(candidates, local.epochs, limit=local.base_offset)
    newest = find_newest(candidates)
    return choose_among(candidates, () if newest is None else tier.lineage(newest.segment))


def measure(tier: Tier, segment: TierSegment) -> Candidate:
    """Return the end and the epochs of a complete segment, as if all of it counted."""
    end = tier.end_offset(segment) + 1
    return Candidate(segment=segment, epochs=tier.epochs(segment), end=end, good_end=end)


def find_newest(candidates: Iterable[Candidate]) -> Candidate | None:
    """Return the segment whose epochs reach furthest, which has the lineage; None without one."""
    return max(
        candidates, key=lambda each: (max(each.epochs, default=_NO_ENTRY), each.end), default=None
    )


def choose_among(
    candidates: Iterable[Candidate], lineage: tuple[EpochEntry, ...], *, limit: int = MAX_OFFSET
) -> Pieces:
    """Return the parts of measured segments that count.

    Args:
        limit: Offsets from here on are not asked for.
    """
    measured = tuple(candidates)
    for each in sorted(measured, key=lambda each: each.end, reverse=True):
        lineage = _reach_back(lineage, each.epochs, each.segment.base_offset)
    judged = tuple(
        replace(
            each,
            good_end=agrees_up_to(
                each.epochs, lineage, each.segment.base_offset, min(each.end, limit)
            ),
        )
        for each in measured
    )
    pieces = []
    cursor = 0
    ahead = deque(sorted(judged, key=lambda each: each.segment.base_offset))
    # Those that begin at the cursor or below, the one that reaches furthest first.
    begun: list[tuple[int, int, Candidate]] = []
    while ahead or begun:
        if not begun:
            cursor = max(cursor, ahead[0].segment.base_offset)
        while ahead and ahead[0].segment.base_offset <= cursor:
            each = ahead.popleft()
            heappush(begun, (-each.good_end, len(judged) - len(ahead), each))
        _, _, best = heappop(begun)
        base_offset = best.segment.base_offset
        if best.good_end > max(cursor, base_offset):
            is_whole = cursor == base_offset and best.good_end == best.end
            pieces.append(
                TierPiece(segment=best.segment, start=cursor, end=best.good_end, is_whole=is_whole)
            )
            cursor = best.good_end
    return Pieces(pieces=tuple(pieces), lineage=lineage, candidates=judged)


def _reach_back(
    lineage: tuple[EpochEntry, ...], older: tuple[EpochEntry, ...], base_offset: int
) -> tuple[EpochEntry, ...]:
    """Return a lineage that begins no later than a segment does.

    What was deleted from a log's front is cut off its epochs, although it may still be in the tier.
    """
    if not lineage:
        return older
    first = lineage[0]
    if base_offset >= first.start_offset:
        return lineage
    before = [entry for entry in older if entry.start_offset < first.start_offset]
    if any(entry.epoch > first.epoch for entry in before):
        return lineage  # of a history that was lost
    if before and before[-1].epoch == first.epoch:
        return (*before, *lineage[1:])
    return (*before, *lineage)


def agrees_up_to(
    epochs: tuple[EpochEntry, ...], lineage: tuple[EpochEntry, ...], start: int, end: int
) -> int:
    """Return the first offset from start on with another epoch than the lineage's, at most end."""
    borders = {start} | {entry.start_offset for entry in (*epochs, *lineage)}
    for offset in sorted(border for border in borders if start <= border < end):
        if _epoch_at(epochs, offset) != _epoch_at(lineage, offset):
            return offset
    return end


def _epoch_at(entries: tuple[EpochEntry, ...], offset: int) -> int | None:
    place = bisect_right(entries, offset, key=lambda entry: entry.start_offset)
    return entries[place - 1].epoch if place else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _TierFile:
    """A file of a partition that lies in its tier."""

    info: FileInfo
    open: Callable[[], FileReader]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Which bytes of which log a segment's file stands for, as a file's identity says it."""

    start: int
    end: int
    log: ObjectInfo

    def __str__(self) -> str:
        log = self.log
        facts = [self.start, self.end, log.size_bytes, log.modified_ms, log.etag, log.key]
        return _TIER_IDENTITY + json.dumps(facts)

    @classmethod
    def parse(cls, identity: str) -> Self:
        """Return what an identity says."""
        facts = json.loads(identity.removeprefix(_TIER_IDENTITY))
        start, end, size_bytes, modified_ms, etag, key = facts
        log = ObjectInfo(key=key, size_bytes=size_bytes, etag=etag, modified_ms=modified_ms)
        return cls(start=start, end=end, log=log)

    def open(self, tier: Tier, segment: TierSegment, name: str) -> FileReader:
        """Open the log, or a file beside it, under some name."""
        suffix = kind_of(name) or LOG_SUFFIX
        if suffix != LOG_SUFFIX:
            return BytesReader(name, tier.read_small(segment, suffix))
        reader = tier.open_log(segment, name)
        if (self.start, self.end) == (0, reader.size_bytes):
            return reader
        return SliceReader(reader, self.start, self.end - self.start)


class TierStore(ReadOnlyStore):
    """A partition of a tier as the files of one log, read-only.

    The tier is listed once, the first time that something needs it. Objects are read in the
    versions that were listed.

    Args:
        place: Where the tier is.
        on_disks: The partition's directory in each of the broker's log directories, whether it is
            there or not.
    """

    def __init__(
        self, place: ArchivePlace, partition: TopicPartition, on_disks: Sequence[LogStore]
    ) -> None:
        self._place, self._partition = place, partition
        self._on_disks = on_disks

    @property
    def location(self) -> str:
        """As ``open_store`` takes it."""
        return f"{self._place}/{self._partition}"

    def list_files(self) -> list[FileInfo]:
        """Return the files, sorted by name."""
        local = self._local
        of_disk = [] if local is None else local.store.list_files()
        in_tier = [file.info for file in self._files.values()]
        if not of_disk and not in_tier:
            raise PartitionNotFoundError(self.location)
        return sorted(of_disk + in_tier)

    def read_file(self, name: str, *, limit_bytes: int) -> bytes:
        """Return a small file whole."""
        if name not in self._files:
            return self._disk(name).read_file(name, limit_bytes=limit_bytes)
        with closing(self._files[name].open()) as reader:
            return read_limited(reader, f"{self.location}/{name}", limit_bytes)

    def open_file(self, name: str) -> FileReader:
        """Open a file for ranged reads."""
        if name in self._files:
            return self._files[name].open()
        return self._disk(name).open_file(name)

    def open_identified(self, name: str, identity: str) -> FileReader | None:
        """Open a file in the version that was listed; None if that is gone. Of a tier only that
        segment is asked for: what counts was decided when it was listed."""
        if identity.startswith(_TIER_IDENTITY):
            part = _Part.parse(identity)
            segment = self._tier.find_log(part.log)
            return None if segment is None else part.open(self._tier, segment, name)
        store: Any = self._disk(name)
        opened: FileReader | None = store.open_identified(name, identity)
        return opened

    def _disk(self, name: str) -> LogStore:
        if self._local is None:
            raise StorageError(f"{self.location}/{name}", "No such file or directory")
        return self._local.store

    @cached_property
    def _tier(self) -> Tier:
        return self._place.open()

    @cached_property
    def _local(self) -> LocalLog | None:
        """The partition on the broker's disks; None where no disk has it."""
        found = []
        for store in self._on_disks:
            with suppress(PartitionNotFoundError):
                found.append((store, {file.name for file in store.list_files()}))
        if len(found) > 1:
            places = ", ".join(store.location for store, _ in found)
            reason = f"each has {self._partition}; name the broker's that was its leader"
            raise ConfigError("--with-local", places, reason)
        if not found:
            return None
        ((store, names),) = found
        bases = [offset_of(name) for name in names if kind_of(name) == LOG_SUFFIX]
        epochs: list[EpochEntry] = []
        if LEADER_EPOCH_FILE in names:
            content = store.read_file(LEADER_EPOCH_FILE, limit_bytes=MAX_LEADER_EPOCH_BYTES)
            epochs = parse_leader_epochs(content, file=f"{store.location}/{LEADER_EPOCH_FILE}")
        topic_id = None
        if PARTITION_METADATA_FILE in names:
            file = f"{store.location}/{PARTITION_METADATA_FILE}"
            content = store.read_file(
                PARTITION_METADATA_FILE, limit_bytes=MAX_PARTITION_METADATA_BYTES
            )
            topic_id = parse_partition_metadata(content, file=file).topic_id
        return LocalLog(
            store=store,
            base_offset=min((base for base in bases if base is not None), default=0),
            epochs=tuple(epochs),
            topic_id=topic_id,
        )

    @cached_property
    def _files(self) -> dict[str, _TierFile]:
        """The files that lie in the tier, by the names that they have in a log."""
        tier = self._tier
        folder = self._folder(tier)
        if folder is None:
            return {}
        local = self._local
        chosen = choose_pieces(tier, tier.segments(folder), local)
        files: dict[str, _TierFile] = {}
        for piece in chosen.pieces:
            files |= self._files_of(tier, piece)
        if local is None and chosen.pieces:
            last = chosen.pieces[-1]
            small = {
                LEADER_EPOCH_FILE: encode_leader_epochs(chosen.lineage),
                PARTITION_METADATA_FILE: encode_partition_metadata(
                    PartitionMetadata(topic_id=folder.topic_id)
                ),
            }
            producers = tier.read_small(last.segment, SNAPSHOT_SUFFIX)
            if producers and last.end == tier.end_offset(last.segment) + 1:
                small[snapshot_file(last.end)] = producers
            for name, content in small.items():
                files[name] = _TierFile(
                    info=FileInfo(name, len(content), tier.modified_ms(last.segment)),
                    open=partial(BytesReader, name, content),
                )
        return files

    def _folder(self, tier: Tier) -> TierFolder | None:
        """Return the partition's objects; None where the tier has none."""
        folders = [each for each in tier.listing[0] if each.partition == self._partition]
        wanted = set(self._place.topic_ids)
        if self._local is not None and self._local.topic_id is not None:
            wanted = {self._local.topic_id}
        ids = {each.topic_id for each in folders}
        if wanted & ids or self._local is not None:
            folders = [each for each in folders if each.topic_id in wanted]
            ids &= wanted
        if len(ids) > 1:
            reason = (
                f"{self._place.place} has {len(ids)} topics of the name {self._partition.topic}, "
                f"a topic that was deleted and one made anew: say one of {', '.join(sorted(ids))}"
            )
            raise ConfigError("--topic-id", ", ".join(self._place.topic_ids) or None, reason)
        if len(folders) > 1:
            places = ", ".join(each.key for each in folders)
            reason = f"{self._partition} has segments in several folders: {places}"
            raise ConfigError("ROOT", self._place.place, reason)
        return next(iter(folders), None)

    def _files_of(self, tier: Tier, piece: TierPiece) -> Iterator[tuple[str, _TierFile]]:
        segment = piece.segment
        base_offset, start, end = segment.base_offset, 0, tier.log_bytes(segment)
        if not piece.is_whole:
            base_offset, start, end = _cut(tier, piece)
        part = _Part(start=start, end=end, log=segment.objects[_LOG])
        sizes = {LOG_SUFFIX: end - start}
        if piece.is_whole:
            sizes |= {suffix: tier.small_bytes(segment, suffix) for suffix in INDEX_SUFFIXES}
        # Else its indexes are of other positions, and go on behind it.
        elif tier.small_bytes(segment, TXN_INDEX_SUFFIX):
            yield _cut_transactions(tier, piece, base_offset)
        for suffix, size_bytes in sizes.items():
            if size_bytes or suffix == LOG_SUFFIX:
                name = segment_file(base_offset, suffix)
                yield (
                    name,
                    _TierFile(
                        info=FileInfo(name, size_bytes, tier.modified_ms(segment), str(part)),
                        open=partial(part.open, tier, segment, name),
                    ),
                )


def _cut_transactions(tier: Tier, piece: TierPiece, base_offset: int) -> tuple[str, _TierFile]:
    """Return the transaction index of a part of a segment, with its name: the transactions whose
    abort marker is in that part."""
    segment, name = piece.segment, segment_file(base_offset, TXN_INDEX_SUFFIX)
    data = tier.read_small(segment, TXN_INDEX_SUFFIX)
    entries = np.frombuffer(data, TXN_INDEX_ENTRY, len(data) // TXN_INDEX_ENTRY.itemsize)
    ends = entries["last_offset"]
    content = entries[(piece.start <= ends) & (ends < piece.end)].tobytes()
    info = FileInfo(name, len(content), tier.modified_ms(segment))
    return name, _TierFile(info=info, open=partial(BytesReader, name, content))


def _cut(tier: Tier, piece: TierPiece) -> tuple[int, int, int]:
    """Return the base offset of a part of a segment, and where it begins and ends in the log."""
    segment = piece.segment
    base_offset, start, end = segment.base_offset, 0, tier.log_bytes(segment)
    with closing(tier.open_log(segment, log_file(base_offset))) as reader:
        if piece.start > base_offset:
            for batch in tier.walk(segment, reader, piece.start):
                if batch.last_offset >= piece.start:
                    base_offset, start = batch.base_offset, batch.position
                    break
        for batch in tier.walk(segment, reader, piece.end):
            if batch.base_offset >= piece.end:
                end = batch.position
                break
    return base_offset, start, end
