"""Record the progress of a managed root's purge, for the next one.

::

    <root>/purged.json    up to when whatever was written has been looked at

Whatever makes something of a partition superfluous writes an object there: a commit its manifest
and the manifest before it, an attempt its data, a purge that is going to delete data the manifest
under its own token. Such an object is looked at once more when it leaves the grace period; a
superseded manifest, until it goes. So one listing says in which partitions nothing can be due:
nothing there left the grace period since the last purge of the whole root. Their manifests are not
asked for. A partition in which something may be due is searched as ``garbage`` does it.

While a purge works there is no record: one that was killed, or failed somewhere, may have taken a
manifest and left the data that only this one named, and the next one looks into all partitions.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from storage_core.errors import ObjectNotFoundError
from storage_core.filenames import HISTORY_DIRECTORY, PURGED_FILE, TopicPartition
from storage_core.json_values import Count, JsonFile
from storage_core.store.object_store import ListsStretches, ObjectInfo, ObjectStore

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
