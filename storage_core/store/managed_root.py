"""A managed root: its marker file and its partitions."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Final

from storage_core.errors import InvalidNameError, ObjectNotFoundError
from storage_core.filenames import MANAGED_ROOT_FILE, TopicPartition, parse_partition_directory
from storage_core.json_values import OMITTED, Count, JsonFile, SystemText, word
from storage_core.store.manifest import URL_MARK
from storage_core.store.object_store import ObjectStore, require_conditional_writes

FORMAT: Final = "pylog-root"
VERSION: Final = 1
MAX_ROOT_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RootFacts:
    """What ``pylog-root.json`` says."""

    # 32 hexadecimal digits; two roots never share one.
    root_id: Annotated[str, word(r"[0-9a-f]{32}")]
    created_ms: Count
    # A root without adopted mirrors has no such field: older versions of this program read it.
    # URLs of the mirrors whose objects were adopted where they lie (``ingest --in-place``), beside
    # the root's own place. A purge deletes nowhere else.
    adopted: Annotated[tuple[SystemText, ...], OMITTED] = ()


_ROOT: Final = JsonFile(RootFacts, FORMAT, VERSION)


def find_root(objects: ObjectStore) -> RootFacts | None:
    """Read the marker file of a managed root; None without one."""
    try:
        content = objects.get(MANAGED_ROOT_FILE, limit_bytes=MAX_ROOT_BYTES)
    except ObjectNotFoundError:
        return None
    return _ROOT.parse(content, f"{objects.url}/{MANAGED_ROOT_FILE}")


def create_root(objects: ObjectStore, *, now_ms: int) -> RootFacts:
    """Make a tested place a managed root, unless it is one."""
    root = find_root(objects)
    if root is not None:
        return root
    require_conditional_writes(objects)
    facts = RootFacts(root_id=secrets.token_hex(16), created_ms=now_ms)
    objects.put_if_absent(MANAGED_ROOT_FILE, _ROOT.encode(facts))
    return facts


def record_adopted(objects: ObjectStore, mirror: str) -> None:
    """Record a mirror before the first of its objects is adopted.

    Args:
        objects: The managed root; it is there.
    """
    _, etag = objects.get_with_etag(MANAGED_ROOT_FILE, limit_bytes=MAX_ROOT_BYTES)
    facts = find_root(objects)
    prefix = place_url(mirror)
    if facts is None or prefix in own_places(objects, facts):
        return
    content = _ROOT.encode(replace(facts, adopted=(*facts.adopted, prefix)))
    objects.put_if_match(MANAGED_ROOT_FILE, content, etag)


def own_places(objects: ObjectStore, facts: RootFacts | None) -> tuple[str, ...]:
    """Return the URLs open to deletion by a purge of a root. They are the root's and those of
    the mirrors with adopted objects."""
    return (place_url(objects.url), *(facts.adopted if facts is not None else ()))


def place_url(location: str) -> str:
    """Return a place's URL as the prefix of adopted objects in manifests."""
    return location if URL_MARK in location else f"file{URL_MARK}{location}"


def list_partitions(objects: ObjectStore) -> Iterator[TopicPartition]:
    """Yield all partitions with a folder in the root, by pages. A folder without a manifest
    counts: its ingest may have been stopped before the first commit."""
    for name in objects.list_folders():
        try:
            yield parse_partition_directory(name)
        except InvalidNameError:
            continue  # our own folders, such as probes', and those of other users
