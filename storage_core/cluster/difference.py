"""One difference between two logs of a partition: kind, offsets, places."""

import enum
from dataclasses import dataclass
from typing import Final

from storage_core.cluster.resting_log import RestingLog
from storage_core.errors import PylogError
from storage_core.filenames import OFFSET_INDEX_SUFFIX, log_file, segment_file
from storage_core.log.batch_search import find_batch, read_offset_index

# Differences of two logs in a list; further ones are counted.
MOST_LISTED: Final = 1000


class DifferenceKind(enum.StrEnum):
    """The kind of a difference.

    MISSING: one has records that the other has not. EPOCH: the same records, of another leader
    epoch. BYTES: a batch has other bytes. RECORD: another record has the offset. COMPACTION: one
    lacks a record and all that a cleaner may have removed it for. The others are of copies in other
    clusters. DOUBLED: the copy has a record twice. DIFFERENT: another key, value, timestamp or
    other headers. ORDER: the copy has a record elsewhere. EXTRA: only the copy has a record.
    OFFSET: a record is at another offset than it should be. BEHIND: what follows the last record
    that the copy has; not a loss.
    """

    MISSING = "missing"
    EPOCH = "epoch"
    BYTES = "bytes"
    RECORD = "record"
    COMPACTION = "compaction"
    DOUBLED = "doubled"
    DIFFERENT = "different"
    ORDER = "order"
    EXTRA = "extra"
    OFFSET = "offset"
    BEHIND = "behind"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two replicas at a difference."""

    log: RestingLog
    epoch: int | None = None  # leader epoch of the first batch that differs, None where it has none
    file: str = ""  # name of the segment's file, empty where nothing is
    # Where in it that batch lies, or what it lacks would; None where nothing is.
    position: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference between two replicas."""

    kind: DifferenceKind
    first_offset: int
    last_offset: int
    side: Side  # the replica that lacks something, or the one that is compared
    other: Side
    message: str = ""  # further facts; often empty


def place_of(log: RestingLog, offset: int, epoch: int | None) -> Side:
    """Return the place of an offset in a replica. Only headers near the offset are read from its
    file."""
    bases = [base for base in log.base_offsets if base <= offset]
    if log.view is None or not bases:
        return Side(log=log, epoch=epoch)
    name = log_file(bases[-1])
    index = read_offset_index(log.view, bases[-1], segment_file(bases[-1], OFFSET_INDEX_SUFFIX))
    try:
        place = find_batch(log.view, name, offset, index.look_up(offset))
    except PylogError:
        place = None  # the bytes before the offset are no batches
    position = None if place is None else place.position
    return Side(log=log, epoch=epoch, file=log.view.place(name)[0], position=position)
