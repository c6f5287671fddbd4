"""What a task reads of a partition for metadata that are made anew."""

from pathlib import Path

from pylog_spark.cluster.metadata_rebuild_task import read_partitions
from storage_core.catalog.log_directories import DirectoryKind
from storage_core.cluster.places import PartitionPlaces, ReplicaPlace
from tests.cluster.storage.test_metadata_rebuild import transaction_state


def places(folder: Path, problem: str = "") -> PartitionPlaces:
    directory = transaction_state(folder)
    place = ReplicaPlace(
        broker=1,
        root=str(folder),
        directory=str(directory),
        kind=DirectoryKind.PARTITION,
        is_clean=True,
        problem=problem,
    )
    return PartitionPlaces(
        topic="__transaction_state",
        partition=0,
        topic_id=None,
        state=None,
        replicas=(place,),
        beside=(),
        unseen=(),
    )


def test_producers_of_transactions_count_though_no_batch_is_theirs(tmp_path: Path):
    (facts,) = read_partitions([(0, places(tmp_path))], now_ms=0, unnamed=frozenset())
    assert (facts.failure.error, facts.producer_id, facts.isr) == (None, 71, (1,))


def test_a_replica_that_cannot_be_opened_is_told_with_its_broker(tmp_path: Path):
    (facts,) = read_partitions([(0, places(tmp_path, "gone"))], now_ms=0, unnamed=frozenset())
    assert (facts.detail, facts.isr, facts.leader_epoch) == ("broker 1: gone", (), -1)
    assert facts.has_records  # perhaps: nobody takes it for an empty one
