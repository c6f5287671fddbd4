"""A purge, made again: the same end."""

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from storage_core.commit import commit
from storage_core.commit.purge import plan_purge_directory, plan_purge_partition
from storage_core.store.base import LogStore
from storage_core.store.local import LocalStore
from tests.crash.cells import Cell, WorkOfKafka
from tests.crash.interruptions import ALL, KILLS, POWER, Interruption, is_end
from tests.crash.rounds import Case, settle, three_groups
from tests.kit.compare import read_tree
from tests.storage_core.maintenance.compaction.hand_made import NOW, cleaning

UNIQUE = "0123456789abcdef0123456789abcdef"
FOREVER = 2**60


def with_deleted_files(directory: Path) -> None:
    three_groups(directory)
    settle(directory, cleaning(overrides=Case(None).overrides))
    for log in list(directory.glob("*.log"))[:2]:
        for suffix in (".log", ".index", ".timeindex"):
            source = log.with_suffix(suffix)
            name = f"{int(log.stem) + 100:020d}{suffix}.deleted"
            if source.exists():
                shutil.copy2(source, directory / name)


def state_of(directory: Path) -> dict[str, bytes] | None:
    return read_tree(directory) if directory.exists() else None


class Purge(WorkOfKafka):
    """Files that Kafka has renamed, or a directory that it has, are removed."""

    now_ms = NOW

    def __init__(self, name: str, folder: Path, _way: Interruption) -> None:
        self.disk = folder / "disk"
        self.directory = self.disk / name
        with_deleted_files(self.directory)
        self.original = shutil.copytree(self.disk, folder / "saved")
        round_ = cleaning(overrides=Case(None).overrides)
        self._end = round_.load(LocalStore(self.directory)).log_end_offset
        self.run()
        self._expected = state_of(self.directory)
        self._tried = 0
        self._kafkas: dict[str, bytes] | None = None
        self.overrides: Mapping[str, Any] = Case(None).overrides
        self.checkpoints: Mapping[str, int] = {}

    def do(self, store: LogStore) -> None:
        is_deleted = self.directory.name.endswith("-delete")
        plan_purge = plan_purge_directory if is_deleted else plan_purge_partition
        for plan in plan_purge(self.directory, now_ms=FOREVER, delay_ms=0).plans:
            commit(plan, store)

    def check(self, where: str) -> None:
        if self.directory.exists() and not is_end(where):
            self.run()
        assert state_of(self.directory) == self._expected, where
        self._tried += 1

    def check_all(self) -> None:
        assert self._tried > 4

    def check_kafkas(self, theirs: Path, answer: Any, where: str, *, clean_shutdown: bool) -> None:
        assert answer.log_end_offset == self._end, where
        if clean_shutdown:
            self._kafkas = self._kafkas or read_tree(theirs)
            assert read_tree(theirs) == self._kafkas, where


CELLS = [
    Cell(
        operation="purge",
        case=name,
        make=partial(Purge, name),
        # It writes nothing: there is nothing that a kill could leave by half.
        ways=[KILLS[0], KILLS[2], *POWER],
        kafka_ways=[KILLS[0], *POWER] if name == "t-0" else [],
        kafka_power_stride=1 if ALL else 5,
    )
    for name in ("t-0", f"t-0.{UNIQUE}-delete")
]
