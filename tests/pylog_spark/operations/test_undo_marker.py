"""What an undo wrote down of a marker is believed if it can be that, and only then."""

from pathlib import Path

import pytest

from pylog_spark.operations.broker_root import BrokerRoot
from pylog_spark.operations.undo import _remember_marker
from storage_core.errors import PylogError
from storage_core.filenames import CLEAN_SHUTDOWN_FILE, LOCK_FILE, REPLICATION_FILE

MARKER = b'{"version":0,"brokerEpoch":11}'


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / CLEAN_SHUTDOWN_FILE).write_bytes(MARKER)
    (folder / REPLICATION_FILE).write_bytes(b"0\n0\n")
    return folder


def remember(log: Path) -> bool:
    with BrokerRoot(str(log), run_id="undo", mark_clean=True) as held:
        return _remember_marker(log.parent / "undo-marker-0.json", held)


def test_what_is_written_down_first_counts(log):
    assert remember(log)
    (log / CLEAN_SHUTDOWN_FILE).unlink()
    assert remember(log)


@pytest.mark.item("DIR-03")
def test_after_a_broker_that_crashed_it_does_not_count_any_more(log):
    assert remember(log)
    (log / CLEAN_SHUTDOWN_FILE).unlink()
    (log / LOCK_FILE).touch()
    assert remember(log), "the lock file alone may be that of an undo that was killed"
    (log / LOCK_FILE).touch()
    (log / "new").write_bytes(b"0\n0\n")
    (log / "new").replace(log / REPLICATION_FILE)
    assert not remember(log)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"is_clean": "no"}', b'{"is_clean": 1}', b"[" * 4000, b" " * 9000],
)
def test_anything_else_is_an_error_and_no_yes(log, content):
    (log.parent / "undo-marker-0.json").write_bytes(content)
    (log / CLEAN_SHUTDOWN_FILE).unlink()
    with pytest.raises(PylogError):
        remember(log)
