"""Bootstrap snapshots beside those of ``kafka-storage format``, and the features of releases."""

from pathlib import Path

import pytest

from storage_core.catalog.bootstrap_snapshot import (
    BOOTSTRAP_SNAPSHOT,
    BootstrapMetadata,
    encode_snapshot,
)
from storage_core.catalog.cluster_metadata import (
    CLUSTER_METADATA_DIRECTORY,
    MetadataFile,
    Voter,
)
from storage_core.catalog.release_features import METADATA_LEVELS, Release, find_release
from storage_core.messages.internal_records import encode_metadata_record
from tests.oracle.broker import CONTROLLER_LISTENER, Broker, Place
from tests.oracle.jvm import java, kafka_failures

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]

COMMON = "org.apache.kafka.server.common."
VOTER = "3Db5QLSqSZieL3rJBUUegA"


def release_of(version: str) -> Release:
    release = find_release(version)
    kafkas = java(COMMON + "MetadataVersion").fromVersionString(version, False)
    assert release.version == str(kafkas.version())
    return release


def test_releases_and_their_features_are_kafkas():
    versions = java(COMMON + "MetadataVersion")
    features = java(COMMON + "Feature").PRODUCTION_FEATURES
    latest = int(versions.latestProduction().featureLevel())
    assert [int(each.featureLevel()) for each in versions.VERSIONS if each.isProduction()] == [
        *METADATA_LEVELS
    ]
    for each in versions.VERSIONS:
        if int(each.featureLevel()) > latest:
            continue
        release = release_of(str(each.version()))
        release_of(str(each.shortVersion()))
        levels = {
            str(feature.featureName()): int(feature.defaultLevel(each)) for feature in features
        }
        del levels["kraft.version"]  # with the voters, in no record of a feature
        expected = {name: level for name, level in levels.items() if level}
        assert release.feature_levels == {
            "metadata.version": int(each.featureLevel()),
            **expected,
        }
        assert release.partition_record_version == int(each.partitionRecordVersion())
        assert release.broker_record_version == int(each.registerBrokerRecordVersion())
        assert release.has_transactions == bool(each.isMetadataTransactionSupported())


@pytest.mark.parametrize("initial", ["", f"1@localhost:9093:{VOTER}"], ids=["fixed", "in the log"])
def test_a_snapshot_is_what_a_format_writes(tmp_path: Path, initial: str):
    place = Place(
        node_id=1,
        port=9092,
        controller_port=9093,
        voters="1@localhost:9093",
        initial_controllers=initial,
    )
    Broker(tmp_path, scratch=tmp_path, place=place).format()
    file = tmp_path / CLUSTER_METADATA_DIRECTORY / BOOTSTRAP_SNAPSHOT
    voters = [
        Voter(
            node_id=1,
            directory_id=VOTER,
            endpoints=(f"{CONTROLLER_LISTENER}://localhost:9093",),
        )
    ]
    levels = find_release("4.4").feature_levels
    values = [
        encode_metadata_record(12, 0, {"name": name, "feature_level": level})
        for name, level in levels.items()
    ]
    own = tmp_path / "ours.checkpoint"
    pieces = encode_snapshot(values, voters=voters if initial else (), timestamp_ms=1)
    own.write_bytes(b"".join(pieces))

    def parts(path: Path) -> list[tuple[object, ...]]:
        batches = [*MetadataFile(path, may_be_torn=False).batches()]
        controls = [[(at, key, value[:2]) for at, key, value in b.controls] for b in batches]
        return [
            (b.base_offset, b.last_offset, b.control_type, b.values, c)
            for b, c in zip(batches, controls, strict=True)
        ]

    assert parts(own) == parts(file)
    with kafka_failures():
        bootstrap = java("org.apache.kafka.metadata.bootstrap.BootstrapMetadata")
        path = java("java.nio.file.Paths").get(str(tmp_path))
        read = bootstrap.fromCheckpointFile(path.resolve(own.name)).records()
        assert read.equals(bootstrap.fromCheckpointFile(path.resolve(str(file))).records())


def test_configs_of_groups_and_client_metrics_are_those_that_kafka_reads(tmp_path: Path):
    metadata = BootstrapMetadata(
        release=find_release("4.4"),
        topics=(),
        topic_configs={},
        broker_configs={},
        group_configs={"billing": {"share.auto.offset.reset": "earliest"}},
        client_metrics_configs={"all": {"interval.ms": "1000"}},
        brokers=(),
        next_producer_id=0,
    )
    own = tmp_path / "ours.checkpoint"
    own.write_bytes(b"".join(encode_snapshot([*metadata.values()], voters=(), timestamp_ms=1)))
    with kafka_failures():
        bootstrap = java("org.apache.kafka.metadata.bootstrap.BootstrapMetadata")
        path = java("java.nio.file.Paths").get(str(own))
        records = bootstrap.fromCheckpointFile(path).records()
        types = java("org.apache.kafka.common.config.ConfigResource").Type
        configs = {
            str(types.forId(record.message().resourceType())): (
                str(record.message().resourceName()),
                str(record.message().name()),
                str(record.message().value()),
            )
            for record in records
            if record.message().apiKey() == 4  # ConfigRecord
        }
    assert configs == {
        "GROUP": ("billing", "share.auto.offset.reset", "earliest"),
        "CLIENT_METRICS": ("all", "interval.ms", "1000"),
    }
