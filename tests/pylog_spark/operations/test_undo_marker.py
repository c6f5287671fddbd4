"""What an undo wrote down of a marker is believed if it can be that, and only then."""

import pytest

from pylog_spark.operations.undo import _remember_marker
from storage_core.errors import PylogError


def test_what_is_written_down_first_counts(tmp_path):
    path = tmp_path / "undo-marker-0.json"
    assert _remember_marker(path, is_clean=True)
    assert _remember_marker(path, is_clean=False)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"is_clean": "no"}', b'{"is_clean": 1}', b"[" * 4000, b" " * 9000],
)
def test_anything_else_is_an_error_and_no_yes(tmp_path, content):
    path = tmp_path / "undo-marker-0.json"
    path.write_bytes(content)
    with pytest.raises(PylogError):
        _remember_marker(path, is_clean=False)
