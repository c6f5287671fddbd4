"""Codes of this house: what each means, and the way out."""

from collections.abc import Mapping
from typing import Final

from pylog_spark.refusals import Refusal
from storage_core.cluster.attachment import AttachReason
from storage_core.cluster.healing import DamageState
from storage_core.cluster.metadata_rebuild import UnknownPart
from storage_core.cluster.stray_adoption import StrayReason
from storage_core.cluster.transplant.plan import TransplantReason

# Why something was left alone or refused.
GUARDS: Final[Mapping[str, Refusal]] = {
    StrayReason.NO_TOPIC_ID: Refusal(
        means="the stray directory has no readable topic id",
        way="look at it; `pylog cat` reads its records all the same",
    ),
    StrayReason.TOPIC_UNKNOWN: Refusal(
        means="the cluster's metadata has no topic with the id of the stray directory",
        way="also name the directory with newer metadata; for a disk of another cluster use `pylog"
        " transplant`; otherwise the topic was deleted",
    ),
    StrayReason.NOT_ASSIGNED: Refusal(
        means="the cluster's metadata assigns the partition to other brokers",
    ),
    StrayReason.NAME_TAKEN: Refusal(
        means="the broker already has a directory of the partition",
        way="`pylog audit` compares them; move away the one with fewer records",
    ),
    StrayReason.SEVERAL_STRAYS: Refusal(
        means="several stray directories belong to one partition",
        way="`pylog inspect` shows their contents; move all but one away",
    ),
    StrayReason.STRAY_IS_LINK: Refusal(
        means="the stray directory is a link, and pylog does not follow links",
        way="replace the link by the directory itself",
    ),
    DamageState.NO_DONOR: Refusal(
        means="no other replica of the damaged log was named, or the log has no batch to compare",
        way="name more replicas with `--donor DIR`; if the log has no batch, let the broker fetch "
        "it",
    ),
    DamageState.DONOR_LACKS: Refusal(
        means="the other replica begins after the damage, or ends before it",
        way="name another replica with `--donor DIR`",
    ),
    DamageState.DONOR_DAMAGED: Refusal(
        means="the other replica is damaged in the same place",
        way="heal that replica first, with `pylog heal` from a third",
    ),
    DamageState.DONOR_DIVERGED: Refusal(
        means="around the damage the other replica has other batches, or another epoch",
        way="`pylog audit ROOT...` says which replica has the valid history",
    ),
    DamageState.COMPACTED_APART: Refusal(
        means="the damaged log and the other replica were compacted separately",
        way="name a replica that is at least as clean, with `--donor DIR`; docs/healing.md says "
        "when one is",
    ),
    DamageState.DONORS_DIFFER: Refusal(
        means="the other replicas have different bytes in the damaged place",
        way="`--quorum 2` takes the bytes that two of them have, if two are a majority",
    ),
    DamageState.SEGMENT_LEFT: Refusal(
        means="the segment has other damage that no replica heals",
        way="follow the advice for the other damage",
    ),
    TransplantReason.INTERNAL_TOPIC: Refusal(
        means="the topic describes its own cluster: groups, transactions or topics",
        way="`pylog transplant --offsets-out FILE` copies the groups' offsets",
    ),
    TransplantReason.SCHEMA_TOPIC: Refusal(
        means="the topic belongs to a schema registry, and records of other topics contain its ids",
        way="move the registry with its own export and import, and keep its ids",
    ),
    TransplantReason.TARGET_TOPIC_MISSING: Refusal(
        means="the target has no topic with that name",
        way="start the target, create the topic with the printed command and stop the target; or "
        "use `--map OLD=NEW`",
    ),
    TransplantReason.PARTITION_COUNT_DIFFERS: Refusal(
        means="the target's topic has another number of partitions, so keys would be in other "
        "partitions",
        way="create another topic with the same number, and use `--map OLD=NEW`",
    ),
    TransplantReason.REPLICA_NOT_GIVEN: Refusal(
        means="the log directory of a replica is missing from the target's: if an empty replica "
        "leads, the others are cut to nothing",
        way="also name that directory with `--to`; or first reassign the topic to fewer brokers",
    ),
    TransplantReason.TARGET_ID_DIFFERS: Refusal(
        means="the target's directory belongs to another topic with the same name",
        way="stop the target and move that directory out",
    ),
    TransplantReason.TARGET_HAS_RECORDS: Refusal(
        means="the target's partition has records, or had some before",
        way="use a new topic with `--map OLD=NEW`; transplant replaces no records",
    ),
    TransplantReason.SOURCE_TOPICS_DIFFER: Refusal(
        means="the source has logs of several topics with that name, and one run moves one of them",
        way="move the folders of all other topics out of the source's log directories",
    ),
    TransplantReason.TRANSACTION_UNDECIDED: Refusal(
        means="the log ends inside a transaction that may have been committed: the source's "
        "`__transaction_state` does not tell",
        way="name all log directories of the source's brokers, with `__transaction_state` and "
        "`__cluster_metadata`; or use `--allow-abort`: then readers of committed records lose this"
        " transaction's records",
    ),
    TransplantReason.SOURCE_DAMAGED: Refusal(
        means="a log of the source is damaged, or a broker's start would cut readable records from"
        " it",
        way="first repair the source with `pylog heal` or `pylog recover --salvage`; you may leave"
        " out a bad replica",
    ),
    TransplantReason.LEGACY_FORMAT: Refusal(
        means="the log has batches of a message format before v2, which has no leader epochs",
        way="write its records again: `pylog export`, then a producer",
    ),
    TransplantReason.BATCH_TOO_LARGE: Refusal(
        means="a batch is larger than max.message.bytes of the target's topic",
        way="start the target, raise max.message.bytes of the topic, and stop the target",
    ),
    TransplantReason.PRODUCER_ID_TAKEN: Refusal(
        means="the target will give a producer's id to another producer, and would then refuse its"
        " batches",
        way="leave out `--keep-producers`",
    ),
    TransplantReason.TARGET_FULL: Refusal(
        means="a disk of the target has no room for the log",
        way="make room (`pylog free`), or choose fewer topics; other partitions were moved",
    ),
    AttachReason.TIER_SEGMENT_INCOMPLETE: Refusal(
        means="the newest segment in the tier was not uploaded completely",
        way="`--newest` ends the log before that segment; its records were on the disks as well",
    ),
    AttachReason.TIER_HISTORIES_DIFFER: Refusal(
        means="an unclean election has left a second history in the tier",
        way="`--newest` takes the history with the newest leader epoch; `pylog inspect --segments` "
        "shows all segments",
    ),
    AttachReason.TIER_SEGMENT_MISSING: Refusal(
        means="the tier has no complete segment for some offsets between others",
        way="restore the objects (`pylog inspect --segments` shows what is left), or use "
        "`--allow-data-loss`: consumers pass over those offsets",
    ),
    AttachReason.TARGET_HAS_TOPIC: Refusal(
        means="a log directory of the new cluster has a partition of the topic, or of "
        "`__remote_log_metadata`",
        way="use newly formatted directories, or leave out the topic with `--exclude`",
    ),
    AttachReason.TOPIC_ID_TAKEN: Refusal(
        means="a topic of the new cluster has the id of a topic in the tier",
        way="use newly formatted directories, or leave out the topic with `--exclude`",
    ),
}
# What can be healed, and what rebuilt metadata lacks.
REMARKS: Final[Mapping[str, Refusal]] = {
    DamageState.FILLED: Refusal(
        means="another replica has the damaged bytes",
        way="save the plan with `--plan-out FILE`, then `pylog apply FILE --trash DIR`",
    ),
    UnknownPart.ACCESS_CONTROL: Refusal(
        means="a broker's files have no access control entries; an entry from an older copy may "
        "have been removed since",
        way="create them again (kafka-acls.sh)",
    ),
    UnknownPart.CREDENTIALS: Refusal(
        means="a broker's files have no SCRAM credentials and no delegation tokens",
        way="create them again (kafka-configs.sh, kafka-delegation-tokens.sh)",
    ),
    UnknownPart.QUOTAS: Refusal(
        means="a broker's files have no quotas",
        way="create them again (kafka-configs.sh)",
    ),
    UnknownPart.GROUP_CONFIG: Refusal(
        means="a broker's files have no settings of groups; those of an older copy are used, and "
        "may be out of date",
        way="set them again (kafka-configs.sh --entity-type groups)",
    ),
    UnknownPart.CLIENT_METRICS: Refusal(
        means="a broker's files have no subscriptions to client metrics; those of an older copy "
        "are used, and may be out of date",
        way="set them again (kafka-client-metrics.sh)",
    ),
    UnknownPart.BROKER_CONFIG: Refusal(
        means="a broker's files have no dynamic settings; those about logs are taken from an older"
        " copy",
        way="set them again (kafka-configs.sh --entity-type brokers)",
    ),
    UnknownPart.TOPIC: Refusal(
        means="the named directories lack a topic or partition: it was deleted, or a directory is "
        "missing",
        way="name all directories of all brokers, also of absent brokers",
    ),
    UnknownPart.TOPIC_CONFIG: Refusal(
        means="the topic's config is partly assumed: defaults were used, Kafka 4.4 does not know a"
        " key, or unclean elections were forbidden because no replica is in sync",
        way="set it with `topics:` in `--config`, with `--topic-dump` or `--older-copy`, or later "
        "on the cluster",
    ),
    UnknownPart.TOPIC_ID: Refusal(
        means="a directory has no partition.metadata, so its broker renames it to -stray",
        way="write that file as the list says, before the broker starts",
    ),
    UnknownPart.REPLICA: Refusal(
        means="the named directories lack a replica, so its broker would rename it to -stray",
        way="also name its directory; or read what `pylog inspect` says about it, then remove it",
    ),
    UnknownPart.REPLICA_ORDER: Refusal(
        means="the preferred leader is not known; brokers take turns",
        way="use `--older-copy`, or reassign the partitions later",
    ),
    UnknownPart.ISR: Refusal(
        means="every replica would lose records as leader, or one cannot be opened",
        way="`pylog audit ROOT...` shows each replica's losses; an unclean election chooses one",
    ),
    UnknownPart.EPOCH: Refusal(
        means="a replica has a doubtful leader epoch: as a follower it may never be in sync",
        way="before its broker starts, follow `pylog explain EPOCH_DOUBTFUL`",
    ),
    UnknownPart.STRAY: Refusal(
        means="a stray directory does not count as a replica",
        way="run `pylog metadata adopt` after the metadata has its topic id",
    ),
}
