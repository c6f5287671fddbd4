r"""Entries of a log directory's checkpoints, of all partitions and of one.

The one place that knows which files there are, and which offset of a partition each of them keeps.
A broker writes four of them into each log directory; in a managed root the same four offsets stand
in the manifest of each partition.

Small text files of Kafka: offset checkpoints, leader epochs, topic id.

Kafka's checkpoint files (``org.apache.kafka.server.common.CheckpointFile``)::

    file    = "" | version \n [count \n entry*]
    version = 0
    count   = number of entries that follow
    entry   = fields separated by white space \n

A file that was just created is empty and holds no entries; one with only the version line holds
none either. An empty set is written ``0\n0\n``. The last newline may be missing, and white space
may follow an entry, but not precede it.

``recovery-point-offset-checkpoint``, ``log-start-offset-checkpoint``,
``cleaner-offset-checkpoint`` and ``replication-offset-checkpoint`` lie in the log directory and
have entries of ``topic partition offset`` (``OffsetCheckpointFile``).

``leader-epoch-checkpoint`` lies in the partition's directory and has entries of ``epoch
start_offset``: where each leader's reign began. Kafka feeds them one by one into its cache,
where an entry that is out of order removes those that contradict it; so order matters, and
nothing but the form is judged here (``LeaderEpochCheckpointFile``).

``partition.metadata`` lies there too and names the topic's id (``PartitionMetadataFile``)::

    file = "version: 0\n" "topic_id: " id

without a newline at the end. Kafka splits a line at the colon and the white space after it, and
looks at the second part only; so do we. All of these classes are in
``org.apache.kafka.storage.internals.checkpoint`` but the first.
"""

import base64
import codecs
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, Protocol, Self

from storage_core.errors import CheckpointError, InvalidNameError
from storage_core.filenames import (
    CLEANER_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    TopicPartition,
    validate_topic,
)
from storage_core.json_values import Count
from storage_core.wording import count_text

# Kafka's text of a 128-bit id: URL-safe base64 without padding.

UUID_BYTES: Final = 16
# Topic ids below this one, directory ids below the hundredth: reserved for special meanings.
ZERO_UUID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
_RESERVED_DIRECTORY_IDS: Final = 100
# A replica's directory in the cluster's metadata: never assigned, as an older version had no
# directory ids; not assigned yet; in a lost directory.
MIGRATING_DIRECTORY: Final = ZERO_UUID
UNASSIGNED_DIRECTORY: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
LOST_DIRECTORY: Final = "AAAAAAAAAAAAAAAAAAAAAg"
# 16 bytes make 22 characters; Java's decoder takes the two characters of padding as well.
_TEXT: Final = re.compile(r"[A-Za-z0-9_-]{22}(?:==)?")


def encode_uuid(value: bytes) -> str:
    """Return the text of 16 bytes."""
    if len(value) != UUID_BYTES:
        raise ValueError(f"an id has {UUID_BYTES} bytes, found {len(value)}")
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode("ascii")


def parse_uuid(text: str) -> str:
    """Return the one text by which Kafka knows an id."""
    if not _TEXT.fullmatch(text):
        raise ValueError(f"expected an id of 22 characters of base64, found {text[:40]!r}")
    # The last character has four bits to spare; Kafka's own text leaves them zero.
    return encode_uuid(base64.urlsafe_b64decode(text[:22] + "=="))


def decode_uuid(text: str) -> bytes:
    """Return the 16 bytes of an id."""
    return base64.urlsafe_b64decode(parse_uuid(text) + "==")


def is_reserved_directory_id(text: str) -> bool:
    """Whether Kafka gives a directory id a special meaning, such as LOST."""
    value = decode_uuid(text)
    high = int.from_bytes(value[:8])
    low = int.from_bytes(value[8:], signed=True)
    return high == 0 and low < _RESERVED_DIRECTORY_IDS


VERSION: Final = 0
INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
# Ten times the partitions, or the leader epochs, that any broker has.
MAX_ENTRIES: Final = 1 << 21
# So much of a line identifies it.
_QUOTED_CHARACTERS: Final = 40

# White space and line ends, as Java's regular expressions and readers define them.
_WHITE_SPACE: Final = re.compile(r"[ \t\n\v\f\r]+")
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_LINE_END_BYTES: Final = re.compile(_LINE_END.pattern.encode())
_PIECE_BYTES: Final = 1 << 20
_FIRST_ENTRY_LINE: Final = 3
_NUMBER: Final = re.compile(r"[+-]?0*[0-9]{1,19}")
_MAX_NUMBER_LENGTH: Final = 64
# A million entries with the longest topic names; a larger file is no checkpoint.
MAX_OFFSET_CHECKPOINT_BYTES: Final = 1 << 28
# Some million entries; a log has few.
MAX_LEADER_EPOCH_BYTES: Final = 64 << 20
MAX_PARTITION_METADATA_BYTES: Final = 1 << 16
_METADATA_VERSION: Final = 0
_COLON: Final = re.compile(r":[ \t\n\v\f\r]+")


def read_lines(data: bytes, *, file: str) -> list[str]:
    """Return a UTF-8 text's lines without ends; no empty last line."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CheckpointError(file, line, f"byte {error.start} is not UTF-8") from error
    lines = _LINE_END.split(text)
    if not lines[-1]:
        lines.pop()
    return lines


def parse_entries(data: bytes, *, file: str, field_count: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the entries of a checkpoint, in file order.

    Yields:
        The 1-based number of the entry's line, and its fields.
    """
    _require_utf8(data, file=file)
    lines = _walk_lines(data)
    first, second = next(lines, None), next(lines, None)
    if first is None:
        return
    version = parse_number(first, INT_MAX, file=file, line=1)
    if version != VERSION:
        raise CheckpointError(file, 1, f"expected version {VERSION}, found {version}")
    if second is None:
        return
    announced = parse_number(second, INT_MAX, file=file, line=2)
    count = 0
    for number, text in enumerate(lines, start=_FIRST_ENTRY_LINE):
        count = number - _FIRST_ENTRY_LINE + 1
        if count > MAX_ENTRIES:
            raise CheckpointError(file, number, f"expected at most {MAX_ENTRIES} entries")
        # One more than allowed, and what may follow the last.
        fields = _WHITE_SPACE.split(text, maxsplit=field_count + 1)
        if len(fields) > 1 and not fields[-1]:
            fields.pop()
        if len(fields) != field_count or not fields[0]:
            raise CheckpointError(
                file, number, f"expected {field_count} fields, found {quote(text)}"
            )
        yield number, fields
    if announced != count:
        raise CheckpointError(file, 2, f"announces {announced} entries, found {count}")


def _require_utf8(data: bytes, *, file: str) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for start in range(0, len(data), _PIECE_BYTES):
            decoder.decode(data[start : start + _PIECE_BYTES])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        read_lines(data, file=file)  # says where


def _walk_lines(data: bytes) -> Iterator[str]:
    """Yield the lines of ``read_lines`` one at a time. A list of all lines would take ten times
    the file's memory."""
    start = 0
    for end in _LINE_END_BYTES.finditer(data):
        yield data[start : end.start()].decode()
        start = end.end()
    if start < len(data):
        yield data[start:].decode()


def encode_entries(entries: Iterable[str]) -> bytes:
    """Return the bytes of a checkpoint with these entries, in this order."""
    lines = list(entries)
    return "".join(f"{line}\n" for line in (VERSION, len(lines), *lines)).encode("utf-8")


def parse_number(text: str, largest: int, *, file: str, line: int) -> int:
    """Parse a whole number of 32 or 64 bits, as Java does.

    Args:
        text: Digits, perhaps with a sign; nothing around them.
        largest: INT_MAX or LONG_MAX.
        line: 1-based line, for the error.
    """
    is_number = len(text) <= _MAX_NUMBER_LENGTH and _NUMBER.fullmatch(text)
    number = int(text) if is_number else None
    if number is None or not -largest - 1 <= number <= largest:
        bits = largest.bit_length() + 1
        raise CheckpointError(file, line, f"expected a number of {bits} bits, found {quote(text)}")
    return number


def quote(text: str) -> str:
    """Return a file's text for an error message, escaped and cut. Zeros alone, which a crash
    leaves, become their number."""
    if text and not text.strip("\0"):
        return count_text(len(text), "zero byte")
    if len(text) > _QUOTED_CHARACTERS:
        return f"{text[:_QUOTED_CHARACTERS]!r}..."
    return repr(text)


def parse_offset_checkpoint(data: bytes, *, file: str) -> dict[TopicPartition, int]:
    """Parse an offset checkpoint.

    Args:
        data: The whole file; empty is valid.

    Returns:
        Offsets by partition, in file order; of a partition that is there twice, the last one.
        An offset may be negative.
    """
    # Each task of a run reads the same files.
    parse = _parse_again if len(data) <= _MOST_KEPT_BYTES else _parse_usual
    usual = parse(data)
    if usual is not None:
        return usual.copy()
    offsets = {}
    for line, (topic, partition, offset) in parse_entries(data, file=file, field_count=3):
        try:
            validate_topic(topic)
        except InvalidNameError as error:
            raise CheckpointError(file, line, str(error)) from error
        number = parse_number(partition, INT_MAX, file=file, line=line)
        if number < 0:
            raise CheckpointError(file, line, f"expected a partition, found {number}")
        offset_number = parse_number(offset, LONG_MAX, file=file, line=line)
        offsets[TopicPartition(topic, number)] = offset_number
    return offsets


# An entry as a broker writes it, and the lines before the first one.
_USUAL_ENTRY: Final = re.compile(rb"(?!\.\.? )([a-zA-Z0-9._-]{1,249}) ([0-9]{1,9}) ([0-9]{1,18})\n")
_USUAL_HEAD: Final = re.compile(rb"0\n([0-9]{1,9})\n")


def _parse_usual(data: bytes) -> dict[TopicPartition, int] | None:
    """Return the offsets of a checkpoint as a broker writes it, None of any other."""
    head = _USUAL_HEAD.match(data)
    if head is None or int(head[1]) > MAX_ENTRIES:
        return None
    offsets, end, count = {}, head.end(), 0
    for entry in _USUAL_ENTRY.finditer(data, end):
        if entry.start() != end:
            return None
        topic, partition, offset = entry.groups()
        offsets[TopicPartition(topic.decode(), int(partition))] = int(offset)
        end, count = entry.end(), count + 1
    return offsets if end == len(data) and count == int(head[1]) else None


# A few thousand partitions.
_MOST_KEPT_BYTES: Final = 1 << 18
_parse_again: Final = lru_cache(maxsize=4)(_parse_usual)


def encode_offset_checkpoint(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Return the bytes of an offset checkpoint, sorted by partition. Kafka writes partitions in
    any order."""
    return encode_entries(
        f"{partition.topic} {partition.partition} {offsets[partition]}"
        for partition in sorted(offsets)
    )


@dataclass(frozen=True, slots=True, order=True)
class EpochEntry:
    """A leader epoch and the first offset written in it."""

    epoch: int
    start_offset: int


def parse_leader_epochs(data: bytes, *, file: str) -> list[EpochEntry]:
    """Parse a leader epoch checkpoint.

    Args:
        data: The whole file; empty is valid.

    Returns:
        The entries in file order, whatever their numbers.
    """
    return [
        EpochEntry(
            parse_number(epoch, INT_MAX, file=file, line=line),
            parse_number(start_offset, LONG_MAX, file=file, line=line),
        )
        for line, (epoch, start_offset) in parse_entries(data, file=file, field_count=2)
    ]


def encode_leader_epochs(entries: Sequence[EpochEntry]) -> bytes:
    """Return the bytes of a leader epoch checkpoint, entries in order."""
    return encode_entries(f"{entry.epoch} {entry.start_offset}" for entry in entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetadata:
    """The fields of ``partition.metadata``."""

    version: int = _METADATA_VERSION  # version of its form, 0 or higher
    topic_id: str  # the topic's id, as Kafka spells it


def parse_partition_metadata(data: bytes, *, file: str) -> PartitionMetadata:
    """Parse ``partition.metadata``."""
    lines = read_lines(data, file=file)
    version = parse_number(_metadata_value(lines, 1, file), INT_MAX, file=file, line=1)
    if version < 0:
        raise CheckpointError(file, 1, f"expected a version, found {version}")
    try:
        topic_id = parse_uuid(_metadata_value(lines, 2, file))
    except ValueError as error:
        raise CheckpointError(file, 2, str(error)) from error
    if topic_id == ZERO_UUID:
        raise CheckpointError(file, 2, "the zero id belongs to no topic")
    return PartitionMetadata(version=version, topic_id=topic_id)


def encode_partition_metadata(metadata: PartitionMetadata) -> bytes:
    """Return the bytes of ``partition.metadata``."""
    return f"version: {metadata.version}\ntopic_id: {metadata.topic_id}".encode("ascii")


def _metadata_value(lines: list[str], number: int, file: str) -> str:
    if len(lines) < number:
        raise CheckpointError(file, number, "the line is missing")
    parts = _COLON.split(lines[number - 1])
    while parts and not parts[-1]:
        parts.pop()
    if len(parts) != 2:  # noqa: PLR2004 - name and value
        raise CheckpointError(
            file, number, f"expected a name and a value, found {quote(lines[number - 1])}"
        )
    return parts[1]


# Read a log directory's small files from disk or object store.


class SmallFiles(Protocol):
    """Where the small files of a log directory are read."""

    @property
    def location(self) -> str:
        """Path or URL of the directory."""
        ...

    def read(self, name: str, *, limit_bytes: int) -> bytes | None:
        """Return a small file, None if it is not there."""
        ...


# Each file, and the offset of a partition in it.
CHECKPOINT_FILES: Final[Mapping[str, str]] = {
    RECOVERY_POINT_FILE: "recovery_point",
    LOG_START_FILE: "log_start_offset",
    REPLICATION_FILE: "high_watermark",
    CLEANER_FILE: "cleaner_offset",
}
# Files that a loader reads and a recovery writes.
RECOVERY_FILES: Final = (RECOVERY_POINT_FILE, LOG_START_FILE, REPLICATION_FILE)
# Files on which retention and compaction depend, in logs that need no recovery.
UPKEEP_FILES: Final = (REPLICATION_FILE, LOG_START_FILE, CLEANER_FILE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCheckpoints:
    """The checkpointed offsets of one partition; None for no entry."""

    log_start_offset: Count | None = None  # first offset that may be read
    # Up to it the log is on disk; in a manifest, up to it the log was taken.
    recovery_point: Count | None = None
    high_watermark: Count | None = None
    cleaner_offset: Count | None = None

    def start_in_tier(self, local_start: int) -> int | None:
        """Return a log start below the first local offset, else None. Kafka keeps such an entry
        of tiered logs alone: the offsets between lie in the tier."""
        start = self.log_start_offset
        return start if start is not None and start < local_start else None

    def moved(self, changes: Self) -> Self:
        """Return these offsets with changes; no recovery point below the log's start.

        Args:
            changes: None leaves an offset as it is.
        """
        entries = {name: getattr(changes, name) for name in CHECKPOINT_FILES.values()}
        moved = replace(self, **{name: at for name, at in entries.items() if at is not None})
        start, point = moved.log_start_offset, moved.recovery_point
        if start is None or point is None:
            return moved
        return replace(moved, recovery_point=max(point, start))


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """What the checkpoint files of one log directory say."""

    # Offsets by file and partition; a file that was not read, or is not there, has none.
    entries: Mapping[str, Mapping[TopicPartition, int]] = field(default_factory=dict)
    # The fault of each malformed file, by file; such a file has no entries.
    problems: Mapping[str, CheckpointError] = field(default_factory=dict)

    def of(self, partition: TopicPartition) -> PartitionCheckpoints:
        """Return what they say of one partition."""
        offsets = {
            CHECKPOINT_FILES[file]: of_file.get(partition)
            for file, of_file in self.entries.items()
            if of_file and file in CHECKPOINT_FILES
        }
        return PartitionCheckpoints(**offsets)


def read_checkpoints(
    directory: SmallFiles, files: Iterable[str] = tuple(CHECKPOINT_FILES), *, strict: bool = True
) -> Checkpoints:
    """Read checkpoint files of a log directory; a missing file is empty.

    Args:
        strict: Whether a malformed file is an error; else it is told as a problem, and counts as
            empty.
    """
    entries: dict[str, dict[TopicPartition, int]] = {}
    problems: dict[str, CheckpointError] = {}
    for name in files:
        try:
            content = directory.read(name, limit_bytes=MAX_OFFSET_CHECKPOINT_BYTES)
            if content is not None:
                file = f"{directory.location}/{name}"
                entries[name] = parse_offset_checkpoint(content, file=file)
        except CheckpointError as error:
            if strict:
                raise
            problems[name] = error
    return Checkpoints(entries=entries, problems=problems)


def merge_entries(
    entries: Mapping[TopicPartition, int], changes: Mapping[TopicPartition, int | None]
) -> dict[TopicPartition, int]:
    """Return the entries of a file with changes; None removes an entry."""
    merged = {**entries, **changes}
    return {partition: offset for partition, offset in merged.items() if offset is not None}


def log_start_entry(log_start_offset: int, first_base_offset: int) -> int | None:
    """Return the log's entry in the log-start checkpoint; None for none.

    A log that begins at its first segment needs none; one whose first segment still holds deleted
    records in front does, or these would be back after a restart.
    """
    return log_start_offset if log_start_offset > first_base_offset else None
