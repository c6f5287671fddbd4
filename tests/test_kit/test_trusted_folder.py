"""Where `make run` goes when the checkout lies where nothing is changed."""

import pytest

from tests.kit import trusted_folder as module
from tests.kit.trusted_folder import trusted_folder


@pytest.fixture
def kinds(monkeypatch, tmp_path) -> dict[str, str]:
    """Filesystems by the first folder of a path below the test's own; others are ext4."""
    found: dict[str, str] = {}
    monkeypatch.setattr(
        module,
        "find_filesystem",
        lambda path: found.get(path.relative_to(tmp_path).parts[0], "ext4"),
    )
    monkeypatch.setenv("PYLOG_CACHE", str(tmp_path / "cache"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path / "temporary"))
    return found


def test_a_checkout_on_a_disk_is_taken(kinds, tmp_path, capsys):
    assert not kinds
    assert trusted_folder(tmp_path / "checkout" / "build") == tmp_path / "checkout" / "build"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("shared", ["virtiofs", "9p", "fuse.sshfs"])
def test_a_shared_checkout_is_left_for_the_cache_and_said(kinds, tmp_path, capsys, shared):
    kinds["checkout"] = shared
    wanted = tmp_path / "checkout" / "build"
    folder = trusted_folder(wanted)
    assert folder == tmp_path / "cache" / "run"
    said = capsys.readouterr().err
    assert f"{wanted} lies on {shared}" in said
    assert f"takes {folder}" in said


def test_a_shared_home_is_left_for_the_temporary_folder(kinds, tmp_path):
    kinds |= {"checkout": "virtiofs", "cache": "virtiofs"}
    folder = trusted_folder(tmp_path / "checkout")
    assert folder.parent == tmp_path / "temporary"


def test_without_a_disk_the_way_out_is_said(kinds, tmp_path):
    kinds |= {"checkout": "virtiofs", "cache": "nfs4", "temporary": "exfat"}
    with pytest.raises(SystemExit, match="set TMPDIR"):
        trusted_folder(tmp_path / "checkout")
