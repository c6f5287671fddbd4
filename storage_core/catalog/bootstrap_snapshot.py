"""The snapshot with which a new quorum of controllers begins.

::

    snapshot   header, records, footer: batches, the offsets of all records from 0 on
    header     SNAPSHOT_HEADER, of a quorum that has its voters in the log KRAFT_VERSION and
               KRAFT_VOTERS besides: control records of one batch
    footer     SNAPSHOT_FOOTER, a control record

It is of epoch 0 and ends before offset 0: it is in no log. The first leader of the empty log
appends its records there, in a transaction. Sources: ``Formatter``, ``RecordsSnapshotWriter``,
``QuorumController`` (``handleLoadBootstrap``) and ``ActivationRecordsGenerator`` of Kafka 4.4.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from storage_core.catalog.cluster_metadata import Voter
from storage_core.catalog.metadata_image import (
    ConfigRecord,
    FeatureLevelRecord,
    RegisterBrokerRecord,
    ResourceType,
    TopicMetadata,
    TopicRecord,
    encode_record,
)
from storage_core.catalog.release_features import Release
from storage_core.filenames import CLUSTER_SNAPSHOT_SUFFIX
from storage_core.formats.control import ControlType
from storage_core.messages.internal_records import encode_control_record, encode_metadata_record
from storage_core.records.batch_builder import BatchSettings, build_batches
from storage_core.records.new_records import ByteColumn, NewRecords

BOOTSTRAP_SNAPSHOT: Final = f"{0:020d}-{0:010d}{CLUSTER_SNAPSHOT_SUFFIX}"
# Of voters that may be fixed or stand in the log.
_KRAFT_VERSIONS: Final = {"min_supported_version": 0, "max_supported_version": 1}
# As Kafka's own batches of a snapshot.
_MAX_BATCH_BYTES: Final = 8 << 20
_PRODUCER_IDS_RECORD: Final = 15
_NO_BROKER: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapMetadata:
    """The state of a cluster whose quorum begins."""

    release: Release  # its features, and the versions of its records
    topics: Sequence[TopicMetadata]
    topic_configs: Mapping[str, Mapping[str, str]]
    # Settings of brokers, by node id as text; the empty text has those of all.
    broker_configs: Mapping[str, Mapping[str, str]]
    group_configs: Mapping[str, Mapping[str, str]]
    client_metrics_configs: Mapping[str, Mapping[str, str]]
    brokers: Sequence[RegisterBrokerRecord]
    next_producer_id: int  # the first producer id that a broker may give away

    def values(self) -> Iterator[bytes]:
        """Yield the values of its records."""
        for name, level in self.release.feature_levels.items():
            yield encode_record(FeatureLevelRecord(name=name, level=level), 0)
        for broker in self.brokers:
            yield encode_record(broker, self.release.broker_record_version)
        for topic in self.topics:
            yield encode_record(TopicRecord(name=topic.name, topic_id=topic.topic_id), 0)
            for partition in topic.partitions.values():
                yield encode_record(partition, self.release.partition_record_version)
        for kind, configs in (
            (ResourceType.TOPIC, self.topic_configs),
            (ResourceType.BROKER, self.broker_configs),
            (ResourceType.GROUP, self.group_configs),
            (ResourceType.CLIENT_METRICS, self.client_metrics_configs),
        ):
            for name, settings in configs.items():
                for key, value in settings.items():
                    config = ConfigRecord(
                        resource_type=kind, resource_name=name, key=key, value=value
                    )
                    yield encode_record(config, 0)
        ids = {
            "broker_id": _NO_BROKER,
            "broker_epoch": _NO_BROKER,
            "next_producer_id": self.next_producer_id,
        }
        yield encode_metadata_record(_PRODUCER_IDS_RECORD, 0, ids)


def encode_snapshot(
    values: Sequence[bytes], *, voters: Sequence[Voter], timestamp_ms: int
) -> Iterator[bytes]:
    """Yield the bytes of a bootstrap snapshot, piece by piece.

    Args:
        voters: Voters that the log is to have, each with directory id and endpoints; empty where
            the configuration of each node names them.
    """
    header: list[tuple[int, dict[str, Any]]] = [
        (ControlType.SNAPSHOT_HEADER, {"last_contained_log_timestamp": timestamp_ms})
    ]
    if voters:
        header += [
            (ControlType.KRAFT_VERSION, {"kraft_version": 1}),
            (ControlType.KRAFT_VOTERS, {"voters": [*map(_fields_of, voters)]}),
        ]
    footer: list[tuple[int, dict[str, Any]]] = [(ControlType.SNAPSHOT_FOOTER, {})]
    yield from _controls(header, 0, timestamp_ms)
    keys = ByteColumn.nulls(len(values))
    yield from _batches(keys, values, len(header), timestamp_ms, is_control=False)
    yield from _controls(footer, len(header) + len(values), timestamp_ms)


def _fields_of(voter: Voter) -> dict[str, Any]:
    return {
        "voter_id": voter.node_id,
        "voter_directory_id": voter.directory_id,
        "endpoints": [*map(_endpoint, voter.endpoints)],
        "kraft_version_feature": _KRAFT_VERSIONS,
    }


def _endpoint(text: str) -> dict[str, Any]:
    name, _, address = text.partition("://")
    host, _, port = address.rpartition(":")
    return {"name": name, "host": host, "port": int(port)}


def _controls(
    records: Iterable[tuple[int, dict[str, Any]]], base_offset: int, timestamp_ms: int
) -> Iterator[bytes]:
    pairs = [encode_control_record(kind, fields) for kind, fields in records]
    keys = ByteColumn.from_arrow(pa.array([key for key, _ in pairs], pa.large_binary()))
    values = [value for _, value in pairs]
    return _batches(keys, values, base_offset, timestamp_ms, is_control=True)


def _batches(
    keys: ByteColumn,
    values: Sequence[bytes],
    base_offset: int,
    timestamp_ms: int,
    *,
    is_control: bool,
) -> Iterator[bytes]:
    records = NewRecords.of(
        keys=keys,
        values=ByteColumn.from_arrow(pa.array(values, pa.large_binary())),
        timestamps=np.full(len(values), timestamp_ms, np.int64),
    )
    settings = BatchSettings(
        base_offset=base_offset,
        leader_epoch=0,
        is_control=is_control,
        max_batch_bytes=_MAX_BATCH_BYTES,
    )
    for built in build_batches(records, settings):
        yield built.data.tobytes()
