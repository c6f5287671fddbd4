"""The manifest of one partition of a managed root: which bytes are its files now.

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
from dataclasses import asdict, dataclass, field
from dataclasses import fields as fields_of
from typing import Any, Final

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.errors import InvalidNameError
from storage_core.filenames import DATA_DIRECTORY, HISTORY_DIRECTORY, MANIFEST_FILE, TopicPartition
from storage_core.json_text import MAX_INTEGER, JsonDocument, JsonFields
from storage_core.store.object_store import validate_key

# Some 70,000 segments with their companions where the topic has a long name, else twice as many.
MAX_MANIFEST_BYTES: Final = 128 << 20
# One of more files has no line for each field: so it is smaller, and made in less time.
MOST_SPREAD_FILES: Final = 1_000

URL_MARK: Final = "://"

_NAME: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,255}")
_TOPIC_ID: Final = re.compile(r"[A-Za-z0-9_-]{22}")
_RUN: Final = re.compile(r"[A-Za-z0-9._:-]{0,128}")
_ETAG: Final = re.compile(r"[\x21\x23-\x7e]{0,200}")
_MANIFEST: Final = JsonDocument(
    "pylog-manifest",
    1,
    (
        "topic",
        "partition",
        "topic_id",
        "generation",
        "run_id",
        "attempt_id",
        "fencing_token",
        "committed_ms",
        "checkpoints",
        "result",
        "files",
    ),
)
_FILE_FIELDS: Final = ("key", "start", "size", "etag", "modified_ms", "largest_timestamp")
_CHECKPOINT_FIELDS: Final = tuple(each.name for each in fields_of(PartitionCheckpoints))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """The object and range that hold the bytes of one file.

    Attributes:
        key: Of the object: relative to the root, or the URL of an adopted one.
        start: Position of the file's first byte in the object.
        size_bytes: Length of the file.
        etag: Tag of the object; empty for a file without bytes, which needs no object.
        modified_ms: Time of the file's last modification, epoch milliseconds.
        largest_timestamp: Largest timestamp of a segment's records, of ``.log`` files only; None
            where it is not known, -1 where no record has one.
    """

    key: str
    start: int
    size_bytes: int
    etag: str
    modified_ms: int
    largest_timestamp: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One generation of a partition.

    Attributes:
        partition: Which one.
        topic_id: Kafka's, 22 characters; None where it is not known.
        generation: 1 for the first manifest, one more with every commit.
        run_id: The run that committed it.
        attempt_id: The attempt of that run's task; no two attempts share one.
        fencing_token: Of the lease that the run held.
        committed_ms: By the run's clock, epoch milliseconds.
        files: By name.
        checkpoints: Of the partition.
        result: What the commit came to, for whoever asks later; any JSON object.
    """

    partition: TopicPartition
    topic_id: str | None = None
    generation: int = 0
    run_id: str = ""
    attempt_id: str = ""
    fencing_token: int = 0
    committed_ms: int = 0
    files: Mapping[str, FileEntry] = field(default_factory=dict)
    checkpoints: PartitionCheckpoints = field(default_factory=PartitionCheckpoints)
    result: Mapping[str, Any] = field(default_factory=dict)


def manifest_key(partition: TopicPartition) -> str:
    """Return the key of a partition's head."""
    return f"{partition}/{MANIFEST_FILE}"


def history_key(partition: TopicPartition, generation: int) -> str:
    """Return the key of a manifest that was superseded."""
    return f"{partition}/{HISTORY_DIRECTORY}/{generation:020d}.json"


def data_key(partition: TopicPartition, attempt_id: str, name: str) -> str:
    """Return the key of a data object.

    Raises:
        InvalidNameError: The attempt or the name is not plain.
    """
    validate_file_name(name)
    validate_file_name(attempt_id)
    return f"{partition}/{DATA_DIRECTORY}/{attempt_id}/{name}"


def validate_file_name(name: str) -> str:
    """Return the name of a file in a partition if it is plain.

    Raises:
        InvalidNameError: It is empty, ``.`` or ``..``, longer than 255 characters, or has a
            character outside ``[A-Za-z0-9._-]``.
    """
    if not _NAME.fullmatch(name):
        raise InvalidNameError(name[:80], "expected 1 to 255 of the characters [A-Za-z0-9._-]")
    return name


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the JSON of a manifest; equal manifests give equal bytes."""
    return _MANIFEST.encode(
        {
            "topic": manifest.partition.topic,
            "partition": manifest.partition.partition,
            "topic_id": manifest.topic_id,
            "generation": manifest.generation,
            "run_id": manifest.run_id,
            "attempt_id": manifest.attempt_id,
            "fencing_token": manifest.fencing_token,
            "committed_ms": manifest.committed_ms,
            "checkpoints": asdict(manifest.checkpoints),
            "result": dict(manifest.result),
            "files": {
                name: {
                    "key": entry.key,
                    "start": entry.start,
                    "size": entry.size_bytes,
                    "etag": entry.etag,
                    "modified_ms": entry.modified_ms,
                    "largest_timestamp": entry.largest_timestamp,
                }
                for name, entry in sorted(manifest.files.items())
            },
        },
        is_compact=len(manifest.files) > MOST_SPREAD_FILES,
    )


def parse_manifest(content: bytes, partition: TopicPartition, *, root: str, file: str) -> Manifest:
    """Parse and check the manifest of a partition.

    Args:
        content: The object's bytes.
        partition: Whose it should be.
        root: URL of the managed root; an adopted object has to be in the same kind of store.
        file: Where the content is from, for messages.

    Raises:
        ManifestError: It is not a manifest of that partition, with file and field.
    """
    fields = _MANIFEST.parse(content, file)
    if (fields.word("topic"), fields.integer("partition")) != (
        partition.topic,
        partition.partition,
    ):
        raise fields.error("topic", f"expected the manifest of {partition}, found another's")
    checkpoints = fields.fields("checkpoints")
    checkpoints.require_names(_CHECKPOINT_FIELDS)
    files = fields.fields("files")
    return Manifest(
        partition=partition,
        topic_id=fields.optional_word("topic_id", pattern=_TOPIC_ID),
        generation=fields.integer("generation", least=1, most=MAX_INTEGER - 1),
        run_id=fields.word("run_id", pattern=_RUN),
        attempt_id=fields.word("attempt_id", pattern=_RUN),
        fencing_token=fields.integer("fencing_token"),
        committed_ms=fields.integer("committed_ms"),
        checkpoints=PartitionCheckpoints(
            **{name: checkpoints.optional_integer(name) for name in _CHECKPOINT_FIELDS}
        ),
        result=fields.mapping("result"),
        files={name: _parse_file(files, name, partition, root) for name in files.names()},
    )


def _parse_file(files: JsonFields, name: str, partition: TopicPartition, root: str) -> FileEntry:
    try:
        validate_file_name(name)
    except InvalidNameError as error:
        raise files.error(name[:80], error.reason) from error
    fields = files.fields(name)
    fields.require_names(_FILE_FIELDS)
    size = fields.integer("size")
    return FileEntry(
        key=_parse_key(fields, partition, root, is_empty=size == 0),
        start=fields.integer("start", most=MAX_INTEGER - size),
        size_bytes=size,
        etag=fields.word("etag", pattern=_ETAG),
        modified_ms=fields.integer("modified_ms"),
        largest_timestamp=fields.optional_integer("largest_timestamp", least=-1),
    )


def _parse_key(fields: JsonFields, partition: TopicPartition, root: str, *, is_empty: bool) -> str:
    key = fields.word("key")
    if is_empty and not key:
        return key
    try:
        if URL_MARK in key:
            folder = validate_key(split_adopted(key, root)[1]).rpartition("/")[0]
            # A purge deletes what was adopted: only what may have been a partition's file is.
            if folder.rpartition("/")[2] != str(partition):
                raise fields.error("key", f"expected one in a folder {partition}, found {key!r}")
        elif not validate_key(key).startswith(f"{partition}/{DATA_DIRECTORY}/"):
            raise fields.error("key", f"expected one below {partition}/{DATA_DIRECTORY}/")
    except InvalidNameError as error:
        raise fields.error("key", f"{error.name!r}: {error.reason}") from error
    return key


def split_adopted(url: str, root: str) -> tuple[str, str]:
    """Split the URL of an adopted object into that of its store and a key in there.

    Raises:
        InvalidNameError: It is not in the same kind of store as the root.
    """
    scheme, _, rest = url.partition(URL_MARK)
    root_scheme = root.partition(URL_MARK)[0] if URL_MARK in root else "file"
    if scheme != root_scheme:
        raise InvalidNameError(url, f"expected a URL of {root_scheme}{URL_MARK}")
    if scheme == "file":
        return f"file{URL_MARK}/", rest.removeprefix("/")
    store, _, key = rest.partition("/")
    return f"{scheme}{URL_MARK}{store}", key
