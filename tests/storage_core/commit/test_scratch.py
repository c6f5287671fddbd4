"""What killed runs left in partition directories is found without a look at every file."""

from storage_core.checkpoint.broker_files import encode_clean_shutdown
from storage_core.commit import scratch
from storage_core.commit.scratch import find_claims, sweep_scratch
from storage_core.filenames import CLEAN_SHUTDOWN_FILE, SCRATCH_PREFIX
from storage_core.roots.broker import HeldBrokerRoot


def test_scratch_files_are_found_by_their_names_alone(tmp_path, monkeypatch):
    root = tmp_path / "log"
    for name in ("t-0", "t-1"):
        (root / name).mkdir(parents=True)
        for number in range(5):
            (root / name / f"{number:020d}.log").touch()
    claim = root / "t-1" / f"{SCRATCH_PREFIX}run-t-1.claim"
    left = root / "t-1" / f"{SCRATCH_PREFIX}run-b.log"
    claim.touch()
    left.touch()
    (root / "t-0" / "link").symlink_to(claim)
    scan, scanned = scratch.scan_folder, []

    def noted(folder, **more):
        scanned.append(folder)
        return scan(folder, **more)

    monkeypatch.setattr(scratch, "scan_folder", noted)
    assert find_claims(root) == [claim]
    assert sweep_scratch(root) == 2
    assert sorted(path.name for path in (root / "t-1").iterdir()) == [
        f"{number:020d}.log" for number in range(5)
    ]
    assert (root / "t-0" / "link").is_symlink()
    # The facts of files are asked of none of a partition.
    assert set(scanned) == {root}


def test_on_a_disk_without_room_a_runs_notes_lie_on_another_disk(tmp_path, monkeypatch):
    root = tmp_path / "log"
    (root / "t-0").mkdir(parents=True)
    (root / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=c\n")
    (root / CLEAN_SHUTDOWN_FILE).write_bytes(encode_clean_shutdown(7))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    homes = [elsewhere / "pylog-claims-of-log"]
    monkeypatch.setattr(scratch, "_has_room", lambda folder, _: folder == elsewhere)
    monkeypatch.setattr(scratch, "_elsewhere", lambda _: iter(homes))
    held = HeldBrokerRoot(str(root), run_id="run", mark_clean=True)
    with held:
        held.begin_writing()
        held.allow_commits([root / "t-0"])
        assert held.scratch == str(homes[0] / "run")
        # What is promoted lies where a rename can move it.
        assert scratch.scratch_folder(held.scratch, root / "t-0") == root / "t-0"
        [claim] = find_claims(root)
        assert claim.parent == homes[0] / "run"
        assert [path.parent for path in scratch.find_remembered_markers(root)] == [claim.parent]
        assert {path.name for path in root.iterdir()} <= {"t-0", "meta.properties", ".lock"}
        # Of another user, or open to all: it says nothing of this directory.
        homes[0].chmod(0o777)
        assert find_claims(root) == []
        homes[0].chmod(0o700)
    assert list(elsewhere.iterdir()) == []
    assert (root / CLEAN_SHUTDOWN_FILE).read_bytes() == encode_clean_shutdown(7)


def test_what_a_killed_run_left_on_another_disk_is_found_by_the_next_run(tmp_path, monkeypatch):
    root = tmp_path / "log"
    (root / "t-0").mkdir(parents=True)
    (root / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=c\n")
    (root / CLEAN_SHUTDOWN_FILE).write_bytes(encode_clean_shutdown(7))
    home = tmp_path / "elsewhere" / "pylog-claims-of-log"
    home.parent.mkdir()
    monkeypatch.setattr(scratch, "_has_room", lambda folder, _: folder == home.parent)
    monkeypatch.setattr(scratch, "_elsewhere", lambda _: iter([home]))
    killed = HeldBrokerRoot(str(root), run_id="killed", mark_clean=True)
    killed.__enter__()
    killed.begin_writing()
    killed._lock.release()
    assert not (root / CLEAN_SHUTDOWN_FILE).exists()
    with HeldBrokerRoot(str(root), run_id="next", mark_clean=True) as held:
        assert held.was_clean
    assert not home.exists()
    assert (root / CLEAN_SHUTDOWN_FILE).read_bytes() == encode_clean_shutdown(7)


def test_a_run_lists_each_partition_once_and_what_is_beside_them_at_its_end(tmp_path, monkeypatch):
    root = tmp_path / "log"
    for name in ("t-0", "t-1"):
        (root / name).mkdir(parents=True)
    (root / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=c\n")
    left = root / "t-1" / f"{SCRATCH_PREFIX}run-b.log"
    left.touch()
    names, listed = scratch.entry_names, []

    def noted(folder):
        listed.append(folder.name)
        return names(folder)

    monkeypatch.setattr(scratch, "entry_names", noted)
    with HeldBrokerRoot(str(root), run_id="run", mark_clean=True) as held:
        held.begin_writing()
        assert held.scratch is not None
    assert not left.exists()
    assert not (tmp_path / "pylog-scratch-log").exists()
    assert [name for name in listed if name != "run"] == ["t-0", "t-1"]
