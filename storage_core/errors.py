"""Every exception that this project raises on purpose.

An error carries its facts as attributes and hands all of them to ``super().__init__``, so that
it survives pickling on its way from a Spark worker. ``kafka_code`` is Kafka's numeric error
code where Kafka has one (``org.apache.kafka.common.protocol.Errors``), else None.
"""

from typing import ClassVar


class PylogError(Exception):
    """Base of every error raised on purpose; its text is meant for the person at the terminal."""

    kafka_code: ClassVar[int | None] = None


class ConfigError(PylogError):
    """A setting is unknown, malformed or out of range."""

    kafka_code = 40

    def __init__(self, key: str, value: object, reason: str) -> None:
        super().__init__(key, value, reason)
        self.key, self.value, self.reason = key, value, reason

    def __str__(self) -> str:
        return f"{self.key}={self.value}: {self.reason}"


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


class StorageError(PylogError):
    """The disk or the object store failed; the data may well be fine."""

    kafka_code = 56

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class BadBytesError(PylogError):
    """Bytes of a file are not what its format allows.

    Args:
        file: Name or path of the file.
        position: Byte position in that file.
        reason: What was expected and what was found.
    """

    def __init__(self, file: str, position: int, reason: str) -> None:
        super().__init__(file, position, reason)
        self.file, self.position, self.reason = file, position, reason

    def __str__(self) -> str:
        return f"{self.file}: position {self.position}: {self.reason}"


class CorruptRecordError(BadBytesError):
    """A batch fails its own checks: size, magic, CRC or where it ends."""

    kafka_code = 2


class InvalidRecordError(BadBytesError):
    """A record inside a batch of valid CRC is malformed."""

    kafka_code = 87


class UnsupportedFormatError(BadBytesError):
    """Bytes of a format version that this operation does not handle."""

    kafka_code = 43


class UnsupportedCompressionError(BadBytesError):
    """A batch names a codec that does not exist or is not allowed there."""

    kafka_code = 76


class CorruptIndexError(BadBytesError):
    """An offset, time or transaction index breaks its own rules."""


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
        self.file, self.offset, self.reason = file, offset, reason

    def __str__(self) -> str:
        where = f": offset {self.offset}" if self.offset >= 0 else ""
        return f"{self.file}{where}: {self.reason}"
