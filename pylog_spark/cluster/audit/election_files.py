"""Write election files for Kafka's commands. By them the best candidate of each partition leads."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from storage_core.cluster.partition_registration import (
    PartitionRegistration,
    TopicIdPartition,
)
from storage_core.errors import ConfigError

# What kafka-reassign-partitions.sh and kafka-leader-election.sh take.
REASSIGNMENT_FILE: Final = "reassignment.json"
ELECTION_FILE: Final = "election.json"
# What kafka-reassign-partitions.sh takes once the brokers are back that were left out before.
RESTORE_FILE: Final = "restore.json"

_Row = dict[str, Any]


def find_manual_leaders(answers: Sequence[_Row]) -> dict[TopicIdPartition, int]:
    """Return whom to elect by hand, by partition."""
    return {
        (answer["topic"], answer["partition"], answer["topic_id"]): elections["manual"]
        for answer in answers
        if (elections := answer.get("elections")) and elections["manual"] is not None
    }


def write_election_files(
    folder: Path,
    leaders: Mapping[TopicIdPartition, int],
    states: Mapping[TopicIdPartition, PartitionRegistration],
    live: Sequence[int],
) -> list[str]:
    """Write files of elections to hold and replica orders for them. Each leader-to-be is first in
    its order.

    An unclean election takes the first live replica in that order. The command refuses brokers that
    are away: they are left out, and come back by a file of their own.

    Args:
        leaders: Node id of each partition's leader-to-be.
        live: Node ids of the brokers that run, the leaders among them.

    Returns:
        The names of the files: the first two only where they are needed.
    """
    reassigned, restored, elected = [], [], []
    for key, leader in sorted(leaders.items()):
        name = {"topic": key[0], "partition": key[1]}
        elected.append(name)
        replicas = states[key].replicas
        present = [broker for broker in replicas if broker in live]
        if present[0] != leader:
            order = [leader, *(broker for broker in present if broker != leader)]
            away = [broker for broker in replicas if broker not in present]
            reassigned.append(_replicas(name, order))
            if away:
                restored.append(_replicas(name, [*order, *away]))
    contents: dict[str, _Row] = {
        REASSIGNMENT_FILE: {"version": 1, "partitions": reassigned},
        RESTORE_FILE: {"version": 1, "partitions": restored},
        ELECTION_FILE: {"partitions": elected},
    }
    contents = {name: content for name, content in contents.items() if content["partitions"]}
    try:
        folder.mkdir()
        for file, content in contents.items():
            with (folder / file).open("x", encoding="utf-8") as writer:
                json.dump(content, writer, indent=1)
                writer.write("\n")
    except OSError as error:
        reason = f"expected a folder that is not there yet: {error.strerror or error}"
        raise ConfigError("--election-out", str(folder), reason) from error
    return list(contents)


def _replicas(name: _Row, order: Sequence[int]) -> _Row:
    return {**name, "replicas": list(order), "log_dirs": ["any"] * len(order)}
