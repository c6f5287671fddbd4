"""A log given to another cluster: each replica is not there or whole; a second call ends it."""

import os
import shutil
from pathlib import Path
from typing import Any

from storage_core.checkpoint.checkpoints import read_checkpoints
from storage_core.config import CleanerConfig, LogConfig
from storage_core.filenames import log_file
from storage_core.log.log_loader import LogLoader
from storage_core.roots.broker import BrokerRoot
from storage_core.store import LocalStore
from tests.cluster.transplant.clusters import Target
from tests.crash.cells import Call, Cell, WorkOfRun
from tests.crash.interruptions import ALL, KILLS, POWER, Interruption, is_end
from tests.kit.source_disk import END, LOG_START, NOW_MS, ORDERS, write_source


def _creates(_path: Any, flags: int, *_: Any, **__: Any) -> bool:
    return bool(flags & os.O_CREAT)


class TransplantOfLog(WorkOfRun):
    """Two disks of a target: on one lies the empty log that its broker has made."""

    calls = (
        Call(os, "open", _creates),
        *(Call(os, name) for name in ("replace", "rename", "mkdir", "unlink")),
    )

    def __init__(self, folder: Path, _way: Interruption) -> None:
        self._source = folder / "source"
        write_source(self._source)
        self._folder = folder
        self.reset()

    @property
    def disk(self) -> Path:
        return self._folder / "disk"

    @property
    def directory(self) -> Path:
        return self._target.disks[0] / str(ORDERS)

    def reset(self) -> None:
        shutil.rmtree(self.disk, ignore_errors=True)
        self._target = Target(folder=self.disk)
        self.directory.mkdir()
        (self.directory / log_file(0)).touch()

    def run(self) -> None:
        (plan,) = self._target.plan(self._source)
        assert plan.reason is None, plan.detail
        if plan.homes:
            plan.write()

    def check(self, where: str) -> None:
        there = [disk for disk in self._target.disks if self._has_records(disk)]
        for disk in there:
            self._check_whole(disk, where)
        assert len(there) == len(self._target.disks) or not is_end(where), where
        self.run()
        for disk in self._target.disks:
            self._check_whole(disk, where)

    def _has_records(self, disk: Path) -> bool:
        return any(path.stat().st_size for path in (disk / str(ORDERS)).glob("*.log"))

    def _check_whole(self, disk: Path, where: str) -> None:
        own = read_checkpoints(BrokerRoot(disk)).of(ORDERS)
        loader = LogLoader(
            LocalStore(disk / str(ORDERS)),
            config=LogConfig(),
            cleaner=CleanerConfig(),
            now_ms=NOW_MS,
            log_start_checkpoint=own.log_start_offset or 0,
        )
        log = loader.load().close()
        assert (log.log_start_offset, log.log_end_offset) == (LOG_START, END + 1), where
        assert log.repairs.cuts == (), where
        assert own.high_watermark == END + 1, where


CELLS = [
    Cell(
        operation="transplant",
        store="broker directory",
        case="two replicas",
        make=TransplantOfLog,
        ways=[KILLS[0], KILLS[2], *POWER],
        stride=1 if ALL else 11,
        power_stride=1 if ALL else 17,
    )
]
