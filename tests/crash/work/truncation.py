"""A truncation: up to where it is cut the log is there in every state between.

A second truncation ends as one that was not stopped. Where that one ends in the middle of a batch,
the log ends earlier once it is opened again, as in Kafka; so an end that was reached, and looked at
once more, counts too.
"""

import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from storage_core.commit import commit
from storage_core.config import CleanerConfig, LogConfig
from storage_core.filenames import SEGMENT_SUFFIXES
from storage_core.maintenance.recovery.partition import plan_truncation
from storage_core.store.base import LogStore
from tests.crash.cells import Cell, WorkOfKafka, WorkOnDirectory
from tests.crash.interruptions import (
    ALL,
    KILLS,
    KILLS_OF_CHANGES,
    POWER,
    UNORDERED,
    Interruption,
    unsynced,
)
from tests.crash.rounds import without_temporary
from tests.crash.work.retention import overrides_of
from tests.kit.golden_data import Golden, goldens
from tests.kit.golden_loading import settings_of
from tests.kit.one_partition import recover_partition
from tests.storage_core.maintenance.compaction.hand_made import NOW, batch, record, write_log

NAMES = (
    "truncate-*" if ALL else "truncate-[ms]*-s531",
    "truncate-below-logstart-s531",
    "truncate-legacy1-mixed-s315",
)
CASES = [
    golden
    for golden in goldens("truncate-*")
    if golden.case["expected"].get("truncated") and any(map(Path(golden.name).match, NAMES))
]


def log_bytes(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


class Truncation(WorkOfKafka):
    """A cut at an offset."""

    shutdowns: ClassVar[Sequence[bool]] = (True, False)

    def __init__(self, golden: Golden, folder: Path, way: Interruption) -> None:
        self._golden = golden
        self._to = golden.case["params"]["to"]
        self._start = golden.case["params"].get("log.start", 0)
        self.original = golden.unpack(folder / "before")
        self.directory = folder / "work" / self.original.name
        self._twin = folder / "twin" / self.original.name
        self.reset()
        self.run()
        self._kept = log_bytes(self.directory)
        self._ends = [without_temporary(self.directory)]
        self.run()
        self._ends.append(without_temporary(self.directory))
        self.now_ms = settings_of(golden)["now_ms"]
        self.overrides: Mapping[str, Any] = overrides_of(golden)
        self.checkpoints = {"log_start_offset": self._start}

    def do(self, store: LogStore) -> None:
        _, log = plan_truncation(
            store, **settings_of(self._golden), to=self._to, log_start_offset=self._start
        )
        commit(log.plan, store)

    def check(self, where: str) -> None:
        shutil.rmtree(self._twin.parent, ignore_errors=True)
        shutil.copytree(self.directory, self._twin)
        with unsynced():
            recover_partition(self._twin, **settings_of(self._golden), log_start_offset=self._start)
            self.run()
        assert log_bytes(self._twin).startswith(self._kept) or self._to < self._start, where
        assert without_temporary(self.directory) in self._ends, where

    def check_kafkas(self, theirs: Path, answer: Any, where: str, *, clean_shutdown: bool) -> None:
        if self._to >= self._start:
            assert log_bytes(theirs).startswith(self._kept), where
        assert {path.suffix for path in theirs.iterdir()} <= {*SEGMENT_SUFFIXES, ".snapshot", ""}


class UnorderedTruncation(WorkOnDirectory):
    """A cut on a filesystem that keeps of some files the newest names, of others the former."""

    def __init__(self, to: int, folder: Path, _way: Interruption) -> None:
        self._to = to
        self.directory = folder / "work" / "t-0"
        self.reset()
        self._ends = []
        for _ in range(2):
            self.run()
            self._ends.append(without_temporary(self.directory))

    def reset(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        write_log(self.directory, [batch(100, record(b"a")), batch(103, record(b"b"))])

    def do(self, store: LogStore) -> None:
        _, log = plan_truncation(
            store, config=LogConfig(), cleaner=CleanerConfig(), now_ms=NOW, to=self._to
        )
        commit(log.plan, store)

    def check(self, where: str) -> None:
        with unsynced():
            self.run()
        assert without_temporary(self.directory) in self._ends, where


CELLS = [
    *(
        Cell(
            operation="truncation",
            case=golden.name,
            make=partial(Truncation, golden),
            ways=[*KILLS_OF_CHANGES, *POWER],
            kafka_ways=KILLS[:1] if ALL or "mid-batch" in golden.name else [],
            power_stride=1 if ALL else 4,
        )
        for golden in CASES
    ),
    *(
        Cell(
            operation="truncation",
            case=f"to {to} by hand",
            make=partial(UnorderedTruncation, to),
            ways=UNORDERED,
            seeds=40 if ALL else 6,
        )
        for to in ([5, 103] if ALL else [5])
    ),
]
