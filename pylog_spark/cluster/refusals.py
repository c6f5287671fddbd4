"""Codes of this house: what each means, and the way out."""

from collections.abc import Mapping
from typing import Final

from pylog_spark.refusals import Refusal
from storage_core.cluster.damage_state import DamageState
from storage_core.cluster.stray_adoption import StrayReason
from storage_core.cluster.transplant.transplant_reason import TransplantReason
from storage_core.cluster.unknown_part import UnknownPart

# Why something was left alone or refused.
GUARDS: Final[Mapping[str, Refusal]] = {
    StrayReason.NO_TOPIC_ID: Refusal(
        means="the stray directory has no topic id that can be read",
        way="look what it is: its records can be read with `pylog cat` all the same",
    ),
    StrayReason.TOPIC_UNKNOWN: Refusal(
        means="the cluster's metadata has no topic with the id of the stray directory",
        way="give the directory that has newer metadata, too; a disk of another cluster: "
        "`pylog transplant`; else the topic was deleted",
    ),
    StrayReason.NOT_ASSIGNED: Refusal(
        means="the cluster's metadata has the partition on other brokers",
    ),
    StrayReason.NAME_TAKEN: Refusal(
        means="the broker has a directory of the partition, beside the stray one",
        way="`pylog audit` compares them; move away the one that has less",
    ),
    StrayReason.SEVERAL_STRAYS: Refusal(
        means="several stray directories are of one partition",
        way="`pylog inspect` shows what each has; move all but one away",
    ),
    StrayReason.STRAY_IS_LINK: Refusal(
        means="the stray directory is a link, which is not followed",
        way="put the directory itself in its place",
    ),
    DamageState.NO_DONOR: Refusal(
        means="no other replica was given of a damaged log, or no batch is left to compare",
        way="`--donor DIR` with more; of a log without a batch let the broker fetch it anew",
    ),
    DamageState.DONOR_LACKS: Refusal(
        means="the other replica begins behind the damage, or ends before it",
        way="`--donor DIR` with another one",
    ),
    DamageState.DONOR_DAMAGED: Refusal(
        means="the other replica is damaged at the same place",
        way="`pylog heal` that one first, from a third",
    ),
    DamageState.DONOR_DIVERGED: Refusal(
        means="around the damage the other replica has other batches, or another epoch",
        way="`pylog audit ROOT...` says whose history counts",
    ),
    DamageState.COMPACTED_APART: Refusal(
        means="a cleaner went over the damaged log and the other replica apart",
        way="`--donor DIR` with one that is as clean at least; docs/healing.md says when",
    ),
    DamageState.DONORS_DIFFER: Refusal(
        means="other replicas have different bytes in the place of the damage",
        way="`--quorum 2` takes what two of them have, if these are most",
    ),
    DamageState.SEGMENT_LEFT: Refusal(
        means="the segment has other damage, which nothing heals",
        way="what that one says",
    ),
    TransplantReason.INTERNAL_TOPIC: Refusal(
        means="the topic is about its own cluster: its groups, transactions or topics",
        way="`pylog transplant --offsets-out FILE` takes the groups' offsets along",
    ),
    TransplantReason.SCHEMA_TOPIC: Refusal(
        means="the topic belongs to a schema registry, whose ids are in the records of others",
        way="move the registry by its own export and import, with its ids kept",
    ),
    TransplantReason.TARGET_TOPIC_MISSING: Refusal(
        means="the target has no topic of that name",
        way="start the target, create it by the command that is printed, stop it; or "
        "`--map OLD=NEW`",
    ),
    TransplantReason.PARTITION_COUNT_DIFFERS: Refusal(
        means="the target's topic has another number of partitions: keys would be elsewhere",
        way="create another topic with as many, and `--map OLD=NEW`",
    ),
    TransplantReason.REPLICA_NOT_GIVEN: Refusal(
        means="the log directory of a replica is not among the target's: an empty replica that "
        "leads would cut the full ones to nothing",
        way="give that directory with `--to` as well; or reassign the topic to fewer brokers first",
    ),
    TransplantReason.TARGET_ID_DIFFERS: Refusal(
        means="the target's directory is of another topic of the same name",
        way="with the target stopped, move that directory out",
    ),
    TransplantReason.TARGET_HAS_RECORDS: Refusal(
        means="the target's partition has records, or had some",
        way="`--map OLD=NEW` to a new topic; nothing is replaced",
    ),
    TransplantReason.SOURCE_TOPICS_DIFFER: Refusal(
        means="the source has logs of several topics of that name: one call takes one of them",
        way="move the folders of all but one topic out of the source's log directories",
    ),
    TransplantReason.TRANSACTION_UNDECIDED: Refusal(
        means="the log ends inside of a transaction that was committed perhaps: the source's "
        "`__transaction_state` does not say it",
        way="give all log directories of the source's brokers, with `__transaction_state` and "
        "`__cluster_metadata`; or `--allow-abort`: committed reads then lack its records",
    ),
    TransplantReason.SOURCE_DAMAGED: Refusal(
        means="the source's log, or one of several, cannot be read whole, or a start would cut "
        "readable records",
        way="`pylog heal` or `pylog recover --salvage` on the source first; a bad replica may be "
        "left out",
    ),
    TransplantReason.LEGACY_FORMAT: Refusal(
        means="the log has batches of a message format before v2, which have no leader epoch",
        way="write its records anew: `pylog export`, then a producer",
    ),
    TransplantReason.BATCH_TOO_LARGE: Refusal(
        means="a batch is larger than max.message.bytes of the target's topic",
        way="start the target, raise max.message.bytes of the topic, stop it",
    ),
    TransplantReason.PRODUCER_ID_TAKEN: Refusal(
        means="the target will give a producer's id to another one, which would be refused",
        way="leave out `--keep-producers`",
    ),
    TransplantReason.TARGET_FULL: Refusal(
        means="a disk of the target has too little room left for the log",
        way="make room (`pylog free`), or choose fewer topics; the others go",
    ),
}
# What can be healed, and what rebuilt metadata lacks.
REMARKS: Final[Mapping[str, Refusal]] = {
    DamageState.FILLED: Refusal(
        means="another replica has what the damage took",
        way="`--plan-out FILE`, then `pylog apply FILE --trash DIR`",
    ),
    UnknownPart.ACCESS_CONTROL: Refusal(
        means="no file of a broker has access control entries; one of an older copy may have been "
        "taken back since",
        way="create them anew (kafka-acls.sh)",
    ),
    UnknownPart.CREDENTIALS: Refusal(
        means="no file of a broker has SCRAM credentials or delegation tokens",
        way="create them anew (kafka-configs.sh, kafka-delegation-tokens.sh)",
    ),
    UnknownPart.QUOTAS: Refusal(
        means="no file of a broker has quotas",
        way="create them anew (kafka-configs.sh)",
    ),
    UnknownPart.GROUP_CONFIG: Refusal(
        means="no file of a broker has settings of groups; those of an older copy are taken, and "
        "may have been changed since",
        way="set them anew (kafka-configs.sh --entity-type groups)",
    ),
    UnknownPart.CLIENT_METRICS: Refusal(
        means="no file of a broker has subscriptions to metrics of clients; those of an older copy "
        "are taken, and may have been changed since",
        way="set them anew (kafka-client-metrics.sh)",
    ),
    UnknownPart.BROKER_CONFIG: Refusal(
        means="no file of a broker has settings that were made while it ran; of an older copy "
        "those about logs are taken",
        way="set them anew (kafka-configs.sh --entity-type brokers)",
    ),
    UnknownPart.TOPIC: Refusal(
        means="a topic or partition lies in no directory that was given: deleted since, or lost",
        way="give all directories of all brokers, also of those that are away",
    ),
    UnknownPart.TOPIC_CONFIG: Refusal(
        means="defaults were assumed for a topic, Kafka 4.4 does not know one of its keys, or "
        "unclean elections were forbidden: no replica is in sync",
        way="`topics:` in `--config`, `--topic-dump` or `--older-copy`; or set it afterwards",
    ),
    UnknownPart.TOPIC_ID: Refusal(
        means="a directory has no partition.metadata: its broker sets it aside",
        way="write that file as the list says, before the broker starts",
    ),
    UnknownPart.REPLICA: Refusal(
        means="a replica lies in no directory that was given: its broker sets it aside",
        way="give that directory too; or see what `pylog inspect` says of it, then remove it",
    ),
    UnknownPart.REPLICA_ORDER: Refusal(
        means="nobody knows who was the preferred leader: brokers take turns",
        way="`--older-copy`; or reassign the partitions afterwards",
    ),
    UnknownPart.ISR: Refusal(
        means="no replica may lead without a loss, or one cannot be opened",
        way="`pylog audit ROOT...` says what each would lose; an unclean election takes one",
    ),
    UnknownPart.EPOCH: Refusal(
        means="a replica has a leader epoch that is not believed: as a follower it may never be in "
        "sync",
        way="as `pylog explain EPOCH_DOUBTFUL` says, before its broker starts",
    ),
    UnknownPart.STRAY: Refusal(
        means="a directory that was set aside before is no replica",
        way="`pylog metadata adopt`, once there is metadata that has its topic id",
    ),
}
