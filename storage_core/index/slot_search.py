"""Kafka's binary search over the entries of an index, spelled out.

It defines the answer also for an index whose entries are not sorted, such as one that ends in the
zeros of a preallocated file. The newest entries, 8192 bytes of them, are searched first; in a
sorted index that changes nothing but the speed.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

WARM_BYTES: Final = 8192
NO_SLOT: Final = -1


class Slots(NamedTuple):
    """What the search found.

    Attributes:
        at_or_below: The entry with the largest value at or below the target, NO_SLOT for none.
        at_or_above: The entry with the smallest value at or above it, NO_SLOT for none. Where the
            search is down to a single entry Kafka takes the next one without looking whether this
            one equals the target; so does this.
    """

    at_or_below: int
    at_or_above: int


def find_slots(column: NDArray[np.integer], target: int, *, entry_bytes: int) -> Slots:
    """Search a column of an index.

    Args:
        column: The values of all entries, in the order of the file.
        target: What to look for.
        entry_bytes: Size of an entry in the file.
    """
    count = len(column)
    if count == 0:
        return Slots(NO_SLOT, NO_SLOT)
    first_warm = max(0, count - 1 - WARM_BYTES // entry_bytes)
    if int(column[first_warm]) < target:
        low, high = first_warm, count - 1
    elif int(column[0]) > target:
        return Slots(NO_SLOT, 0)
    else:
        low, high = 0, first_warm
    while low < high:
        middle = (low + high + 1) >> 1
        found = int(column[middle])
        if found > target:
            high = middle - 1
        elif found < target:
            low = middle
        else:
            return Slots(middle, middle)
    return Slots(low, NO_SLOT if low == count - 1 else low + 1)
