"""What a finding says to do about it helps."""

import re

import pytest

from storage_core.catalog.roles import Role
from storage_core.config import CleanerConfig, LogConfig
from storage_core.filenames import CLUSTER_METADATA_TOPIC
from storage_core.maintenance.verification.finding_kinds import KINDS, command_of, describe_fix
from storage_core.maintenance.verification.findings import Code, Finding, Severity
from tests.kit.one_partition import recover_partition
from tests.storage_core.maintenance.verification import log_root
from tests.storage_core.maintenance.verification.accidents import ACCIDENTS

REBUILT = sorted(code for code in Code if "pylog partition recover" in KINDS[code].command)


@pytest.fixture
def root(tmp_path) -> log_root.LogRoot:
    return log_root.log_root(tmp_path / "log")


@pytest.mark.parametrize("code", REBUILT)
def test_what_can_be_rebuilt_is_whole_after_the_command(root, code):
    ACCIDENTS[code](root)
    [found, *_] = [f for f in root.findings(is_deep=True) if f.code is code]
    fix = describe_fix(
        found,
        root=str(root.path),
        directory=str(root.partition),
        topic="t",
        role=Role.BROKER,
        log_start_offset=5,
    )
    if "rm -f " in fix:
        (root.partition / found.file).unlink()
    assert f"pylog partition recover {root.partition} --log-start-offset 5 --no-truncate" in fix
    before = root.file(20).read_bytes()
    result = recover_partition(
        root.partition,
        config=LogConfig(index_interval_bytes=log_root.INTERVAL_BYTES),
        cleaner=CleanerConfig(),
        now_ms=log_root.NOW_MS,
        log_start_offset=5,
    )
    assert result.truncated_bytes == 0
    if code is not Code.TIME_INDEX_UNFINISHED:  # a log of its own
        assert root.file(20).read_bytes() == before
    assert root.findings(is_deep=True) == []


def test_names_are_quoted_as_a_shell_wants_them():
    found = Finding(code=Code.EPOCH_FILE_WRONG, severity=Severity.ERROR, message="m", file="/a b/c")
    fix = describe_fix(found, root="/a b", directory="/a b/t-0", topic="t", role=Role.BROKER)
    assert fix.startswith("rebuild it: rm -f '/a b/c' && pylog partition recover '/a b/t-0' --")
    cut = Finding(code=Code.BATCH_CRC_WRONG, severity=Severity.ERROR, message="m", file="/a b/c")
    fix = describe_fix(cut, root="/a b/", directory="/a b/t-0", topic="t", role=Role.BROKER)
    assert fix.endswith(
        "pylog recover '/a b/' --role broker --salvage '/a b-salvage' --topics t --from-start "
        "--allow-truncate"
    )


@pytest.mark.parametrize("code", sorted(ACCIDENTS))
def test_every_fix_can_be_filled_in_and_says_nothing_twice(code):
    found = Finding(code=code, severity=Severity.ERROR, message="m", file="/r/t-0/f")
    fix = describe_fix(found, root="/r", directory="/r/t-0", topic="t", role=Role.BROKER)
    assert "{" not in fix
    assert command_of(code, fix) == (fix[fix.index(": ") + 2 :] if KINDS[code].command else None)
    looks = r"inspect|verify|doctor|metadata adopt .*--dry-run"
    assert not re.search(rf"pylog (?!{looks})", KINDS[code].fix)


@pytest.mark.parametrize("code", sorted(code for code in Code if KINDS[code].command))
def test_nothing_of_ours_is_prescribed_for_the_metadata_log(code):
    found = Finding(code=code, severity=Severity.ERROR, message="m", file="f")
    directory = f"/r/{CLUSTER_METADATA_TOPIC}-0"
    fix = describe_fix(
        found, root="/r", directory=directory, topic=CLUSTER_METADATA_TOPIC, role=Role.BROKER
    )
    assert "pylog" not in fix
    assert command_of(code, fix) is None


@pytest.mark.parametrize(
    ("root", "role"), [("s3://bucket/logs", Role.MIRROR), ("/managed", Role.MANAGED)]
)
def test_what_is_no_local_log_directory_is_mended_in_a_copy(root, role):
    found = Finding(code=Code.TIME_INDEX_WRONG, severity=Severity.ERROR, message="m", file="f")
    fix = describe_fix(found, root=root, directory=f"{root}/t-0", topic="t", role=role)
    assert "pylog materialize" in fix
    assert command_of(Code.TIME_INDEX_WRONG, fix) is None


def test_an_index_beyond_a_torn_tail_is_settled_with_the_tail():
    found = Finding(code=Code.INDEX_BEYOND_LOG, severity=Severity.WARN, message="m", file="f")
    fix = describe_fix(found, root="/r", directory="/r/t-0", topic="t", role=Role.BROKER)
    assert fix.startswith(
        "nothing, if the broker recovers at its start; otherwise: pylog recover /r "
    )
