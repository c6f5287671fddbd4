"""Paths that are taken apart, and folders that are to stay when the power fails."""

import os
from pathlib import Path

import pytest

from storage_core.store import local
from storage_core.store.local import make_folder, plain_path, write_record
from tests.kit.power_loss import Disk, Loss


@pytest.fixture
def place(tmp_path: Path, monkeypatch) -> Path:
    """A folder in which ``link`` leads to ``far/deep``; the current one."""
    (tmp_path / "far" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("far/deep")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("said", "plain"),
    [
        ("a/b", "a/b"),
        ("a/../b", "b"),
        ("link/../b", "far/b"),
        ("link/b", "link/b"),
        ("far/../link/b", "link/b"),
        ("none/../b", "b"),
        ("link/..", "far"),
        (".", "."),
    ],
)
def test_a_plain_path_leads_to_the_same_place_without_going_up(place, said, plain):
    assert plain_path(Path(said)) == place / plain
    assert plain_path(place / said) == place / plain
    assert os.path.realpath(place / plain) == os.path.realpath(place / said)


def test_nobody_gets_above_the_root():
    assert plain_path(Path("/../..")) == Path("/")


@pytest.mark.item("FLT-08")
def test_a_folder_of_a_process_that_was_killed_before_it_synced_it_is_durable_too(tmp_path):
    def work() -> None:
        (tmp_path / "disk" / "trash").mkdir()  # the other process got this far
        write_record(tmp_path / "disk" / "trash" / "run" / "run.json", b"a run")

    (tmp_path / "disk").mkdir()
    disk = Disk(tmp_path / "disk")
    disk.run(work)
    disk.leave(Loss.EVERYTHING)
    assert (tmp_path / "disk" / "trash" / "run" / "run.json").read_bytes() == b"a run"


def test_a_folder_that_is_there_costs_no_sync_and_a_foreign_one_above_is_not_opened(
    tmp_path, monkeypatch
):
    synced: list[Path] = []
    monkeypatch.setattr(local, "sync_folder", synced.append)
    make_folder(tmp_path)
    assert synced == []
    make_folder(tmp_path / "a" / "b")
    assert synced == [tmp_path.parent, tmp_path, tmp_path / "a"]
    synced.clear()
    monkeypatch.setattr(os, "access", lambda *_: False)
    make_folder(tmp_path / "c")
    assert synced == [tmp_path]
