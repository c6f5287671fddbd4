"""Read a partition's current or former generation; commit the next.

A commit copies the current manifest into the history, then replaces it by one conditional PUT.
The copy comes first, so that no generation is ever without a trace; it is the same bytes whoever
writes it, so that writing it twice is once.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from storage_core.errors import (
    ChangedWhileReadError,
    ConditionFailedError,
    LeaseLostError,
    ManifestError,
    ObjectNotFoundError,
    PartitionNotFoundError,
)
from storage_core.filenames import CLUSTER_METADATA_TOPIC, TopicPartition
from storage_core.store.manifest import (
    MAX_MANIFEST_BYTES,
    Manifest,
    encode_manifest,
    history_key,
    manifest_key,
    parse_manifest,
)
from storage_core.store.object_store import ObjectStore
from storage_core.store.open_objects import MANAGED_PREFIX

GENERATION_MARK: Final = "#generation="


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A generation as it was read."""

    manifest: Manifest
    # Tag of the current manifest's object; empty for a generation that is not the current one, and
    # for a partition that has none yet.
    etag: str = ""
    content: bytes = b""  # the manifest's bytes; empty as the tag is

    @property
    def is_replaceable(self) -> bool:
        """Tell whether the next generation may follow this one. It may if this one is current,
        or if there is none."""
        return bool(self.etag) or self.manifest.generation == 0


def partition_location(
    objects: ObjectStore, partition: TopicPartition, generation: int | None = None
) -> str:
    """Return the location of a partition, or of one generation of it."""
    mark = "" if generation is None else f"{GENERATION_MARK}{generation}"
    return f"{MANAGED_PREFIX}{objects.url}/{partition}{mark}"


def unpinned(location: str) -> str:
    """Return the location of a partition without its generation."""
    return location.partition(GENERATION_MARK)[0]


def current_location(location: str) -> str:
    """Return a partition's location now from a plan's location."""
    return unpinned(location) if location.startswith(MANAGED_PREFIX) else location


def read_head(objects: ObjectStore, partition: TopicPartition) -> Head:
    """Return the current generation, by one GET."""
    key = manifest_key(partition)
    try:
        content, etag = objects.get_with_etag(key, limit_bytes=MAX_MANIFEST_BYTES)
    except ObjectNotFoundError as error:
        raise PartitionNotFoundError(partition_location(objects, partition)) from error
    return Head(
        manifest=_parse(objects, partition, key, content),
        etag=etag,
        content=content,
    )


def require_no_remains(objects: ObjectStore, partition: TopicPartition) -> None:
    """Check by one LIST that a partition without manifest has no objects. The cluster's
    metadata, where a copy of a broker's directory was adopted, never gets a manifest."""
    if partition.topic == CLUSTER_METADATA_TOPIC:
        return
    remainder = next(iter(objects.list(f"{partition}/")), None)
    if remainder is not None:
        raise ManifestError(
            f"{objects.url}/{manifest_key(partition)}",
            "",
            f"is not there, but {remainder.key} is: bring the manifest back from an older version "
            f"of the bucket or a backup; if {partition} was never ingested, or an ingest was "
            "stopped before its first commit, ingest it, or leave its topic out",
        )


def read_generation(objects: ObjectStore, partition: TopicPartition, generation: int) -> Head:
    """Return one generation of a partition, from the history if superseded."""
    head = read_head(objects, partition)
    if head.manifest.generation == generation:
        return head
    return Head(manifest=read_history(objects, partition, generation))


def read_history(objects: ObjectStore, partition: TopicPartition, generation: int) -> Manifest:
    """Return a generation that was superseded; errors as of read_generation."""
    key = history_key(partition, generation)
    try:
        content = objects.get(key, limit_bytes=MAX_MANIFEST_BYTES)
    except ObjectNotFoundError as error:
        location = partition_location(objects, partition, generation)
        raise PartitionNotFoundError(location) from error
    return _parse(objects, partition, key, content)


def commit_generation(
    objects: ObjectStore, head: Head, manifest: Manifest, fence: Callable[[], None] | None
) -> Head:
    """Make a manifest the partition's current one.

    Args:
        fence: Called right before the one PUT that counts; raises to stop it.
    """
    partition = manifest.partition
    key = manifest_key(partition)
    if not head.is_replaceable:
        raise ConditionFailedError(
            f"{objects.url}/{key}", f"of generation {head.manifest.generation}", "of a later one"
        )
    content = encode_manifest(manifest)
    _parse(objects, partition, key, content)
    if head.etag:
        _keep_history(objects, head)
    if fence is not None:
        fence()
    if head.etag:
        etag = objects.put_if_match(key, content, head.etag)
    else:
        etag = objects.put_if_absent(key, content)
    return Head(manifest=manifest, etag=etag, content=content)


def raise_fence(
    objects: ObjectStore, partition: TopicPartition, head: Manifest, token: int
) -> None:
    """Refuse commits of any lower token, by raising the manifest's fencing token. Readers of the
    current generation can then replace it only under this token.

    Whoever lost the lease after he asked for it may still be about to write. He replaces what he
    has read, and that is not there any more: the same generation, under a higher token, is.

    Args:
        head: Its current generation, as it was read under the lease.
        token: Token of the lease held now.
    """
    current = read_head(objects, partition)
    if current.manifest.generation != head.generation:
        raise ChangedWhileReadError(
            partition_location(objects, partition),
            f"generation {head.generation}",
            f"generation {current.manifest.generation}",
        )
    if current.manifest.fencing_token > token:
        raise LeaseLostError(
            partition_location(objects, partition),
            "this run",
            f"has token {token}, but somebody with token {current.manifest.fencing_token} was here",
        )
    if current.manifest.fencing_token < token:
        content = encode_manifest(replace(current.manifest, fencing_token=token))
        objects.put_if_match(manifest_key(partition), content, current.etag)


def _keep_history(objects: ObjectStore, head: Head) -> None:
    """Copy the current manifest into the history. The history may already have a copy under a
    lower token."""
    manifest = head.manifest
    try:
        objects.put_if_absent(history_key(manifest.partition, manifest.generation), head.content)
    except ConditionFailedError:
        copy = read_history(objects, manifest.partition, manifest.generation)
        if replace(copy, fencing_token=manifest.fencing_token) != manifest:
            raise


def _parse(objects: ObjectStore, partition: TopicPartition, key: str, content: bytes) -> Manifest:
    return parse_manifest(content, partition, root=objects.url, file=f"{objects.url}/{key}")
