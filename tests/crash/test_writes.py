"""A write of ``df.write`` that is stopped anywhere, and repeated: its records are there once."""

import json
from pathlib import Path

import pytest

from storage_core.config import CleanerConfig, LogConfig
from storage_core.filenames import CLEAN_SHUTDOWN_FILE
from storage_core.log.log_loader import LogLoader, load_log
from storage_core.store.local import LocalStore
from storage_core.writing import publication
from storage_core.writing.staging import WriteTransaction
from tests.crash.interruptions import ALL
from tests.kit.builders import SOME_TIME_MS
from tests.kit.compare import read_tree
from tests.kit.power_loss import Disk, Loss
from tests.storage_core.writing.writes import (
    SMALL,
    NoLock,
    numbers_of,
    records_of,
    request_of,
    write,
)

pytestmark = pytest.mark.crash

FORMER = range(30)
ADDED = range(30, 140)
STRIDE = 1 if ALL else 9


def write_again(directory: Path, *, is_overwrite: bool) -> None:
    """Write to a log that goes on, to one that was empty, and to a new topic."""
    once = WriteTransaction(app_id="app", version=0)
    request = request_of(directory, is_overwrite=is_overwrite, transaction=once, partitions=3)
    added = records_of(range(30, 130), partition=[0, 2] * 50)
    new_topic = records_of(range(130, 140), topic=["new"] * 10)
    write(request, added, new_topic)


@pytest.mark.thorough
@pytest.mark.parametrize("is_overwrite", [False, True], ids=["append", "overwrite"])
@pytest.mark.parametrize("loss", [None, *Loss], ids=lambda loss: loss.value if loss else "killed")
def test_a_write_that_is_stopped_anywhere_and_repeated_is_there_once(
    tmp_path, monkeypatch, is_overwrite, loss
):
    monkeypatch.setattr(
        publication, "LogDirectoryLock", NoLock
    )  # it would start a process each time
    original, place = tmp_path / "original", tmp_path / "disk"
    write(
        request_of(place / "logs", partitions=3),
        records_of(FORMER, partition=[0, 1] * 15),
    )
    (place / "logs" / CLEAN_SHUTDOWN_FILE).write_text("{}")
    place.rename(original)
    directory = place / "logs"
    expected = [*ADDED] if is_overwrite else [*FORMER, *ADDED]
    seen: set[str] = set()
    stop_at, was_stopped = 0, True
    while was_stopped:
        copy_tree(original, place)
        disk = Disk(place)
        was_stopped = disk.run(
            lambda: write_again(directory, is_overwrite=is_overwrite), stop_at=stop_at
        )
        if loss is not None:
            disk.leave(loss, seed=stop_at)
        state = json.loads((directory / "pylog-write.json").read_bytes())
        is_decided = bool(list(place.glob("pylog-write-*/*/commit.json")))
        seen.add("done" if state["transactions"] else "decided" if is_decided else "undecided")
        for folder in directory.glob("*-[0-9]"):
            loader = LogLoader(
                LocalStore(folder),
                config=LogConfig.from_topic_overrides(SMALL),
                cleaner=CleanerConfig(),
                now_ms=SOME_TIME_MS,
            )
            # A broker that starts now loses no record of those that it finds.
            assert loader.load().close(high_watermark=0).repairs.cuts == (), (stop_at, folder)
        if seen == {"undecided"}:
            assert numbers_of(directory) == [*FORMER], stop_at
        if not was_stopped:
            assert numbers_of(directory) == expected
        write_again(directory, is_overwrite=is_overwrite)
        assert numbers_of(directory) == expected, stop_at
        assert [path.name for path in place.iterdir()] == ["logs"], stop_at
        for folder in directory.glob("*-[0-9]"):
            log = load_log(
                LocalStore(folder),
                config=LogConfig.from_topic_overrides(SMALL),
                cleaner=CleanerConfig(),
                now_ms=SOME_TIME_MS,
            )
            assert log.operations == (), (stop_at, folder)
        remove_tree(place)
        stop_at += STRIDE
    assert seen == {"undecided", "decided", "done"}


def copy_tree(source: Path, target: Path) -> None:
    for name, content in read_tree(source).items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def remove_tree(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()
