"""`make bench`: each report, kept, and what must hold on any machine."""

import re
from pathlib import Path

import pytest

from tests.bench import (
    bench_append,
    bench_arrow,
    bench_audit,
    bench_audit_many,
    bench_commits,
    bench_compaction,
    bench_cores,
    bench_count,
    bench_dump,
    bench_export,
    bench_growth,
    bench_incremental,
    bench_json,
    bench_ledger,
    bench_many,
    bench_memory,
    bench_nightly,
    bench_protobuf,
    bench_real_size,
    bench_recover,
    bench_single_records,
    bench_tier,
    bench_tiny,
    bench_values,
    bench_verify,
)
from tests.bench.figures import DOCS, PAGE, Figure, keep
from tests.bench.shared import show

# Less than what is measured on a quiet machine: others may be at work on this one.
LEAST_RATIOS = {bench_commits.DISK: 0.8, bench_commits.SLOW_DISK: 2, bench_commits.OBJECTS: 10}
# A straight line has 1; what a machine does otherwise meanwhile moves it a little.
MOST_TIME_SLOPE = 1.2
# Spark's default heap, and what a JVM takes beside it.
MOST_JVM_BYTES = 1600 * bench_real_size.MIB


@pytest.mark.bench
@pytest.mark.oracle
@pytest.mark.timeout(900)
def test_append_takes_hundreds_of_megabytes_of_columns_a_second() -> None:
    report = show(bench_append.measure())
    keep("append", report.figures())
    assert report.rate("ours, columns into 1 MB batches") > 200


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_protobuf_becomes_columns_several_times_as_fast_as_by_the_library() -> None:
    figure = show(bench_protobuf.measure())
    keep("protobuf", [figure])
    assert figure.ratio(bench_protobuf.LIBRARY) > 5


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_json_becomes_columns_several_times_as_fast_as_in_a_loop() -> None:
    figures = show(bench_json.measure())
    keep("json", figures)
    for each in figures:
        assert each.ratio(bench_json.LOOP) > 3
        assert each.ratio(bench_json.ARROW) > 0.4


@pytest.mark.bench
@pytest.mark.oracle
@pytest.mark.timeout(900)
# kafka-python reads its own schemas that way.
@pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning")
def test_arrow_is_made_of_records_faster_than_a_client_decodes_them() -> None:
    figure = show(bench_arrow.measure())
    keep("arrow", [figure])
    assert figure.ratio(bench_arrow.AIOKAFKA) > 1.5
    assert figure.ratio(bench_arrow.KAFKA_PYTHON) > 15


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_tier_gives_records_nearly_as_fast_as_the_disk() -> None:
    plain, chunks = show(bench_tier.measure())
    keep("tier", [plain, chunks])
    assert plain.ratio(bench_tier.DISK) > 0.7
    assert chunks.ratio(bench_tier.DECODING) > 0.7


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_audit_names_three_differences_of_a_gigabyte_at_the_speed_of_checksums(tmp_path: Path):
    roots = bench_audit.write_replicas(tmp_path, 10**9)
    report = bench_audit.compare(roots)
    found = {
        (row["kind"], row["first_offset"], row["last_offset"]) for row in report.rows.to_pylist()
    }
    for kind, batch in bench_audit.DIFFERENCES.items():
        first = batch * bench_audit.RECORDS
        assert (kind, first, first + bench_audit.RECORDS - 1) in found
    read, crossed = report.total("read_bytes"), report.total("crossed_bytes")
    assert 0 < 1000 * crossed <= read
    print(f"\n{read:,} bytes read, {crossed:,} bytes crossed")  # noqa: T201 - what bench is for
    figure = show(bench_audit.beside_verify(roots[0] / "t-0", rounds=8))
    keep("audit", [figure])
    assert figure.ratio(bench_audit.MD5) > 3
    assert figure.ratio(bench_audit.VERIFY) > 0.7


@pytest.mark.bench
@pytest.mark.timeout(7200)
def test_audit_many_compares_offsets_in_less_than_two_inspections_and_memory_stays_flat() -> None:
    rows = show(bench_audit_many.measure())
    keep("audit_many", rows, table="audits")
    (offsets,) = (row for row in rows if row.way == bench_audit_many.OFFSETS)
    assert offsets.ratio < 2
    few, some, many = (cost.processor_seconds for cost in offsets.costs)
    first, second, third = offsets.partitions
    assert (many - some) / (third - second) < 1.5 * (some - few) / (second - first)
    assert offsets.costs[-1].memory_bytes < 2 * offsets.costs[0].memory_bytes


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_commits_are_faster_together() -> None:
    disk, timings = show(bench_commits.measure_disk()), show(bench_commits.measure())
    keep("commits", [disk, *timings], table="commits")
    for timing in timings:
        assert timing.ratio > LEAST_RATIOS[timing.place]


@pytest.mark.bench
@pytest.mark.oracle
@pytest.mark.timeout(1800)
def test_compaction_is_faster_than_kafkas_when_both_are_warm() -> None:
    figures: list[Figure] = []
    for codec in bench_compaction.TARGETS:
        report = show(bench_compaction.measure(codec=codec))
        figures += report.figures()
        ours, kafka = bench_compaction.OURS, bench_compaction.KAFKA_CLEAN
        assert report.median(ours) < report.median(kafka)
    keep("compaction", figures)


@pytest.mark.bench
@pytest.mark.oracle
@pytest.mark.timeout(1800)
def test_cores_one_partition_takes_less_time_with_two():
    segment = show(bench_cores.measure_cleaning(bench_cores.ONE_GIB, rounds=5))
    partition = show(bench_cores.measure_cleaning(bench_cores.TWO_GB, rounds=5, has_kafka=True))
    read = show(bench_cores.measure_reading(bench_cores.ONE_GIB, rounds=21))
    keep(
        "cores",
        [
            segment.beside_one_thread("compaction of one segment of 1 GiB, all processors"),
            partition.beside_kafka("compaction of 2 GB in one partition, all processors"),
            *(
                cores.beside_one_thread(f"{cores.work} of one segment of 1 GiB, all processors")
                for cores in read
            ),
        ],
    )
    for cores in (segment, *read):
        one, several = ([turn.wall_secs for turn in some] for some in cores.turns.values())
        assert min(several) < min(one)


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_count_adds_little_more_than_the_reading_to_what_spark_takes_itself() -> None:
    counted = show(bench_count.measure())
    # Rows that nobody reads take Spark 2.3 to 3.4 times the reading: the JVM goes on compiling.
    assert counted.ratio() - counted.ratio("spark-premade") < 1.6
    assert counted.ratio("spark-offsets") < 3


@pytest.mark.bench
@pytest.mark.oracle
@pytest.mark.timeout(900)
def test_dump_is_faster_than_kafkas_tool() -> None:
    figures = show(bench_dump.measure())
    keep("dump", figures)
    assert all(figure.ratio(bench_dump.KAFKA) > 1 for figure in figures)


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_export_can_make_parquet_of_two_million_records_a_second() -> None:
    rounds = show(bench_export.measure(spark=True))
    # Whoever else uses the machine takes wall time, and hardly any of this.
    cpu_seconds = min(
        each.cpu_seconds for each in rounds if each.name.endswith("export, uncompressed")
    )
    assert 2 * bench_export.RECORDS / cpu_seconds > 2_000_000


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_growth_twice_the_work_takes_twice_as_long_and_hardly_more_memory() -> None:
    growths = show(bench_growth.measure())
    bench_growth.keep_growth(growths)
    assert all(growth.time_slope < MOST_TIME_SLOPE for growth in growths)


@pytest.mark.bench
@pytest.mark.oracle
@pytest.mark.timeout(1800)
def test_incremental_rounds_are_faster_with_key_sidecars_than_without() -> None:
    figures: list[Figure] = []
    for codec in ("none", "zstd"):
        for keys in ("hot", "any"):
            figures += show(bench_incremental.measure(keys=keys, codec=codec)).figures()
            without, with_sidecars = figures[-2:]
            assert without.ratio("Kafka") > 1
            assert keys == "any" or with_sidecars.rate > without.rate
    keep("incremental", figures)


@pytest.mark.bench
@pytest.mark.timeout(1800)
def test_ledger_makes_a_small_run_hardly_longer() -> None:
    costs = show(bench_ledger.measure())
    keep("ledger", costs, table="costs")
    assert all(cost.more <= bench_ledger.TARGET_SECONDS for cost in costs)


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_many_partitions_with_nothing_due_cost_less_than_a_millisecond_each() -> None:
    rows = show(bench_many.measure())
    keep("many", rows, table="many")
    first, last = rows[0].nights[0], rows[0].nights[-1]
    more = last.processor_seconds - first.processor_seconds
    assert more < 0.001 * (last.partitions - first.partitions)


@pytest.mark.bench
@pytest.mark.timeout(1800)
def test_looks_at_partitions_that_were_closed_take_a_few_times_of_find() -> None:
    rows = show(bench_many.measure_looks())
    keep("looks", rows, table="looks")
    most = {"inspect": 4, "doctor": 8}
    assert all(row.ratios()[-1][1] < most[row.what] for row in rows)


@pytest.mark.bench
@pytest.mark.oracle
@pytest.mark.timeout(3600)
def test_memory_of_each_command_stays_below_a_gigabyte() -> None:
    peaks = show(bench_memory.measure())
    keep("memory", peaks, table="memory")
    assert all(0 < max(peak.ours) < 1 << 30 for peak in peaks)


@pytest.mark.bench
@pytest.mark.oracle
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "size", [{}, {"gigabytes": 2, "partitions": 1, "rounds": 5}], ids=["8 GB", "one partition"]
)
def test_nightly_with_a_warm_session_takes_less_time_than_kafkas_cleaner(size) -> None:
    rows = show(bench_nightly.measure(**size))
    bench_nightly.keep_nights(rows, **size)
    assert rows[-1].ratio("Kafka") > 1


@pytest.mark.bench
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", list(bench_real_size.CASES))
def test_real_size_nights_with_every_default_end_well_within_sparks_default_heap(name: str) -> None:
    case = bench_real_size.CASES[name]
    report = show(bench_real_size.work_a_night(case))
    assert (report.status, report.statuses) == (0, {"done": case.topic.partitions}), report.errors
    assert 0 < report.seen.jvm_bytes <= MOST_JVM_BYTES


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_real_size_night_by_spark_connect_takes_at_most_twice_as_long() -> None:
    case = bench_real_size.CASES["tiny"]
    reports = [show(bench_real_size.work_a_night(case, remote)) for remote in ("", "local[*]")]
    for report in reports:
        assert (report.status, report.statuses) == (0, {"done": case.topic.partitions})
    classic, connect = reports
    assert connect.seconds <= 2 * classic.seconds


@pytest.mark.bench
@pytest.mark.oracle
@pytest.mark.timeout(1800)
def test_recover_after_a_crash_is_not_slower_than_kafkas_loader() -> None:
    report = show(bench_recover.measure())
    keep("recover", [report.figure()])
    for cores in (1, 2):
        assert report.ratio((cores, False), "load") > 1


@pytest.mark.bench
@pytest.mark.oracle
@pytest.mark.timeout(3600)
# kafka-python reads its own schemas that way.
@pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning")
def test_single_records_in_batches_are_no_slower_than_for_kafka() -> None:
    figures = show(bench_single_records.measure())
    keep("single_records", figures)
    assert all(figure.ratio(bench_single_records.KAFKA) > 1 for figure in figures if figure.targets)


@pytest.mark.bench
@pytest.mark.oracle
@pytest.mark.timeout(3600)
def test_tiny_partitions_are_cleaned_by_the_program_and_kafka_alike() -> None:
    figures = show(bench_tiny.measure())
    keep("tiny", figures)
    assert figures[0].ratio(bench_tiny.KAFKA) > 0.5


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_values_become_columns_ten_times_as_fast_as_in_a_loop() -> None:
    figure = show(bench_values.measure())
    keep("values", [figure])
    assert figure.ratio(bench_values.FASTAVRO) > 10
    assert figure.ratio(bench_values.POLARS) > 0.5


@pytest.mark.bench
@pytest.mark.oracle
@pytest.mark.timeout(900)
def test_verify_checks_checksums_faster_than_a_disk_reads() -> None:
    *rates, figure = show(bench_verify.measure())
    assert rates[0].bytes_per_second > 1e9
    keep("verify", [figure])
    assert figure.ratio(bench_verify.PACKAGE) > 0.25


@pytest.mark.thorough
def test_commits_of_two_partitions_are_measured_in_every_place() -> None:
    timings = list(bench_commits.measure(partitions=2))
    assert [(timing.place, timing.work) for timing in timings] == [
        (place, work) for place in LEAST_RATIOS for work in ("swept", "cleaned")
    ]
    assert [bool(timing.requests) for timing in timings] == [False] * 4 + [True] * 2


@pytest.mark.thorough
def test_looks_at_few_partitions_are_measured_beside_find() -> None:
    rows = list(bench_many.measure_looks(partitions=(2, 20), segments=2, rounds=1))
    assert [row.what for row in rows] == list(bench_many.LOOKS)
    assert all(each.processor_seconds > 0 for row in rows for each in row.looks)


def test_a_row_says_how_many_times_of_find_a_look_takes() -> None:
    look, start, find = (
        bench_many.Spent(seconds=seconds, processor_seconds=2 * seconds) for seconds in (3, 1, 0.5)
    )
    row = bench_many.Looks(
        what="inspect", segments=6, partitions=(1000,), looks=[look], starts=[start], finds=[find]
    )
    assert row.line() == (
        "| inspect, 6 segments each | 1,000 | 3.0 | 6.00 | 2.00 | 1.00 | 6.0 (4.0) |"
    )


def test_a_row_says_what_a_partition_adds_and_what_inspections_take() -> None:
    costs = [
        bench_audit_many.Cost(
            seconds=10 + n, processor_seconds=5 + n / 100, memory_bytes=(300 + n) << 20
        )
        for n in (0, 1000)
    ]
    inspected = [bench_audit_many.Cost(seconds=1, processor_seconds=10, memory_bytes=1 << 20)] * 2
    row = bench_audit_many.Costs(
        way=bench_audit_many.OFFSETS, partitions=(1000, 2000), costs=costs, inspected=inspected
    )
    assert row.line() == (
        "| differences | 1,000, 2,000 | 10.0, 1010.0 | 5.0, 15.0 | 10.00 ms "
        "| 1.5 times inspect, three times | 300, 1300 |"
    )


def test_a_row_says_what_a_ledger_adds_in_the_same_rounds() -> None:
    without = (10.0, 12.0, 11.0)
    new, none = (
        bench_ledger.Cost(what=what, seconds=seconds, processor_seconds=(1, 2, 3), without=without)
        for what, seconds in (
            (bench_ledger.NEW, (11.0, 12.5, 13.0)),
            (bench_ledger.NONE, without),
        )
    )
    assert new.line() == (
        "| run of a small directory, a new ledger | 12.5 | 2.0 | +1.0 | 2 s more |"
    )
    assert "+" not in none.line()


def test_a_row_says_what_a_partition_and_a_file_add() -> None:
    nights = [
        bench_many.Night(
            partitions=n,
            files=100 * n,
            seconds=10 + n / 100,
            processor_seconds=20 + n / 50,
            memory_bytes=n << 20,
            jvm_bytes=n << 19,
            driver_bytes=n << 18,
            worker_bytes=n << 17,
        )
        for n in (100, 1100)
    ]
    assert bench_many.Many(what="all", segments=33, nights=nights).line() == (
        "| all, 33 segments each | 100, 1,100 | 11.0, 21.0 | 22.0, 42.0 "
        "| 10.00 ms, 20.00 ms | 100.0 us, 200.0 us | 100, 1100 |"
    )


def test_partitions_hold_about_what_was_asked_for_in_four_closed_segments() -> None:
    size = bench_nightly.Size(gigabytes=8, partitions=200)
    log_bytes = size.topic.records * 118
    assert 0.99 * 40e6 < log_bytes <= 40e6
    assert 4 < log_bytes / size.topic.segment_bytes < 4.2
    assert size.warm_up.topic.records == size.topic.records


def test_cases_of_real_size_are_as_large_as_they_say() -> None:
    mib = bench_real_size.MIB
    sizes = {name: case.topic.records * 118 for name, case in bench_real_size.CASES.items()}
    assert [sizes[name] // mib for name in ("segment", "hundred", "gigabytes")] == [1126, 109, 8294]


def test_the_page_names_each_bench_as_its_test_is_named() -> None:
    (line,) = (each for each in (DOCS / PAGE).read_text().splitlines() if "-k compaction" in each)
    names = [f"test_{each}_" for each in re.findall(r"`(\w+)`", line)]
    tests = [name for name in globals() if name.startswith("test_")]
    assert len(names) > 15
    assert [name for name in names if not any(test.startswith(name) for test in tests)] == []
