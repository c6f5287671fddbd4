"""The meaning of internal topics' records, beside their bytes in a dump."""

import math
from base64 import b64encode
from collections.abc import Callable
from typing import Any, Final

from pylog_spark.text import escaped, to_json
from storage_core.catalog.roles import local_path
from storage_core.coordinators.transactions import state_name
from storage_core.errors import InvalidNameError, MalformedMessageError
from storage_core.filenames import (
    BOOTSTRAP_SNAPSHOT_FILE,
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    parse_cluster_snapshot,
    parse_partition_directory,
    parse_renamed_directory,
    settled_name,
)
from storage_core.messages.group_records import GROUP_METADATA
from storage_core.messages.internal_records import (
    CONTROL_RECORDS,
    INTERNAL_RECORDS,
    DecodedRecord,
    decode_assignment,
    decode_internal_record,
    decode_subscription,
)
from storage_core.messages.schema import Fields, secret_fields
from storage_core.redaction import is_secret_name
from storage_core.store.generations import unpinned
from storage_core.store.open_store import split_location

_REDACTED: Final = "(redacted)"
_CONFIG_RECORD: Final = 4
_OF_QUORUM: Final = frozenset(record_type.name for record_type in CONTROL_RECORDS.values())


def internal_topic_of(location: str, name: str) -> str | None:
    """Return the internal topic of a file's records, None for others."""
    plain = settled_name(name)
    if plain == BOOTSTRAP_SNAPSHOT_FILE or parse_cluster_snapshot(plain) is not None:
        return CLUSTER_METADATA_TOPIC
    local = local_path(location)
    directory = split_location(unpinned(location))[1] if local is None else local.resolve().name
    try:
        renamed = parse_renamed_directory(directory)
        partition = parse_partition_directory(directory) if renamed is None else renamed[0]
    except InvalidNameError:
        return None
    return partition.topic if partition.topic in INTERNAL_RECORDS else None


def meaning_of(topic: str, key: memoryview | None, value: memoryview | None) -> dict[str, Any]:
    """Return what a record means, as an object of JSON. Passwords and keys of users are left out;
    their bytes are in the record.

    Args:
        key: The record's key, None for none.
        value: The record's value, None for none.
    """
    decoded = _decode(topic, key, value)
    return {
        "type": decoded.type,
        "type_id": decoded.type_id,
        "version": decoded.version,
        "key": _plain(decoded.key),
        "value": _plain(_shown_value(topic, decoded)),
        "is_tombstone": decoded.is_tombstone,
        "problem": decoded.problem,
        "reason": decoded.reason or None,
    }


def meaning_text(topic: str, key: memoryview | None, value: memoryview | None) -> str:
    """Return a record's meaning as one line for a person. The arguments are those of
    `meaning_of`."""
    decoded = _decode(topic, key, value)
    parts = [decoded.type or f"type {decoded.type_id}"]
    if decoded.version is not None:
        parts.append(f"version {decoded.version}")
    parts += _pairs(decoded.key)
    if decoded.problem is not None:
        parts.append(f"NOT DECODED ({decoded.problem}): {decoded.reason}")
    elif decoded.is_tombstone:
        parts.append("= deleted")
    else:
        parts += ["=", *_pairs(_shown_value(topic, decoded))]
    return escaped("  ".join(parts))


def _decode(topic: str, key: memoryview | None, value: memoryview | None) -> DecodedRecord:
    return decode_internal_record(
        topic, None if key is None else bytes(key), None if value is None else bytes(value)
    )


def _pairs(fields: Fields | None) -> list[str]:
    return [f"{name} {_text(value)}" for name, value in (fields or {}).items()]


def _text(value: Any) -> str:
    return value if isinstance(value, str) and value else to_json(_plain(value))


def _shown_value(topic: str, decoded: DecodedRecord) -> Fields | None:
    """Return a value's fields without secrets, with consumers' own fields decoded."""
    value, type_id = decoded.value, decoded.type_id
    if value is None or type_id is None:
        return value
    if decoded.type in _OF_QUORUM:
        return value
    if topic == TRANSACTION_STATE_TOPIC:
        name = state_name(value["transaction_status"])
        return value if name is None else value | {"transaction_status_name": name}
    hidden = secret_fields(INTERNAL_RECORDS[topic][type_id].value)
    if topic == CLUSTER_METADATA_TOPIC and type_id == _CONFIG_RECORD:
        hidden |= {"value"} if is_secret_name(value["name"]) else set()
    if topic == CONSUMER_OFFSETS_TOPIC and type_id == GROUP_METADATA:
        members = tuple(map(_shown_member, value["members"]))
        return value | {"members": members} if value["protocol_type"] == "consumer" else value
    return value | dict.fromkeys(hidden, _REDACTED)


def _shown_member(member: Fields) -> Fields:
    return member | {
        "subscription_fields": _of_client(decode_subscription, member["subscription"]),
        "assignment_fields": _of_client(decode_assignment, member["assignment"]),
    }


def _of_client(decode: Callable[[bytes], Fields], data: bytes) -> Fields | None:
    """Return the fields of a client's own bytes, None if malformed."""
    try:
        return decode(data)
    except MalformedMessageError:
        return None


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; bytes are base64."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no number for it
    return b64encode(value).decode() if isinstance(value, bytes) else value
