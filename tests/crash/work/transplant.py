"""A log given to another cluster: each replica is not there or whole; a second call ends it.

Its undo: each replica goes at one moment, and the empty log comes back. The transplant that is
undone may itself have been stopped anywhere.
"""

import os
import shutil
from pathlib import Path

from pylog_spark.cluster.transplant import TransplantOptions, transplant
from pylog_spark.engines.choice import Local
from pylog_spark.operations.undo import undo
from pylog_spark.options import JobOptions
from storage_core.catalog.roles import Role
from storage_core.checkpoint.checkpoints import read_checkpoints
from storage_core.commit.trash import RUN_FILE
from storage_core.config import CleanerConfig, LogConfig
from storage_core.filenames import CLEAN_SHUTDOWN_FILE, log_file
from storage_core.log.log_loader import LogLoader
from storage_core.roots.broker import BrokerRoot
from storage_core.store import LocalStore
from tests.cluster.transplant.clusters import Target
from tests.crash.cells import Call, Cell, WorkOfRun, calls_of, creates
from tests.crash.interruptions import ALL, KILLS, POWER, Interruption, is_end, restarted
from tests.kit.compare import read_tree
from tests.kit.source_disk import END, LOG_START, NOW_MS, ORDERS, write_source
from tests.kit.tasks_here import tasks_done_here

# The source has an open transaction, and no records of its coordinator.
CONSENT = TransplantOptions(aborts_undecided=True)


class TransplantOfLog(WorkOfRun):
    """Two disks of a target: on one lies the empty log that its broker has made."""

    calls = (Call(os, "open", creates), *calls_of(os, "replace", "rename", "mkdir", "unlink"))

    def __init__(self, folder: Path, _way: Interruption) -> None:
        self._source = folder / "source"
        write_source(self._source)
        self.disk = folder / "disk"
        self.reset()

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


class _TargetWithTrash(WorkOfRun):
    """Two disks of a target: on one lies the empty log that its broker has made."""

    def __init__(self, folder: Path, _way: Interruption) -> None:
        self.disk, self.original = folder / "disk", folder / "original"
        self._source, self._trash = folder / "source", folder / "disk" / "trash"
        write_source(self._source)
        self._disks = Target(folder=self.disk).as_brokers()
        for disk in self._disks:
            (disk / CLEAN_SHUTDOWN_FILE).write_text('{"version":0,"brokerEpoch":7}')
        (self._disks[0] / str(ORDERS)).mkdir()
        (self._disks[0] / str(ORDERS) / log_file(0)).touch()
        self._before = self._logs()
        self._options = JobOptions(role=Role.BROKER, now_ms=NOW_MS, trash=str(self._trash))

    def _transplant(self) -> None:
        with tasks_done_here():
            report = transplant(Local(1), [self._source], self._disks, self._options, CONSENT)
        assert report.summary.done == 1

    def _undo(self) -> None:
        (run,) = self._trash.iterdir()
        with tasks_done_here():
            report = undo(run.name, self._options)
        assert report.exit_code == 0, report.results.to_pylist()

    def _logs(self) -> list[dict[str, bytes] | None]:
        """Return the files of each disk's log, None for no log."""
        logs = [disk / str(ORDERS) for disk in self._disks]
        return [read_tree(log) if log.is_dir() else None for log in logs]

    def _check_whole_or_empty(self, whole: dict[str, bytes] | None, where: str) -> None:
        for log in self._logs():
            assert log == whole or not any((log or {}).values()), where


class UndoOfTransplant(_TargetWithTrash):
    """An undo that is stopped."""

    calls = (
        *calls_of(LocalStore, "write_file", "delete", "sync_directory", "restore"),
        *calls_of(LocalStore, "write_record", "create_directory"),
        *calls_of(os, "rename", "rmdir", "unlink"),
    )

    def __init__(self, folder: Path, way: Interruption) -> None:
        super().__init__(folder, way)
        self._transplant()
        self._after = self._logs()[1]
        shutil.copytree(self.disk, self.original)

    def run(self) -> None:
        self._undo()

    def check(self, where: str) -> None:
        self._check_whole_or_empty(self._after, where)
        with restarted():
            self.run()
        assert self._logs() == self._before, where
        for disk in self._disks:
            assert (disk / CLEAN_SHUTDOWN_FILE).exists() or not is_end(where), where


class UndoneTransplant(_TargetWithTrash):
    """A transplant that is stopped, then undone."""

    calls = TransplantOfLog.calls

    def __init__(self, folder: Path, way: Interruption) -> None:
        super().__init__(folder, way)
        shutil.copytree(self.disk, self.original)

    def run(self) -> None:
        self._transplant()

    def check(self, where: str) -> None:
        if any(self._trash.glob(f"*/{RUN_FILE}")):
            with restarted():
                self._undo()
        assert self._logs() == self._before, where


CELLS = [
    Cell(
        operation="transplant",
        store="broker directory",
        case="two replicas",
        make=TransplantOfLog,
        ways=[KILLS[0], KILLS[2], *POWER],
        stride=1 if ALL else 11,
        power_stride=1 if ALL else 17,
    ),
    Cell(
        operation="run of undo",
        case="of a transplant",
        make=UndoOfTransplant,
        ways=[KILLS[0], *POWER],
        stride=1 if ALL else 9,
        power_stride=1 if ALL else 31,
    ),
    Cell(
        operation="run of transplant, undone",
        case="two replicas",
        make=UndoneTransplant,
        ways=[KILLS[0], *POWER],
        stride=1 if ALL else 9,
        power_stride=1 if ALL else 31,
    ),
]
