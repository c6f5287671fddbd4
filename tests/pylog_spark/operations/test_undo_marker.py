"""What an undo wrote down of a marker is believed if it can be that, and only then."""

from pathlib import Path

import pytest

from storage_core.errors import PylogError
from storage_core.filenames import CLEAN_SHUTDOWN_FILE, LOCK_FILE
from storage_core.roots.broker import HeldBrokerRoot
from storage_core.roots.broker_undo import remember_marker

MARKER = b'{"version":0,"brokerEpoch":11}'


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path / "log"
    for name in ("undone-0", "other-0"):
        (folder / name).mkdir(parents=True)
        (folder / name / "00000000000000000000.log").write_bytes(b"records")
    (folder / CLEAN_SHUTDOWN_FILE).write_bytes(MARKER)
    return folder


def remember(log: Path) -> bool:
    with HeldBrokerRoot(str(log), run_id="undo", mark_clean=True) as held:
        path = log.parent / "undo-marker-0.json"
        return remember_marker(path, held, verified={"undone-0"})


def test_what_is_written_down_first_counts(log):
    assert remember(log)
    (log / CLEAN_SHUTDOWN_FILE).unlink()
    # The undo itself changes what it undoes, and has looked at every file of it.
    (log / "undone-0" / "00000000000000000000.log").write_bytes(b"former records")
    assert remember(log)


@pytest.mark.thorough
@pytest.mark.item("DIR-03")
def test_after_a_broker_that_was_killed_it_does_not_count_any_more(log):
    assert remember(log)
    (log / CLEAN_SHUTDOWN_FILE).unlink()
    (log / LOCK_FILE).touch()
    assert remember(log), "the lock file alone may be that of an undo that was killed"
    (log / "other-0" / "00000000000000000000.index").write_bytes(bytes(64))
    assert not remember(log)


@pytest.mark.item("DIR-03")
def test_what_a_former_version_wrote_down_is_no_proof(log):
    (log.parent / "undo-marker-0.json").write_bytes(b'{"is_clean": true, "high_watermarks": "1"}')
    (log / CLEAN_SHUTDOWN_FILE).unlink()
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
