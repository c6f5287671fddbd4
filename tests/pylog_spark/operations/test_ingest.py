"""``pylog ingest`` and ``pylog materialize`` over whole roots: rows, refusals, reruns, requests."""

import json
import shutil
from dataclasses import replace

import pytest

from pylog_spark.engines.choice import Local
from pylog_spark.operations.ingest import ingest
from pylog_spark.operations.materialize import materialize
from pylog_spark.options import HighWatermarkSource, JobOptions
from storage_core.clock import SystemClock
from storage_core.errors import ConfigError, GuardRefusedError, LeaseHeldError, StorageError
from storage_core.filenames import TOPIC_CONFIGS_FILE, TopicPartition
from storage_core.maintenance.ingest.partition import IngestRules
from storage_core.store import ManagedStore, open_object_store
from storage_core.store.garbage import find_garbage
from storage_core.store.generations import create_root, find_root
from storage_core.store.lease import Lease, acquire_lease
from tests.kit.golden_data import Golden
from tests.storage_core.maintenance.ingest.mirrors import segment, write_files

pytestmark = pytest.mark.spark

NOW_MS = 1_800_000_000_000
PLAIN = IngestRules(settle_ms=0)
STOPPED = IngestRules(settle_ms=0, sync_has_stopped=True)
IN_PLACE = IngestRules(settle_ms=0, sync_has_stopped=True, in_place=True)
OPTIONS = JobOptions(now_ms=NOW_MS)


@pytest.fixture
def mirror(tmp_path):
    return Golden("broker-dir").unpack(tmp_path)


def statuses(report):
    rows = report.results.to_pylist()
    assert all(row["topic"] for row in rows)
    return {f"{row['topic']}-{row['partition']}": (row["status"], row["reason"]) for row in rows}


def files_of(root):
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and ".pylog-tmp" not in path.parts
    }


def partitions_of(root):
    """Every file of a partition; an epoch without records, which Kafka forgets too, left out."""
    return {
        name: content
        for name, content in files_of(root).items()
        if "/" in name
        and not name.startswith("__cluster_metadata")
        and name != "__consumer_offsets-2/leader-epoch-checkpoint"
    }


@pytest.mark.thorough
def test_a_broker_directory_goes_in_and_comes_out_as_it_was(spark, mirror, tmp_path):
    managed, out = tmp_path / "managed", tmp_path / "out"
    taken = ingest(spark, str(mirror), str(managed), OPTIONS, rules=STOPPED)
    assert taken.exit_code == 0
    found = statuses(taken)
    assert found.pop("__cluster_metadata-0") == ("skipped", "INTERNAL_METADATA")
    assert set(found.values()) == {("done", None)}
    assert sum(taken.details["taken_bytes"].to_pylist()[: len(found)]) == taken.summary.bytes_after

    written = materialize(spark, str(managed), out, OPTIONS)
    assert written.exit_code == 0
    assert partitions_of(out) == partitions_of(mirror)
    high_watermarks = (mirror / "replication-offset-checkpoint").read_text().splitlines()[2:]
    assert set((out / "replication-offset-checkpoint").read_text().splitlines()[2:]) == {
        line for line in high_watermarks if not line.endswith(" 0")
    }


@pytest.mark.thorough
def test_what_was_adopted_in_place_is_on_record_so_that_a_purge_takes_it(spark, tmp_path):
    write_files(tmp_path / "mirror", segment(0), segment(6))
    mirror, managed = tmp_path / "mirror", tmp_path / "managed"
    assert ingest(spark, str(mirror), str(managed), OPTIONS, rules=IN_PLACE).exit_code == 0
    root, partition = open_object_store(str(managed)), TopicPartition("orders", 0)
    assert find_root(root).adopted == (f"file://{mirror}",)
    store = ManagedStore(root, partition)
    store.delete("00000000000000000000.log")
    store.publish(run_id="retain", fencing_token=store.manifest.fencing_token)
    garbage = find_garbage(root, partition, grace_start_ms=SystemClock().now_ms() + 1)
    assert list(garbage.adopted) == [f"file://{mirror}/orders-0/00000000000000000000.log"]


@pytest.mark.thorough
def test_a_second_ingest_reads_manifests_and_nothing_else(spark, mirror, tmp_path):
    managed = tmp_path / "managed"
    first = ingest(spark, str(mirror), str(managed), OPTIONS, rules=PLAIN)
    assert {row["left_because"] for row in first.details.to_pylist()} <= {"OPEN", None}
    before = files_of(managed)
    second = ingest(spark, str(mirror), str(managed), OPTIONS, rules=PLAIN)
    assert "done" not in {status for status, _ in statuses(second).values()}
    assert not any(second.details["get_requests"].to_pylist())
    after = files_of(managed)
    # The configs were seen again: their time is new.
    renewed = {"lease.json", TOPIC_CONFIGS_FILE}
    assert {name: after[name] for name in before if name not in renewed} == {
        name: content for name, content in before.items() if name not in renewed
    }
    topics = [json.loads(files[TOPIC_CONFIGS_FILE])["topics"] for files in (before, after)]
    assert topics[0] == topics[1] != {}


@pytest.mark.thorough
def test_what_was_taken_counts_though_the_lease_cannot_be_given_back(
    spark, mirror, tmp_path, monkeypatch
):
    def fail(lease: Lease) -> None:
        lease._ended.set()
        raise StorageError("lease.json", "the store went away")

    monkeypatch.setattr(Lease, "release", fail)
    report = ingest(spark, str(mirror), str(tmp_path / "managed"), OPTIONS, rules=PLAIN)
    assert (report.exit_code, report.summary.failed) == (0, 0)
    assert report.summary.done


@pytest.mark.thorough
def test_a_dry_run_plans_all_of_it_and_writes_nothing(spark, mirror, tmp_path):
    managed = tmp_path / "managed"
    options = replace(OPTIONS, dry_run=True)
    report = ingest(spark, str(mirror), str(managed), options, rules=PLAIN)
    planned = [row for row in report.details.to_pylist() if row["status"] == "planned"]
    assert planned
    assert all(row["put_requests"] and row["moved_bytes"] for row in planned)
    assert not managed.exists()
    done = ingest(spark, str(mirror), str(managed), OPTIONS, rules=PLAIN)
    costs = ["topic", "partition", "taken_bytes", "put_requests", "get_requests", "moved_bytes"]
    assert [{name: row[name] for name in costs} for row in planned] == [
        {name: row[name] for name in costs}
        for row in done.details.to_pylist()
        if row["status"] == "done"
    ]


@pytest.mark.thorough
def test_a_partition_that_is_refused_does_not_stop_the_others(spark, mirror, tmp_path):
    events = mirror / "events-0"
    logs = sorted(events.glob("*.log"))
    logs[0].write_bytes(logs[0].read_bytes() + logs[1].read_bytes())
    for index in events.glob("*.index"):
        index.unlink()
    report = ingest(spark, str(mirror), str(tmp_path / "managed"), OPTIONS, rules=PLAIN)
    assert statuses(report)["events-0"] == ("skipped", "OVERLAPPING_SEGMENTS")
    assert statuses(report)["events-1"] == ("done", None)
    assert report.exit_code == 3


@pytest.mark.thorough
def test_high_watermarks_are_the_mirrors_own_or_said(spark, mirror, tmp_path):
    (mirror / "replication-offset-checkpoint").unlink()
    unknown, said = tmp_path / "unknown", tmp_path / "said"
    report = ingest(spark, str(mirror), str(unknown), OPTIONS, rules=STOPPED)
    assert {row["high_watermark"] for row in report.details.to_pylist()} == {None}
    assert any("no high watermark" in note for note in report.notes)
    options = replace(OPTIONS, high_watermark=HighWatermarkSource.LOG_END)
    report = ingest(spark, str(mirror), str(said), options, rules=STOPPED)
    rows = [row for row in report.details.to_pylist() if row["status"] == "done"]
    assert all(row["high_watermark"] == row["end_offset"] for row in rows)


def test_another_runs_lease_refuses_an_ingest_with_its_name(spark, mirror, tmp_path):
    objects = open_object_store(str(tmp_path / "managed"))
    create_root(objects, now_ms=NOW_MS)
    with acquire_lease(objects, holder="somebody"), pytest.raises(LeaseHeldError, match="somebody"):
        ingest(spark, str(mirror), str(tmp_path / "managed"), OPTIONS, rules=PLAIN)


@pytest.mark.thorough
def test_a_mirror_is_not_its_own_managed_root_unless_it_is_adopted(spark, mirror):
    with pytest.raises(ConfigError, match="--in-place"):
        ingest(spark, str(mirror), str(mirror), OPTIONS, rules=PLAIN)
    size = sum(len(content) for content in files_of(mirror).values())
    report = ingest(spark, str(mirror), str(mirror), OPTIONS, rules=IN_PLACE)
    assert {status for status, _ in statuses(report).values()} == {"done", "skipped"}
    assert sum(len(content) for content in files_of(mirror).values()) < 2 * size


def test_a_folder_with_something_else_in_it_becomes_no_managed_root(spark, mirror, tmp_path):
    (tmp_path / "managed").mkdir()
    (tmp_path / "managed" / "notes.txt").touch()
    with pytest.raises(GuardRefusedError, match=r"notes\.txt"):
        ingest(spark, str(mirror), str(tmp_path / "managed"), OPTIONS, rules=PLAIN)


@pytest.mark.thorough
def test_materialize_writes_chosen_topics_and_goes_on_where_it_was_killed(spark, mirror, tmp_path):
    managed, out = tmp_path / "managed", tmp_path / "out"
    ingest(spark, str(mirror), str(managed), OPTIONS, rules=STOPPED)
    some = replace(OPTIONS, include=("events",))
    assert set(statuses(materialize(spark, str(managed), out, some))) == {"events-0", "events-1"}
    # As a killed run leaves it: the directory is ours, a partition is half written.
    shutil.copytree(out / "events-0", tmp_path / "kept")
    everything = materialize(spark, str(managed), out, OPTIONS)
    found = statuses(everything)
    assert found["events-0"] == ("skipped", "NOTHING_TO_MATERIALIZE")
    assert found["compacted-0"] == ("done", None)
    assert partitions_of(out) == partitions_of(mirror)
    again = materialize(spark, str(managed), out, OPTIONS)
    assert {status for status, _ in statuses(again).values()} == {"skipped"}
    assert again.exit_code == 0


@pytest.mark.thorough
def test_materialize_refuses_a_directory_of_somebody_elses(spark, mirror, tmp_path):
    managed, out = tmp_path / "managed", tmp_path / "out"
    ingest(spark, str(mirror), str(managed), OPTIONS, rules=STOPPED)
    out.mkdir()
    (out / "meta.properties").touch()
    with pytest.raises(GuardRefusedError) as caught:
        materialize(spark, str(managed), out, OPTIONS)
    assert caught.value.code == "TARGET_NOT_EMPTY"
    other = tmp_path / "other"
    ingest(spark, str(mirror), str(other), OPTIONS, rules=STOPPED)
    materialize(spark, str(managed), tmp_path / "first", OPTIONS)
    with pytest.raises(GuardRefusedError, match="another managed root"):
        materialize(spark, str(other), tmp_path / "first", OPTIONS)


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["here", pytest.param("spark", marks=pytest.mark.thorough)])
def test_progress_ends_with_all_that_was_taken(request, tmp_path, engine):
    place = Local(2) if engine == "here" else request.getfixturevalue("spark")
    for number in range(20):
        write_files(tmp_path / "mirror", segment(0), segment(6), name=f"orders-{number}")
    told = []
    managed = str(tmp_path / "managed")
    report = ingest(
        place, str(tmp_path / "mirror"), managed, OPTIONS, rules=PLAIN, on_progress=told.append
    )
    taken = sum(report.details["taken_bytes"].to_pylist())
    assert report.details["taken_segments"].to_pylist() == [1] * 20
    assert (told[0].done_bytes, told[0].total_bytes) == (0, taken)
    assert told[-1].total_bytes == taken
    assert 0.9 * taken < told[-1].done_bytes <= taken  # tasks count as if they were equal
    assert ingest(place, str(tmp_path / "mirror"), managed, OPTIONS, rules=PLAIN).exit_code == 0
