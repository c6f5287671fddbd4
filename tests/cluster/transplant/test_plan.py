"""What stays where it is, and why; the other partitions go."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from storage_core.catalog.cluster_metadata import CLUSTER_METADATA_DIRECTORY
from storage_core.checkpoint.checkpoints import (
    UNASSIGNED_DIRECTORY,
    PartitionMetadata,
    encode_partition_metadata,
)
from storage_core.cluster.transplant import plan as plan_module
from storage_core.cluster.transplant.plan import TargetRoom, TransplantReason
from storage_core.cluster.transplant.source import find_places, read_commits
from storage_core.coordinators.transactions import TransactionCoordinators
from storage_core.errors import ConfigError
from storage_core.filenames import (
    CLEAN_SHUTDOWN_FILE,
    PARTITION_METADATA_FILE,
    TopicPartition,
    log_file,
)
from storage_core.formats.batch_v2 import LEADER_EPOCH_AT
from tests.cluster.transplant.clusters import NO_TRANSACTIONS, PlannedLog, Target, coordinators_of
from tests.kit.builders import BatchSpec, RecordSpec, in_a_row, some_batches
from tests.kit.directories import SegmentSpec
from tests.kit.legacy import LegacyMessage
from tests.kit.source_disk import (
    BATCHES,
    END,
    NOW_MS,
    OPEN_PRODUCER,
    ORDERS,
    write_source,
    write_states,
)
from tests.storage_core.catalog import metadata_bytes as md

R = TransplantReason
PLAIN = [SegmentSpec(base_offset=0, batches=some_batches(count=4))]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    write_source(root)
    return root


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(folder=tmp_path / "target")


def reasons(plans: list[PlannedLog]) -> dict[str, TransplantReason | None]:
    return {str(each.assignment.source): each.reason for each in plans}


def test_what_is_about_its_own_cluster_stays_and_the_others_go(source: Path, target: Target):
    for name in ("__consumer_offsets-0", "__transaction_state-0", "_schemas-0", "bills-0"):
        write_source(source, PLAIN, name=name)
    assert reasons(target.plan(source)) == {
        "orders-0": None,
        "__consumer_offsets-0": R.INTERNAL_TOPIC,
        "__transaction_state-0": R.INTERNAL_TOPIC,
        "_schemas-0": R.SCHEMA_TOPIC,
        "bills-0": R.TARGET_TOPIC_MISSING,
    }
    (bills,) = [each for each in target.plan(source) if each.assignment.source.topic == "bills"]
    assert "create it with at least 1 partition" in bills.detail


def test_another_number_of_partitions_is_refused(source: Path, target: Target):
    assert reasons(target.plan(source, counts={"orders": 1})) == {"orders-0": None}
    assert reasons(target.plan(source, counts={"orders": 2})) == {
        "orders-0": R.PARTITION_COUNT_DIFFERS
    }
    write_source(source, PLAIN, name="orders-1")
    assert set(reasons(target.plan(source)).values()) == {R.PARTITION_COUNT_DIFFERS}


def test_a_topic_may_have_another_name_in_the_target(tmp_path: Path, target: Target):
    root = tmp_path / "old"
    write_source(root, PLAIN, name="old-0")
    (plan,) = target.plan(root, names={"old": "orders"})
    assert (plan.reason, plan.assignment.target.partition) == (None, TopicPartition("orders", 0))
    write_source(root, PLAIN, name="orders-0")
    with pytest.raises(ConfigError, match="new name of several"):
        target.plan(root, names={"old": "orders"})


def test_every_replica_has_to_be_within_reach(source: Path, target: Target):
    directories = target.directories()
    (plan,) = target.plan(source, directories=directories[:1])
    assert plan.reason is R.REPLICA_NOT_GIVEN
    assert f"node 2: give log directory {md.DIRECTORY}" in plan.detail


def test_an_unassigned_replica_goes_anywhere_once_all_directories_are_there(
    source: Path, tmp_path: Path
):
    other = "Pwfy5rl5Qw6jBT2A6nuzCA"
    registration = md.register_broker(1, {0: md.array([md.uuid(md.DIRECTORY), md.uuid(other)])})
    unassigned = md.partition_change(0, md.ID_A, {8: md.array([md.uuid(UNASSIGNED_DIRECTORY)])})
    values = [registration, md.topic("orders"), md.partition(0), unassigned]
    target = Target(folder=tmp_path / "target", values=values)
    one, two = target.directories()
    (plan,) = target.plan(source, directories=[one])
    assert plan.reason is R.REPLICA_NOT_GIVEN
    both = [one, replace(two, node_id=1, directory_id=other)]
    (plan,) = target.plan(source, directories=both)
    assert plan.homes == (one.path,)
    (two.path / "orders-0").mkdir()
    (plan,) = target.plan(source, directories=both)
    assert plan.homes == (two.path,)


def test_a_replica_goes_where_its_broker_has_its_log(source: Path, tmp_path: Path):
    """A broker that finds it in two directories does not start."""
    target = Target(folder=tmp_path / "target", replicas=(1,))
    one, two = target.directories()
    both = [one, replace(two, node_id=1, directory_id=md.ID_B)]
    (plan,) = target.plan(source, directories=both)
    assert plan.homes == (one.path,)
    (two.path / "orders-0").mkdir()
    (plan,) = target.plan(source, directories=both)
    assert plan.homes == (two.path,)


def test_a_directory_of_another_topic_id_or_with_records_is_refused(source: Path, target: Target):
    there = target.disks[1] / "orders-0"
    there.mkdir()
    write_topic_id(there, md.ID_B)
    assert reasons(target.plan(source)) == {"orders-0": R.TARGET_ID_DIFFERS}
    (there / PARTITION_METADATA_FILE).unlink()
    assert reasons(target.plan(source)) == {"orders-0": None}
    (there / log_file(7)).touch()
    assert reasons(target.plan(source)) == {"orders-0": R.TARGET_HAS_RECORDS}


def test_a_directory_with_the_topic_id_of_the_source_is_not_the_targets(
    source: Path, target: Target
):
    """A copy of the source, which the target's broker would not take for its topic."""
    there = target.disks[1] / "orders-0"
    there.mkdir()
    for directory in (source / "orders-0", there):
        write_topic_id(directory, md.ID_B)
    assert reasons(target.plan(source)) == {"orders-0": R.TARGET_ID_DIFFERS}


def test_damage_of_a_closed_log_is_found_before_anything_is_written(source: Path, target: Target):
    log = source / "orders-0" / log_file(0)
    content = bytearray(log.read_bytes())
    content[-1] ^= 1
    log.write_bytes(content)
    (plan,) = target.plan(source)
    assert plan.reason is R.SOURCE_DAMAGED
    assert log.name in plan.detail


def test_the_longest_of_several_logs_goes_unless_one_cannot_be_read(
    source: Path, tmp_path: Path, target: Target
):
    shorter = tmp_path / "shorter"
    directory = write_source(shorter, [SegmentSpec(base_offset=0, batches=BATCHES[:2])])
    (plan,) = target.plan(shorter, source)
    assert plan.location == str(source / "orders-0")
    assert plan.detail.startswith(f"the longest of 2 logs: {plan.location}; ")
    (directory / log_file(0)).rename(directory / "x.log.swap")
    (plan,) = target.plan(shorter, source)
    assert plan.reason is R.SOURCE_DAMAGED
    assert str(directory) in plan.detail


@pytest.mark.parametrize("flipped", [0, 4, 7], ids=["the first", "in between", "the newest"])
def test_a_flipped_epoch_makes_no_log_the_longest(tmp_path: Path, target: Target, flipped: int):
    """A batch's leader epoch lies outside of its checksum."""
    batches = [replace(batch, leader_epoch=3) for batch in some_batches(count=20, records=7)]
    longer, shorter = tmp_path / "longer", tmp_path / "shorter"
    for root, count in ((longer, 20), (shorter, 8)):
        write_source(root, [SegmentSpec(base_offset=0, batches=batches[:count])], is_clean=False)
    log = shorter / "orders-0" / log_file(0)
    content = bytearray(log.read_bytes())
    position = 0
    for _ in range(flipped):
        position += 12 + int.from_bytes(content[position + 8 : position + 12])
    at = position + LEADER_EPOCH_AT
    content[at : at + 4] = (1_000_000).to_bytes(4)
    log.write_bytes(content)
    for roots in ((longer, shorter), (shorter, longer)):
        (plan,) = target.plan(*roots)
        assert (plan.reason, plan.location) == (None, str(longer / "orders-0"))


@pytest.mark.parametrize("kept", [8, 20])
def test_records_behind_damage_are_not_left_for_a_shorter_log(
    tmp_path: Path, target: Target, kept: int
):
    """Alone the damaged log is refused; beside a shorter one, it is the longer one still."""
    batches = some_batches(count=20, records=7)
    damaged, other = tmp_path / "damaged", tmp_path / "other"
    for root, count in ((damaged, 20), (other, kept)):
        segments = [SegmentSpec(base_offset=0, batches=batches[:count])]
        write_source(root, segments, is_clean=False)
    log = damaged / "orders-0" / log_file(0)
    content = bytearray(log.read_bytes())
    content[len(content) // 3] ^= 1
    log.write_bytes(content)
    (alone,) = target.plan(damaged)
    assert alone.reason is R.SOURCE_DAMAGED
    assert f"pylog heal {damaged} --donor DIR" in alone.detail
    for roots in ((damaged, other), (other, damaged)):
        (plan,) = target.plan(*roots)
        if kept == len(batches):
            # The other log has all of it.
            assert (plan.reason, plan.location) == (None, str(other / "orders-0"))
            continue
        assert plan.reason is R.SOURCE_DAMAGED
        assert "up to offset 139" in plan.detail
        assert f"pylog heal {damaged} --donor {other}" in plan.detail


def plan_of(source: Path, target: Target, coordinators: TransactionCoordinators) -> PlannedLog:
    plans = target.plan(source, coordinators=coordinators, topics=frozenset({"orders"}))
    (plan,) = plans
    return plan


ONGOING = {"transaction_status": 1, "producer_epoch": 2}


def test_a_transaction_ends_as_its_coordinator_has_decided(source: Path, target: Target):
    write_states(source, ONGOING, {})
    plan = plan_of(source, target, coordinators_of(source))
    assert (plan.reason, plan.committed_transactions, plan.committed_records) == (None, 1, 1)
    assert (plan.aborted_transactions, plan.undecided_transactions) == (0, 0)
    assert plan.detail == (
        "1 open transaction of 1 record is committed, as its coordinator had decided"
    )
    for states in ([{}, {**ONGOING, "transaction_status": 3}], [ONGOING]):
        write_states(source, *states)
        plan = plan_of(source, target, coordinators_of(source))
        assert (plan.reason, plan.aborted_transactions, plan.aborted_records) == (None, 1, 1)
        assert plan.committed_transactions == 0
        assert plan.detail.endswith("is aborted: no commit was decided")


def test_what_no_given_coordinator_decides_is_aborted_with_consent_alone(
    source: Path, target: Target
):
    write_states(source, {}, number=1)
    others = {
        "how many it has is not known": coordinators_of(source, count=None),
        "1 of 2 partitions of __transaction_state are not given (0)": coordinators_of(
            source, count=2
        ),
    }
    for reason, own in others.items():
        assert plan_of(source, target, own).committed_records == 1, "its own partition is there"
        absent = replace(own, entries={})
        plan = plan_of(source, target, absent)
        assert (plan.reason, plan.undecided_records) == (R.TRANSACTION_UNDECIDED, 1)
        assert plan.detail.startswith("1 open transaction of 1 record is committed perhaps: ")
        assert reason in plan.detail
        (consent,) = target.plan(
            source, coordinators=absent, topics=frozenset({"orders"}), aborts_undecided=True
        )
        assert (consent.reason, consent.aborted_records, consent.undecided_records) == (None, 1, 1)
        assert f"aborted, committed or not: {absent.absent}" in consent.detail
    # All of them are here, and none has it.
    shutil.rmtree(source / "__transaction_state-1")
    write_states(source, {"producer_id": 99})
    plan = plan_of(source, target, coordinators_of(source))
    assert (plan.reason, plan.aborted_records, plan.undecided_records) == (None, 1, 0)


def test_a_coordinators_log_that_is_not_whole_decides_nothing(source: Path, tmp_path: Path):
    """The record that decides is the one behind the damage, perhaps."""
    directory = write_states(source, ONGOING, ONGOING, {})
    whole = directory / log_file(0)
    content = whole.read_bytes()
    assert coordinators_of(source).absent == ""
    other = tmp_path / "other"
    write_states(other, ONGOING)
    write_source(other, PLAIN, name="bills-0", is_clean=False)
    for roots in ((source, other), (other, source)):
        coordinators = coordinators_of(*roots)
        outcome = coordinators.decide(ORDERS, OPEN_PRODUCER, 2).outcome
        assert (outcome, coordinators.absent) == ("commit", ""), "the longer log counts"
    (source / CLEAN_SHUTDOWN_FILE).unlink()
    damaged = bytearray(content)
    damaged[len(content) // 2] ^= 1
    whole.write_bytes(damaged)
    for roots in ((source,), (source, other)):
        coordinators = coordinators_of(*roots)
        assert coordinators.entries == {}
        assert "a start would cut 1 readable record behind damage" in coordinators.absent
    whole.write_bytes(content[:-4])  # what was never written whole was never answered
    coordinators = coordinators_of(source)
    assert coordinators.absent == ""
    assert coordinators.decide(ORDERS, OPEN_PRODUCER, 2).outcome == "abort"


def test_a_record_of_a_later_version_decides_nothing(source: Path):
    write_states(source, {}, {"transaction_status": 9})
    coordinators = coordinators_of(source)
    assert coordinators.entries == {}
    assert "a record of it is not understood" in coordinators.absent


def write_topic_id(directory: Path, topic_id: str) -> None:
    content = encode_partition_metadata(PartitionMetadata(topic_id=topic_id))
    (directory / PARTITION_METADATA_FILE).write_bytes(content)


def test_logs_of_several_topics_of_one_name_are_not_mixed(
    source: Path, tmp_path: Path, target: Target
):
    """Of two logs the shorter one would be lost, and nobody would know of it."""
    other = tmp_path / "other"
    for name in ("orders-0", "__consumer_offsets-0"):
        write_source(source, PLAIN, name=name)
        write_source(other, PLAIN, name=name)
        write_topic_id(source / name, md.ID_A)
    write_source(source)
    plans = target.plan(source, other)
    assert reasons(plans)["orders-0"] is None  # without an id nothing contradicts
    write_topic_id(other / "orders-0", md.ID_B)
    write_topic_id(other / "__consumer_offsets-0", md.ID_B)
    places = [*find_places(source), *find_places(other)]
    plans = target.plan(source, other)
    assert reasons(plans)["orders-0"] is R.SOURCE_TOPICS_DIFFER
    (other / "orders-0").rename(other / "orders-1")
    plans = target.plan(source, other)
    assert {reasons(plans)[f"orders-{number}"] for number in (0, 1)} == {R.SOURCE_TOPICS_DIFFER}
    errors = read_commits(places, NO_TRANSACTIONS, now_ms=NOW_MS).errors
    assert list(errors) == [str(other / "__consumer_offsets-0")]


def test_old_formats_and_batches_beyond_the_limit_are_refused(tmp_path: Path):
    values = [
        *(md.topic("orders"), md.partition(0, replicas=(1, 2))),
        md.config("orders", "max.message.bytes", "200"),
    ]
    target = Target(folder=tmp_path / "target", values=values)
    large = BatchSpec(records=(RecordSpec(value=b"v" * 300),))
    root = tmp_path / "large"
    write_source(root, [SegmentSpec(base_offset=0, batches=[large])])
    (plan,) = target.plan(root)
    assert plan.reason is R.BATCH_TOO_LARGE
    assert "max.message.bytes is 200" in plan.detail
    old = tmp_path / "old"
    legacy = LegacyMessage(value=b"v")
    write_source(old, [SegmentSpec(base_offset=0, batches=[legacy])])
    assert reasons(target.plan(old)) == {"orders-0": R.LEGACY_FORMAT}


def test_producers_go_on_only_under_ids_that_the_target_gives_to_nobody(
    source: Path, tmp_path: Path, target: Target
):
    assert reasons(target.plan(source, keeps_producers=True)) == {"orders-0": None}
    values = [md.topic("orders"), md.partition(0, replicas=(1, 2))]
    fresh = Target(folder=tmp_path / "fresh", values=values)
    metadata = replace(fresh.metadata, next_producer_id=0)
    (plan,) = fresh.plan(source, keeps_producers=True, metadata=metadata)
    assert plan.reason is R.PRODUCER_ID_TAKEN
    assert reasons(fresh.plan(source, metadata=metadata)) == {"orders-0": None}


def test_what_does_not_fit_stays_and_what_fits_goes(tmp_path: Path, target: Target, monkeypatch):
    root = tmp_path / "several"
    values = [
        *(md.topic(topic, topic_id) for topic, topic_id in (("a", md.ID_A), ("b", md.ID_B))),
        *(md.partition(0, topic_id, replicas=(1, 2)) for topic_id in (md.ID_A, md.ID_B)),
    ]
    target = Target(folder=tmp_path / "small", values=values)
    for name, count in (("a-0", 40), ("b-0", 4)):
        batches = some_batches(count=count)
        write_source(root, [SegmentSpec(base_offset=0, batches=batches)], name=name)
    size_bytes = (root / "b-0" / log_file(0)).stat().st_size

    class Usage:
        free = 2 * size_bytes

    monkeypatch.setattr(plan_module.shutil, "disk_usage", lambda _: Usage)
    plans = target.plan(root)

    def refusals() -> list[str]:
        room = TargetRoom()
        return [room.take(plan.homes, plan.size_bytes) for plan in plans]

    assert refusals()[1] == ""
    assert f"{target.disks[1]} has {2 * size_bytes} bytes" in refusals()[0]
    Usage.free -= 1
    assert all(refusals())
    needed = 2 * (root / "a-0" / log_file(0)).stat().st_size
    Usage.free = needed + size_bytes
    assert list(map(bool, refusals())) == [False, True]


def test_a_stray_directory_is_a_source_as_others_are(source: Path, target: Target):
    stray = source / f"orders-0.{'0' * 32}-stray"
    (source / "orders-0").rename(stray)
    (plan,) = target.plan(source)
    assert (plan.reason, plan.location) == (None, str(stray))
    # No checkpoint is about it any more.
    assert plan.log_start_offset == 0
    assert [place.is_clean for place in find_places(source)] == [False]
    write_source(source, [SegmentSpec(base_offset=0)])
    (plan,) = target.plan(source)
    assert plan.location == str(stray)
    assert [place.location for place in find_places(source, only_strays=True)] == [str(stray)]


def test_the_target_gets_ids_of_the_next_producer_from_its_metadata(target: Target):
    assert target.metadata.next_producer_id == 1000
    assert (target.folder / CLUSTER_METADATA_DIRECTORY).is_dir()


def test_committed_offsets_are_read_from_the_longest_log(tmp_path: Path):
    key = b"\0\1" + b"\0\5group" + b"\0\6orders" + bytes(4)
    roots = []
    for broker, offsets in enumerate([(7, 9), (7,)]):
        batches = [
            BatchSpec(
                records=(RecordSpec(key=key, value=b"\0\3" + commit(offset)),), base_offset=number
            )
            for number, offset in enumerate(offsets)
        ]
        roots.append(tmp_path / str(broker))
        segments = [SegmentSpec(base_offset=0, batches=batches)]
        write_source(roots[-1], segments, name="__consumer_offsets-0")
        (roots[-1] / "log-start-offset-checkpoint").unlink()
    places = [place for root in roots for place in find_places(root)]
    commits = read_commits(places, NO_TRANSACTIONS, now_ms=NOW_MS)
    assert {key.group: offset for key, offset in commits.offsets.items()} == {"group": 9}
    assert commits.errors == {}
    (roots[1] / "__consumer_offsets-0" / "x.log.swap").touch()
    errors = read_commits(places, NO_TRANSACTIONS, now_ms=NOW_MS).errors
    assert list(errors) == [str(roots[1] / "__consumer_offsets-0")]


def test_offsets_in_a_transaction_count_once_its_commit_is_decided(tmp_path: Path):
    key = b"\0\1" + b"\0\5group" + b"\0\6orders" + bytes(4)
    root = tmp_path / "source"
    batches = [
        BatchSpec(records=(RecordSpec(key=key, value=b"\0\3" + commit(7)),)),
        BatchSpec(
            records=(RecordSpec(key=key, value=b"\0\3" + commit(9)),),
            producer_id=OPEN_PRODUCER,
            producer_epoch=2,
            base_sequence=0,
            is_transactional=True,
        ),
    ]
    segments = [SegmentSpec(base_offset=0, batches=in_a_row(batches))]
    write_source(root, segments, name="__consumer_offsets-0", is_clean=False)
    (root / "log-start-offset-checkpoint").unlink()
    there = {"transaction_partitions": [{"topic": "__consumer_offsets", "partition_ids": [0]}]}

    def read(coordinators: TransactionCoordinators) -> tuple[list[int], int]:
        commits = read_commits(find_places(root), coordinators, now_ms=NOW_MS)
        assert commits.errors == {}
        return list(commits.offsets.values()), len(commits.undecided)

    write_states(root, there)
    assert read(coordinators_of(root)) == ([9], 0)
    write_states(root, {**there, **ONGOING})
    assert read(coordinators_of(root)) == ([7], 0)
    assert read(TransactionCoordinators(absent="none is given")) == ([7], 1)
    assert read(NO_TRANSACTIONS) == ([7], 0)


def commit(offset: int) -> bytes:
    return offset.to_bytes(8) + (-1).to_bytes(4, signed=True) + bytes(2) + bytes(8)


def test_the_end_of_a_source_is_where_the_targets_next_record_goes(source: Path, target: Target):
    (plan,) = target.plan(source)
    assert plan.log_end_offset == END + 1
