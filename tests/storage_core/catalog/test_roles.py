"""Guessed and said roles."""

from pathlib import Path

import pytest

from storage_core.catalog.roles import Role, guess_role, local_path, require_role
from storage_core.errors import GuardRefusedError
from storage_core.store import open_object_store


def test_a_directory_with_a_brokers_properties_looks_like_a_brokers(tmp_path: Path):
    assert guess_role(tmp_path) is Role.MIRROR
    (tmp_path / "meta.properties").touch()
    assert guess_role(tmp_path) is Role.BROKER
    assert guess_role(str(tmp_path)) is Role.BROKER
    assert guess_role(f"file://{tmp_path}") is Role.BROKER


def test_a_directory_with_our_word_for_it_looks_managed(tmp_path: Path):
    (tmp_path / "pylog-root.json").touch()
    (tmp_path / "meta.properties").touch()
    assert guess_role(tmp_path) is Role.MANAGED


def test_a_url_is_a_mirror_unless_our_own_object_lies_there(tmp_path: Path):
    url = f"memory://roles-{tmp_path.name}"
    assert guess_role(url) is Role.MIRROR
    open_object_store(url).put("pylog-root.json", b"{}")
    assert guess_role(url) is Role.MANAGED
    assert guess_role(tmp_path / "none") is Role.MIRROR


@pytest.mark.parametrize(
    ("root", "path"),
    [
        ("/data/logs", Path("/data/logs")),
        ("data:1/logs", Path("data:1/logs")),
        ("file:///data/my%20logs", Path("/data/my logs")),
        ("s3://bucket/logs", None),
        (Path("/data"), Path("/data")),
    ],
)
def test_a_root_is_a_path_or_a_url(root: str | Path, path: Path | None):
    assert local_path(root) == path


def test_what_writes_needs_the_role_said(tmp_path: Path):
    (tmp_path / "meta.properties").touch()
    with pytest.raises(GuardRefusedError) as raised:
        require_role(None, tmp_path)
    assert raised.value.code == "ROLE_NOT_SAID"
    assert raised.value.override == "--role broker"
    assert require_role(Role.BROKER, tmp_path) is Role.BROKER
    assert require_role(Role.MANAGED, tmp_path) is Role.MANAGED


def test_nobody_is_told_to_call_a_root_a_mirror_in_order_to_write_it(tmp_path: Path):
    with pytest.raises(
        GuardRefusedError, match="looks like a mirror, which pylog only reads"
    ) as said:
        require_role(None, tmp_path)
    assert said.value.override == "--role broker or managed, if it is one"


def test_a_mirror_is_never_written(tmp_path: Path):
    with pytest.raises(GuardRefusedError) as raised:
        require_role(Role.MIRROR, tmp_path)
    assert (raised.value.code, raised.value.override) == ("ROLE_IS_READ_ONLY", None)
