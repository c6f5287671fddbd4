"""Remarks of an audit on replication, epochs and ids of partitions. An answer has them beside
the losses."""

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from storage_core.checkpoint.checkpoint_files import EpochEntry
from storage_core.cluster.partition_registration import (
    PartitionRegistration,
    TopicIdPartition,
)
from storage_core.cluster.truncation import HindranceKind
from storage_core.formats.error_codes import KafkaErrorCode
from storage_core.log.believed_epochs import find_doubtful_entries
from storage_core.wording import count_text

_NO_LEADER: Final = -1
# Marks of copies that are no replica of their broker.
_BESIDE: Final = ("future", "stray", "delete")


class Remark(enum.StrEnum):
    """Stable codes of remarks."""

    UNDER_REPLICATED = "UNDER_REPLICATED"
    UNDER_MIN_ISR = "UNDER_MIN_ISR"
    OFFLINE = "OFFLINE"
    REPLICA_OFFLINE = "REPLICA_OFFLINE"
    HIGH_WATERMARK_STALE = "HIGH_WATERMARK_STALE"
    BROKER_UNCLEAN = "BROKER_UNCLEAN"
    LEADER_EPOCH_UNKNOWN = "LEADER_EPOCH_UNKNOWN"
    LEADER_EPOCH_FENCED = "LEADER_EPOCH_FENCED"
    EPOCH_DOUBTFUL = "EPOCH_DOUBTFUL"
    TOPIC_ID_INCONSISTENT = "TOPIC_ID_INCONSISTENT"
    TOPIC_ID_UNKNOWN = "TOPIC_ID_UNKNOWN"
    ROOT_UNREADABLE = "ROOT_UNREADABLE"
    ROOT_IN_USE = "ROOT_IN_USE"


_KAFKA_ERRORS: Final = {
    Remark.OFFLINE: KafkaErrorCode.LEADER_NOT_AVAILABLE,
    Remark.REPLICA_OFFLINE: KafkaErrorCode.KAFKA_STORAGE_ERROR,
    Remark.HIGH_WATERMARK_STALE: KafkaErrorCode.OFFSET_NOT_AVAILABLE,
    Remark.LEADER_EPOCH_UNKNOWN: KafkaErrorCode.UNKNOWN_LEADER_EPOCH,
    Remark.LEADER_EPOCH_FENCED: KafkaErrorCode.FENCED_LEADER_EPOCH,
    Remark.TOPIC_ID_INCONSISTENT: KafkaErrorCode.INCONSISTENT_TOPIC_ID,
    Remark.TOPIC_ID_UNKNOWN: KafkaErrorCode.UNKNOWN_TOPIC_ID,
    Remark.ROOT_UNREADABLE: KafkaErrorCode.KAFKA_STORAGE_ERROR,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What is known beside one partition."""

    states: dict[TopicIdPartition, PartitionRegistration]
    topic_ids: frozenset[str]  # ids of all topics that somebody knows
    # Ids under each topic's name and number, in directories and in what is known.
    ids_of: dict[tuple[str, int], set[str]]
    unclean: frozenset[int]  # node ids of brokers whose markers lack their last broker epoch
    leader_epoch: int | None  # epoch that the next leader is to have; None where nobody says one
    unread: Mapping[str, str]
    in_use: frozenset[str]  # log directories whose lock somebody holds


def find_remarks(answer: dict[str, Any], surroundings: Surroundings) -> list[dict[str, Any]]:
    """Return what has to be said about a partition."""
    key = answer["topic"], answer["partition"], answer["topic_id"]
    replicas = own_replicas(answer)
    state = surroundings.states.get(key)
    messages = [
        *_of_ids(key, surroundings, replicas),
        *_of_epochs(replicas, state, surroundings.leader_epoch),
        *_of_doubtful_epochs(replicas, answer.get("candidates") or ()),
    ]
    messages += [*_of_replicas(replicas)]
    if state is None or answer["unseen"]:
        for reason in surroundings.unread.values():
            text = f"{reason}: a replica may lie there, which was not compared"
            messages.append((Remark.ROOT_UNREADABLE, None, text))
    for each in replicas:
        if each["root"] in surroundings.in_use:
            text = f"{each['root']} is in use: what is written meanwhile may be missing"
            messages.append((Remark.ROOT_IN_USE, each["broker"], text))
    if state is not None:
        messages += _of_state(state, surroundings.unclean)
    remarks = []
    for remark, broker, message in messages:
        error = _KAFKA_ERRORS.get(remark)
        remarks.append(
            {
                "code": str(remark),
                "broker": broker,
                "message": message,
                "kafka_code": None if error is None else int(error),
                "kafka_error": None if error is None else error.name,
            }
        )
    return remarks


def own_replicas(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return an answer's replicas without copies left by moves and deletions."""
    return [each for each in answer["replicas"] or () if not any(map(each.get, _BESIDE))]


# By whether it is the log's last batch: nothing behind that says that it is wrong.
_WAYS: Final = {
    False: "`pylog heal` takes the batch from another replica",
    True: "move that directory away, and its broker fetches the partition anew",
}
_Found = tuple[Remark, int | None, str]


def _of_ids(
    key: TopicIdPartition, surroundings: Surroundings, replicas: Sequence[dict[str, Any]]
) -> Iterator[_Found]:
    topic, partition, topic_id = key
    ids = surroundings.ids_of.get((topic, partition), set())
    if len(ids) > 1:
        text = f"{topic}-{partition} is the name of {len(ids)} topic ids: {', '.join(sorted(ids))}"
        yield Remark.TOPIC_ID_INCONSISTENT, None, text
    if (
        surroundings.topic_ids
        and topic_id is not None
        and topic_id not in surroundings.topic_ids
        and replicas
    ):
        text = f"the cluster's metadata lack topic id {topic_id}: a start makes it a stray"
        yield Remark.TOPIC_ID_UNKNOWN, None, text


def _of_epochs(
    replicas: Sequence[dict[str, Any]],
    state: PartitionRegistration | None,
    leader_epoch: int | None,
) -> Iterator[_Found]:
    newest = -1 if state is None else state.leader_epoch
    for each in replicas:
        epochs = each.get("epochs") or []
        others = [
            (_entries(other), other.get("log_end", 0)) for other in replicas if other is not each
        ]
        doubtful = (
            find_doubtful_entries(_entries(each), others, leader_epoch=state.leader_epoch)
            if state
            else []
        )
        above = [(epoch, start) for epoch, start in epochs if state and epoch > state.leader_epoch]
        if state is not None and doubtful:
            epoch, start = doubtful[0].epoch, doubtful[0].start_offset
            text = (
                f"broker {each['broker']} has epoch {epoch} from offset {start} on, above leader "
                f"epoch {state.leader_epoch} of the metadata, and another one than other replicas "
                "have there: these are older than the log, or a bit of the epoch flipped, which no "
                "checksum covers; as a follower it then never catches up. `pylog verify` names the "
                "batch, and `pylog explain EPOCH_DOUBTFUL` says what to do"
            )
            yield Remark.LEADER_EPOCH_UNKNOWN, each["broker"], text
        elif state is not None and above:
            epoch, start = above[0]
            text = (
                f"broker {each['broker']} has epoch {epoch} from offset {start} on, above leader "
                f"epoch {state.leader_epoch} of the metadata: these are older than the log"
            )
            yield Remark.LEADER_EPOCH_UNKNOWN, each["broker"], text
        newest = max([newest, *(epoch for epoch, _ in epochs)])
    if leader_epoch is not None and leader_epoch <= newest:
        text = f"leader epoch {leader_epoch} is not above epoch {newest}, which is known: fenced"
        yield Remark.LEADER_EPOCH_FENCED, None, text


def _of_doubtful_epochs(
    replicas: Sequence[dict[str, Any]], candidates: Sequence[dict[str, Any]]
) -> Iterator[_Found]:
    for each in replicas:
        doubtful = each.get("doubtful_epochs") or []
        if not doubtful:
            continue
        first = doubtful[0]
        wanted = f"{first['least']} to {first['most']}"
        if first["least"] == first["most"]:
            wanted = str(first["least"])
        text = (
            f"broker {each['broker']} has leader epoch {first['epoch']} at offset "
            f"{first['offset']} ({first['file']} at {first['position']}), expected {wanted}: "
            "perhaps a flipped bit, which no checksum covers"
        )
        if len(doubtful) > 1:
            text += f", and {count_text(len(doubtful) - 1, 'more such epoch')}"
        wrong = {(one["epoch"], one["offset"]) for one in doubtful}
        is_last = first["last_offset"] + 1 == each["log_end"]
        has_other = any(
            other.get("log_end", 0) > first["last_offset"]
            for other in replicas
            if other is not each
        )
        way = _WAYS[is_last] if has_other else "no other replica has that batch"
        text += f"; {_misled(each['broker'], wrong, candidates)}: {way}"
        yield Remark.EPOCH_DOUBTFUL, each["broker"], text


def _misled(
    broker: int | None, wrong: set[tuple[int, int]], candidates: Sequence[dict[str, Any]]
) -> str:
    """Return what brokers make of the doubtful epochs of one of them."""
    stuck: dict[int | None, list[str]] = {}
    for candidate in candidates:
        for cut in candidate["truncations"]:
            hindrance = cut.get("never_in_sync")
            owner = candidate["broker"]
            if hindrance is not None and hindrance["why"] == HindranceKind.EPOCH_UNKNOWN:
                owner = cut["broker"]
            if (
                hindrance is not None
                and owner == broker
                and (hindrance["epoch"], hindrance["offset"]) in wrong
            ):
                stuck.setdefault(cut["broker"], []).append(str(candidate["broker"]))
    if not stuck:
        return "no start goes by it, and no follower has to take it"
    parts = [
        f"broker {follower} never is in sync while broker {' or '.join(leaders)} leads"
        for follower, leaders in stuck.items()
    ]
    return ", ".join(parts)


def _entries(replica: Mapping[str, Any]) -> list[EpochEntry]:
    return [EpochEntry(*entry) for entry in replica.get("epochs") or []]


def _of_replicas(replicas: Sequence[dict[str, Any]]) -> Iterator[_Found]:
    longest = max((each["log_end"] for each in replicas if "log_end" in each), default=0)
    for each in replicas:
        broker = each["broker"]
        if "log_end" not in each:
            text = f"broker {broker} cannot open its replica: {each['error']}"
            yield Remark.REPLICA_OFFLINE, broker, text
            continue
        behind = longest - each["log_end"]
        if behind:
            text = f"broker {broker} ends {count_text(behind, 'offset')} before the longest log"
            yield Remark.UNDER_REPLICATED, broker, text
        high_watermark, epochs = each["high_watermark"] or 0, each["epochs"]
        if epochs and high_watermark < epochs[-1][1]:
            epoch, start = epochs[-1]
            text = (
                f"broker {broker} has high watermark {high_watermark}, below the start of its "
                f"epoch {epoch} at {start}: as a leader it answers no offset until it rises"
            )
            yield Remark.HIGH_WATERMARK_STALE, broker, text


def _of_state(state: PartitionRegistration, unclean: frozenset[int]) -> Iterator[_Found]:
    if state.leader == _NO_LEADER:
        yield Remark.OFFLINE, None, "it has no leader"
    if len(state.isr) < state.min_insync_replicas:
        text = f"{count_text(len(state.isr), 'replica')} in sync, min.insync.replicas is "
        yield Remark.UNDER_MIN_ISR, None, f"{text}{state.min_insync_replicas}"
    for broker in (*state.isr, *state.elr):
        if broker in unclean:
            text = (
                f"broker {broker} leaves ISR and ELR when it registers: it counts as killed. "
                "Where all replicas have the same, `pylog audit ROOT... --role broker --attest` "
                "lets it keep its place"
            )
            yield Remark.BROKER_UNCLEAN, broker, text
