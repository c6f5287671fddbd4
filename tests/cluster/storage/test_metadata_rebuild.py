"""Metadata by what logs have: who is in sync, epochs, ids, registrations, refusals."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_core.catalog.metadata_image import PartitionRecord, RegisterBrokerRecord
from storage_core.catalog.release_features import find_release
from storage_core.catalog.roles import Role
from storage_core.catalog.topic_catalog import TopicCatalog
from storage_core.checkpoint.broker_files import CleanShutdown, MetaProperties
from storage_core.checkpoint.checkpoints import UNASSIGNED_DIRECTORY, Checkpoints
from storage_core.cluster.audit import audit_partition
from storage_core.cluster.metadata_rebuild import (
    RebuiltMetadata,
    RebuiltPartition,
    UnknownPart,
    find_in_sync,
    find_least_epoch,
    plan_metadata,
    register_brokers,
)
from storage_core.coordinators.transactions import find_largest_producer_id
from storage_core.errors import ConfigError
from storage_core.maintenance.verification.findings import DirectoryContext
from storage_core.maintenance.verification.observed_root import ObservedRoot
from storage_core.messages.fields import FieldWriter
from storage_core.messages.internal_records import TRANSACTION_LOG, TRANSACTION_RECORDS
from storage_core.store import LocalStore
from tests.cluster.storage.test_audit import (
    NO_HIGH_WATERMARK,
    flip_last,
    replica,
    state,
    written,
)
from tests.kit.builders import BatchSpec, RecordSpec, end_txn_marker
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.flipped_epochs import FLIPPED
from tests.storage_core.catalog import metadata_bytes as md

DIRECTORIES = {1: "ohZNig90xgRlmLmr-NUttg", 2: "", 3: "Y0x2kbxs_vG_YmsMBH-UEg"}


def in_sync(*replicas: Any, unnamed: frozenset[str] = frozenset()) -> tuple[int, ...]:
    return find_in_sync(audit_partition(replicas, state(isr=(), leader_epoch=-1)), unnamed)


def test_who_has_all_records_is_in_sync(tmp_path: Path):
    one, two = (replica(tmp_path, broker, end=9) for broker in (1, 2))
    assert in_sync(one, two, replica(tmp_path, 3, end=8)) == (1, 2)


def test_of_two_branches_the_one_of_the_latest_leader_is_in_sync(tmp_path: Path):
    """The third replica has not got so far: nothing says which of the two was committed."""
    former = replica(tmp_path, 1, (0, 0), end=9)
    latest = replica(tmp_path, 2, (0, 0), (3, 7), end=8)
    assert in_sync(former, latest, replica(tmp_path, 3, end=5)) == (2,)
    assert in_sync(former, latest) == ()


def test_no_later_leader_is_better_than_no_loss(tmp_path: Path):
    """What the later leader alone has is a marker."""
    former = replica(tmp_path, 1, (0, 0), end=9)
    data = [
        BatchSpec(records=(RecordSpec(key=b"k", value=b"%d in 0" % at),), base_offset=at)
        for at in range(7)
    ]
    marker = end_txn_marker(base_offset=7, producer_id=1, producer_epoch=0, leader_epoch=3)
    latest = written(tmp_path, 2, [*data, marker])
    assert in_sync(former, latest, replica(tmp_path, 3, end=5)) == (1,)


def test_a_flipped_epoch_is_neither_in_sync_nor_the_clusters(tmp_path: Path):
    """The replicas that have the batch as it was lead; the third one fetches it from them."""
    known = state(isr=(), leader_epoch=-1)
    epochs = (0, 0), (2, 4)
    flipped = flip_last(replica(tmp_path, 1, *epochs, end=9), FLIPPED, is_clean=False)
    short = replica(tmp_path, 3, *epochs, end=7)
    audit = audit_partition([flipped, replica(tmp_path, 2, *epochs, end=9), short], known)
    assert find_in_sync(audit, frozenset()) == (2,)
    assert find_least_epoch(audit, (2,)) == 2


def test_an_epoch_that_followers_have_to_take_is_the_least(tmp_path: Path):
    """Nobody else has that batch, and followers take none above their leader's epoch."""
    known = state(isr=(), leader_epoch=-1)
    epochs = (0, 0), (2, 4)
    flipped = flip_last(replica(tmp_path, 1, *epochs, end=9), FLIPPED, is_clean=False)
    short = replica(tmp_path, 3, *epochs, end=7)
    audit = audit_partition([flipped, short], known)
    assert audit.largest_epoch == 2
    assert find_in_sync(audit, frozenset()) == (1,)
    assert find_least_epoch(audit, (1,)) == FLIPPED
    # Whoever fetches nothing may follow in any epoch.
    alone = audit_partition([flipped], known)
    assert find_least_epoch(alone, (1,)) == 2
    # No election is left above the largest number.
    most = flip_last(replica(tmp_path / "most", 1, *epochs, end=9), 2**31 - 1, is_clean=False)
    assert find_least_epoch(audit_partition([most, short], known), (1,)) == 2


def test_an_epoch_without_a_record_puts_nobody_ahead(tmp_path: Path):
    one, two = (replica(tmp_path, broker, end=9) for broker in (1, 2))
    assert one.log is not None
    began = (*one.log.epochs, replace(one.log.epochs[-1], epoch=5, start_offset=9))
    assert in_sync(replace(one, log=replace(one.log, epochs=began)), two) == (1, 2)


def test_a_log_without_a_topic_id_counts_only_where_all_are_empty(tmp_path: Path):
    one, two = (replica(tmp_path / "full", broker, end=9) for broker in (1, 2))
    assert in_sync(one, two, unnamed=frozenset({one.place.directory})) == (2,)
    one, two = (replica(tmp_path / "empty", broker, end=0) for broker in (1, 2))
    assert in_sync(one, two, unnamed=frozenset({one.place.directory})) == (1, 2)


def test_the_largest_epochs_and_ids_of_all_copies_are_known(tmp_path: Path):
    data = BatchSpec(
        records=(RecordSpec(value=b"v"),),
        producer_id=41,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
        leader_epoch=3,
    )
    marker = end_txn_marker(
        base_offset=1, producer_id=41, producer_epoch=0, coordinator_epoch=8, leader_epoch=3
    )
    log = written(tmp_path, 1, [data, marker], NO_HIGH_WATERMARK)
    assert log.log is not None
    began = (*log.log.epochs, replace(log.log.epochs[-1], epoch=5, start_offset=2))
    log = replace(log, log=replace(log.log, epochs=began))
    for audit in (
        audit_partition([log], None),
        audit_partition([replica(tmp_path, 2, end=1)], None, beside=[log]),
    ):
        assert (audit.largest_epoch, audit.largest_producer_id) == (5, 41)
        assert audit.largest_coordinator_epoch == 8


def transaction_state(folder: Path) -> Path:
    """Write a log of the transactions' topic with one record, about producers 5 and 71."""
    writer = FieldWriter()
    writer.int16(1)
    value = TRANSACTION_RECORDS[TRANSACTION_LOG].value.blank()
    fields = value | {"producer_id": 5, "next_producer_id": 71}
    TRANSACTION_RECORDS[TRANSACTION_LOG].value.write(writer, 1, fields)
    batch = BatchSpec(records=(RecordSpec(key=b"\x00\x00\x00\x01t", value=writer.data),))
    return write_partition(
        folder / "__transaction_state-0", [SegmentSpec(base_offset=0, batches=[batch])]
    )


def test_a_producer_of_a_transactions_record_is_known_without_a_batch(tmp_path: Path):
    assert find_largest_producer_id(LocalStore(transaction_state(tmp_path))) == 71


def partition(number: int = 0, topic: str = "t", **changes: Any) -> RebuiltPartition:
    own: dict[str, Any] = {"topic_id": md.ID_A, "directories": DIRECTORIES, "isr": (1, 3)}
    return RebuiltPartition(topic=topic, partition=number, **own | changes)


def plan(
    *partitions: RebuiltPartition,
    explicit: Mapping[str, Mapping[str, str]] | None = None,
    assumed: tuple[str, ...] = (),
    release: str = "4.4",
    brokers: Sequence[RegisterBrokerRecord] = (),
) -> RebuiltMetadata:
    explicit = {"t": {}} if explicit is None else explicit
    catalog = TopicCatalog(explicit=explicit, assume_defaults=assumed)
    return plan_metadata(
        partitions, release=find_release(release), brokers=brokers, catalog=catalog, older=None
    )


def record(rebuilt: RebuiltMetadata, topic: str = "t", number: int = 0) -> PartitionRecord:
    return next(each for each in rebuilt.metadata.topics if each.name == topic).partitions[number]


def test_a_partition_has_no_leader_and_its_replicas_where_they_lie():
    own = record(plan(partition(leader_epoch=7)))
    assert (own.replicas, own.isr, own.leader, own.leader_epoch) == ((1, 2, 3), (1, 3), -1, 107)
    assert own.directories == (DIRECTORIES[1], UNASSIGNED_DIRECTORY, DIRECTORIES[3])


def test_leader_epochs_of_transactions_are_above_those_of_markers():
    name = "__transaction_state"
    rebuilt = plan(
        partition(leader_epoch=3, coordinator_epoch=8),
        partition(topic=name, topic_id=md.ID_B, leader_epoch=2),
    )
    assert (record(rebuilt).leader_epoch, record(rebuilt, name).leader_epoch) == (103, 108)


@pytest.mark.parametrize(
    ("largest", "expected"),
    [(-1, FLIPPED), (0, 1_001_000), (999, 1_001_000), (1_000, 1_002_000)],
)
def test_producer_ids_go_on_above_the_blocks_that_brokers_may_have(largest: int, expected: int):
    assert plan(partition(producer_id=largest)).metadata.next_producer_id == expected


def test_a_producer_id_that_cannot_rise_is_refused():
    with pytest.raises(ConfigError, match="ROOT=t-0: no producer ids are left above"):
        plan(partition(producer_id=2**63 - 1))


def test_a_node_without_a_replica_is_not_registered():
    """A directory without a partition may be a controller's."""
    brokers = register_brokers([root("/one", 1, None), root("/nine", 9, None)])
    registered = plan(partition(), brokers=brokers).metadata.brokers
    assert [each.broker_id for each in registered] == [1]


def test_two_topics_of_one_id_are_refused():
    """The controller keeps one of two topics: brokers would set the other's logs aside."""
    with pytest.raises(ConfigError, match=f"ROOT=u: it has the id of t, {md.ID_A}"):
        plan(partition(), partition(topic="u"), explicit={"*": {}})


def test_a_hostile_number_of_a_partition_is_a_gap():
    with pytest.raises(ConfigError, match="ROOT=t-1: no replica is here, though"):
        plan(partition(), partition(2**31 - 1))


def test_no_partition_at_all_is_refused():
    with pytest.raises(ConfigError, match="ROOT: no partition is here"):
        plan()


def test_a_setting_that_no_record_takes_is_refused():
    key = "follower.replication.throttled.replicas"
    with pytest.raises(ConfigError, match=f"ROOT=t: {key} has more than 32,767 bytes"):
        plan(partition(), explicit={"t": {key: "1:1," * 20_000}})


def test_no_first_comer_leads_a_partition_of_which_nobody_is_in_sync():
    unclean = {"unclean.leader.election.enable": "true"}
    names = {"t": unclean, "u": unclean}
    rebuilt = plan(partition(isr=()), partition(topic="u", topic_id=md.ID_B), explicit=names)
    assert rebuilt.metadata.topic_configs == {
        "t": {"unclean.leader.election.enable": "false"},
        "u": unclean,
    }
    (fact,) = (each for each in rebuilt.unknowns if each.part is UnknownPart.TOPIC_CONFIG)
    assert fact.subject == "t"
    assert fact.detail.startswith("unclean.leader.election.enable is false, whatever it was")


def test_an_epoch_that_cannot_rise_is_refused():
    with pytest.raises(ConfigError, match="ROOT=t-0: expected leader epochs below"):
        plan(partition(leader_epoch=2**31 - 101))


@pytest.mark.parametrize("assumed", [(), ("*",)])
@pytest.mark.parametrize(("replicas", "least"), [(1, None), (2, "2"), (3, "2")])
def test_an_internal_topic_has_kafkas_settings_but_no_minimum_that_it_never_reaches(
    replicas: int, least: str | None, assumed: tuple[str, ...]
):
    name = "__transaction_state"
    directories = dict(list(DIRECTORIES.items())[:replicas])
    rebuilt = plan(partition(topic=name, directories=directories), assumed=assumed)
    config = rebuilt.metadata.topic_configs[name]
    assert (config["cleanup.policy"], config.get("min.insync.replicas")) == ("compact", least)


@pytest.mark.thorough
def test_a_release_before_transactions_takes_no_more_than_one_batch():
    many = [partition(number) for number in range(10_000)]
    with pytest.raises(ConfigError, match=r"--release-version=3\.5-IV2: .* say 3.6"):
        plan(*many, release="3.5")
    assert plan(*many, release="3.6").partition_count == 10_000


def root(location: str, node: int, epoch: int | None) -> ObservedRoot:
    return ObservedRoot(
        location=location,
        context=DirectoryContext(role=Role.BROKER, is_clean=epoch is not None),
        meta_properties=MetaProperties(
            version=1, cluster_id="one", node_id=node, directory_id=DIRECTORIES[1]
        ),
        entries=(),
        checkpoints=Checkpoints(),
        marker=None if epoch is None else CleanShutdown(broker_epoch=epoch),
    )


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [((7,), 7), ((7, 7), 7), ((7, 8), -1), ((7, None), -1), ((None,), -1)],
    ids=["one", "the same", "others", "one without", "none"],
)
def test_a_marker_counts_if_all_directories_of_a_broker_name_its_epoch(epochs, expected):
    roots = [root(f"/{number}", 5, epoch) for number, epoch in enumerate(epochs)]
    (broker,) = register_brokers(roots)
    assert (broker.broker_id, broker.broker_epoch, broker.fenced) == (5, expected, True)
