"""Open a partition's files by their location in commands and plans.

=============================  ====================================================================
location                       store
=============================  ====================================================================
``/var/lib/kafka/t-0``         a partition directory on a local disk; ``file://`` says the same
``s3://bucket/mirror/t-0``     a partition directory on an object store, only read; any fsspec URL
``managed+s3://bucket/m/t-0``  a partition of a managed root, as it is now
``managed+/path/m/t-0``        the same on a local disk
``...#generation=12``          after a managed one: that generation of it
``archive+s3://bucket/t-0``    a partition of a tier (KIP-405), only read; ``archive(local=...)+``
                               with the broker's log directories that it goes on in
=============================  ====================================================================
"""

import re
from typing import Final

from storage_core.errors import InvalidNameError
from storage_core.filenames import parse_partition_directory
from storage_core.store.base import LogStore
from storage_core.store.generations import GENERATION_MARK
from storage_core.store.local import LocalStore
from storage_core.store.managed_store import ManagedStore
from storage_core.store.object_files import ObjectDirectory
from storage_core.store.open_objects import (
    MANAGED_PREFIX,
    is_url,
    local_path,
    names_manifest,
    open_object_store,
)
from storage_core.store.tier_archive import TierStore, names_archive, parse_archive

_GENERATION: Final = re.compile(r"[1-9][0-9]{0,18}")


def join_location(location: str, name: str) -> str:
    """Return the path or URL of a name in a directory."""
    return f"{location.rstrip('/')}/{name}"


def split_location(location: str) -> tuple[str, str]:
    """Return a location's parent directory, and its name in there. The root of an object store
    (``s3://bucket``) has no parent: its name is empty."""
    scheme, mark, path = location.rstrip("/").rpartition("://")
    parent, slash, name = path.rpartition("/")
    if mark and not slash:
        return location.rstrip("/"), ""
    return f"{scheme}{mark}{parent}", name


def open_managed(location: str, *, attempt_id: str | None = None) -> ManagedStore:
    """Open a partition of a managed root, without a request.

    Args:
        location: With or without the prefix of managed roots, with or without a generation.
        attempt_id: Names what this attempt uploads; None for a new name that nobody else has.
    """
    place, mark, number = location.removeprefix(MANAGED_PREFIX).partition(GENERATION_MARK)
    if mark and not _GENERATION.fullmatch(number):
        raise InvalidNameError(location, f"expected a number after {GENERATION_MARK}")
    root, name = split_location(place)
    return ManagedStore(
        open_object_store(root),
        parse_partition_directory(name),
        generation=int(number) if mark else None,
        attempt_id=attempt_id,
    )


def open_tier(location: str) -> TierStore:
    """Open a partition of a tier, without a request."""
    root, name = split_location(location)
    place = parse_archive(root)
    return TierStore(
        place,
        parse_partition_directory(name),
        [open_store(join_location(disk, name)) for disk in place.with_local],
    )


def open_store(location: str) -> LogStore:
    """Open the files of one partition directory, without a request."""
    if names_manifest(location):
        return open_managed(location)
    if names_archive(location):
        return open_tier(location)
    if is_url(location):
        root, name = split_location(location)
        return ObjectDirectory(open_object_store(root), name)
    return LocalStore(local_path(location))
