"""``quorum-state``: what a node last knew of the election of the metadata log's leader, as JSON.

Version 0 names the voters, and who was voted for by its id; in version 1 the voters stand in the
log, and who was voted for has a directory id too.
"""

from typing import Any, Final

from storage_core.errors import CheckpointError
from storage_core.json_text import parse_json

MAX_QUORUM_STATE_BYTES: Final = 1 << 20
_FIELDS: Final = {
    "clusterId": "cluster_id",
    "leaderId": "leader_id",
    "leaderEpoch": "leader_epoch",
    "votedId": "voted_id",
    "votedDirectoryId": "voted_directory_id",
    "appliedOffset": "applied_offset",
    "currentVoters": "current_voters",
    "data_version": "data_version",
}


def parse_quorum_state(data: bytes, *, file: str) -> dict[str, Any]:
    """Return the fields by Kafka's names in snake case, in the file's order.

    Raises:
        CheckpointError: It is no JSON object, or has a field that no version has.
    """
    try:
        parsed = parse_json(data, limit_bytes=MAX_QUORUM_STATE_BYTES)
    except ValueError as error:
        raise CheckpointError(file, 0, f"expected JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise CheckpointError(file, 0, f"expected a JSON object, found a {type(parsed).__name__}")
    for name in parsed:
        if name not in _FIELDS:
            raise CheckpointError(file, 0, f"expected the fields of versions 0 and 1, found {name}")
    return {_FIELDS[name]: value for name, value in parsed.items()}
