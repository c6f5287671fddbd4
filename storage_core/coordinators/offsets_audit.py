"""Compare committed offsets with their logs: lag, and commits outside them."""

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.coordinators.groups import CommitKey, CommittedOffset, Group, expiry_ms
from storage_core.filenames import TopicPartition, offset_of, sorted_logs
from storage_core.log.committed_view import load_by_snapshots, scan_batch_tables
from storage_core.log.loaded_log import LogBounds
from storage_core.log.open_transactions import (
    OpenSpan,
    OpenTransaction,
    OpenTransactions,
    is_late,
    list_open_transactions,
)
from storage_core.store.base import LogStore

# The answer of a coordinator for a partition without a commit.
NO_OFFSET: Final = -1
_SIGN: Final = 1 << 31


class CommitFinding(enum.StrEnum):
    """What is wrong with a committed offset, or worth knowing of it."""

    BEYOND_LOG_END = "commit-beyond-log-end"  # the log was cut, or belongs to another topic
    BELOW_LOG_START = "commit-below-log-start"  # the next records are gone
    EXPIRED = "commit-expired"  # the coordinator removes it at its next look
    METADATA_TOO_LARGE = "commit-metadata-too-large"  # no broker would accept it today
    WRONG_PARTITION = "commit-in-wrong-partition"  # its coordinator never reads it
    NOT_LOADED = "coordinator-not-loaded"  # a record of its partition stops the coordinator's load


@dataclass(frozen=True, slots=True, kw_only=True)
class TierBounds(LogBounds):
    """A log's bounds with its tier: of a tiered topic, the log start may lie there."""

    # First offset that is not known to be replicated, None where no checkpoint says so.
    high_watermark: int | None = None
    # First offset in the files here, None where that is the log start.
    local_start: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedCommit:
    """A group's place in one partition."""

    key: CommitKey
    # The commit, None where the group has none: a coordinator answers offset -1 and empty metadata.
    commit: CommittedOffset | None
    bounds: TierBounds | None  # the log's bounds, None without the log
    # Records' offsets from the commit to the log end, at least 0; None without either.
    lag: int | None
    # The same to the high watermark, which is how far consumers read.
    high_watermark_lag: int | None
    # From when on the commit may be removed, epoch milliseconds; None as long as the group is as it
    # is.
    expires_ms: int | None
    findings: tuple[CommitFinding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """What decides about commits."""

    now_ms: int
    # The broker's ``offsets.retention.minutes``, in milliseconds.
    retention_ms: int = 10_080 * 60_000
    max_metadata_bytes: int = 4_096  # the broker's ``offset.metadata.max.bytes``
    # Partitions of ``__consumer_offsets``, None where that is not known.
    partition_count: int | None = None


def audit_commits(
    groups: Iterable[Group],
    offsets: Mapping[CommitKey, CommittedOffset],
    bounds: Mapping[TopicPartition, TierBounds],
    settings: AuditSettings,
    *,
    partition: int,
) -> Iterator[AuditedCommit]:
    """Yield the places of groups, by group, topic and partition.

    A group has a place in each partition that it has a commit for, and in each other one of these
    topics, or of those that its members subscribe to, whose log is there.
    """
    keys_of_group: dict[str, set[CommitKey]] = {}
    for key in offsets:
        keys_of_group.setdefault(key.group, set()).add(key)
    logs_of_topic: dict[str, list[int]] = {}
    for place in bounds:
        logs_of_topic.setdefault(place.topic, []).append(place.partition)
    for group in groups:
        keys = keys_of_group.get(group.group, set())
        topics = {key.topic for key in keys} | (group.subscribed_topics or frozenset())
        missing = {
            CommitKey(group.group, topic, number)
            for topic in topics
            for number in logs_of_topic.get(topic, ())
        }
        for key in sorted(keys | missing):
            log = bounds.get(TopicPartition(key.topic, key.partition))
            yield _audit(key, group, offsets.get(key), log, settings, partition)


def group_partition(group: str, partition_count: int) -> int:
    """Return the partition of ``__consumer_offsets`` in which a group's records are.

    Args:
        partition_count: Partitions of the topic, at least 1.
    """
    return abs_hash(group) % partition_count


def abs_hash(text: str) -> int:
    """Return Java's hash of a text after Kafka's ``Utils.abs``, from 0 on."""
    value = 0
    encoded = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(encoded), 2):
        value = (31 * value + int.from_bytes(encoded[index : index + 2], "big")) & 0xFFFF_FFFF
    signed = value - (value >= _SIGN) * 2 * _SIGN
    return 0 if signed == -_SIGN else abs(signed)


def find_outside(offset: int, bounds: TierBounds | None) -> Iterator[CommitFinding]:
    """Yield that an offset lies outside of a log."""
    if bounds is not None and offset > bounds.log_end_offset:
        yield CommitFinding.BEYOND_LOG_END
    if bounds is not None and offset < bounds.log_start_offset:
        yield CommitFinding.BELOW_LOG_START


def _audit(
    key: CommitKey,
    group: Group,
    commit: CommittedOffset | None,
    bounds: TierBounds | None,
    settings: AuditSettings,
    partition: int,
) -> AuditedCommit:
    expires_ms = None
    findings: list[CommitFinding] = []
    lag = high_watermark_lag = None
    if commit is not None:
        expires_ms = expiry_ms(commit, group, retention_ms=settings.retention_ms)
        findings = list(_findings(commit, bounds, expires_ms, settings, partition))
        if bounds is not None:
            lag = max(0, bounds.log_end_offset - commit.offset)
            if bounds.high_watermark is not None:
                high_watermark_lag = max(0, bounds.high_watermark - commit.offset)
    return AuditedCommit(
        key=key,
        commit=commit,
        bounds=bounds,
        lag=lag,
        high_watermark_lag=high_watermark_lag,
        expires_ms=expires_ms,
        findings=tuple(findings),
    )


def _findings(
    commit: CommittedOffset,
    bounds: TierBounds | None,
    expires_ms: int | None,
    settings: AuditSettings,
    partition: int,
) -> Iterator[CommitFinding]:
    yield from find_outside(commit.offset, bounds)
    if expires_ms is not None and settings.now_ms >= expires_ms:
        yield CommitFinding.EXPIRED
    # Kafka counts characters, as Java does.
    if len(commit.metadata.encode("utf-16-be")) // 2 > settings.max_metadata_bytes:
        yield CommitFinding.METADATA_TOO_LARGE
    count = settings.partition_count
    if count is not None and group_partition(commit.key.group, count) != partition:
        yield CommitFinding.WRONG_PARTITION


# A log's start, end and open transactions, for comparison with groups.


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedLog:
    """A log beside which commits and transactions are looked at."""

    bounds: TierBounds
    # Transactions without an end marker, the oldest first.
    open_transactions: tuple[OpenTransaction, ...]


def observe_log(
    store: LogStore,
    *,
    now_ms: int,
    max_transaction_timeout_ms: int,
    checkpoints: PartitionCheckpoints,
    tier_start: Callable[[int], int | None],
) -> ObservedLog:
    """Observe a log by its producer snapshots, else by batch headers.

    Args:
        max_transaction_timeout_ms: The cluster's ``transaction.max.timeout.ms``.
        checkpoints: The partition's entries in the checkpoints.
        tier_start: Returns the log start in a tier, None without one. It is given the first offset
            on the disk.
    """
    log_start_checkpoint = checkpoints.log_start_offset or 0
    mark = checkpoints.high_watermark
    log = load_by_snapshots(store, now_ms=now_ms, log_start_checkpoint=log_start_checkpoint)
    if log is not None:
        return ObservedLog(
            bounds=_bounds(log.log_start_offset, log.log_end_offset, mark, tier_start),
            open_transactions=list_open_transactions(
                log.producers,
                now_ms=now_ms,
                max_transaction_timeout_ms=max_transaction_timeout_ms,
            ),
        )
    names = sorted_logs(file.name for file in store.list_files())
    bases = [offset_of(name) or 0 for name in names]
    log_start = max([log_start_checkpoint, *bases[:1]])
    log_end = max(bases, default=log_start)
    transactions = OpenTransactions(keeps_ended=False)
    epochs: dict[int, int] = {}
    for name in names:
        for batches in scan_batch_tables(store, name):
            # Only transactional batches are visited one by one.
            for row in np.flatnonzero(batches.is_transactional).tolist():
                producer_id = int(batches.producer_id[row])
                offset = int(batches.base_offset[row])
                epochs[producer_id] = int(batches.producer_epoch[row])
                if batches.is_control[row]:
                    transactions.end(producer_id, offset)
                else:
                    data = OpenSpan(offset, int(batches.max_timestamp[row]))
                    transactions.extend(producer_id, data)
            if len(batches):
                log_end = int(batches.last_offset[-1]) + 1
    oldest_first = sorted(transactions.spans.items(), key=lambda item: item[1].first_offset)
    return ObservedLog(
        bounds=_bounds(log_start, log_end, mark, tier_start),
        open_transactions=tuple(
            OpenTransaction(
                producer_id=producer_id,
                producer_epoch=epochs[producer_id],
                first_offset=span.first_offset,
                last_timestamp=span.newest_ms,
                age_ms=now_ms - span.newest_ms,
                is_late=is_late(
                    span.newest_ms,
                    now_ms=now_ms,
                    max_transaction_timeout_ms=max_transaction_timeout_ms,
                ),
            )
            for producer_id, span in oldest_first
        ),
    )


def _bounds(
    local_start: int, log_end: int, mark: int | None, tier_start: Callable[[int], int | None]
) -> TierBounds:
    in_tier = tier_start(local_start)
    return TierBounds(
        log_start_offset=local_start if in_tier is None else in_tier,
        log_end_offset=log_end,
        high_watermark=mark,
        local_start=None if in_tier is None else local_start,
    )
