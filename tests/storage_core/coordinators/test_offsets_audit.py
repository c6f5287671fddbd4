"""Commits beside logs: lag, commits outside of the log, groups in the wrong partition."""

import pytest

from storage_core.coordinators.groups import GroupImage
from storage_core.coordinators.offsets_audit import (
    AuditedCommit,
    AuditSettings,
    CommitFinding,
    TierBounds,
    abs_hash,
    audit_commits,
    group_partition,
)
from storage_core.filenames import TopicPartition
from tests.storage_core.coordinators.coordinator_events import COMMITTED_MS, commit

BOUNDS = TierBounds(log_start_offset=10, log_end_offset=20, high_watermark=18)


def audit(
    *commits: object, bounds: TierBounds | None = BOUNDS, partition: int = 0, **settings: int
) -> list[AuditedCommit]:
    image = GroupImage()
    for event in commits:
        image.apply(event)  # type: ignore[arg-type]
    logs = {} if bounds is None else {TopicPartition("t", 0): bounds}
    chosen = AuditSettings(**({"now_ms": COMMITTED_MS} | settings))
    return list(audit_commits(image.groups(), image.offsets, logs, chosen, partition=partition))


@pytest.mark.item("REP-17")
@pytest.mark.parametrize(
    ("offset", "lag", "high_watermark_lag", "findings"),
    [
        pytest.param(9, 11, 9, (CommitFinding.BELOW_LOG_START,), id="below the log start"),
        pytest.param(10, 10, 8, (), id="at the log start"),
        pytest.param(19, 1, 0, (), id="behind the high watermark"),
        pytest.param(20, 0, 0, (), id="at the log end"),
        pytest.param(21, 0, 0, (CommitFinding.BEYOND_LOG_END,), id="beyond the log end"),
    ],
)
def test_a_commit_has_its_lag_and_its_place(offset, lag, high_watermark_lag, findings):
    (place,) = audit(commit(0, offset))
    assert (place.lag, place.high_watermark_lag) == (lag, high_watermark_lag)
    assert place.findings == findings


@pytest.mark.item("REP-17")
def test_without_the_log_nothing_is_said_of_the_place():
    (place,) = audit(commit(0, 99), bounds=None)
    assert (place.lag, place.high_watermark_lag, place.findings) == (None, None, ())


@pytest.mark.item("REP-17")
def test_a_partition_without_a_commit_is_told():
    first, second = audit(commit(0, 12, partition=3))
    assert (first.key.partition, first.commit, first.lag) == (0, None, None)
    assert second.commit is not None
    assert second.bounds is None


@pytest.mark.item("REP-17")
def test_a_commit_is_expired_from_its_last_moment_on():
    settings = {"retention_ms": 1_000}
    (before,) = audit(commit(0, 12), now_ms=COMMITTED_MS + 999, **settings)
    (after,) = audit(commit(0, 12), now_ms=COMMITTED_MS + 1_000, **settings)
    assert before.expires_ms == after.expires_ms == COMMITTED_MS + 1_000
    assert (before.findings, after.findings) == ((), (CommitFinding.EXPIRED,))


@pytest.mark.item("ERR-06")
def test_metadata_that_no_broker_would_take_is_a_finding():
    (fits,) = audit(commit(0, 12, metadata="abcd"), max_metadata_bytes=4)
    (too_long,) = audit(commit(0, 12, metadata="abcde"), max_metadata_bytes=4)
    assert (fits.findings, too_long.findings) == ((), (CommitFinding.METADATA_TOO_LARGE,))


@pytest.mark.item("REP-17")
def test_a_group_in_a_partition_that_is_not_its_own_is_flagged():
    own = group_partition("g", 50)
    (right,) = audit(commit(0, 12), partition=own, partition_count=50)
    (wrong,) = audit(commit(0, 12), partition=own + 1, partition_count=50)
    assert (right.findings, wrong.findings) == ((), (CommitFinding.WRONG_PARTITION,))


@pytest.mark.item("REP-17")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("ab", 3_105),
        ("hello world", 1_794_106_052),
        ("polygenelubricants", 0),  # its hash is the smallest number, which has no positive twin
    ],
)
def test_the_hash_of_a_group_is_javas(text: str, expected: int):
    assert abs_hash(text) == expected
