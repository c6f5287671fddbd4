"""The broker's own files: identity, clean shutdown, last election.

``meta.properties``: which node of which cluster the directory belongs to. Java properties text.
Version 0, or none, is ZooKeeper's and may name ``broker.id``; version 1 is KRaft's and needs
``cluster.id`` and ``node.id``; both may have ``directory.id``. Source:
``org.apache.kafka.metadata.properties.MetaProperties`` and ``MetaPropertiesEnsemble``.

``.kafka_cleanshutdown``: the broker closed every log of the directory. JSON
``{"version":0,"brokerEpoch":N}`` without a newline. That the file exists is all that recovery
asks; what it holds tells the controller which reign of the broker ended cleanly. Content that
cannot be read therefore only means that no broker epoch is known. Source:
``org.apache.kafka.storage.internals.checkpoint.CleanShutdownFileHandler``.

``quorum-state``: the node's last election of the metadata log's leader, as JSON. Version 0 names
the voters, and who was voted for by its id; in version 1 the voters stand in the log, and who was
voted for has a directory id too.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from storage_core.checkpoint.checkpoints import (
    INT_MAX,
    LONG_MAX,
    ZERO_UUID,
    SmallFiles,
    is_reserved_directory_id,
    parse_number,
    parse_uuid,
)
from storage_core.config import parse_java_properties
from storage_core.errors import (
    CheckpointError,
    InconsistentClusterIdError,
    InconsistentDirectoriesError,
)
from storage_core.filenames import CLEAN_SHUTDOWN_FILE
from storage_core.json_values import parse_json

MAX_META_PROPERTIES_BYTES: Final = 1 << 20
_ZOOKEEPER_VERSION: Final = 0
_KRAFT_VERSION: Final = 1
UNKNOWN_BROKER_EPOCH: Final = -1
MAX_CLEAN_SHUTDOWN_BYTES: Final = 1 << 16
MAX_QUORUM_STATE_BYTES: Final = 1 << 20
_SHOWN_CHARACTERS: Final = 40
_QUORUM_STATE_FIELDS: Final = {
    "clusterId": "cluster_id",
    "leaderId": "leader_id",
    "leaderEpoch": "leader_epoch",
    "votedId": "voted_id",
    "votedDirectoryId": "voted_directory_id",
    "appliedOffset": "applied_offset",
    "currentVoters": "current_voters",
    "data_version": "data_version",
}
_QUORUM_STATE_NUMBERS: Final = {
    "leaderId": INT_MAX,
    "leaderEpoch": INT_MAX,
    "votedId": INT_MAX,
    "appliedOffset": LONG_MAX,
    "data_version": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaProperties:
    """The fields of ``meta.properties``."""

    version: int  # 0 or 1
    cluster_id: str | None  # id of the cluster; never None in version 1
    node_id: int | None  # the node's number (``broker.id`` in version 0); never None in version 1
    directory_id: str | None


def is_same_broker(one: MetaProperties | None, other: MetaProperties | None) -> bool:
    """Whether two log directories belong to one broker. A directory without an identity belongs
    to a broker only if it is alone."""
    if one is None or other is None:
        return one is other
    return (one.cluster_id, one.node_id) == (other.cluster_id, other.node_id)


def parse_meta_properties(data: bytes, *, file: str) -> MetaProperties:
    """Parse ``meta.properties``."""
    properties = parse_java_properties(data, file=file)
    version = _parse_node_number(properties.get("version", "0").strip(), "version", file)
    if version not in {_ZOOKEEPER_VERSION, _KRAFT_VERSION}:
        raise CheckpointError(file, 0, f"version: expected 0 or 1, found {version}")
    node_key = "broker.id" if version == _ZOOKEEPER_VERSION else "node.id"
    node_text = properties.get(node_key)
    cluster_id = properties.get("cluster.id")
    if version == _KRAFT_VERSION:
        for key, value in (("node.id", node_text), ("cluster.id", cluster_id)):
            if value is None:
                raise CheckpointError(file, 0, f"{key} is missing")
    return MetaProperties(
        version=version,
        cluster_id=cluster_id,
        node_id=None if node_text is None else _parse_node_number(node_text, node_key, file),
        directory_id=_directory_id(properties.get("directory.id"), file),
    )


def encode_meta_properties(properties: MetaProperties) -> bytes:
    """Return the bytes of a ``meta.properties``. Kafka writes it anew, in its own order, when
    the node starts."""
    named = {
        "version": properties.version,
        "cluster.id": properties.cluster_id,
        "node.id": properties.node_id,
        "directory.id": properties.directory_id,
    }
    lines = (f"{key}={value}\n" for key, value in named.items() if value is not None)
    return "".join(lines).encode("ascii")


def validate_one_broker(directories: Mapping[str, MetaProperties]) -> None:
    """Check that log directories belong to one broker.

    Args:
        directories: The content of each directory's file, by path; directories without one left
            out.
    """
    validate_one_cluster(directories)
    node: tuple[str, int] | None = None
    for path, meta in sorted(directories.items()):
        if meta.node_id is not None:
            node = node if node is not None else (path, meta.node_id)
            if meta.node_id != node[1]:
                reason = f"belongs to node {meta.node_id}, but {node[0]} to node {node[1]}"
                raise InconsistentDirectoriesError(path, reason)
    validate_directory_ids(directories)


def validate_one_cluster(directories: Mapping[str, MetaProperties]) -> None:
    """Check that log directories belong to one cluster.

    Args:
        directories: The content of each directory's file, by path; directories without one left
            out.
    """
    cluster_id: str | None = None
    for path, meta in sorted(directories.items()):
        if meta.cluster_id is not None:
            cluster_id = cluster_id or meta.cluster_id
            if meta.cluster_id != cluster_id:
                raise InconsistentClusterIdError(path, cluster_id, meta.cluster_id)


def validate_directory_ids(directories: Mapping[str, MetaProperties]) -> None:
    """Check that each log directory has an id of its own. A controller registers no broker with the
    directory id of another one.

    Args:
        directories: The content of each directory's file, by path; directories without one left
            out.
    """
    owners: dict[str, str] = {}
    for path, meta in sorted(directories.items()):
        if meta.directory_id is None:
            continue
        if is_reserved_directory_id(meta.directory_id):
            raise InconsistentDirectoriesError(
                path, f"directory.id {meta.directory_id} is reserved"
            )
        owner = owners.setdefault(meta.directory_id, path)
        if owner != path:
            reason = f"directory.id {meta.directory_id} is that of {owner} too"
            raise InconsistentDirectoriesError(path, reason)


def _parse_node_number(text: str, key: str, file: str) -> int:
    try:
        return parse_number(text, INT_MAX, file=file, line=0)
    except CheckpointError as error:
        raise CheckpointError(file, 0, f"{key}: {error.reason}") from error


def _directory_id(text: str | None, file: str) -> str | None:
    if text is None:
        return None
    try:
        return parse_uuid(text)
    except ValueError as error:
        raise CheckpointError(file, 0, f"directory.id: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanShutdown:
    """The fields of ``.kafka_cleanshutdown``."""

    # Epoch of the broker that wrote it, or UNKNOWN_BROKER_EPOCH.
    broker_epoch: int = UNKNOWN_BROKER_EPOCH


def read_clean_shutdown(directory: SmallFiles) -> CleanShutdown | None:
    """Return what the marker of a log directory says, None without one."""
    content = directory.read(CLEAN_SHUTDOWN_FILE, limit_bytes=MAX_CLEAN_SHUTDOWN_BYTES)
    return None if content is None else parse_clean_shutdown(content)


def parse_clean_shutdown(data: bytes) -> CleanShutdown:
    """Parse ``.kafka_cleanshutdown``; content that cannot be read means an unknown broker epoch."""
    try:
        content = parse_json(data, limit_bytes=MAX_CLEAN_SHUTDOWN_BYTES)
    except ValueError:
        return CleanShutdown()
    epoch = content.get("brokerEpoch") if isinstance(content, dict) else None
    return CleanShutdown(broker_epoch=epoch) if _is_number(epoch, LONG_MAX) else CleanShutdown()


def encode_clean_shutdown(broker_epoch: int = UNKNOWN_BROKER_EPOCH) -> bytes:
    """Return the exact bytes that Kafka 4.4 writes."""
    return f'{{"version":0,"brokerEpoch":{broker_epoch}}}'.encode("ascii")


def parse_quorum_state(data: bytes, *, file: str) -> dict[str, Any]:
    """Return the fields of ``quorum-state``, in the file's order. Field names are Kafka's, in
    snake case."""
    try:
        parsed = parse_json(data, limit_bytes=MAX_QUORUM_STATE_BYTES)
    except ValueError as error:
        raise CheckpointError(file, 0, f"expected JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise CheckpointError(file, 0, f"expected a JSON object, found a {type(parsed).__name__}")
    for name, value in parsed.items():
        if name not in _QUORUM_STATE_FIELDS:
            raise CheckpointError(file, 0, f"expected the fields of versions 0 and 1, found {name}")
        largest = _QUORUM_STATE_NUMBERS.get(name)
        if largest is not None and not _is_number(value, largest):
            text = json.dumps(value)[:_SHOWN_CHARACTERS]
            raise CheckpointError(file, 0, f"{name}: expected a number up to {largest}: {text}")
    voters = parsed.get("currentVoters") or []
    if not isinstance(voters, list) or not all(
        isinstance(each, dict) and _is_number(each.get("voterId"), INT_MAX) for each in voters
    ):
        text = json.dumps(voters)[:_SHOWN_CHARACTERS]
        raise CheckpointError(file, 0, f"currentVoters: expected objects with voterId: {text}")
    return {_QUORUM_STATE_FIELDS[name]: value for name, value in parsed.items()}


def _is_number(value: object, largest: int) -> TypeGuard[int]:
    return type(value) is int and -largest - 1 <= value <= largest


def encode_quorum_state(*, epoch: int, voters: Sequence[int] | None) -> bytes:
    """Return a ``quorum-state`` without a leader and a vote.

    Args:
        voters: Node ids of the voters, for version 0; None for version 1, where the log has them.
    """
    nobody = {"leaderId": -1, "leaderEpoch": epoch, "votedId": -1}
    if voters is None:
        return json.dumps(nobody | {"votedDirectoryId": ZERO_UUID, "data_version": 1}).encode()
    named = [{"voterId": node} for node in voters]
    return json.dumps(
        {"clusterId": ""} | nobody | {"appliedOffset": 0, "currentVoters": named, "data_version": 0}
    ).encode()
