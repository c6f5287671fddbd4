"""A directory as planned operations will leave it, and the order in which they are planned."""

import numpy as np
import pytest

from storage_core import commit
from storage_core.errors import StorageError
from storage_core.filenames import LEADER_EPOCH_FILE, log_file, segment_file, snapshot_file
from storage_core.log.directory_view import DirectoryView, has_unsynced_names
from storage_core.store.local import LocalStore
from tests.kit.compare import read_tree


@pytest.fixture
def view(tmp_path):
    for base in (0, 10, 20):
        (tmp_path / log_file(base)).write_bytes(bytes(range(base, base + 10)))
        (tmp_path / segment_file(base, ".index")).write_bytes(b"index")
    return DirectoryView(LocalStore(tmp_path))


def read_whole(view, name):
    reader = view.open(name)
    data = np.zeros(reader.size_bytes, np.uint8)
    assert reader.read_into(0, data) == data.size
    reader.close()
    return data.tobytes()


def test_what_was_changed_is_read_as_it_will_be(view):
    view.write(segment_file(0, ".index"), b"new", "rebuilt")
    view.truncate(log_file(10), 4, "torn")
    view.delete(log_file(20), "gone")
    assert view.read(segment_file(0, ".index"), limit_bytes=9) == b"new"
    assert read_whole(view, segment_file(0, ".index")) == b"new"
    assert read_whole(view, log_file(10)) == bytes(range(10, 14))
    assert log_file(20) not in view
    with pytest.raises(StorageError, match="longer than the 2 bytes"):
        view.read(segment_file(0, ".index"), limit_bytes=2)


def test_a_copied_stretch_is_read_from_its_source_even_when_that_is_cut(view):
    view.copy(log_file(0), 2, 5, "copy.log", "split")
    assert read_whole(view, "copy.log") == bytes(range(2, 7))
    view.truncate("copy.log", 3, "torn")
    assert read_whole(view, "copy.log") == bytes(range(2, 5))
    assert view.place("copy.log") == (log_file(0), 2)


def test_nothing_is_planned_for_a_file_that_ends_as_it_was(view):
    view.write(segment_file(0, ".index"), b"index", "rebuilt")
    view.write(snapshot_file(5), b"x", "taken")
    view.delete(snapshot_file(5), "stray")
    assert view.operations == []


def test_segments_go_newest_first_before_any_is_cut_and_before_anything_is_written(view):
    view.truncate(log_file(0), 5, "torn")
    view.write(segment_file(0, ".index"), b"rebuilt", "rebuilt")
    view.write(LEADER_EPOCH_FILE, b"0\n0\n", "epochs")
    for base in (10, 20):
        view.delete(log_file(base), "after the cut")
        view.delete(segment_file(base, ".index"), "after the cut")
    kinds = [(type(step), getattr(step, "name", "")) for step in view.operations]
    assert kinds == [
        (commit.WriteFile, LEADER_EPOCH_FILE),
        (commit.DeleteFile, log_file(20)),
        (commit.DeleteFile, segment_file(20, ".index")),
        (commit.DeleteFile, log_file(10)),
        (commit.DeleteFile, segment_file(10, ".index")),
        (commit.SyncDirectory, ""),
        (commit.TruncateFile, log_file(0)),
        (commit.WriteFile, segment_file(0, ".index")),
    ]


def test_a_log_that_starts_over_has_its_new_segment_for_sure_before_an_old_one_goes(view):
    """Else both may be gone, and the same cut, made again, finds nothing to be cut."""
    view.cut_last()
    for base in (0, 10, 20):
        view.delete(log_file(base), "starts over")
        view.delete(segment_file(base, ".index"), "starts over")
    view.write(log_file(5), b"", "starts over")
    view.write(segment_file(5, ".index"), b"", "starts over")
    kinds = [(type(step), getattr(step, "name", "")) for step in view.operations]
    assert kinds[:4] == [
        (commit.CreateEmptyFile, segment_file(5, ".index")),
        (commit.CreateEmptyFile, log_file(5)),
        (commit.SyncDirectory, ""),
        (commit.DeleteFile, log_file(20)),
    ]
    assert {kind for kind, _ in kinds[3:]} == {commit.DeleteFile}


def test_names_that_change_after_the_last_sync_are_told(view):
    assert not has_unsynced_names(view.operations)
    view.delete(segment_file(0, ".index"), "gone")
    assert has_unsynced_names(view.operations)
    view.sync("they are durable")
    assert not has_unsynced_names(view.operations)
    # A cut syncs the file, and a small file that is written the directory.
    view.truncate(log_file(0), 5, "torn")
    assert not has_unsynced_names(view.operations)
    view.write("empty", b"", "begun")
    assert has_unsynced_names(view.operations)
    view.write(LEADER_EPOCH_FILE, b"0\n0\n", "epochs")
    view.write("later", b"written last", "derived")
    assert not has_unsynced_names(view.operations)


@pytest.mark.parametrize(
    ("is_there", "last"), [(True, ".txnindex"), (False, ".index")], ids=["bad", "missing"]
)
def test_the_index_that_shows_the_need_of_recovery_is_written_last(tmp_path, is_there, last):
    (tmp_path / log_file(0)).write_bytes(b"")
    for suffix in (".index", ".timeindex", ".txnindex"):
        if is_there or suffix != ".index":
            (tmp_path / segment_file(0, suffix)).write_bytes(b"bad")
    view = DirectoryView(LocalStore(tmp_path))
    for suffix in (".txnindex", ".index", ".timeindex"):
        view.write(segment_file(0, suffix), b"good", "rebuilt")
    names = [step.name for step in view.operations]
    assert len(names) == 3
    assert names[-1] == segment_file(0, last)


def test_operations_in_the_order_of_calls_come_after_what_was_pending(view):
    view.write("b", b"", "empty")
    view.rename(log_file(0), "a", "moved")
    view.delete("a", "gone")
    assert [type(step) for step in view.operations] == [
        commit.CreateEmptyFile,
        commit.RenameFile,
        commit.DeleteFile,
    ]


def test_committing_the_operations_leads_to_what_the_view_showed(view, tmp_path):
    view.copy(log_file(0), 3, 4, "part.log", "split")
    view.write_now("part.index", b"abc", 1_000, "split")
    view.delete_now(log_file(0), "split")
    view.truncate("part.log", 2, "torn")
    view.write(segment_file(10, ".index"), b"x", "rebuilt")
    assert isinstance(view.operations[0], commit.CopyRange)
    shown = {name: read_whole(view, name) for name in view.names}
    commit.commit(
        commit.CommitPlan(location=str(tmp_path), operations=tuple(view.operations)),
        LocalStore(tmp_path),
    )
    assert read_tree(tmp_path) == shown
    assert (tmp_path / "part.index").stat().st_mtime == 1
