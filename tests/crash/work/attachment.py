"""A tier given to a new broker: each directory is not there or whole; a second call ends it.

Its undo takes back what is in place, wherever the attachment or the undo has stopped.
"""

import os
import shutil
from pathlib import Path

from pylog_spark.cluster.attach import AttachOptions, attach, locate_archive
from pylog_spark.engines.choice import Local
from pylog_spark.operations.undo import undo
from pylog_spark.options import JobOptions
from storage_core.catalog.roles import Role
from storage_core.checkpoint.checkpoints import CHECKPOINT_FILES, read_checkpoints
from storage_core.cluster.attachment import AttachRules
from storage_core.commit.trash import RUN_FILE
from storage_core.filenames import CLEAN_SHUTDOWN_FILE
from storage_core.roots.broker import BrokerRoot
from tests.crash.cells import Call, Cell, WorkOfRun, calls_of, creates
from tests.crash.interruptions import ALL, KILLS, POWER, Interruption, is_end, restarted
from tests.kit.compare import read_tree
from tests.kit.source_disk import NOW_MS, write_properties
from tests.kit.tasks_here import tasks_done_here
from tests.kit.tier_archives import unpack_tier

# Directories of the two partitions, and of the metadata topic.
_METADATA_PARTITIONS = 2
_OPTIONS = AttachOptions(rules=AttachRules(), metadata_partitions=_METADATA_PARTITIONS)
_DIRECTORIES = 2 + _METADATA_PARTITIONS


class AttachmentOfTier(WorkOfRun):
    """One log directory, and a tier of two partitions."""

    calls = (Call(os, "open", creates), *calls_of(os, "replace", "rename", "mkdir", "unlink"))

    def __init__(self, folder: Path, _way: Interruption) -> None:
        self.disk, self.original = folder / "disk", folder / "original"
        self._root, self._trash = self.disk / "b1", self.disk / "trash"
        self._archive = unpack_tier("plain", folder / "lost").archive
        self._root.mkdir(parents=True)
        write_properties(self._root, 1)
        (self._root / CLEAN_SHUTDOWN_FILE).write_text('{"version":0,"brokerEpoch":-1}')
        self._options = JobOptions(role=Role.BROKER, now_ms=NOW_MS, trash=str(self._trash))
        self._before = self._state()
        shutil.copytree(self.disk, self.original)
        self._attach()
        self._after = self._state()
        self.reset()

    def run(self) -> None:
        self._attach()

    def check(self, where: str) -> None:
        self._check_whole_or_absent(where)
        with restarted():
            self._attach()
        assert self._state() == self._after, where

    def _attach(self) -> None:
        with tasks_done_here():
            archive = locate_archive(str(self._archive))
            report = attach(Local(1), archive, [self._root], self._options, _OPTIONS)
        assert report.summary.failed == 0
        assert report.details.num_rows == _DIRECTORIES

    def _undo(self) -> None:
        for run in sorted(self._trash.glob(f"*/{RUN_FILE}")):
            with tasks_done_here():
                report = undo(run.parent.name, self._options)
            assert report.exit_code == 0, report.results.to_pylist()

    def _logs(self) -> dict[str, bytes]:
        return {name: data for name, data in read_tree(self._root).items() if "/" in name}

    def _state(self) -> tuple[dict[str, bytes], dict[str, dict[str, int]]]:
        """Return the files of the partitions, and the entries of the checkpoints."""
        checkpoints = read_checkpoints(BrokerRoot(self._root), CHECKPOINT_FILES).entries
        entries = {
            name: {str(partition): offset for partition, offset in each.items()}
            for name, each in checkpoints.items()
            if each
        }
        return self._logs(), entries

    def _check_whole_or_absent(self, where: str) -> None:
        whole, there = _by_directory(self._after[0]), _by_directory(self._logs())
        own = {name: files for name, files in there.items() if name in whole}
        assert own == {name: whole[name] for name in own}, where
        assert len(own) == _DIRECTORIES or not is_end(where), where


def _by_directory(files: dict[str, bytes]) -> dict[str, dict[str, bytes]]:
    by_directory: dict[str, dict[str, bytes]] = {}
    for name, content in files.items():
        directory, _, file = name.partition("/")
        by_directory.setdefault(directory, {})[file] = content
    return by_directory


class UndoneAttachment(AttachmentOfTier):
    """An attachment that is stopped, then undone."""

    def check(self, where: str) -> None:
        with restarted():
            self._undo()
        assert self._state() == self._before, where


CELLS = [
    Cell(
        operation="attach",
        store="broker directory",
        case="two partitions",
        make=AttachmentOfTier,
        ways=[KILLS[0], KILLS[2], *POWER],
        stride=1 if ALL else 11,
        power_stride=1 if ALL else 31,
    ),
    Cell(
        operation="run of attach, undone",
        case="two partitions",
        make=UndoneAttachment,
        ways=[KILLS[0], *POWER],
        stride=1 if ALL else 11,
        power_stride=1 if ALL else 31,
    ),
]
