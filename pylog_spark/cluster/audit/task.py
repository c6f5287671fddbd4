"""Judge the replicas of partitions."""

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from pylog_spark.cluster.differences_task import log_name
from pylog_spark.schemas import AuditRow
from pylog_spark.tasks.message import attempt
from storage_core.catalog.log_directories import DirectoryKind
from storage_core.cluster.audit import (
    Candidate,
    PartitionAudit,
    audit_partition,
)
from storage_core.cluster.log_batches import Ranges, count
from storage_core.cluster.places import ANY_INDEX_BYTES, PartitionPlaces, ReplicaPlace
from storage_core.cluster.replica import Damage, Hindrance, Replica, open_replica
from storage_core.log.leader_epoch_cache import DoubtfulRun

Row = dict[str, Any]


def audit_partitions(
    places: Sequence[PartitionPlaces], now_ms: int, most_keys: int = 0
) -> Iterator[AuditRow]:
    """Yield a row for each partition, whatever is wrong with it.

    Args:
        most_keys: How many keys of each loss the answers have.
    """
    for each in places:
        head = AuditRow(topic=each.topic, partition=each.partition, topic_id=each.topic_id)
        yield attempt(head, partial(_audit, each, now_ms, most_keys), log_name(each))


def _audit(places: PartitionPlaces, now_ms: int, most_keys: int, head: AuditRow) -> AuditRow:
    most = ANY_INDEX_BYTES if places.state is None else places.state.segment_index_bytes
    replicas = [open_replica(place, now_ms, most) for place in places.replicas]
    beside = [open_replica(place, now_ms, most) for place in places.beside]
    audit = audit_partition(replicas, places.state, beside, most_keys=most_keys)
    best = min(audit.candidates, key=_loss, default=None)
    return replace(
        head,
        replicas=sum(replica.log is not None for replica in replicas),
        high_watermark=audit.high_watermark,
        divergence=audit.divergence,
        safe=tuple(each.replica.broker for each in audit.candidates if each.is_safe),
        lost_records=None if best is None else count(best.lost),
        lost_committed=None if best is None else count(best.committed),
        answer=json.dumps(_answer(places, replicas, beside, audit)),
    )


def _loss(candidate: Candidate) -> tuple[bool, int, int]:
    """Return what the candidates are ranked by, the best one first."""
    return not candidate.is_safe, count(candidate.committed), count(candidate.lost)


def _answer(
    places: PartitionPlaces,
    replicas: Sequence[Replica],
    beside: Sequence[Replica],
    audit: PartitionAudit,
) -> Row:
    offset = audit.divergence
    return {
        "topic": places.topic,
        "partition": places.partition,
        "topic_id": places.topic_id,
        "replicas": [
            *map(_describe_replica, replicas, audit.damage, audit.doubtful),
            *(_describe_replica(replica, (), ()) for replica in beside),
        ],
        "assignment": None if places.state is None else list(places.state.replicas),
        "unseen": list(places.unseen),
        "high_watermark": audit.high_watermark,
        "divergence": None if offset is None else {"offset": offset},
        "candidates": list(map(_describe_candidate, audit.candidates)),
    }


def _describe_replica(
    replica: Replica, damage: Sequence[Damage], doubtful: Sequence[DoubtfulRun]
) -> Row:
    place = replica.place
    described: Row = {
        "broker": place.broker,
        "root": place.root,
        "dir": PurePosixPath(place.directory).name,
        "clean": place.is_clean,
        "high_watermark": place.checkpoints.high_watermark,
    }
    described |= _kind_of(place)
    if place.is_missing:
        described |= {"log_start": 0, "log_end": 0, "epochs": [], "damage": []}
    if replica.error:
        described["error"] = replica.error
    log = replica.log
    if log is not None:
        described |= {
            "log_start": log.log_start_offset,
            "log_end": log.log_end_offset,
            "recovery_point": place.checkpoints.recovery_point,
            "last_stable_offset": log.last_stable_offset,
            "epochs": [[entry.epoch, entry.start_offset] for entry in log.epochs],
            "segments": len(log.base_offsets),
            "bytes": log.size_bytes,
            "open_transactions": [
                {"producer_id": each.producer_id, "first_offset": each.first_offset}
                for each in log.open_transactions
            ],
            "damage": [f"{each.file} at {each.position}: {each.reason}" for each in damage],
            "doubtful_epochs": [
                {
                    "epoch": each.run.epoch,
                    "offset": each.run.first_offset,
                    "last_offset": each.run.last_offset,
                    "file": each.run.file,
                    "position": each.run.position,
                    "least": each.least,
                    "most": each.most,
                }
                for each in doubtful
            ],
        }
    return described


def _kind_of(place: ReplicaPlace) -> Row:
    if place.is_missing:
        return {"missing": True}
    if place.kind is DirectoryKind.PARTITION:
        return {}
    return {str(place.kind): True}


def _describe_candidate(candidate: Candidate) -> Row:
    log = candidate.replica.log
    return {
        "broker": candidate.replica.broker,
        "last_stable_offset": 0 if log is None else log.last_stable_offset_as_leader,
        "truncations": [
            {
                "broker": cut.replica.broker,
                "root": cut.replica.place.root,
                "offset": cut.offset,
                "restart": cut.is_restart,
                "rounds": list(cut.rounds),
                "same_until": cut.same_until,
                "committed": count(cut.committed),
                "stays_eligible": cut.stays_eligible,
                "never_in_sync": _describe_hindrance(cut.hindrance),
            }
            for cut in candidate.cuts
        ],
        "lost": {
            "records": count(candidate.lost),
            "committed": count(candidate.committed),
            "uncommitted": count(candidate.uncommitted),
            "unknown": count(candidate.lost)
            - count(candidate.committed)
            - count(candidate.uncommitted),
            "bytes": candidate.weight.size_bytes,
            "first_timestamp_ms": candidate.weight.first_timestamp_ms,
            "last_timestamp_ms": candidate.weight.last_timestamp_ms,
            "held_by": [
                {
                    "broker": holder.replica.broker,
                    "directory": holder.replica.place.directory,
                    "records": holder.records,
                }
                for holder in candidate.holders
            ],
            "ranges": _listed(candidate.lost),
            "keys": [base64.b64encode(key).decode() for key in candidate.weight.keys],
        },
        "safe": candidate.is_safe,
    }


def _describe_hindrance(hindrance: Hindrance | None) -> Row | None:
    if hindrance is None:
        return None
    return {
        "why": str(hindrance.kind),
        "epoch": hindrance.epoch,
        "offset": hindrance.offset,
    }


def _listed(ranges: Ranges) -> list[list[int]]:
    listed: list[list[int]] = ranges.tolist()
    return listed
