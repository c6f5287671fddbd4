"""Directories of several brokers, matched with partitions."""

import pytest

from storage_core.catalog.log_directories import DirectoryKind, SubDirectory
from storage_core.catalog.roles import Role
from storage_core.checkpoint.broker_files import MetaProperties
from storage_core.checkpoint.checkpoints import Checkpoints
from storage_core.cluster.places import (
    PartitionRegistration,
    find_places,
    parse_states,
)
from storage_core.errors import ConfigError
from storage_core.filenames import TopicPartition
from storage_core.maintenance.verification.findings import DirectoryContext
from storage_core.maintenance.verification.observed_root import ObservedRoot

T = TopicPartition("t", 0)


def root(location: str, broker: int, *entries: tuple[str, str | None, DirectoryKind]):
    return ObservedRoot(
        location=location,
        context=DirectoryContext(role=Role.BROKER, is_clean=True),
        meta_properties=MetaProperties(
            version=1, node_id=broker, cluster_id="c", directory_id=None
        ),
        entries=tuple(
            SubDirectory(path=f"{location}/{name}", kind=kind, topic_partition=T, topic_id=topic_id)
            for name, topic_id, kind in entries
        ),
        checkpoints=Checkpoints(),
    )


def state(topic_id: str, *replicas: int) -> PartitionRegistration:
    return PartitionRegistration(
        topic="t", partition=0, topic_id=topic_id, replicas=replicas, isr=()
    )


@pytest.mark.item("REP-01")
def test_a_topic_that_was_made_again_is_another_partition():
    roots = [
        root("/b1", 1, ("t-0", "old", DirectoryKind.PARTITION)),
        root("/b2", 2, ("t-0", "new", DirectoryKind.PARTITION)),
    ]
    new, old = find_places(roots, [state("new", 1, 2)])
    assert (new.topic_id, [place.broker for place in new.replicas]) == ("new", [2, 1])
    assert [place.is_missing for place in new.replicas] == [False, True]
    assert (old.topic_id, [place.broker for place in old.replicas]) == ("old", [1])
    assert old.state is None


@pytest.mark.item("REP-01")
def test_several_directories_of_a_broker_count_as_one_and_copies_stand_beside():
    roots = [
        root("/b1/d1", 1, ("t-0", "id", DirectoryKind.PARTITION)),
        root("/b1/d2", 1, ("t-0.x-future", "id", DirectoryKind.FUTURE)),
        root("/b2", 2, ("t-0", None, DirectoryKind.PARTITION)),
    ]
    (places,) = find_places(roots, [state("id", 1, 2, 3)])
    assert [place.directory for place in places.replicas] == ["/b1/d1/t-0", "/b2/t-0"]
    assert [place.directory for place in places.beside] == ["/b1/d2/t-0.x-future"]
    # Nobody gave a directory of broker 3: whether it has anything is not known.
    assert places.unseen == (3,)


@pytest.mark.parametrize(
    "row",
    [
        '{"topic": "t"}',
        '{"topic": 1, "partition": 0, "topic_id": "i", "replicas": [], "isr": []}',
        '{"topic": "t", "partition": true, "topic_id": "i", "replicas": [], "isr": []}',
        '{"topic": "t", "partition": 0, "topic_id": "i", "replicas": "12", "isr": []}',
        '{"topic": "t", "partition": 0, "topic_id": "i", "replicas": [1.5], "isr": []}',
        "[]",
    ],
)
def test_a_state_that_is_none_is_refused(row: str):
    with pytest.raises(ConfigError, match="states"):
        parse_states(f'{{"partitions": [{row}]}}'.encode(), "states")
