"""Find and delete garbage: objects and manifests not needed by any manifest. A purge deletes it.

Kept is what the current generation names, and what each generation names that was current at some
time within the grace period: readers that began then read on, and an undo goes back to it. The
generations are found by their numbers, one after another down from the current one, never by a
listing, which may be stale. An object that nothing names may be on its way into a manifest, so it
goes only when it is older than the grace period. A partition without a manifest is left alone:
whether its data was never committed or its manifest was lost, only a person can say.

An adopted object lies outside of the partition's folder, where no listing of ours finds it: it goes
together with the last superseded manifest that names it, if it is still the version that was
adopted, and if the root's own record says that objects there were adopted at all: who can write one
manifest must not have us delete elsewhere.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from storage_core.errors import (
    ManifestError,
    ObjectNotFoundError,
    PartitionNotFoundError,
    StorageError,
)
from storage_core.filenames import (
    DATA_DIRECTORY,
    HISTORY_DIRECTORY,
    MANAGED_ROOT_FILE,
    PURGED_FILE,
    TopicPartition,
)
from storage_core.json_values import Count, JsonFile
from storage_core.store.generations import (
    URL_MARK,
    FileEntry,
    Manifest,
    find_root,
    own_places,
    raise_fence,
    read_head,
    read_history,
    split_adopted,
)
from storage_core.store.local_objects import TEMPORARY_FOLDER
from storage_core.store.object_store import (
    PROBE_FOLDER,
    KeepsParts,
    ListsStretches,
    ObjectInfo,
    ObjectStore,
)
from storage_core.store.open_objects import open_object_store

# Record the progress of a managed root's purge, for the next one.
#
# ::
#
#     <root>/purged.json    up to when whatever was written has been looked at
#
# Whatever makes something of a partition superfluous writes an object there: a commit its manifest
# and the manifest before it, an attempt its data, a purge that is going to delete data the
# manifest under its own token. Such an object is looked at once more when it leaves the grace
# period; a superseded manifest, until it goes. So one listing says in which partitions nothing can
# be due: nothing there left the grace period since the last purge of the whole root. Their
# manifests are not asked for. A partition in which something may be due is searched as ``garbage``
# does it.
#
# While a purge works there is no record: one that was killed, or failed somewhere, may have taken
# a manifest and left the data that only this one named, and the next one looks into all
# partitions.

MAX_PURGED_BYTES: Final = 64 << 10
# Objects have the store's time, the record has ours: the two clocks may differ by this.
CLOCKS_APART_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class _PurgeRecord:
    """The content of ``purged.json``: up to when everything written was looked at."""

    seen_ms: Count


_PURGED: Final = JsonFile(_PurgeRecord, "pylog-purged")


def read_purged(objects: ObjectStore) -> int:
    """Return the end, epoch milliseconds, of purges' progress; 0 without a record."""
    try:
        content = objects.get(PURGED_FILE, limit_bytes=MAX_PURGED_BYTES)
    except ObjectNotFoundError:
        return 0
    return _PURGED.parse(content, f"{objects.url}/{PURGED_FILE}").seen_ms


def forget_purged(objects: ObjectStore) -> None:
    """Take the record away, before the first deletion of a purge."""
    objects.delete([PURGED_FILE])


def record_purged(objects: ObjectStore, *, grace_start_ms: int, now_ms: int) -> None:
    """Write down that every partition was purged, and none failed.

    Args:
        grace_start_ms: Start of that purge's grace period.
        now_ms: By this machine's clock: what is written from now on has not been looked at,
            wherever the grace period was said to begin.
    """
    seen_ms = max(0, min(grace_start_ms, now_ms) - CLOCKS_APART_MS)
    objects.put(PURGED_FILE, _PURGED.encode(_PurgeRecord(seen_ms)))


def may_have_garbage(
    infos: Iterable[ObjectInfo], partition: TopicPartition, *, seen_ms: int, grace_start_ms: int
) -> bool:
    """Tell by a partition's listing whether a purge has to search it.

    Args:
        grace_start_ms: When the grace period began, epoch milliseconds.
    """
    history = f"{partition}/{HISTORY_DIRECTORY}/"
    return any(
        info.modified_ms < grace_start_ms
        and (info.modified_ms >= seen_ms or info.key.startswith(history))
        for info in infos
    )


def find_due(
    objects: ObjectStore,
    partitions: Sequence[TopicPartition],
    *,
    seen_ms: int,
    grace_start_ms: int,
) -> Iterator[TopicPartition]:
    """Yield partitions for a purge to search, by one listing of all. A store that does not list
    from the middle is asked once a partition.

    Args:
        partitions: At least one, in ``key_order``, with no other one between them that the root
            has: neighbours share the pages of a listing.
        grace_start_ms: When the grace period began, epoch milliseconds.
    """
    for partition, infos in _by_partition(objects, partitions):
        if may_have_garbage(infos, partition, seen_ms=seen_ms, grace_start_ms=grace_start_ms):
            yield partition


def _by_partition(
    objects: ObjectStore, partitions: Sequence[TopicPartition]
) -> Iterator[tuple[TopicPartition, Iterator[ObjectInfo]]]:
    if not isinstance(objects, ListsStretches):
        for partition in partitions:
            yield partition, objects.list(f"{partition}/")
        return
    listed = objects.list_stretch(f"{partitions[0]}/", f"{partitions[-1]}/")
    names = {str(partition): partition for partition in partitions}
    for name, infos in groupby(listed, key=lambda info: info.key.partition("/")[0]):
        if name in names:
            yield names[name], infos


# Keys that S3 deletes by one request.
_DELETED_AT_ONCE: Final = 1000
_HISTORY_NAME: Final = re.compile(r"(?P<generation>[0-9]{20})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionGarbage:
    """The objects of one partition that a purge may delete."""

    partition: TopicPartition
    generation: int  # the current one; 0 where there is no manifest, and so no garbage
    oldest_generation: int  # the oldest one that is kept, for readers and undo
    # Superseded manifests that may go; they have to go before the data that only they name.
    histories: tuple[ObjectInfo, ...]
    data: tuple[ObjectInfo, ...]  # data objects that may go
    # Adopted objects that may go: the entries of superseded manifests, by URL.
    adopted: Mapping[str, FileEntry] = field(default_factory=dict)
    kept_bytes: int  # bytes of all other data objects
    head: Manifest | None = None  # the current generation, None without one

    @property
    def size_bytes(self) -> int:
        """Bytes that a purge would free."""
        own = sum(info.size_bytes for info in (*self.histories, *self.data))
        return own + sum(entry.start + entry.size_bytes for entry in self.adopted.values())

    def keys(self) -> list[str]:
        """Return the keys and URLs of all objects that may go."""
        return [*self.adopted, *(info.key for info in (*self.histories, *self.data))]


def kept_generations(
    objects: ObjectStore, partition: TopicPartition, *, grace_start_ms: int
) -> Iterator[Manifest]:
    """Yield the current generation, then those within the grace period.

    Args:
        grace_start_ms: When the grace period began, epoch milliseconds; a generation that was
            superseded before is not kept.
    """
    manifest = read_head(objects, partition).manifest
    yield manifest
    while manifest.generation > 1 and manifest.committed_ms >= grace_start_ms:
        try:
            manifest = read_history(objects, partition, manifest.generation - 1)
        except PartitionNotFoundError:
            return  # purged earlier with a shorter grace period
        yield manifest


def find_garbage(
    objects: ObjectStore, partition: TopicPartition, *, grace_start_ms: int
) -> PartitionGarbage:
    """Find one partition's objects and manifests for a purge to delete. It costs one GET for each
    generation, and one listing. Whoever deletes it has to hold the root's lease from before this
    call on.

    Args and errors are those of kept_generations, but that a partition without a manifest has
    no garbage; an adopted object elsewhere than where the root adopted any is a ManifestError.
    """
    try:
        manifests = list(kept_generations(objects, partition, grace_start_ms=grace_start_ms))
    except PartitionNotFoundError:
        return PartitionGarbage(
            partition=partition,
            generation=0,
            oldest_generation=0,
            histories=(),
            data=(),
            kept_bytes=0,
        )
    oldest = manifests[-1].generation
    needed = {entry.key for manifest in manifests for entry in manifest.files.values()}
    data_prefix = f"{partition}/{DATA_DIRECTORY}/"
    history_prefix = f"{partition}/{HISTORY_DIRECTORY}/"
    histories, data, kept_bytes = [], [], 0
    for info in objects.list(f"{partition}/"):
        if info.key.startswith(history_prefix):
            match = _HISTORY_NAME.fullmatch(info.key[len(history_prefix) :])
            if match and int(match["generation"]) < oldest:
                histories.append(info)
        elif info.key.startswith(data_prefix):
            if info.key in needed or info.modified_ms >= grace_start_ms:
                kept_bytes += info.size_bytes
            else:
                data.append(info)
    return PartitionGarbage(
        partition=partition,
        generation=manifests[0].generation,
        oldest_generation=oldest,
        histories=tuple(histories),
        data=tuple(data),
        adopted=_adopted_only_by(objects, partition, histories, needed),
        kept_bytes=kept_bytes,
        head=manifests[0],
    )


def delete_garbage(
    objects: ObjectStore,
    garbage: PartitionGarbage,
    *,
    fencing_token: int,
    fence: Callable[[], None],
) -> None:
    """Delete the garbage of a partition, under the lease of its search.

    A run that lost the lease may be about to bring back an old generation, whose objects it has
    found to be there. So the current one gets this run's token before an object goes.

    Stopped anywhere, the next purge finds the rest: adopted objects go while a manifest still
    names them, data when none does any more.

    Args:
        fence: Called before every request that changes something; raises if the lease is not held
            any more: its next holder may bring back a generation that needs what is still to go.
    """
    if garbage.head is not None and (garbage.data or garbage.adopted):
        fence()
        raise_fence(objects, garbage.partition, garbage.head, fencing_token)
    for url, entry in garbage.adopted.items():
        elsewhere, name = _folder_of(url, objects.url)
        try:
            info = elsewhere.head(name)
        except ObjectNotFoundError:
            continue
        if info.etag == entry.etag:
            fence()
            elsewhere.delete([name])
    for infos in (garbage.histories, garbage.data):
        for first in range(0, len(infos), _DELETED_AT_ONCE):
            fence()
            objects.delete([info.key for info in infos[first : first + _DELETED_AT_ONCE]])


def _folder_of(url: str, root: str) -> tuple[ObjectStore, str]:
    """Return the folder of an adopted object, and its name. Nothing above that folder is ours to
    remove."""
    store, key = split_adopted(url, root)
    folder, _, name = key.rpartition("/")
    is_path = URL_MARK not in root
    return open_object_store(f"/{folder}" if is_path else f"{store}/{folder}"), name


def _adopted_only_by(
    objects: ObjectStore,
    partition: TopicPartition,
    histories: Sequence[ObjectInfo],
    needed: Set[str],
) -> dict[str, FileEntry]:
    """Return the adopted objects that superseded manifests name and nothing needs."""
    adopted: dict[str, FileEntry] = {}
    for info in histories:
        generation = int(info.key.rpartition("/")[2].removesuffix(".json"))
        try:
            manifest = read_history(objects, partition, generation)
        except PartitionNotFoundError:
            continue  # the listing was stale
        for entry in manifest.files.values():
            if URL_MARK in entry.key and entry.key not in needed:
                adopted[entry.key] = entry
    if adopted:
        _require_adopted(objects, partition, adopted)
    return adopted


def _require_adopted(objects: ObjectStore, partition: TopicPartition, urls: Iterable[str]) -> None:
    """Check that a partition's objects elsewhere are adopted ones. They must be in a folder of
    the partition, in a place of adopted objects."""
    places = own_places(objects, find_root(objects))
    for url in urls:
        folder = url.rpartition("/")[0]
        if folder not in {f"{place}/{partition}" for place in places}:
            raise ManifestError(
                f"{objects.url}/{partition}/{HISTORY_DIRECTORY}",
                "",
                f"a superseded manifest names {url!r}, but {MANAGED_ROOT_FILE} does not say that "
                f"anything was adopted from there: nothing of {partition} was purged. If it was, "
                "by an older version of this program, run the same ingest --in-place once more; "
                "else somebody has written that manifest who should not",
            )


def find_leftovers(objects: ObjectStore, *, grace_start_ms: int) -> list[ObjectInfo]:
    """Return remains of probes and interrupted writes older than the grace period."""
    return [
        info
        for folder in (PROBE_FOLDER, TEMPORARY_FOLDER)
        for info in objects.list(f"{folder}/")
        if info.modified_ms < grace_start_ms
    ]


def delete_leftovers(objects: ObjectStore, *, grace_start_ms: int) -> list[str]:
    """Delete the leftovers and the parts of unfinished uploads; return remarks.

    No manifest names them: they only cost money. So a store that does not let them be listed or
    deleted is a remark, and no failure of the run whose last step this is.
    """
    remarks = []
    try:
        leftovers = find_leftovers(objects, grace_start_ms=grace_start_ms)
        objects.delete([info.key for info in leftovers])
    except StorageError as error:
        remarks.append(f"remains of killed writes stay, and take space: {error}")
    if isinstance(objects, KeepsParts):
        try:
            objects.abort_uploads(before_ms=grace_start_ms)
        except StorageError as error:
            remarks.append(
                "parts of unfinished uploads may stay, and cost money: a rule of the bucket can "
                f"abort them (AbortIncompleteMultipartUpload): {error}"
            )
    return remarks
