"""What the doctor says of log directories is what a real broker then does: a sample."""

import os
import subprocess
import sys

import pytest

from tests.oracle.forecasts import cases, count_lost

pytestmark = pytest.mark.oracle

SAMPLE = (
    "two:future-alone",
    "two:topic-id-missing",
    "two:recovery-garbage",
    "two:metadata-gone",
    "two:config-refused-no-folder",
    "two:cordoned-dropped",
    "two:disk-dropped+disk-full",
    "two:log-zeros-last+owner-log-last",
    "one:metadata-half",
    "two:metadata-snapshot-torn",
    "one:metadata-unstarted-torn",
    "one:future-same-directory",
    "two:disks-merged",
    "two:epochs-above-first",
    "two:log-compressed-first+future-same-elsewhere",
)


@pytest.mark.thorough
def test_a_broker_does_what_the_doctor_says():
    """In a process of its own, as ``make forecasts`` runs all of them."""
    words = [sys.executable, "-m", "tests.oracle.forecasts", "--only", *SAMPLE]
    result = subprocess.run(words, check=False, capture_output=True, text=True)
    # A small disk is mounted only by root.
    starts = len(SAMPLE) - sum("disk-full" in case and os.geteuid() != 0 for case in SAMPLE)
    assert result.stdout.endswith(f"{starts} starts of a broker, 0 not as the doctor said\n"), (
        result.stdout + result.stderr
    )
    assert result.returncode == 0


def test_pairs_are_always_the_same_and_come_after_single_accidents():
    some = cases(10)
    assert some == cases(20)[: len(some)]
    assert all("+" not in case for case in some[:-10])
    assert all("+" in case for case in some[-10:])


@pytest.mark.parametrize(("log_start", "lost"), [(0, 2), (10, 1), (20, 2)])
def test_what_lies_below_the_log_start_is_not_lost_unless_all_of_the_log_does(log_start, lost):
    before = {(0, b"a"), (10, b"b")}
    assert count_lost(before, set(), log_start) == lost
    assert count_lost(before, before, log_start) == 0
