import os
import tempfile

import pytest

from pylog_spark.user_cache import CACHE_VARIABLE, cache_folder


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
