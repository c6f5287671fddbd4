"""Whole jobs over a managed root on S3: the bytes of a broker's directory, and what they cost."""

from collections import Counter

import pytest

from pylog_spark.operations.nightly import run_nightly
from pylog_spark.options import RunLimits
from pylog_spark.source.registration import register
from storage_core.store.generations import list_partitions
from tests.kit.compare import read_tree
from tests.kit.golden_data import Golden
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, BrokerDirectory, broker_directory
from tests.pylog_spark.managed_roots import ManagedTwin, managed_twin
from tests.pylog_spark.tasks.managed_pipeline import ManagedPipeline, clean
from tests.s3.fault_proxy import Fault, FaultKind

NAMES = ["clean-headers-none-s101", "clean-hw-none-s161"]
EXPIRING = "retain-size-s501"
LIMITS = RunLimits(max_delete_ratio=1.0)
on_moto = pytest.mark.parametrize("server", ["moto"], indirect=True)


def root_of(tmp_path, partitions: int):
    """Return a log directory with so many partitions of each kind."""
    origin = broker_directory(tmp_path / f"log-{partitions}", [])
    for number in range(partitions):
        for name in (*NAMES, EXPIRING):
            origin.add(Golden(name), topic=f"{name}-{number}")
    origin.write_files()
    return origin


def nightly(spark, twin: ManagedTwin):
    report = run_nightly(spark, [twin.location], twin.options(FIRST_ROUNDS_MS, limits=LIMITS))
    assert [row["error"] for row in report.results.to_pylist() if row["error"]] == []
    return report


@pytest.mark.thorough
@on_moto
@pytest.mark.spark
def test_a_nightly_leaves_the_same_bytes_and_the_next_one_reads_no_data(
    workers, server, bucket, tmp_path
):
    counts: dict[int, Counter] = {}
    for partitions in (1, 2):
        origin = root_of(tmp_path, partitions)
        twin = managed_twin(origin, f"{bucket}/root-{partitions}")
        nightly(workers, twin)
        if partitions == 2:
            check_bytes(workers, twin, origin)

        server.reset()
        again = nightly(workers, twin)
        assert {row["status"] for row in again.results.to_pylist()} == {"skipped"}
        counts[partitions] = server.counts()
    for count in counts.values():
        assert not [key for key in count if key[1] in {"data", "companions"}]
        assert count["PUT_IF", "manifest"] == 0
        assert count["GET", "history"] == 0
    # Beside what a run costs, each partition costs one GET.
    gets = {number: count["GET", "manifest"] for number, count in counts.items()}
    assert gets == {number: number * len((*NAMES, EXPIRING)) for number in counts}
    assert listings(counts[2]) == listings(counts[1])
    assert {count["HEAD", "root"] for count in counts.values()} <= {0, 1, 2}


def check_bytes(spark, twin: ManagedTwin, origin: BrokerDirectory) -> None:
    expected = origin.options(FIRST_ROUNDS_MS, limits=LIMITS)
    assert run_nightly(spark, [origin.path], expected).exit_code == 0
    for partition in sorted(list_partitions(twin.objects)):
        assert twin.tree(partition.topic) == read_tree(origin.path / str(partition)), partition
        assert twin.store(partition.topic).manifest.generation > 1


def listings(count: Counter) -> int:
    return sum(number for (operation, _), number in count.items() if operation == "LIST")


@pytest.mark.thorough
@on_moto
@pytest.mark.spark
def test_a_dataframe_of_a_managed_root_on_s3_is_not_disturbed_by_a_commit(
    workers, server, bucket, tmp_path
):
    register(workers)
    twin = managed_twin(root_of(tmp_path, 1), f"{bucket}/read")
    topic = f"{NAMES[0]}-0"
    reader = workers.read.format("kafka-log").option("subscribe", topic)
    frame = reader.load(twin.location)
    expected = {tuple(row) for row in frame.select("offset", "key", "value").collect()}
    pipeline = ManagedPipeline(twin, FIRST_ROUNDS_MS)
    with pipeline.held() as context:
        rows = clean(pipeline.works(), context)
    assert [row["error"] for row in rows] == [None] * len(NAMES)
    found = {tuple(row) for row in frame.select("offset", "key", "value").collect()}
    assert found == expected
    later = reader.load(f"managed+{twin.location}")
    assert later.count() < len(expected)


@pytest.mark.thorough
@on_moto
@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind=FaultKind.SLOW_DOWN, operation="PUT.*|PART", times=3),
        Fault(kind=FaultKind.INTERNAL_ERROR, operation="GET", times=3),
        Fault(kind=FaultKind.DROP_BODY, operation="GET", times=3, skip=2),
        Fault(kind=FaultKind.LOSE_ANSWER, operation="PUT_IF", key="manifest.json", times=2),
        Fault(kind=FaultKind.FAIL_AFTER, operation="PUT_IF", times=2),
        Fault(kind=FaultKind.STALE, operation="LIST", times=3),
    ],
    ids=lambda fault: fault.kind.name.lower(),
)
def test_faults_of_the_store_change_no_byte(server, bucket, tmp_path, fault):
    origin = broker_directory(tmp_path / "log", NAMES)
    plain = managed_twin(origin, tmp_path / "plain")
    twin = managed_twin(origin, f"{bucket}/faults")
    for place, faults in ((plain, []), (twin, [fault])):
        pipeline = ManagedPipeline(place, FIRST_ROUNDS_MS)
        with pipeline.held() as context:
            server.faults.extend(faults)
            rows = clean(pipeline.works(), context)
        assert [row["error"] for row in rows] == [None, None]
    assert fault.hits > 0 or fault.operation == "LIST"
    for name in NAMES:
        assert twin.tree(name) == plain.tree(name)
        assert twin.store(name).manifest.generation == 2
