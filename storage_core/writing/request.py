"""A write request, and the values for its tasks. Both consist of values only."""

from collections.abc import Mapping
from dataclasses import dataclass

from storage_core.config import LogConfig
from storage_core.formats.batch_v2 import Codec


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTransaction:
    """An application's name and version of a write, to write once. A repeated version is not
    written again."""

    app_id: str
    # Version of the write, 0 or more. A version up to the last committed one is done already.
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest:
    """What a write asks for."""

    directory: str
    is_overwrite: bool = False
    topic: str | None = None  # topic of every record; None where a column says it
    # How many partitions topics have that are not in the directory; None where records ask for
    # their partitions.
    partitions: int | None = None
    by_key: bool = True  # whether the key of a record decides about its partition
    config: LogConfig
    codec: Codec = Codec.NONE  # codec of batches if the configuration leaves it to the producer
    batch_bytes: int | None = None  # size of a batch before compression; None for max.message.bytes
    # Ids of topics, for their ``partition.metadata``; a topic without one has no such file.
    topic_ids: Mapping[str, str]
    # None for a write that happens as often as it is started.
    transaction: WriteTransaction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRun:
    """A write that has begun."""

    request: WriteRequest
    run_id: str
    staging: str  # path of its own folder, in which tasks leave what they made
    now_ms: int  # its clock, epoch milliseconds: of records without a time, and of append times
    counts: Mapping[str, int]
    # Whether its transaction was committed by a former run: there is nothing to do.
    is_done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRecords:
    """What one task left in the staging folder."""

    name: str  # name of its file of batches, which gives that of its extents
    destinations: tuple[tuple[str, int], ...]
    records: int
    size_bytes: int
