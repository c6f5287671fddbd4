"""What killed runs left in partition directories is found without a look at every file."""

from storage_core.commit import scratch
from storage_core.commit.scratch import find_claims, sweep_scratch
from storage_core.filenames import SCRATCH_PREFIX
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
