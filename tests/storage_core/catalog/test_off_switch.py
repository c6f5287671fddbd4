"""A file in a directory, by which its owner keeps this program away."""

import pytest

from storage_core.catalog.off_switch import OFF_SWITCH_FILE, is_switched_off, read_off_switch
from storage_core.errors import StorageError


def test_without_the_file_nobody_said_anything(tmp_path):
    assert read_off_switch(tmp_path) is None
    assert not is_switched_off(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", ""),
        (b"moving to new disks, ask Ana\nuntil Friday", "moving to new disks, ask Ana"),
        (b"\xff\xfe\n", "\ufffd\ufffd"),
        (b"x" * 10_000, "x" * 200),
    ],
)
def test_its_first_line_says_why(tmp_path, content, why):
    (tmp_path / OFF_SWITCH_FILE).write_bytes(content)
    assert read_off_switch(tmp_path) == why
    assert is_switched_off(str(tmp_path))


def test_places_that_are_no_directories_of_this_machine_have_no_such_file(tmp_path):
    assert not is_switched_off("s3://bucket/logs/orders-0")
    assert not is_switched_off(str(tmp_path / "gone"))


def test_a_switch_that_cannot_be_read_is_no_permission(tmp_path):
    (tmp_path / OFF_SWITCH_FILE).mkdir()
    with pytest.raises(StorageError):
        read_off_switch(tmp_path)
