"""Every exception that this project raises on purpose.

An error is declared as a dataclass: its facts are fields, ``template`` is its text. The base makes,
pickles (on the way from a Spark worker) and shows all of them. A name in a template is a field or a
property; a field that is ``derived`` from others is no argument::

    class CorruptLineError(PylogError):
        kafka_code = 2
        template = "{file}: line {line}: {reason}"

        file: str
        line: int
        reason: str

``kafka_code`` is Kafka's numeric error code where Kafka has one
(``org.apache.kafka.common.protocol.Errors``), else None.

Whoever reads a file knows its name and the position, but not always whose directory it is in; what
works on one partition says so for all of them (``located``). ``facts_of`` tells of any error what
is known of its place.
"""

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import wraps
from pathlib import PurePath
from string import Formatter
from typing import Any, ClassVar, Literal, ParamSpec, Self, TypeVar, dataclass_transform

from storage_core.redaction import is_secret_name, plain_places, without_secrets
from storage_core.wording import span_text, time_text

# So much of a configured value is shown: its owner knows the rest, and a terminal has little room.
_MOST_SHOWN = 1000
_TEMPLATE = "template"

P = ParamSpec("P")
R = TypeVar("R")


def derived(template: str, *, init: Literal[False] = False) -> Any:
    """Declare an error's field, not an argument, with a template of others."""
    return field(init=init, metadata={_TEMPLATE: template})


@dataclass_transform(eq_default=False, field_specifiers=(field, derived))
class PylogError(Exception):
    """Base of all deliberate errors; the text is for the operator. The operator is the person at
    the terminal."""

    kafka_code: ClassVar[int | None] = None
    template: ClassVar[str] = ""
    #: Path or URL of the partition's directory, None where it is of none, or where nobody has said
    #: which one.
    directory: str | None
    offset: int | None  #: the record or batch that it is about, None where it is about none

    def __new__(cls, *facts: object, **named: object) -> Self:
        """Begin an error without directory and offset. A default at the class would become a
        default of each error's field."""
        error = super().__new__(cls, *facts, **named)
        error.directory = error.offset = None
        return error

    def __init_subclass__(cls) -> None:
        """Make a dataclass of every error."""
        dataclass(eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        """Derive what is derived, and note the arguments: pickling hands them on."""
        facts = fields(self)  # type: ignore[arg-type]  # a dataclass, as all that are constructed
        self.args = tuple(getattr(self, each.name) for each in facts if each.init)
        for each in facts:
            if _TEMPLATE in each.metadata:
                setattr(self, each.name, self._fill(each.metadata[_TEMPLATE]))

    def __str__(self) -> str:
        return plain_places(self._fill(self.template))

    def _fill(self, template: str) -> str:
        names = {name for _, name, _, _ in Formatter().parse(template) if name}
        return template.format_map({name: getattr(self, name) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorFacts:
    """What is known of an error; None where that does not apply."""

    name: str  #: its stable name: that of its class
    kafka_code: int | None  #: Kafka's number, None where Kafka has no such error
    directory: str | None  #: path or URL of the partition's directory
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
    """Return Kafka's error code by an error class's name, else None. Rows and plans have the
    class's name; a class of another module has no number."""
    kinds = [PylogError]
    for kind in kinds:
        if kind.__name__ == error_class:
            return kind.kafka_code
        kinds += kind.__subclasses__()
    return None


def located(work: Callable[P, R]) -> Callable[P, R]:
    """Decorate work on one partition: errors get the partition's directory. The function's first
    argument is the directory, or its store."""

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
    template = "{setting}: {plain_reason}"

    key: str
    value: object  #: its value, None if it is not set
    reason: str

    @property
    def setting(self) -> str:
        """The setting for display: without secrets, and not too long."""
        value = "(hidden)" if is_secret_name(self.key) else self.value
        setting = self.key if self.value is None else without_secrets(f"{self.key}={value}")
        return setting if len(setting) <= _MOST_SHOWN else setting[:_MOST_SHOWN] + "..."

    @property
    def plain_reason(self) -> str:
        """The reason without secrets."""
        return without_secrets(self.reason)


class MissingDriverError(ConfigError):
    """A package that reaches this kind of location is not installed."""

    key: str = derived("location")
    value: object = derived("{path}")
    reason: str = derived("needs the package {package}: pip install 'pylog-spark[{extra}]'")
    path: str
    package: str
    extra: str


class InvalidNameError(PylogError):
    """Kafka never writes a file, directory or topic name like this."""

    kafka_code = 17
    template = "{name!r}: {reason}"

    name: str
    reason: str


class PartitionNotFoundError(PylogError):
    """There is no partition directory where one was named."""

    kafka_code = 3
    template = "{path}: no such partition directory"

    path: str


class OffsetOutOfRangeError(PylogError):
    """The requested offset is not in the log, or not any more."""

    kafka_code = 1
    template = (
        "{partition}: offset {offset} is out of range; the log has offsets {first} up to, not "
        "including, {end}"
    )

    partition: str
    offset: int
    first: int
    end: int


class MissingSegmentError(PylogError):
    """Offsets that a log should have are in none of its segments."""

    template = (
        "{directory}: offsets {first} to {last} are missing: {evidence}. "
        "Either a segment is lost (a replica or a backup may have it), or the topic is or was "
        "compacted and nothing here says so; failOnDataLoss=false reads what is there"
    )

    directory: str
    first: int
    end: int | None
    evidence: str

    @property
    def last(self) -> str:
        """The last of them."""
        return "the end" if self.end is None else f"{self.end - 1}"


class OffsetsInTierError(PylogError):
    """Offsets of a tiered topic that no local segment has."""

    template = (
        "{directory}: offsets {first} to {last} are in no segment here: they lie in the topic's "
        "tier (remote storage){details}. {way}; or start at {end}, or permit data loss "
        "(--allow-data-loss, failOnDataLoss=false)"
    )

    directory: str
    first: int
    end: int
    details: str = ""  # what is known of them in the tier; empty, or begins with a comma or so

    @property
    def way(self) -> str:
        """What reads them."""
        root = self.directory.rpartition("/")[0]
        if "://" in root:
            return "`pylog cat TIER` reads them"
        return f"`pylog cat TIER --with-local {root}` reads tier and disk"

    @property
    def last(self) -> int:
        """The last of them."""
        return self.end - 1


class OffsetNotAvailableError(PylogError):
    """An offset would be above a high watermark known to lag."""

    kafka_code = 78
    template = (
        "{partition}: offset {offset} is not available: the high watermark {high_watermark} is "
        "below {epoch_start_offset}, where the leader's epoch began"
    )

    partition: str
    offset: int
    high_watermark: int
    epoch_start_offset: int


class InvalidFetchSizeError(PylogError):
    """A read was asked for fewer than no bytes."""

    kafka_code = 4
    template = "{partition}: a read of {size_bytes} bytes; expected at least 0"

    partition: str
    size_bytes: int


class StorageError(PylogError):
    """The disk or object store failed; the data may be fine."""

    kafka_code = 56
    template = "{path}: {reason}"

    path: str
    reason: str


class LogDirectoryNotFoundError(StorageError):
    """The log directory does not exist, or is not in ``log.dirs``."""

    kafka_code = 57


class ObjectNotFoundError(StorageError):
    """There is no object of that key."""


class ConditionFailedError(StorageError):
    """A conditional write was refused: the object is another version. The writer expected another
    version."""

    reason: str = derived("somebody else changed it: expected {expectation}, found {state}")
    expected: str  # version tag that it should have had; empty where it should not have existed
    actual: str  # version tag that it has; empty where there is none, or none is known

    @property
    def expectation(self) -> str:
        """What should have been there."""
        return f"version {self.expected}" if self.expected else "no object"

    @property
    def state(self) -> str:
        """What is there."""
        return f"version {self.actual}" if self.actual else "another state"


class ManifestError(PylogError):
    """A manifest, or another small JSON file of ours, breaks its format."""

    template = "{file}{where}: {reason}"

    file: str
    field: str  #: where in it, as a dotted path; empty where the whole is meant
    reason: str  #: the expected and the actual content

    @property
    def where(self) -> str:
        """The field, as it follows the name of the file."""
        return f": {self.field}" if self.field else ""


class BadBytesError(PylogError):
    """Bytes of a file are not what its format allows."""

    template = "{file}: position {position}: {reason}"

    file: str
    position: int
    reason: str  #: the expected and the actual content
    #: The batch or record that lies there, None where the bytes do not tell.
    offset: int | None = None


class CorruptRecordError(BadBytesError):
    """A batch fails its own checks: size, magic, CRC or end position."""

    kafka_code = 2


class InvalidRecordError(BadBytesError):
    """A record inside a batch of valid CRC is malformed."""

    kafka_code = 87


class NegativeTimestampError(InvalidRecordError):
    """A record to rewrite has a timestamp below -1, refused by builders."""


class UnsupportedFormatError(BadBytesError):
    """Bytes of a format version that this operation does not handle."""

    kafka_code = 43


class UnsupportedCompressionError(BadBytesError):
    """A batch names an unknown codec, or one not allowed there."""

    kafka_code = 76


class CorruptIndexError(BadBytesError):
    """An offset, time or transaction index breaks its own rules."""


class IndexVersionError(CorruptIndexError):
    """An index entry has an unknown version; recovery does not overrule that."""


class IndexFullError(BadBytesError):
    """An index has no room for an entry needed by the log. Kafka's cleaner fails in the same
    case."""


class CorruptSnapshotError(BadBytesError):
    """A producer snapshot has a wrong version, CRC or structure."""


class CheckpointError(PylogError):
    """A checkpoint or another small text file is malformed."""

    template = "{file}{where}: {reason}"

    file: str
    line: int  #: 1-based number of the line, 0 where the file as a whole is meant
    reason: str  #: the expected and the actual content

    @property
    def where(self) -> str:
        """The line, as it follows the name of the file."""
        return f": line {self.line}" if self.line else ""


class DecompressionError(PylogError):
    """A compressed block cannot be expanded; the caller adds file and position."""

    template = "{codec}: {reason}"

    codec: str
    reason: str


class DecompressionLimitError(DecompressionError):
    """A compressed block would expand beyond its limit."""


class InvalidTxnStateError(BadBytesError):
    """A batch contradicts the transaction its producer has open."""

    kafka_code = 48


class OffsetOverflowError(BadBytesError):
    """An offset exceeds its segment's base offset by more than 31 bits."""


class UnsupportedPythonError(PylogError):
    """This Python calls compiled code wrongly; nothing was read or changed."""

    template = (
        "Python {python} cannot run this program: {reason}; "
        "use CPython 3.11, 3.12, 3.13 or 3.14, the build of python.org or of a distribution"
    )

    python: str  #: its version, and its program
    reason: str  #: the unexpected fact


class MissingSoftwareError(PylogError):
    """Software that this needs is not installed; the text says how to get it."""


class RecoveryRequiredError(PylogError):
    """The partition needs a recovery, and this operation makes none."""

    template = "{path}: {reason}"

    path: str
    reason: str


class KeylessRecordsError(PylogError):
    """Most records of a compaction round have no key."""

    template = (
        "{path}: {keyless} of the {records} records that a round reads have no key: Kafka's "
        "cleaner drops them, and so would this round"
    )

    path: str
    keyless: int
    records: int


class ContradictedAgeError(PylogError):
    """A segment's age is not what its records say."""

    template = "{file}: at {position}: expected {expected}, found {actual}"

    file: str
    position: int
    expected: str
    actual: str


class ChangedWhileReadError(PylogError):
    """A file has changed since the plan was made."""

    template = "{file}: changed since the plan was made: expected {expected}, found {actual}"

    file: str
    expected: str
    actual: str


class GuardRefusedError(PylogError):
    """A guard refuses to go on. Its text names the switch that overrides it, if there is one."""

    template = "{code}: {reason}{hint}"

    code: str  #: stable name of the refusal, as ``docs/refusals.md`` has it
    reason: str
    override: str | None = None  #: the switch, None where there is none

    @property
    def hint(self) -> str:
        """The switch, as it follows the reason."""
        return f" (override: {self.override})" if self.override else ""


class StoreRefusedError(GuardRefusedError):
    """A store or its lease refuses a run; nothing overrides that."""

    override: str | None = field(init=False, default=None)


class ReadOnlyStoreError(StoreRefusedError):
    """A change was asked of a read-only mirror on an object store."""

    code: str = derived("READ_ONLY_STORE")
    reason: str = derived("{path} is only read: {operation} is refused")
    path: str
    operation: str


class UnsafeStoreError(StoreRefusedError):
    """An object store breaks promises needed by a managed root."""

    code: str = derived("UNSAFE_STORE")
    reason: str = derived("{path}: {shortcoming}")
    path: str
    shortcoming: str


class LeaseHeldError(StoreRefusedError):
    """Another run holds the lease of a managed root."""

    code: str = derived("LEASE_HELD")
    reason: str = derived("{path} is held by {holder}; its lease ends at {end}")
    path: str
    holder: str
    expires_ms: int
    left_ms: int

    @property
    def end(self) -> str:
        """When the lease ends, and how long that is away."""
        return f"{time_text(self.expires_ms)}, in {span_text(max(self.left_ms, 0))}"


class LeaseLostError(StoreRefusedError):
    """The lease of a managed root expired or moved during work. Another run may hold it now."""

    code: str = derived("LEASE_LOST")
    reason: str = derived("{path}: the lease of {holder} {event}")
    path: str
    holder: str  #: the lease's former holder
    event: str


class InconsistentTopicIdError(PylogError):
    """A partition directory has another topic id than expected: a namesake topic's."""

    kafka_code = 103
    template = "{path}: expected topic id {expected}, found {actual}"

    path: str
    expected: str
    actual: str


class InconsistentClusterIdError(PylogError):
    """A log directory belongs to another cluster than the others."""

    kafka_code = 104
    template = "{path}: expected cluster id {expected}, found {actual}"

    path: str
    expected: str
    actual: str


class InconsistentEpochsError(PylogError):
    """A log has other leader epochs than the one written down."""

    template = "{path}: expected leader epoch {expected} at offset {offset}, found {actual}"

    path: str
    offset: int
    expected: int
    actual: int


class InconsistentDirectoriesError(PylogError):
    """Log directories are not one broker's, or one is named twice."""

    template = "{path}: {reason}"

    path: str
    reason: str


class DuplicatePartitionError(PylogError):
    """A partition has several directories; only a person can choose one."""

    template = "{topic_partition}: found in {places}"

    topic_partition: str
    paths: tuple[str, ...]

    @property
    def places(self) -> str:
        """The directories, as a sentence has them."""
        return " and in ".join(self.paths)


class CorruptClusterMetadataError(PylogError):
    """A record of the cluster's metadata log cannot be understood."""

    template = "{file}{where}: {reason}"

    file: str
    offset: int | None  #: offset of the record, None where the file as a whole is meant
    reason: str  #: the expected and the actual content

    @property
    def where(self) -> str:
        """The offset, as it follows the name of the file."""
        return "" if self.offset is None else f": offset {self.offset}"


class MalformedMessageError(PylogError):
    """Bytes of an internal topic's record do not match its declaration."""

    template = "byte {position}: {reason}"

    position: int
    reason: str  #: the expected and the actual content


class InvalidColumnError(PylogError):
    """Columns of records to write contradict each other or have wrong types."""

    template = "{column}: {reason}"

    column: str
    reason: str


class InvalidAppendError(PylogError):
    """An append asks for something impossible; Kafka throws IllegalArgumentException."""

    template = "{partition}: {reason}"

    partition: str
    reason: str


class InvalidTimestampError(BadBytesError):
    """Records are too old, too new, or of a wrong timestamp type."""

    kafka_code = 32

    record_indexes: tuple[int, ...] = ()  # the records of that batch that are refused, from 0


class RecordValidationError(InvalidRecordError):
    """Records of a batch break the topic's rules; three are described."""

    record_indexes: tuple[int, ...] = ()  # the records of that batch that are refused, from 0


class UnsupportedForMessageFormatError(BadBytesError):
    """A message format before v2 has no place for producers and transactions."""

    kafka_code = 43


class RecordTooLargeError(BadBytesError):
    """A batch is larger than max.message.bytes."""

    kafka_code = 10


class RecordBatchTooLargeError(PylogError):
    """What is appended at once is larger than a segment may be."""

    kafka_code = 18
    template = (
        "{partition}: an append of {size_bytes} bytes does not fit a segment, which has at most "
        "{segment_bytes}"
    )

    partition: str
    size_bytes: int
    segment_bytes: int


class OffsetsOutOfOrderError(BadBytesError):
    """The offsets of appended batches do not rise."""


class UnexpectedAppendOffsetError(PylogError):
    """Batches that bring their own offsets begin below the log's end."""

    template = (
        "{partition}: an append of offsets {first} to {last} begins below the log end offset "
        "{log_end_offset}"
    )

    partition: str
    first: int
    last: int
    log_end_offset: int


class ProducerStateError(PylogError):
    """Base of what contradicts a producer's state."""

    template = "{partition}: producer {producer_id} at offset {offset}: {reason}"

    partition: str
    producer_id: int
    offset: int
    reason: str  #: the expected and the actual content


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
    """A segment cannot begin at this offset. Another segment begins there, or the offset is below
    the active segment."""

    template = "{partition}: a segment cannot begin at {base_offset}: {reason}"

    partition: str
    base_offset: int
    reason: str


class LogClosedError(PylogError):
    """The log was closed before."""

    kafka_code = 56
    template = "{partition}: the log is closed"

    partition: str


def describe_failure(error: Exception) -> dict[str, Any]:
    """Return the columns error_class and error for an exception. Deliberate errors name file and
    position themselves; any other error gets its place in the code."""
    text = str(error)
    if not isinstance(error, PylogError | OSError):
        frame = traceback.extract_tb(error.__traceback__)[-1:]
        place = f" at {frame[0].filename}:{frame[0].lineno}" if frame else ""
        text = f"{text or 'no message'} (unexpected{place})"
    return {"error_class": type(error).__name__, "error": text}
