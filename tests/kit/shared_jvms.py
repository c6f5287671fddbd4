"""Which process of ``make test`` runs which tests: those of Spark, and those of Kafka, one each.

To start Spark's session, its workers and the ledger's library takes longer than most tests that
use them. So one process runs all files that have a test with the session, another one those with
Kafka's classes; they come first, and what remains is shared out file by file.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Final

import pytest
from xdist.scheduler import LoadFileScheduling

# Fixtures of which a run should have one, in the order in which their tests are handed out.
_SHARED: Final = ("spark", "kafka_jvm")
# Where the processes that collect the tests leave word to the one that hands them out.
_KEPT_AS: Final = "pylog/shared_jvms"


def put_sharing_files_first(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Reorder collected tests, and keep which files share what."""
    shares: dict[str, str] = {}
    for name in _SHARED:
        for item in items:
            if name in getattr(item, "fixturenames", ()):
                shares.setdefault(_file_of(item.nodeid), name)
    order: Sequence[str | None] = (*_SHARED, None)
    items.sort(key=lambda item: order.index(shares.get(_file_of(item.nodeid))))
    if config.cache is not None:
        config.cache.set(_KEPT_AS, shares)


def _file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


class SharedJvms(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Hands out tests by file, or by what their files share."""

    @cached_property
    def _shares(self) -> dict[str, str]:
        """What files share; known when a test is first asked for: all are collected then."""
        cache = self.config.cache
        shares: dict[str, str] = {} if cache is None else cache.get(_KEPT_AS, {})
        return shares

    def _split_scope(self, nodeid: str) -> str:
        file = _file_of(nodeid)
        return self._shares.get(file, file)
