"""Every exception that this project raises on purpose.

An error carries its facts as attributes and hands all of them to ``super().__init__``, so that
it survives pickling on its way from a Spark worker. ``kafka_code`` is Kafka's numeric error
code where Kafka has one (``org.apache.kafka.common.protocol.Errors``), else None.

Whoever reads a file knows its name and the position, but not always whose directory it is in; what
works on one partition says so for all of them (``located``). ``facts_of`` tells of any error what
is known of its place.
"""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import PurePath
from typing import Any, ClassVar, ParamSpec, TypeVar

from storage_core.redaction import is_secret_name, without_secrets

# Of a value that was set: whoever set it knows the rest, and a terminal has no room for it.
_MOST_SHOWN = 1000

P = ParamSpec("P")
R = TypeVar("R")


class PylogError(Exception):
    """Base of every error raised on purpose; its text is meant for the person at the terminal.

    Attributes:
        directory: Path or URL of the partition's directory, None where it is of none, or where
            nobody has said which one.
        offset: The record or batch that it is about, None where it is about none.
    """

    kafka_code: ClassVar[int | None] = None
    directory: str | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorFacts:
    """What is known of an error; None where that does not apply.

    Attributes:
        name: Its stable name: that of its class.
        kafka_code: Kafka's number, None where Kafka has no such error.
        directory: Path or URL of the partition's directory.
        partition: Topic and number, as Kafka names the directory.
        file: Name or path of the file.
        position: Byte position in that file.
        offset: Offset of the record or batch.
    """

    name: str
    kafka_code: int | None
    directory: str | None
    partition: str | None
    file: str | None
    position: int | None
    offset: int | None


def facts_of(error: PylogError) -> ErrorFacts:
    """Return what is known of an error."""
    directory = error.directory
    partition = getattr(error, "partition", None) or directory
    return ErrorFacts(
        name=type(error).__name__,
        kafka_code=error.kafka_code,
        directory=directory,
        partition=None if partition is None else PurePath(partition).name,
        file=getattr(error, "file", None),
        position=getattr(error, "position", None),
        offset=error.offset,
    )


def kafka_code_of(error_class: str) -> int | None:
    """Return Kafka's number of an error that is known by the name of its class, None without one.

    Rows and plans have that name; a class that is not of this module has no number.
    """
    kinds = [PylogError]
    for kind in kinds:
        if kind.__name__ == error_class:
            return kind.kafka_code
        kinds += kind.__subclasses__()
    return None


def located(work: Callable[P, R]) -> Callable[P, R]:
    """Decorate what works on one partition: its errors say whose directory they are about.

    The first argument of the function is the directory, or the store of it.
    """

    @wraps(work)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return work(*args, **kwargs)
        except PylogError as error:
            if error.directory is None:
                error.directory = str(getattr(args[0], "location", args[0]))
            raise

    return run


class ConfigError(PylogError):
    """A setting is unknown, malformed or out of range."""

    kafka_code = 40

    def __init__(self, key: str, value: object, reason: str) -> None:
        super().__init__(key, value, reason)
        self.key, self.value, self.reason = key, value, reason

    def __str__(self) -> str:
        # None: it is not said at all.
        value = "(hidden)" if is_secret_name(self.key) else self.value
        setting = self.key if self.value is None else without_secrets(f"{self.key}={value}")
        shown = setting if len(setting) <= _MOST_SHOWN else setting[:_MOST_SHOWN] + "..."
        return f"{shown}: {without_secrets(self.reason)}"


class MissingDriverError(ConfigError):
    """A package that reaches this kind of location is not installed."""

    def __init__(self, path: str, package: str, extra: str) -> None:
        super().__init__(
            "location", path, f"needs the package {package}: pip install 'pylog-spark[{extra}]'"
        )
        self.args = (path, package, extra)
        self.path, self.package, self.extra = path, package, extra


class InvalidNameError(PylogError):
    """The name of a file, a directory or a topic is not one that Kafka writes."""

    kafka_code = 17

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name, self.reason = name, reason

    def __str__(self) -> str:
        return f"{self.name!r}: {self.reason}"


class PartitionNotFoundError(PylogError):
    """There is no partition directory where one was named."""

    kafka_code = 3

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path}: no such partition directory"


class OffsetOutOfRangeError(PylogError):
    """An offset that was asked for is not in the log, or not any more."""

    kafka_code = 1

    def __init__(self, partition: str, offset: int, first: int, end: int) -> None:
        super().__init__(partition, offset, first, end)
        self.partition, self.offset, self.first, self.end = partition, offset, first, end

    def __str__(self) -> str:
        return (
            f"{self.partition}: offset {self.offset} is out of range; "
            f"the log has offsets {self.first} up to, not including, {self.end}"
        )


class MissingSegmentError(PylogError):
    """Offsets that a log should have are in none of its segments."""

    def __init__(self, directory: str, first: int, end: int | None, evidence: str) -> None:
        super().__init__(directory, first, end, evidence)
        self.directory, self.first, self.end = directory, first, end
        self.evidence = evidence

    def __str__(self) -> str:
        last = "the end" if self.end is None else f"{self.end - 1}"
        return (
            f"{self.directory}: offsets {self.first} to {last} are missing: {self.evidence}. "
            "Either a segment is lost (a replica or a backup may have it), or the topic is or was "
            "compacted and nothing here says so; failOnDataLoss=false reads what is there"
        )


class OffsetNotAvailableError(PylogError):
    """An offset would be beyond a high watermark that is known to lag behind."""

    kafka_code = 78

    def __init__(
        self, partition: str, offset: int, high_watermark: int, epoch_start_offset: int
    ) -> None:
        super().__init__(partition, offset, high_watermark, epoch_start_offset)
        self.partition, self.offset = partition, offset
        self.high_watermark, self.epoch_start_offset = high_watermark, epoch_start_offset

    def __str__(self) -> str:
        return (
            f"{self.partition}: offset {self.offset} is not available: the high watermark "
            f"{self.high_watermark} is below {self.epoch_start_offset}, where the leader's epoch "
            "began"
        )


class InvalidFetchSizeError(PylogError):
    """A read was asked for fewer than no bytes."""

    kafka_code = 4

    def __init__(self, partition: str, size_bytes: int) -> None:
        super().__init__(partition, size_bytes)
        self.partition, self.size_bytes = partition, size_bytes

    def __str__(self) -> str:
        return f"{self.partition}: a read of {self.size_bytes} bytes; expected at least 0"


class StorageError(PylogError):
    """The disk or the object store failed; the data may well be fine."""

    kafka_code = 56

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class LogDirectoryNotFoundError(StorageError):
    """There is no such log directory, or the broker's settings (``log.dirs``) do not have it."""

    kafka_code = 57


class ObjectNotFoundError(StorageError):
    """There is no object of that key."""


class ConditionFailedError(StorageError):
    """A conditional write was refused: the object is not what the writer thought it was.

    Args:
        path: URL of the object.
        expected: Version tag that it should have had; empty where it should not have existed.
        found: Version tag that it has; empty where there is none, or none is known.
    """

    def __init__(self, path: str, expected: str, found: str) -> None:
        super().__init__(path, _condition_text(expected, found))
        self.args = (path, expected, found)
        self.expected, self.found = expected, found


def _condition_text(expected: str, found: str) -> str:
    wanted = f"version {expected}" if expected else "no object"
    present = f"version {found}" if found else "another state"
    return f"somebody else changed it: expected {wanted}, found {present}"


class ManifestError(PylogError):
    """A manifest, or another small JSON object of a managed root, is not what its format allows.

    Args:
        file: URL or path of the object.
        field: Where in it, as a dotted path; empty where the whole is meant.
        reason: What was expected and what was found.
    """

    def __init__(self, file: str, field: str, reason: str) -> None:
        super().__init__(file, field, reason)
        self.file, self.field, self.reason = file, field, reason

    def __str__(self) -> str:
        where = f": {self.field}" if self.field else ""
        return f"{self.file}{where}: {self.reason}"


class BadBytesError(PylogError):
    """Bytes of a file are not what its format allows.

    Args:
        file: Name or path of the file.
        position: Byte position in that file.
        reason: What was expected and what was found.
        offset: The batch or record that lies there, None where the bytes do not tell.
    """

    def __init__(self, file: str, position: int, reason: str, *, offset: int | None = None) -> None:
        super().__init__(file, position, reason)
        self.file, self.position, self.reason = file, position, reason
        self.offset = offset

    def __str__(self) -> str:
        return f"{self.file}: position {self.position}: {self.reason}"


class CorruptRecordError(BadBytesError):
    """A batch fails its own checks: size, magic, CRC or where it ends."""

    kafka_code = 2


class InvalidRecordError(BadBytesError):
    """A record inside a batch of valid CRC is malformed."""

    kafka_code = 87


class NegativeTimestampError(InvalidRecordError):
    """A record that would be written anew has a timestamp below -1, which no builder takes."""


class UnsupportedFormatError(BadBytesError):
    """Bytes of a format version that this operation does not handle."""

    kafka_code = 43


class UnsupportedCompressionError(BadBytesError):
    """A batch names a codec that does not exist or is not allowed there."""

    kafka_code = 76


class CorruptIndexError(BadBytesError):
    """An offset, time or transaction index breaks its own rules."""


class IndexVersionError(CorruptIndexError):
    """An index entry has a version that nobody knows; recovery does not overrule that."""


class IndexFullError(BadBytesError):
    """An index cannot take an entry that the log needs; Kafka's cleaner fails in the same place."""


class CorruptSnapshotError(BadBytesError):
    """A producer snapshot has another version, a wrong CRC or a wrong structure."""


class CheckpointError(PylogError):
    """A checkpoint or another small text file is malformed.

    Args:
        file: Name or path of the file.
        line: 1-based number of the line, 0 where the file as a whole is meant.
        reason: What was expected and what was found.
    """

    def __init__(self, file: str, line: int, reason: str) -> None:
        super().__init__(file, line, reason)
        self.file, self.line, self.reason = file, line, reason

    def __str__(self) -> str:
        where = f": line {self.line}" if self.line else ""
        return f"{self.file}{where}: {self.reason}"


class DecompressionError(PylogError):
    """A compressed block cannot be expanded; the caller adds file and position."""

    def __init__(self, codec: str, reason: str) -> None:
        super().__init__(codec, reason)
        self.codec, self.reason = codec, reason

    def __str__(self) -> str:
        return f"{self.codec}: {self.reason}"


class DecompressionLimitError(DecompressionError):
    """A compressed block would expand beyond the limit that was set for it."""


class InvalidTxnStateError(BadBytesError):
    """A batch contradicts the transaction its producer has open."""

    kafka_code = 48


class OffsetOverflowError(BadBytesError):
    """An offset does not fit the 31 bits above its segment's base offset."""


class UnsupportedPythonError(PylogError):
    """This Python does not call compiled code as it should; nothing was read or changed.

    Args:
        python: Its version, and its program.
        reason: What is not as expected.
    """

    def __init__(self, python: str, reason: str) -> None:
        super().__init__(python, reason)
        self.python, self.reason = python, reason

    def __str__(self) -> str:
        return (
            f"Python {self.python} cannot run this program: {self.reason}; "
            "use CPython 3.11, 3.12, 3.13 or 3.14, the build of python.org or of a distribution"
        )


class OffsetMapFullError(PylogError):
    """The offset map cannot take one more key."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.capacity = capacity

    def __str__(self) -> str:
        return f"the offset map is full: every one of its {self.capacity} slots is used"


class RecoveryRequiredError(PylogError):
    """The partition needs a recovery that this operation does not make by itself."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class ChangedWhileReadError(PylogError):
    """A file is not any more what it was when the plan was made."""

    def __init__(self, file: str, expected: str, found: str) -> None:
        super().__init__(file, expected, found)
        self.file, self.expected, self.found = file, expected, found

    def __str__(self) -> str:
        return (
            f"{self.file}: changed since the plan was made: "
            f"expected {self.expected}, found {self.found}"
        )


class GuardRefusedError(PylogError):
    """A guard refuses to go on; the text names the switch that overrides it, if there is one."""

    def __init__(self, code: str, reason: str, override: str | None = None) -> None:
        super().__init__(code, reason, override)
        self.code, self.reason, self.override = code, reason, override

    def __str__(self) -> str:
        hint = f" (override: {self.override})" if self.override else ""
        return f"{self.code}: {self.reason}{hint}"


class ReadOnlyStoreError(GuardRefusedError):
    """A change was asked of a place that is only read: a mirror on an object store."""

    def __init__(self, path: str, operation: str) -> None:
        super().__init__("READ_ONLY_STORE", f"{path} is only read: {operation} is refused")
        self.args = (path, operation)
        self.path, self.operation = path, operation


class UnsafeStoreError(GuardRefusedError):
    """An object store does not keep the promises that a managed root stands on."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__("UNSAFE_STORE", f"{path}: {reason}")
        self.args = (path, reason)
        self.path = path


class LeaseHeldError(GuardRefusedError):
    """Another run holds the lease of a managed root."""

    def __init__(self, path: str, holder: str, expires_ms: int) -> None:
        super().__init__(
            "LEASE_HELD", f"{path} is held by {holder}; its lease ends at {expires_ms} ms"
        )
        self.args = (path, holder, expires_ms)
        self.path, self.holder, self.expires_ms = path, holder, expires_ms


class LeaseLostError(GuardRefusedError):
    """The lease of a managed root ran out or went to somebody else while work was under way."""

    def __init__(self, path: str, holder: str, reason: str) -> None:
        super().__init__("LEASE_LOST", f"{path}: the lease of {holder} {reason}")
        self.args = (path, holder, reason)
        self.path, self.holder = path, holder


class InconsistentTopicIdError(PylogError):
    """A partition directory belongs to another topic of that name than the one expected."""

    kafka_code = 103

    def __init__(self, path: str, expected: str, found: str) -> None:
        super().__init__(path, expected, found)
        self.path, self.expected, self.found = path, expected, found

    def __str__(self) -> str:
        return f"{self.path}: expected topic id {self.expected}, found {self.found}"


class InconsistentClusterIdError(PylogError):
    """A log directory belongs to another cluster than the others."""

    kafka_code = 104

    def __init__(self, path: str, expected: str, found: str) -> None:
        super().__init__(path, expected, found)
        self.path, self.expected, self.found = path, expected, found

    def __str__(self) -> str:
        return f"{self.path}: expected cluster id {self.expected}, found {self.found}"


class InconsistentDirectoriesError(PylogError):
    """Log directories that should be one broker's are not, or one of them is named twice."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class DuplicatePartitionError(PylogError):
    """A partition has several directories; nobody but a person can say which one is right."""

    def __init__(self, topic_partition: str, paths: tuple[str, ...]) -> None:
        super().__init__(topic_partition, paths)
        self.topic_partition, self.paths = topic_partition, paths

    def __str__(self) -> str:
        return f"{self.topic_partition}: found in {' and in '.join(self.paths)}"


class CorruptClusterMetadataError(PylogError):
    """A record of the cluster's metadata log cannot be understood.

    Args:
        file: Name or path of the snapshot or segment.
        offset: Offset of the record, -1 where the file as a whole is meant.
        reason: What was expected and what was found.
    """

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(file, offset, reason)
        self.file, self.reason = file, reason
        self.offset = offset if offset >= 0 else None

    def __str__(self) -> str:
        where = "" if self.offset is None else f": offset {self.offset}"
        return f"{self.file}{where}: {self.reason}"


class MalformedMessageError(PylogError):
    """Bytes of a record of an internal topic are not what its declaration says.

    Args:
        position: Byte position in the key or value.
        reason: What was expected and what was found.
    """

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(position, reason)
        self.position, self.reason = position, reason

    def __str__(self) -> str:
        return f"byte {self.position}: {self.reason}"


class InvalidColumnError(PylogError):
    """Columns of records to be written contradict each other, or have the wrong type."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(column, reason)
        self.column, self.reason = column, reason

    def __str__(self) -> str:
        return f"{self.column}: {self.reason}"


class InvalidAppendError(PylogError):
    """An append asks for something that no log can do; Kafka's IllegalArgumentException there."""

    def __init__(self, partition: str, reason: str) -> None:
        super().__init__(partition, reason)
        self.partition, self.reason = partition, reason

    def __str__(self) -> str:
        return f"{self.partition}: {self.reason}"


class InvalidTimestampError(BadBytesError):
    """Records are too old or too new for the topic, or claim a timestamp type that is not theirs.

    Args:
        file: The partition.
        position: Byte position of the batch in what was to be appended.
        reason: What was expected and what was found.
        record_indexes: The records of that batch that are refused, from 0.
    """

    kafka_code = 32

    def __init__(
        self, file: str, position: int, reason: str, record_indexes: tuple[int, ...] = ()
    ) -> None:
        super().__init__(file, position, reason)
        self.args = (file, position, reason, record_indexes)
        self.record_indexes = record_indexes


class RecordValidationError(InvalidRecordError):
    """Records of a batch break the rules of the topic; at most three of them are described.

    Args:
        file: The partition.
        position: Byte position of the batch in what was to be appended.
        reason: What was expected and what was found.
        record_indexes: The records of that batch that are refused, from 0.
    """

    def __init__(
        self, file: str, position: int, reason: str, record_indexes: tuple[int, ...] = ()
    ) -> None:
        super().__init__(file, position, reason)
        self.args = (file, position, reason, record_indexes)
        self.record_indexes = record_indexes


class UnsupportedForMessageFormatError(BadBytesError):
    """A message format before v2 has no place for producers and transactions."""

    kafka_code = 43


class RecordTooLargeError(BadBytesError):
    """A batch is larger than max.message.bytes."""

    kafka_code = 10


class RecordBatchTooLargeError(PylogError):
    """What is appended at once is larger than a segment may be."""

    kafka_code = 18

    def __init__(self, partition: str, size_bytes: int, segment_bytes: int) -> None:
        super().__init__(partition, size_bytes, segment_bytes)
        self.partition, self.size_bytes, self.segment_bytes = partition, size_bytes, segment_bytes

    def __str__(self) -> str:
        return (
            f"{self.partition}: an append of {self.size_bytes} bytes does not fit a segment, "
            f"which has at most {self.segment_bytes}"
        )


class OffsetsOutOfOrderError(BadBytesError):
    """The offsets of appended batches do not rise."""


class UnexpectedAppendOffsetError(PylogError):
    """Batches that bring their own offsets begin below the log's end."""

    def __init__(self, partition: str, first: int, last: int, log_end_offset: int) -> None:
        super().__init__(partition, first, last, log_end_offset)
        self.partition, self.first, self.last = partition, first, last
        self.log_end_offset = log_end_offset

    def __str__(self) -> str:
        return (
            f"{self.partition}: an append of offsets {self.first} to {self.last} begins below "
            f"the log end offset {self.log_end_offset}"
        )


class ProducerStateError(PylogError):
    """Base of what contradicts a producer's state.

    Args:
        partition: The partition.
        producer_id: Whose batch it is.
        offset: The offset that the batch would get.
        reason: What was expected and what was found.
    """

    def __init__(self, partition: str, producer_id: int, offset: int, reason: str) -> None:
        super().__init__(partition, producer_id, offset, reason)
        self.partition, self.producer_id = partition, producer_id
        self.offset, self.reason = offset, reason

    def __str__(self) -> str:
        return (
            f"{self.partition}: producer {self.producer_id} at offset {self.offset}: {self.reason}"
        )


class OutOfOrderSequenceError(ProducerStateError):
    """A producer's sequence numbers have a gap or a repetition."""

    kafka_code = 45


class InvalidProducerEpochError(ProducerStateError):
    """A producer writes with an epoch that was fenced."""

    kafka_code = 47


class TransactionCoordinatorFencedError(ProducerStateError):
    """A marker comes from a coordinator that was replaced."""

    kafka_code = 52


class ProducerTxnStateError(ProducerStateError):
    """A batch contradicts the transaction that its producer has open."""

    kafka_code = 48


class RollError(PylogError):
    """A segment cannot begin at an offset where one stands, or below the active one."""

    def __init__(self, partition: str, base_offset: int, reason: str) -> None:
        super().__init__(partition, base_offset, reason)
        self.partition, self.base_offset, self.reason = partition, base_offset, reason

    def __str__(self) -> str:
        return f"{self.partition}: a segment cannot begin at {self.base_offset}: {self.reason}"


class LogClosedError(PylogError):
    """The log was closed before."""

    kafka_code = 56

    def __init__(self, partition: str) -> None:
        super().__init__(partition)
        self.partition = partition

    def __str__(self) -> str:
        return f"{self.partition}: the log is closed"


def describe_failure(error: Exception) -> dict[str, Any]:
    """Return the columns error_class and error for an exception.

    Errors raised on purpose name file and position themselves; to any other one the place in the
    code is added.
    """
    text = str(error)
    if not isinstance(error, PylogError | OSError):
        frame = traceback.extract_tb(error.__traceback__)[-1:]
        place = f" at {frame[0].filename}:{frame[0].lineno}" if frame else ""
        text = f"{text or 'no message'} (unexpected{place})"
    return {"error_class": type(error).__name__, "error": text}
