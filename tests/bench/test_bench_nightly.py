"""`make bench`: a night over 8 GB, with all that a user waits for, beside Kafka's cleaner."""

import pytest

from tests.bench.bench_nightly import Size, figures, measure
from tests.bench.figures import keep


@pytest.mark.bench
@pytest.mark.oracle
@pytest.mark.timeout(3600)
def test_a_night_with_a_warm_session_takes_less_time_than_kafkas_cleaner() -> None:
    size = Size()
    rows = figures(size, list(measure(size, rounds=3)))
    for row in rows:
        print(row.line(), flush=True)  # noqa: T201 - what bench is for
    keep(size.kept_as, rows)
    assert rows[-1].ratio("Kafka") > 1


@pytest.mark.bench
@pytest.mark.oracle
@pytest.mark.timeout(1800)
def test_one_partition_of_2_gb_takes_a_warm_session_less_time_than_kafkas_cleaner() -> None:
    size = Size(gigabytes=2, partitions=1)
    rows = figures(size, list(measure(size, rounds=5)))
    for row in rows:
        print(row.line(), flush=True)  # noqa: T201 - what bench is for
    keep(size.kept_as, rows)
    assert rows[-1].ratio("Kafka") > 1


def test_partitions_hold_about_what_was_asked_for_in_four_closed_segments() -> None:
    size = Size(gigabytes=8, partitions=200)
    log_bytes = size.topic.records * 118
    assert 0.99 * 40e6 < log_bytes <= 40e6
    assert 4 < log_bytes / size.topic.segment_bytes < 4.2
    assert size.warm_up.topic.records == size.topic.records
