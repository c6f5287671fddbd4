"""What killed runs left in partition directories is found without a look at every file."""

from storage_core.commit import scratch
from storage_core.commit.scratch import find_claims, sweep_scratch
from storage_core.filenames import SCRATCH_PREFIX


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
