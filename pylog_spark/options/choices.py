"""Options with a choice of words, and the meaning of each word."""

import enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from storage_core.maintenance.verification.findings import Severity

# Guards without an override option of their own, by the code of their refusal.
OVERRIDABLE_GUARDS: Final = (
    "CLOCK_PAST_RETENTION",
    "FILESYSTEM_UNKNOWN",
    "FOREIGN_FORMAT",
    "NOT_THE_OWNER",
    "RECORDS_WITHOUT_KEY",
    "REMOTE_STORAGE",
)


class HighWatermarkSource(enum.StrEnum):
    """The source of a partition's high watermark. Offsets at or above the high watermark are not
    cleaned."""

    CHECKPOINT = "checkpoint"  # replication-offset-checkpoint; a partition without one is skipped
    LOG_END = "log-end"  # the log end offset: all of the log counts as replicated


class Order(enum.StrEnum):
    """The order of partitions, for a budget too small for all."""

    URGENCY = "urgency"  # highest dirty ratio first, as Kafka's cleaner
    LARGEST = "largest"  # most bytes to read first
    SMALLEST = "smallest"  # fewest bytes to read first
    NAME = "name"  # by topic and number


class InspectOrder(enum.StrEnum):
    """Which partitions a look names first."""

    SIZE = "size"  # most bytes first
    DIRTY = "dirty"  # highest dirty ratio first, as Kafka's cleaner; of equal ones most dirty bytes
    AGE = "age"  # oldest record first


class Strategy(enum.StrEnum):
    """How the tasks of one partition share its offset map."""

    AUTO = "auto"
    WHOLE = "whole"  # one task makes both passes
    BROADCAST = "broadcast"  # merged by one task, a broadcast variable
    FILES = "files"  # as AUTO: the name of a strategy of former releases
    SHUFFLE = "shuffle"  # in no one task: keys meet by hash, survivors come back as bitmaps


class Level(enum.StrEnum):
    """How much of replicas is read to compare them."""

    OFFSETS = "offsets"  # epoch files, checkpoints and the last batches
    HEADERS = "headers"  # of all batches
    BYTES = "bytes"  # everything


class EngineChoice(enum.StrEnum):
    """Where the tasks of a run run."""

    AUTO = "auto"  # by command: jobs on Spark, looks and repairs of few partitions in this process
    SPARK = "spark"  # a Spark session's executors
    LOCAL = "local"  # processes of this machine, no JVM


class FailOn(enum.StrEnum):
    """From which severity on findings change the exit status."""

    INFO = "info"
    HARMLESS = "harmless"
    WARN = "warn"
    ERROR = "error"
    FATAL = "fatal"
    NEVER = "never"

    @property
    def severity(self) -> "Severity | None":
        """The severity, None for never."""
        from storage_core.maintenance.verification.findings import Severity  # noqa: PLC0415  # numba

        return None if self is FailOn.NEVER else Severity(self.value)


class Isolation(enum.StrEnum):
    """Which records are shown."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class BytesFormat(enum.StrEnum):
    """How keys and values are written, and keys are read."""

    RAW = "raw"  # as they are
    TEXT = "text"  # UTF-8 on one line; control characters and invalid UTF-8 are escaped
    HEX = "hex"
    BASE64 = "base64"
    JSON = "json"  # JSON texts, on one line
    AVRO = "avro"  # Avro's binary encoding, by a schema of a file; as JSON
    AVRO_REGISTRY = "avro-registry"  # as AVRO, behind the five bytes of a schema registry
    REGISTRY = "registry"  # by the schema whose number is in those bytes; as JSON


# By one schema of a file.
AVRO_FORMATS: Final = (BytesFormat.AVRO, BytesFormat.AVRO_REGISTRY)


class OnError(enum.StrEnum):
    """What becomes of a key or value that does not fit its schema."""

    FAIL = "fail"
    NULL = "null"
    RAW = "raw"  # null, with its bytes in a column beside it


class ExportFormat(enum.StrEnum):
    """What records are exported to."""

    PARQUET = "parquet"
    DELTA = "delta"
    CSV = "csv"
    JSONL = "jsonl"


class AnswerFormat(enum.StrEnum):
    """What the rows of a query are written to."""

    PARQUET = "parquet"
    CSV = "csv"
    JSONL = "jsonl"


class OutputFormat(enum.StrEnum):
    """How rows are written."""

    TABLE = "table"  # for a person
    JSON = "json"  # one object a line
    CSV = "csv"  # rows of one kind, which the command names


class RecordOutput(enum.StrEnum):
    """How records are written, and what has no table."""

    TABLE = "table"  # for a person
    JSON = "json"  # one object a line
