"""A write request, and the values for its tasks.

Both consist of values only.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from storage_core.config import LogConfig
from storage_core.formats.batch_v2 import Codec


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTransaction:
    """An application's name and version of a write, to write once.

    A repeated version is not written again.

    Attributes:
        app_id: Name of whoever writes.
        version: Version of the write, 0 or more. A version up to the last committed one is done
            already.
    """

    app_id: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest:
    """What a write asks for.

    Attributes:
        directory: Path of the log directory.
        is_overwrite: Whether the records take the place of all that the directory has.
        topic: Topic of every record; None where a column says it.
        partitions: How many partitions topics have that are not in the directory; None where
            records ask for their partitions.
        by_key: Whether the key of a record decides about its partition.
        config: The topics' configuration.
        codec: Codec of batches if the configuration leaves it to the producer.
        batch_bytes: Size of a batch before compression; None for max.message.bytes.
        topic_ids: Ids of topics, for their ``partition.metadata``; a topic without one has no such
            file.
        transaction: None for a write that happens as often as it is started.
    """

    directory: str
    is_overwrite: bool = False
    topic: str | None = None
    partitions: int | None = None
    by_key: bool = True
    config: LogConfig
    codec: Codec = Codec.NONE
    batch_bytes: int | None = None
    topic_ids: Mapping[str, str]
    transaction: WriteTransaction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRun:
    """A write that has begun.

    Attributes:
        request: The request.
        run_id: Its name.
        staging: Path of its own folder, in which tasks leave what they made.
        now_ms: Its clock, epoch milliseconds: of records without a time, and of append times.
        counts: Partitions of the topics that the directory has.
        is_done: Whether its transaction was committed by a former run: there is nothing to do.
    """

    request: WriteRequest
    run_id: str
    staging: str
    now_ms: int
    counts: Mapping[str, int]
    is_done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRecords:
    """What one task left in the staging folder.

    Attributes:
        name: Name of its file of batches, which gives that of its extents.
        destinations: Topic and partition of each destination that its extents name by number.
        records: How many there are.
        size_bytes: Size of its file.
    """

    name: str
    destinations: tuple[tuple[str, int], ...]
    records: int
    size_bytes: int
