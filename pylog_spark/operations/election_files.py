"""Files for Kafka's own commands, by which the best candidate of each partition leads."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pylog_spark.operations.elections import rank_of
from storage_core.errors import ConfigError
from storage_core.maintenance.replication.partition_registration import (
    PartitionRegistration,
    TopicIdPartition,
)

# What kafka-reassign-partitions.sh and kafka-leader-election.sh take.
REASSIGNMENT_FILE: Final = "reassignment.json"
ELECTION_FILE: Final = "election.json"

_Row = dict[str, Any]


def find_better_leaders(
    answers: Sequence[_Row],
    states: Mapping[TopicIdPartition, PartitionRegistration],
    up: Sequence[int],
) -> dict[TopicIdPartition, int]:
    """Return the best candidate of each partition that would else lose more.

    Args:
        answers: What is known of each partition.
        states: Partitions; one that is not among them cannot be reassigned.
        up: Node ids of the brokers that start: no other one may lead. Empty for all, and for no
            word on whom the controller elects: then any worse candidate counts.
    """
    better = {}
    for answer in answers:
        key = answer["topic"], answer["partition"], answer["topic_id"]
        candidates = [each for each in answer["candidates"] if not up or each["broker"] in up]
        if key not in states or not candidates:
            continue
        best = min(candidates, key=rank_of)
        others = candidates
        elections = answer.get("elections")
        if elections and elections["manual"] is not None:
            better[key] = elections["manual"]
            continue
        if elections:
            elected = elections["leader"]
            others = [each for each in candidates if elected in {None, each["broker"]}]
        if any(rank_of(each) > rank_of(best) for each in others):
            better[key] = best["broker"]
    return better


def write_election_files(
    folder: Path,
    leaders: Mapping[TopicIdPartition, int],
    states: Mapping[TopicIdPartition, PartitionRegistration],
) -> None:
    """Write the order of replicas in which each leader is first, and whom to hold elections for.

    While a partition has no leader, the first live replica of that order is elected.

    Args:
        folder: A folder that is not there yet.
        leaders: Node id of each partition's leader-to-be.
        states: Partitions.

    Raises:
        ConfigError: The folder is there, or cannot be made.
    """
    reassigned, elected = [], []
    for key, leader in sorted(leaders.items()):
        replicas = states[key].replicas
        name = {"topic": key[0], "partition": key[1]}
        order = [leader, *(broker for broker in replicas if broker != leader)]
        reassigned.append({**name, "replicas": order, "log_dirs": ["any"] * len(order)})
        elected.append(name)
    contents = {
        REASSIGNMENT_FILE: {"version": 1, "partitions": reassigned},
        ELECTION_FILE: {"partitions": elected},
    }
    try:
        folder.mkdir()
        for file, content in contents.items():
            with (folder / file).open("x", encoding="utf-8") as writer:
                json.dump(content, writer, indent=1)
                writer.write("\n")
    except OSError as error:
        reason = f"expected a folder that is not there yet: {error.strerror or error}"
        raise ConfigError("--election-out", str(folder), reason) from error
