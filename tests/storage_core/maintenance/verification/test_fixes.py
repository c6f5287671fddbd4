"""What a finding says to do about it helps."""

import pytest

from storage_core.config import CleanerConfig, LogConfig
from storage_core.maintenance.recovery.partition import recover_partition
from storage_core.maintenance.verification.finding_kinds import KINDS, describe_fix
from storage_core.maintenance.verification.findings import Code, Finding, Severity
from tests.storage_core.maintenance.verification.accidents import ACCIDENTS
from tests.storage_core.maintenance.verification.log_root import (
    INTERVAL_BYTES,
    NOW_MS,
    LogRoot,
    log_root,
)

REBUILT = sorted(code for code in Code if "pylog partition recover" in KINDS[code].fix)


@pytest.fixture
def root(tmp_path) -> LogRoot:
    return log_root(tmp_path / "log")


@pytest.mark.parametrize("code", REBUILT)
def test_what_can_be_rebuilt_is_whole_after_the_command(root, code):
    ACCIDENTS[code](root)
    [found, *_] = [f for f in root.findings(is_deep=True) if f.code is code]
    fix = describe_fix(
        found,
        root=str(root.path),
        directory=str(root.partition),
        topic="t",
        log_start_offset=5,
    )
    if fix.startswith("delete"):
        (root.partition / found.file).unlink()
    assert f"pylog partition recover {root.partition} --log-start-offset 5 --now-ms" in fix
    before = root.file(20).read_bytes()
    result = recover_partition(
        root.partition,
        config=LogConfig(index_interval_bytes=INTERVAL_BYTES),
        cleaner=CleanerConfig(),
        now_ms=NOW_MS,
        log_start_offset=5,
    )
    assert result.truncated_bytes == 0
    if code is not Code.TIME_INDEX_UNFINISHED:  # a log of its own
        assert root.file(20).read_bytes() == before
    assert root.findings(is_deep=True) == []


def test_names_are_quoted_as_a_shell_wants_them():
    found = Finding(code=Code.EPOCH_FILE_WRONG, severity=Severity.ERROR, message="m", file="/a b/c")
    fix = describe_fix(found, root="/a b", directory="/a b/t-0", topic="t")
    assert fix.startswith("delete '/a b/c' and run: pylog partition recover '/a b/t-0' --now-ms")


def test_every_fix_can_be_filled_in():
    for code, kind in KINDS.items():
        assert "{" not in kind.fix.format(root="R", directory="D", topic="T", file="F", start="")
        assert code in ACCIDENTS or kind.fix
