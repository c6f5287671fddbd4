"""Which tests ``make test`` runs, and which ``make test-all`` runs beyond these.

A test is in the first unless it says otherwise, by what it costs and what it alone would catch:

- ``@pytest.mark.thorough``: it is in the second.
- ``@pytest.mark.sampled(3)``: of its parameters three are in the first, spread evenly from the
  first to the last one; the others are in the second.
"""

from collections import defaultdict
from collections.abc import Iterable

import pytest


def small_items(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return those of the collected tests that ``make test`` runs."""
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
