"""A partition's manifest in a managed root: its files' objects and ranges.

::

    <root>/<topic>-<n>/manifest.json                       the head; replaced by a conditional PUT
    <root>/<topic>-<n>/history/<generation, 20 digits>.json  each manifest before it
    <root>/<topic>-<n>/data/<attempt>/<name>               what they name; never changed

A file is a stretch of an object: ``start`` and ``size`` in the object ``key``, which is relative
to the root, or the URL of an object that was adopted where it lies. Format in full:
``docs/managed-format.md``. Whoever wrote a manifest, nothing in it is believed unchecked: names
are plain, keys stay inside the partition's data, numbers are in range, the size is bounded.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.errors import InvalidNameError, ManifestError
from storage_core.filenames import DATA_DIRECTORY, HISTORY_DIRECTORY, MANIFEST_FILE, TopicPartition
from storage_core.json_text import MAX_INTEGER
from storage_core.json_values import (
    COMPACT_LINE,
    INLINE,
    SPREAD,
    Count,
    JsonFile,
    Key,
    MismatchError,
    Word,
    whole,
    word,
)
from storage_core.store.object_store import validate_key

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
