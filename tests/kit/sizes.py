"""Which tests ``make test`` runs, and which ``make test-all`` runs beyond these.

A test is in the first unless it says otherwise, by what it costs and what it alone would catch:

- ``@pytest.mark.thorough``: it is in the second.
- ``@pytest.mark.sampled(3)``: of its parameters three are in the first, spread evenly from the
  first to the last one; the others are in the second.

A test of properties is in both: with few examples in the first, with all of them in the second.
"""

from collections import defaultdict
from collections.abc import Sequence

import pytest


def items_of_size(items: Sequence[pytest.Item], size: str) -> set[pytest.Item]:
    """Return those of the collected tests that ``--size`` runs: "small" or "rest"."""
    small = _small_items(items)
    if size == "small":
        return small
    return {item for item in items if item not in small or item.get_closest_marker("hypothesis")}


def _small_items(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    small, sampled = set(), defaultdict(list)
    for item in items:
        if item.get_closest_marker("thorough"):
            continue
        if item.get_closest_marker("sampled"):
            sampled[item.nodeid.partition("[")[0]].append(item)
        else:
            small.add(item)
    for group in sampled.values():
        mark = group[0].get_closest_marker("sampled")
        assert mark is not None
        count = min(mark.args[0], len(group))
        small.update(group[number * len(group) // count] for number in range(count))
    return small
