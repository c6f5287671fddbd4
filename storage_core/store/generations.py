"""Read a partition's current or former generation; commit the next.

A commit copies the current manifest into the history, then replaces it by one conditional PUT.
The copy comes first, so that no generation is ever without a trace; it is the same bytes whoever
writes it, so that writing it twice is once.
"""

import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.errors import (
    ChangedWhileReadError,
    ConditionFailedError,
    InvalidNameError,
    LeaseLostError,
    ManifestError,
    ObjectNotFoundError,
    PartitionNotFoundError,
)
from storage_core.filenames import (
    CLUSTER_METADATA_TOPIC,
    DATA_DIRECTORY,
    HISTORY_DIRECTORY,
    MANAGED_ROOT_FILE,
    MANIFEST_FILE,
    TopicPartition,
    parse_partition_directory,
)
from storage_core.json_values import (
    COMPACT_LINE,
    INLINE,
    MAX_INTEGER,
    OMITTED,
    SPREAD,
    Count,
    JsonFile,
    Key,
    MismatchError,
    SystemText,
    Word,
    whole,
    word,
)
from storage_core.store.object_store import ObjectStore, require_conditional_writes, validate_key
from storage_core.store.open_objects import MANAGED_PREFIX

# A partition's manifest in a managed root: its files' objects and ranges.
#
# ::
#
#     <root>/<topic>-<n>/manifest.json                       the head; replaced by a conditional PUT
#     <root>/<topic>-<n>/history/<generation, 20 digits>.json  each manifest before it
#     <root>/<topic>-<n>/data/<attempt>/<name>               what they name; never changed
#
# A file is a stretch of an object: ``start`` and ``size`` in the object ``key``, which is relative
# to the root, or the URL of an object that was adopted where it lies. Format in full:
# ``docs/managed-format.md``. Whoever wrote a manifest, nothing in it is believed unchecked: names
# are plain, keys stay inside the partition's data, numbers are in range, the size is bounded.

# Some 70,000 segments with their companions for a long topic name, else twice as many.
MAX_MANIFEST_BYTES: Final = 128 << 20
# With more files than this, no line for each field: it is smaller, and written faster.
MOST_SPREAD_FILES: Final = 1_000

URL_MARK: Final = "://"

_NAME: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,255}")


def validate_file_name(name: str) -> str:
    """Return a partition file's name after a check that it is plain."""
    if not _NAME.fullmatch(name):
        raise InvalidNameError(name[:80], "expected 1 to 255 of the characters [A-Za-z0-9._-]")
    return name


def _read_name(value: object) -> str:
    try:
        return validate_file_name(str(value))
    except InvalidNameError as error:
        raise MismatchError(error.reason) from error


_PlainName = Annotated[str, _read_name]
_RunId = Annotated[str, word(r"[A-Za-z0-9._:-]{0,128}")]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """The object and range that hold the bytes of one file."""

    key: Word  # key of the object, relative to the root; the URL of an adopted one
    start: Count  # position of the file's first byte in the object
    size_bytes: Annotated[Count, Key("size")]
    # Tag of the object; empty for a file without bytes, which needs no object.
    etag: Annotated[str, word(r"[\x21\x23-\x7e]{0,200}")]
    modified_ms: Count  # time of the file's last modification, epoch milliseconds
    # Largest timestamp of a segment's records, of ``.log`` files only; None where it is not known,
    # -1 where no record has one.
    largest_timestamp: Annotated[int, whole(-1)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One generation of a partition."""

    partition: Annotated[TopicPartition, INLINE]
    # Kafka's, 22 characters; None where it is not known.
    topic_id: Annotated[str, word(r"[A-Za-z0-9_-]{22}")] | None = None
    # 1 for the first manifest, one more with every commit.
    generation: Annotated[int, whole(1, MAX_INTEGER - 1)] = 0
    run_id: _RunId = ""
    attempt_id: _RunId = ""  # the attempt of that run's task; no two attempts share one
    fencing_token: Count = 0  # token of the run's lease
    committed_ms: Count = 0
    checkpoints: PartitionCheckpoints = field(default_factory=PartitionCheckpoints)
    # The commit's result, for later questions; any JSON object.
    result: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[_PlainName, FileEntry] = field(default_factory=dict)


_MANIFEST: Final = JsonFile(Manifest, "pylog-manifest")


def manifest_key(partition: TopicPartition) -> str:
    """Return the key of a partition's head."""
    return f"{partition}/{MANIFEST_FILE}"


def history_key(partition: TopicPartition, generation: int) -> str:
    """Return the key of a manifest that was superseded."""
    return f"{partition}/{HISTORY_DIRECTORY}/{generation:020d}.json"


def data_key(partition: TopicPartition, attempt_id: str, name: str) -> str:
    """Return the key of a data object."""
    validate_file_name(name)
    validate_file_name(attempt_id)
    return f"{partition}/{DATA_DIRECTORY}/{attempt_id}/{name}"


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the JSON of a manifest; equal manifests give equal bytes."""
    is_compact = len(manifest.files) > MOST_SPREAD_FILES
    return _MANIFEST.encode(
        replace(manifest, files=dict(sorted(manifest.files.items()))),
        layout=COMPACT_LINE if is_compact else SPREAD,
    )


def parse_manifest(content: bytes, partition: TopicPartition, *, root: str, file: str) -> Manifest:
    """Parse and check the manifest of a partition.

    Args:
        root: URL of the managed root; an adopted object has to be in the same kind of store.
        file: Where the content is from, for messages.
    """
    manifest = _MANIFEST.parse(content, file)
    if manifest.partition != partition:
        raise ManifestError(file, "topic", f"expected the manifest of {partition}, found another's")
    for name, entry in manifest.files.items():
        most = MAX_INTEGER - entry.size_bytes
        if entry.start > most:
            reason = f"expected a whole number from 0 to {most}, found {entry.start}"
            raise ManifestError(file, f"files.{name}.start", reason)
        try:
            _validate_place(entry, partition, root)
        except InvalidNameError as error:
            raise ManifestError(file, f"files.{name}.key", error.reason) from error
    return manifest


def _validate_place(entry: FileEntry, partition: TopicPartition, root: str) -> None:
    """Raise InvalidNameError if an entry's object cannot be one of the partition's."""
    key = entry.key
    if not entry.size_bytes and not key:
        return
    try:
        if URL_MARK in key:
            folder = validate_key(split_adopted(key, root)[1]).rpartition("/")[0]
        else:
            validate_key(key)
    except InvalidNameError as error:
        raise InvalidNameError(key, f"{error.name!r}: {error.reason}") from error
    if URL_MARK in key:
        # A purge deletes adopted objects: allow only names of a partition's files.
        if folder.rpartition("/")[2] != str(partition):
            raise InvalidNameError(key, f"expected one in a folder {partition}, found {key!r}")
    elif not key.startswith(f"{partition}/{DATA_DIRECTORY}/"):
        raise InvalidNameError(key, f"expected one below {partition}/{DATA_DIRECTORY}/")


def split_adopted(url: str, root: str) -> tuple[str, str]:
    """Split an adopted object's URL into its store's URL and key."""
    scheme, _, rest = url.partition(URL_MARK)
    root_scheme = root.partition(URL_MARK)[0] if URL_MARK in root else "file"
    if scheme != root_scheme:
        raise InvalidNameError(url, f"expected a URL of {root_scheme}{URL_MARK}")
    if scheme == "file":
        return f"file{URL_MARK}/", rest.removeprefix("/")
    store, _, key = rest.partition("/")
    return f"{scheme}{URL_MARK}{store}", key


# A managed root: its marker file and its partitions.

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
