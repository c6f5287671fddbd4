"""What a start of Kafka makes of a damaged metadata log is what we say it goes on with."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_core.catalog.cluster_metadata import (
    CLUSTER_METADATA_DIRECTORY,
    ClusterMetadata,
    read_cluster_metadata,
)
from storage_core.errors import CorruptClusterMetadataError
from storage_core.filenames import CLEAN_SHUTDOWN_FILE
from tests.kit.golden_data import GOLDEN, unpack_archive
from tests.oracle.started_broker import Starter

pytestmark = [pytest.mark.oracle, pytest.mark.timeout(600, method="thread")]


@pytest.fixture(scope="module")
def starter() -> Iterator[Starter]:
    with Starter() as starter:
        yield starter


def unpack(name: str, into: Path) -> list[Path]:
    archive = GOLDEN / "reports-of-metadata" / f"{name}.tar.gz"
    return sorted(unpack_archive(archive, into).glob("d[0-9]"))


def state_of(metadata: ClusterMetadata) -> tuple[object, ...]:
    """Return what no start changes: topics with their ids, and all configs."""
    topics = sorted((topic.name, topic.topic_id) for topic in metadata.topics.values())
    return topics, metadata.topic_configs, metadata.broker_configs


@pytest.mark.thorough
def test_it_cuts_a_log_at_a_flipped_bit_and_goes_on_by_old_configs(
    starter: Starter, tmp_path: Path
):
    roots = unpack("meta_flip", tmp_path)
    directory = roots[0] / CLUSTER_METADATA_DIRECTORY
    with pytest.raises(CorruptClusterMetadataError):
        read_cluster_metadata(directory)
    rest = read_cluster_metadata(directory, is_recovered=True)
    assert "retention.bytes" in rest.topic_configs["audit"]
    broker = starter.start(roots)
    assert broker.is_up, broker.error
    after = read_cluster_metadata(directory)
    assert state_of(after) == state_of(rest)
    assert after.end_offset > rest.end_offset


@pytest.mark.thorough
def test_damage_below_a_snapshot_costs_all_records_behind_the_snapshot(
    starter: Starter, tmp_path: Path
):
    roots = unpack("metadata_trimmed", tmp_path)
    directory = roots[0] / CLUSTER_METADATA_DIRECTORY
    whole = read_cluster_metadata(directory)
    log = directory / f"{342:020d}.log"
    data = bytearray(log.read_bytes())
    data[-3] ^= 1
    log.write_bytes(data)
    assert state_of(read_cluster_metadata(directory)) == state_of(whole)
    rest = read_cluster_metadata(directory, is_recovered=True)
    assert rest.end_offset == 384 < whole.end_offset
    broker = starter.start(roots)
    assert broker.is_up, broker.error
    assert min(int(path.stem) for path in directory.glob("*.log")) == 384
    assert state_of(read_cluster_metadata(directory)) == state_of(rest)


@pytest.mark.thorough
def test_it_goes_on_by_all_records_in_front_of_a_preallocated_space(
    starter: Starter, tmp_path: Path
):
    roots = unpack("metadata_trimmed", tmp_path)
    directory = roots[0] / CLUSTER_METADATA_DIRECTORY
    whole = read_cluster_metadata(directory)
    log = max(directory.glob("*.log"))
    os.truncate(log, log.stat().st_size + (1 << 20))
    assert (roots[0] / CLEAN_SHUTDOWN_FILE).exists()
    padded = read_cluster_metadata(directory)
    assert (state_of(padded), padded.end_offset) == (state_of(whole), whole.end_offset)
    broker = starter.start(roots)
    assert broker.is_up, broker.error
    after = read_cluster_metadata(directory)
    assert state_of(after) == state_of(whole)
    assert after.end_offset > whole.end_offset


@pytest.mark.thorough
def test_it_does_not_start_with_two_copies(starter: Starter, tmp_path: Path):
    roots = unpack("meta_stale_d2", tmp_path)
    assert not starter.start(roots).is_up
    shutil.rmtree(roots[1] / CLUSTER_METADATA_DIRECTORY)
    broker = starter.start(roots)
    assert broker.is_up, broker.error


def test_it_does_not_start_with_an_edited_node_id(starter: Starter, tmp_path: Path):
    """The doctor: NODE_ID_WRONG."""
    (root,) = unpack("metadata_trimmed", tmp_path)
    path = root / "meta.properties"
    path.write_text(path.read_text().replace("node.id=1", "node.id=7"))
    broker = starter.start([root])
    assert not broker.is_up
    assert "node id 7" in broker.error
