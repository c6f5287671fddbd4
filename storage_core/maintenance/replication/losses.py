"""The records of a loss: how large they are, of which time, and who holds them."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from storage_core.maintenance.replication.log_batches import LogReader, Look
from storage_core.maintenance.replication.offset_ranges import Ranges, contain, count, subtract
from storage_core.maintenance.replication.replica import OpenedLog, Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A copy of the partition that has records of a loss.

    Attributes:
        replica: The copy.
        records: How many of them it has.
    """

    replica: Replica
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """The size, the time and some keys of records.

    Attributes:
        size_bytes: Of their keys and values.
        first_timestamp_ms: Smallest timestamp, epoch milliseconds; None where none has one.
        last_timestamp_ms: Largest timestamp.
        keys: The first of their keys, each once; no more than were asked for.
    """

    size_bytes: int = 0
    first_timestamp_ms: int | None = None
    last_timestamp_ms: int | None = None
    keys: tuple[bytes, ...] = ()


def weigh(parts: Iterable[tuple[OpenedLog, Ranges]], *, most_keys: int = 0) -> Weight:
    """Weigh records that lie in several logs; one that is in two of them counts once.

    Args:
        parts: Logs, and which of the records each has.
        most_keys: How many keys to return.

    Raises:
        PylogError: They cannot be read.
    """
    size_bytes = 0
    times: list[int] = []
    keys: dict[bytes, None] = {}
    done: Ranges | None = None
    for log, ranges in parts:
        new = ranges if done is None else subtract(ranges, done)
        done = ranges if done is None else np.concatenate([done, new])
        if not count(new):
            continue
        # A batch may begin before the first of them.
        first = min(log.whole_end(int(new[0, 0])), int(new[0, 0]))
        span = (first, int(new[:, 1].max()) + 1)
        reader = LogReader(log.view, log.base_offsets, Look.HEADERS, ranges=[span])
        while not reader.is_at_end:
            reader.fill()
            rows, reader.rows = reader.rows, reader.rows.take(np.empty(0, np.int64))
            batches = rows.batches
            at = np.searchsorted(new[:, 1], rows.lowest)
            begin = np.append(new[:, 0], span[1])[at]
            for group in rows.take((begin <= batches.last_offset) & ~batches.is_control).groups():
                table = group.records()
                is_in = contain(new, table["offset"].to_numpy(), table["epoch"].to_numpy())
                lost = table.filter(is_in)
                for name in ("key", "value"):
                    size_bytes += pc.sum(pc.binary_length(lost[name]), min_count=0).as_py()
                if len(keys) < most_keys:
                    # Of so many of them at least as many are new as are wanted.
                    some = pc.unique(lost["key"].drop_null()).slice(0, most_keys)
                    keys |= dict.fromkeys(some.to_pylist())
                times_ms = lost["timestamp"].to_numpy()
                times_ms = times_ms[times_ms >= 0]
                if len(times_ms):
                    times += [int(times_ms.min()), int(times_ms.max())]
    return Weight(
        size_bytes=size_bytes,
        first_timestamp_ms=min(times, default=None),
        last_timestamp_ms=max(times, default=None),
        keys=tuple(keys)[:most_keys],
    )
