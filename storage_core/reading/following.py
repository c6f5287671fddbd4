"""Follow a range across replaced files, like a broker's consumer.

A query wants the records of one moment, and refuses where files have changed. A stream wants each
offset once: what it has not read yet it takes from the files that are there then.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pyarrow as pa

from storage_core.errors import ChangedWhileReadError
from storage_core.reading.planning import plan_ranges
from storage_core.reading.ranges import ReadRange, read_on
from storage_core.reading.request import Bound, ReadRequest, TopicChoice

# A sync, and a nightly, replace a file once.
_MOST_CHANGES: Final = 5


def follow_range(
    wanted: ReadRange, request: ReadRequest, *, now_ms: int
) -> Iterator[pa.RecordBatch]:
    """Yield a range's records in offset order, across replaced files.

    Args:
        now_ms: The reader's clock, epoch milliseconds.
    """
    ranges = [wanted]
    reached = wanted.start_offset
    changes = 0
    while ranges:
        try:
            for next_offset, batch in read_on(ranges[0]):
                yield batch
                reached = next_offset
        except ChangedWhileReadError:
            changes += 1
            if changes > _MOST_CHANGES:
                raise
            ranges = plan_ranges(_rest(wanted, reached, request), now_ms=now_ms)
        else:
            reached = ranges.pop(0).end_offset or reached


def _rest(wanted: ReadRange, reached: int, request: ReadRequest) -> ReadRequest:
    """Return what is left to read of a range."""
    partition, end = wanted.partition, wanted.end_offset
    return replace(
        request,
        choice=TopicChoice(assigned=frozenset({partition}), option="assign"),
        starting=Bound(offsets={partition: reached}, option="startingOffsets"),
        ending=Bound() if end is None else Bound(offsets={partition: end}, option="endingOffsets"),
    )
