"""An undo of a run over two log directories, of which the disk of one fails; without Spark."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.operations.undo import undo
from pylog_spark.options import JobOptions
from pylog_spark.run.upkeep import observe_root
from storage_core.checkpoint.checkpoints import encode_offset_checkpoint
from storage_core.commit import commit
from storage_core.commit.trash import RUN_FILE, TrashedRun
from storage_core.commit.undo import with_trash
from storage_core.errors import StorageError
from storage_core.filenames import CLEAN_SHUTDOWN_FILE, CLEANER_FILE, TopicPartition
from storage_core.store.local import LocalStore, write_record
from tests.crash.interruptions import ALL
from tests.kit.compare import read_tree
from tests.kit.golden_cleaning import cleaning_of, prepare
from tests.kit.golden_data import Golden
from tests.pylog_spark.broker_roots import BrokerDirectory, broker_directory, read_points

pytestmark = pytest.mark.item("DIR-12")
RUN = "20260102T030405Z-0a1b2c3d"
BAD, GOOD = "clean-headers-none-s101", "clean-hw-none-s161"
CHANGES = ("write_file", "delete", "rename", "restore", "keep", "sync_file", "sync_directory")
STRIDE = 1 if ALL else 8
MARKER_OF_OURS = '{"version":0,"brokerEpoch":-1}'


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoDisks:
    """A run that compacted two log directories, and what it found there.

    Attributes:
        roots: Both, that of which the disk fails first.
        options: Of the undo.
        before: The partitions before the run.
        after: The same after it.
    """

    roots: dict[str, BrokerDirectory]
    options: JobOptions
    before: dict[str, Any]
    after: dict[str, Any]

    def partition(self, name: str) -> dict[str, bytes]:
        return read_tree(self.roots[name].path / f"{name}-0")

    def marker(self, name: str) -> str | None:
        path = self.roots[name].path / CLEAN_SHUTDOWN_FILE
        return path.read_text() if path.exists() else None

    def points(self, name: str) -> dict[TopicPartition, int]:
        return read_points(self.roots[name].path)

    def check_undone(self, name: str) -> None:
        assert self.partition(name) == self.before[name]
        assert self.points(name) == {}
        assert self.marker(name) == MARKER_OF_OURS


def compacted(folder: Path, names: list[str]) -> TwoDisks:
    """Compact a partition on each of some disks with a trash, as one run does."""
    roots = {}
    for name in names:
        (folder / name).mkdir(parents=True)
        roots[name] = broker_directory(folder / name / "log", [name])
    place = folder / "trash" / RUN
    run = TrashedRun(
        run_id=RUN,
        action="compact",
        started_ms=0,
        roots=tuple(observe_root(str(root.path)) for root in roots.values()),
    )
    write_record(Path(place, RUN_FILE), run.encode())
    before, after = {}, {}
    for name, root in roots.items():
        directory = root.path / f"{name}-0"
        before[name] = read_tree(directory)
        prepared = prepare(directory, replace(cleaning_of(Golden(name)), config=root.config(name)))
        store = LocalStore(directory)
        commit(with_trash(prepared.commit_of(), store, place, action="compact"), store)
        after[name] = read_tree(directory)
        points = {TopicPartition(name, 0): prepared.plan.first_uncleanable_offset}
        (root.path / CLEANER_FILE).write_bytes(encode_offset_checkpoint(points))
    options = next(iter(roots.values())).options(0, trash=str(folder / "trash"))
    return TwoDisks(roots=roots, options=options, before=before, after=after)


@contextmanager
def failing(folder: Path, is_first: Any, *, for_good: bool = True) -> Iterator[list[Any]]:
    """Let a change below a folder fail, and with it all that come after.

    Args:
        folder: The disk.
        is_first: Told number, method and arguments of each change; whether it is the first to fail.
        for_good: Whether the later ones fail, too.

    Yields:
        What failed.
    """
    failed: list[Any] = []
    numbers = count()

    def wrap(name, original):
        def change(self, *args, **kwargs):
            if self.directory.is_relative_to(folder):
                begins = not failed and is_first(next(numbers), name, *args)
                if begins or (failed and for_good):
                    failed.append((name, *args))
                    raise StorageError(str(self.directory), "Input/output error")
            return original(self, *args, **kwargs)

        return change

    with pytest.MonkeyPatch.context() as patch:
        for name in CHANGES:
            patch.setattr(LocalStore, name, wrap(name, getattr(LocalStore, name)))
        yield failed


def at(method: str, file: str) -> Any:
    """Return what tells the first change of a file that a method makes."""
    return lambda _, name, *args: (name, *args[:1]) == (method, file)


# The marker cannot be taken away; the cleaner point cannot be put back; the marker cannot be.
FAILURES = [
    ("delete", CLEAN_SHUTDOWN_FILE),
    ("write_file", CLEANER_FILE),
    ("write_file", CLEAN_SHUTDOWN_FILE),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("for_good", [True, False])
@pytest.mark.parametrize(("method", "file"), FAILURES)
def test_what_lies_on_other_disks_is_undone_and_the_rest_when_the_disk_is_in_order(
    tmp_path, method, file, for_good
):
    disks = compacted(tmp_path, [BAD, GOOD])
    points = disks.points(BAD)
    with failing(tmp_path / BAD, at(method, file), for_good=for_good):
        report = undo(RUN, disks.options)
    disks.check_undone(GOOD)
    assert report.exit_code == 4
    (note,) = report.notes
    assert note.startswith(f"{disks.roots[BAD].path}: the disk failed")
    rows = {row["topic"]: row for row in report.results.to_pylist()}
    assert rows[GOOD]["status"] == "done"
    if (method, file) == FAILURES[-1]:
        # Undone it is; only nobody may say that the directory is clean.
        assert rows[BAD]["status"] == "done"
        assert disks.partition(BAD) == disks.before[BAD]
        assert disks.points(BAD) == {}
    else:
        assert rows[BAD]["status"] == "failed"
        assert "Input/output error" in rows[BAD]["error"]
        assert disks.partition(BAD) == disks.after[BAD]
        assert disks.points(BAD) == points
    assert (disks.marker(BAD) is None) == (method == "write_file")
    assert list(tmp_path.rglob(".lock")) == []

    again = undo(RUN, disks.options)
    assert again.exit_code == 0
    disks.check_undone(BAD)
    disks.check_undone(GOOD)


@pytest.mark.thorough
@pytest.mark.parametrize("for_good", [True, False])
def test_the_disk_may_fail_at_any_change(tmp_path, for_good):
    disk = tmp_path / "disk"
    disks = compacted(disk, [BAD, GOOD])
    copy = shutil.copytree(disk, tmp_path / "copy")
    for number in count(step=STRIDE):
        shutil.rmtree(disk)
        shutil.copytree(copy, disk)
        with failing(disk / BAD, lambda n, *_: n == number, for_good=for_good) as failed:  # noqa: B023
            report = undo(RUN, disks.options)
        where = f"{number}: {failed[:1]}"
        disks.check_undone(GOOD)
        if not failed:
            disks.check_undone(BAD)
            break
        assert report.exit_code == 4, where
        rows = {row["topic"]: row for row in report.results.to_pylist()}
        if rows[BAD]["status"] == "done":
            assert disks.partition(BAD) == disks.before[BAD], where
        if disks.marker(BAD) is not None:
            assert disks.partition(BAD) in (disks.before[BAD], disks.after[BAD]), where
        assert undo(RUN, disks.options).exit_code == 0, where
        disks.check_undone(BAD)
    assert number > 30


@pytest.mark.thorough
def test_a_directory_that_is_gone_keeps_no_other_from_being_undone(tmp_path):
    disks = compacted(tmp_path, [BAD, GOOD])
    path = disks.roots[BAD].path
    shutil.move(path, tmp_path / "unplugged")
    report = undo(RUN, disks.options)
    disks.check_undone(GOOD)
    assert report.exit_code == 4
    rows = {row["topic"]: row for row in report.results.to_pylist()}
    assert (rows[BAD]["status"], rows[GOOD]["status"]) == ("failed", "done")
    shutil.move(tmp_path / "unplugged", path)
    assert undo(RUN, disks.options).exit_code == 0
    disks.check_undone(BAD)


@pytest.mark.thorough
def test_where_the_only_disk_fails_the_undo_does(tmp_path):
    disks = compacted(tmp_path, [BAD])
    with (
        failing(tmp_path / BAD, at("write_file", CLEANER_FILE)),
        pytest.raises(StorageError, match="Input/output error"),
    ):
        undo(RUN, disks.options)
    assert disks.partition(BAD) == disks.after[BAD]
    assert disks.marker(BAD) is None
    assert undo(RUN, disks.options).exit_code == 0
    disks.check_undone(BAD)


@pytest.mark.parametrize("names", [[BAD], [BAD, GOOD]], ids=["the only disk", "two disks"])
def test_a_dry_run_says_of_a_disk_that_fails_what_is_not_to_be_put_back(tmp_path, names):
    disks = compacted(tmp_path, names)
    checkpoint = disks.roots[BAD].path / CLEANER_FILE
    checkpoint.unlink()
    checkpoint.mkdir()
    report = undo(RUN, replace(disks.options, dry_run=True))
    assert report.exit_code == 4
    rows = {row["topic"]: row for row in report.results.to_pylist()}
    assert {name: row["status"] for name, row in rows.items()} == {
        name: "failed" if name == BAD else "planned" for name in names
    }
    assert CLEANER_FILE in rows[BAD]["error"]
    assert all(disks.partition(name) == disks.after[name] for name in names)
