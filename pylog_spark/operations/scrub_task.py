"""Scrub partitions of a tier, rows in, rows out. Nothing is written."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pylog_spark.operations.verify.task import PARTITION_ROW, VerifiedRow, place_finding
from pylog_spark.schemas import Failure, FindingRow, PartitionName
from pylog_spark.tasks.ahead import map_where_remote
from pylog_spark.tasks.message import attempt
from storage_core.catalog.roles import Role
from storage_core.filenames import MAX_OFFSET, TopicPartition
from storage_core.maintenance.verification.findings import Finding
from storage_core.maintenance.verification.tier import (
    Recorded,
    ScrubOptions,
    TierLook,
    look_at_folder,
    read_segments,
)
from storage_core.store.tier_archive import ArchivePlace, Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class TierTarget:
    """A partition of a tier that is to be scrubbed."""

    ordinal: int
    place: ArchivePlace  # only its folder
    folder: str  # key of its objects; empty where there are none
    partition: TopicPartition
    recorded: Recorded | None  # what brokers know of it; None where that is not known
    size_bytes: int  # of its logs, as they were listed

    @property
    def name(self) -> PartitionName:
        """Its name in log lines."""
        partition = self.partition
        return PartitionName(
            root=self.place.place, topic=partition.topic, partition=partition.partition
        )


def scrub_partitions(
    targets: Sequence[TierTarget], options: ScrubOptions, *, recheck_ms: int
) -> Iterator[VerifiedRow]:
    """Look at partitions, and again at those where something was found; read their objects if
    that is asked for.

    Args:
        recheck_ms: Least time between the two looks.
    """
    doubtful = []
    for scrubbed in map_where_remote(
        lambda target: _scrub(target, options, None), targets, directory_of=_place_of
    ):
        yield from scrubbed.rows()
        if scrubbed.doubts:
            doubtful.append((scrubbed.target, scrubbed.doubts))
    if doubtful:
        time.sleep(recheck_ms / 1000)
    for scrubbed in map_where_remote(
        lambda asked: _scrub(asked[0], options, asked[1]),
        doubtful,
        directory_of=lambda asked: _place_of(asked[0]),
    ):
        yield from scrubbed.rows()


def _place_of(target: TierTarget) -> str:
    return target.place.place


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scrubbed:
    """A partition that was looked at."""

    target: TierTarget
    findings: tuple[Finding, ...]
    row: VerifiedRow
    doubts: tuple[Finding, ...]  # what a second look has to find again; empty if none is due

    def rows(self) -> Iterator[VerifiedRow]:
        """Yield its findings and its own row, unless a second look is due."""
        if not self.doubts:
            for finding in self.findings:
                yield place_in_tier(
                    finding,
                    root=_place_of(self.target),
                    partition=self.target.partition,
                    ordinal=self.target.ordinal,
                )
            yield self.row


def place_in_tier(
    finding: Finding, *, root: str, partition: TopicPartition | None, ordinal: int | None = None
) -> VerifiedRow:
    """Return a finding about an object of a tier as a row."""
    offset = None if finding.offset is None else min(finding.offset, MAX_OFFSET)
    return place_finding(
        replace(finding, offset=offset),
        root=root,
        directory=None,
        partition=partition,
        role=Role.MIRROR,
        ordinal=ordinal,
    )


def _scrub(
    target: TierTarget, options: ScrubOptions, before: tuple[Finding, ...] | None
) -> _Scrubbed:
    """Scrub a partition.

    Args:
        before: What a first look has found; None for the first look.
    """
    findings: list[Finding] = []
    doubts: list[Finding] = []

    def work(head: VerifiedRow) -> VerifiedRow:
        tier = target.place.open()
        folders = tier.listing[0] if target.folder else []
        folder = next((each for each in folders if each.key == target.folder), None)
        look = look_at_folder(tier, folder, target.recorded, options)
        if before is None and look.findings:
            doubts.extend(look.findings)
            return head
        findings.extend(each for each in look.findings if each in (before or ()))
        row = _with_look(head, look)
        return _read(tier, look, row) if options.is_deep else row

    def _read(tier: Tier, look: TierLook, row: VerifiedRow) -> VerifiedRow:
        read = read_segments(tier, look.chosen, options)
        findings.extend(read.findings)
        return replace(
            row,
            records=read.records,
            read_bytes=read.read_bytes,
            read_ms=round(read.read_seconds * 1000),
            failure=Failure() if read.error is None else Failure.of(read.error),
        )

    partition = FindingRow(topic=target.partition.topic, partition=target.partition.partition)
    head = VerifiedRow(
        row=PARTITION_ROW, ordinal=target.ordinal, root=_place_of(target), finding=partition
    )
    row = attempt(head, work, target.name)
    return _Scrubbed(
        target=target,
        findings=tuple(findings),
        row=row,
        doubts=() if row.failure else tuple(doubts),
    )


def _with_look(head: VerifiedRow, look: TierLook) -> VerifiedRow:
    pieces = look.chosen.pieces
    return replace(
        head,
        segments=len(look.chosen.candidates),
        bytes=look.size_bytes,
        log_start_offset=pieces[0].start if pieces else None,
        # What objects say may lie beyond the last offset that there is.
        log_end_offset=min(pieces[-1].end, MAX_OFFSET) if pieces else None,
    )
