import os
import tempfile

import pytest

from pylog_spark.java import CACHE_VARIABLE, cache_folder


@pytest.fixture(autouse=True)
def nothing_said(tmp_path, monkeypatch):
    for name in (CACHE_VARIABLE, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()


def test_the_variable_wins(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "said"))
    assert cache_folder("jars") == tmp_path / "said" / "jars"


def test_the_folder_is_the_users_alone(tmp_path):
    folder = cache_folder("jars")
    assert folder == tmp_path / "home" / ".cache" / "pylog" / "jars"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_home_that_cannot_hold_it_is_passed_over(tmp_path):
    (tmp_path / "home").write_text("a file")
    assert cache_folder("jars") == tmp_path / "temporary" / f"pylog-{os.getuid()}" / "jars"


def test_a_folder_that_others_can_write_to_is_passed_over(tmp_path):
    shared = tmp_path / "home" / ".cache" / "pylog"
    shared.mkdir(parents=True)
    shared.chmod(0o777)
    assert cache_folder("jars").is_relative_to(tmp_path / "temporary")


def test_it_raises_where_nothing_can_be_used(tmp_path, monkeypatch):
    (tmp_path / "said").write_text("a file")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "said"))
    with pytest.raises(OSError, match="said"):
        cache_folder("jars")


def test_a_folder_that_others_can_replace_is_refused_by_name(tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    (shared / "ours").mkdir(parents=True)
    (shared / "ours").chmod(0o700)
    for way in (shared / "ours" / "cache", tmp_path / "link" / "cache"):
        monkeypatch.setenv(CACHE_VARIABLE, str(way))
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(shared / "ours")
        shared.chmod(0o777)
        with pytest.raises(PermissionError, match=f"{shared}: belongs to somebody else, or others"):
            cache_folder("jars")
        # With the sticky bit only its owner renames a folder, as in /tmp.
        shared.chmod(0o1777)
        assert cache_folder("jars") == way / "jars"
        shared.chmod(0o755)
        assert cache_folder("jars") == way / "jars"


def test_a_home_that_others_can_replace_is_passed_over(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home").chmod(0o777)
    assert cache_folder("jars").is_relative_to(tmp_path / "temporary")


def test_a_folder_below_one_of_somebody_elses_is_refused(tmp_path, monkeypatch):
    if os.getuid():
        pytest.skip("only root can give a folder away")
    (tmp_path / "theirs" / "ours").mkdir(parents=True)
    os.chown(tmp_path / "theirs", 12345, 12345)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "theirs" / "ours"))
    with pytest.raises(PermissionError, match="theirs: belongs to somebody else"):
        cache_folder("jars")
