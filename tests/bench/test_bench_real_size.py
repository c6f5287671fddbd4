"""`make bench`: nights over partitions as large as Kafka makes them, with every default."""

import pytest

from tests.bench.bench_real_size import CASES, MIB, measure

# Spark's default heap, and what a JVM takes beside it.
MOST_JVM_BYTES = 1600 * MIB


@pytest.mark.bench
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", list(CASES))
def test_a_night_with_every_default_ends_well_within_sparks_default_heap(name: str) -> None:
    case = CASES[name]
    report = measure(case)
    print("", *report.lines(), sep="\n")  # noqa: T201 - the report is what bench is for
    assert (report.status, report.statuses) == (0, {"done": case.topic.partitions}), report.errors
    assert 0 < report.seen.jvm_bytes <= MOST_JVM_BYTES


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_a_night_by_spark_connect_takes_at_most_twice_as_long() -> None:
    case = CASES["tiny"]
    reports = [measure(case), measure(case, remote="local[*]")]
    for report in reports:
        print("", *report.lines(), sep="\n")  # noqa: T201 - the report is what bench is for
        assert (report.status, report.statuses) == (0, {"done": case.topic.partitions})
    classic, connect = reports
    assert connect.seconds <= 2 * classic.seconds


def test_cases_are_as_large_as_they_say() -> None:
    sizes = {name: case.topic.records * 118 for name, case in CASES.items()}
    assert [sizes[name] // MIB for name in ("segment", "hundred", "gigabytes")] == [1126, 109, 8294]
