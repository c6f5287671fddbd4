"""Hypothesis strategies: whole partitions with everything that compaction has to tell apart."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from storage_core.filenames import snapshot_file
from storage_core.formats.batch_v2 import Codec, TimestampType
from storage_core.formats.control import ControlType
from storage_core.log.producer_snapshot import encode_producer_snapshot
from storage_core.log.producer_state import ProducerState, events_of_windows
from tests.kit import builders
from tests.kit.directories import AbortedTxnSpec, SegmentSpec, write_partition
from tests.kit.legacy import AnyBatch, LegacyMessage, LegacySet, encoded
from tests.storage_core.records.memory_file import windows_of

PRODUCERS = (1000, 2000, 3000)
KEYS = (b"a", b"b", b"c", b"d", b"", b"k" * 70, None)
KINDS = ("plain", "plain", "plain", "idempotent", "txn", "txn", "commit", "abort", "leader", "roll")


@dataclass
class RandomLog:
    """A log while it is made up: what has been appended, and what the next batch has to fit."""

    segments: list[list[AnyBatch]] = field(default_factory=lambda: [[]])
    bases: list[int] = field(default_factory=lambda: [0])
    aborted: list[list[AbortedTxnSpec]] = field(default_factory=lambda: [[]])
    open_txns: dict[int, int] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)
    next_offset: int = 0
    timestamp: int = builders.SOME_TIME_MS - 10_000_000
    keys: tuple[bytes | None, ...] = KEYS
    leader_epoch: int = 0

    def append(self, batch: AnyBatch) -> None:
        self.segments[-1].append(batch)
        self.next_offset = batch.next_offset

    def roll(self) -> None:
        if self.segments[-1]:
            self.segments.append([])
            self.aborted.append([])
            self.bases.append(self.next_offset)

    def end_txn(self, producer_id: int, kind: ControlType) -> None:
        first = self.open_txns.pop(producer_id, None)
        offset = self.next_offset
        if kind is ControlType.ABORT and first is not None:
            self.aborted[-1].append(
                AbortedTxnSpec(
                    producer_id=producer_id,
                    first_offset=first,
                    last_offset=offset,
                    last_stable_offset=min([*self.open_txns.values(), offset + 1]),
                )
            )
        self.append(
            builders.end_txn_marker(
                base_offset=offset,
                producer_id=producer_id,
                producer_epoch=0,
                control_type=kind,
                timestamp=self.timestamp,
                leader_epoch=self.leader_epoch,
            )
        )

    def write(self, directory: Path, *, index_interval_bytes: int) -> Path:
        """Write the partition as a clean close leaves it, with an empty active segment."""
        self.roll()
        write_partition(
            directory,
            [
                SegmentSpec(
                    base_offset=base,
                    batches=batches,
                    aborted=aborted,
                    # Far enough apart for the tombstones of old formats to go in some of them.
                    modified_ms=self.timestamp + 600 * number,
                )
                for number, (base, batches, aborted) in enumerate(
                    zip(self.bases, self.segments, self.aborted, strict=True)
                )
            ],
            index_interval_bytes=index_interval_bytes,
        )
        state = ProducerState()
        state.replay(
            "segment",
            events_of_windows(
                windows_of(encoded(batch for batches in self.segments for batch in batches))
            ),
        )
        snapshot = encode_producer_snapshot(state.producers.values())
        (directory / snapshot_file(self.next_offset)).write_bytes(snapshot)
        return directory


def _records(draw: st.DrawFn, log: RandomLog) -> tuple[builders.RecordSpec, ...]:
    delta = -1
    parts = []
    for _ in range(draw(st.integers(1, 5))):
        delta += draw(st.sampled_from([1, 1, 1, 2, 7]))
        log.timestamp += draw(st.integers(-2, 40))
        parts.append(
            builders.RecordSpec(
                key=draw(st.sampled_from(log.keys)),
                value=draw(st.sampled_from([b"v", b"", b"x" * 90, None])),
                timestamp=log.timestamp,
                headers=draw(st.sampled_from([(), (), (("h", None), ("\u00e9", b"1"))])),
                offset_delta=delta,
            )
        )
    return tuple(parts)


def _data(draw: st.DrawFn, log: RandomLog, codecs: st.SearchStrategy[Codec], **fields: Any) -> None:
    records = _records(draw, log)
    is_append_time = draw(st.integers(0, 5)) == 0
    gap = draw(st.sampled_from([0] * 20 + [1000]))
    last_delta = records[-1].offset_delta or 0
    log.append(
        builders.BatchSpec(
            records=records,
            base_offset=log.next_offset + gap,
            codec=draw(codecs),
            leader_epoch=log.leader_epoch,
            timestamp_type=(
                TimestampType.LOG_APPEND_TIME if is_append_time else TimestampType.CREATE_TIME
            ),
            max_timestamp=log.timestamp + 5 if is_append_time else None,
            # Compaction took the last records of some batches away before.
            last_offset_delta=last_delta + draw(st.sampled_from([0, 0, 0, 3])),
            **fields,
        )
    )


def _old(draw: st.DrawFn, log: RandomLog, codecs: st.SearchStrategy[Codec]) -> None:
    """Append an entry of an old format, as a broker before the upgrade did."""
    magic = draw(st.sampled_from([0, 1]))
    codec = draw(codecs)
    messages = tuple(
        LegacyMessage(
            offset=log.next_offset + (record.offset_delta or 0),
            key=record.key,
            value=record.value,
            timestamp=record.timestamp,
            magic=magic,
        )
        for record in _records(draw, log)
    )
    if codec in {Codec.NONE, Codec.ZSTD}:
        for message in messages:
            log.append(message)
        return
    is_append_time = draw(st.integers(0, 5)) == 0
    log.append(
        LegacySet(
            messages=messages,
            codec=codec,
            magic=magic,
            timestamp_type=(
                TimestampType.LOG_APPEND_TIME if is_append_time else TimestampType.CREATE_TIME
            ),
            timestamp=log.timestamp + 5 if is_append_time else None,
        )
    )


def _produced(
    draw: st.DrawFn, log: RandomLog, codecs: st.SearchStrategy[Codec], *, in_txn: bool
) -> None:
    producer_id = draw(st.sampled_from(PRODUCERS))
    if not in_txn and producer_id in log.open_txns:
        return
    sequence = log.sequences.get(producer_id, 0)
    _data(
        draw,
        log,
        codecs,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=in_txn,
    )
    written = log.segments[-1][-1]
    log.sequences[producer_id] = sequence + 1 + written.offset_deltas[-1]
    if in_txn:
        log.open_txns.setdefault(producer_id, written.base_offset)


@st.composite
def random_logs(
    draw: st.DrawFn,
    codecs: st.SearchStrategy[Codec],
    *,
    has_old_formats: bool = False,
    keys: tuple[bytes | None, ...] = KEYS,
    kinds: tuple[str, ...] = KINDS,
    least: int = 4,
) -> RandomLog:
    """Logs of a few segments; in one with old formats those come before, or among, the new ones."""
    log = RandomLog(keys=keys)
    if has_old_formats:
        for kind in draw(st.lists(st.sampled_from(["old", "old", "old", "roll"]), max_size=12)):
            if kind == "old":
                _old(draw, log, codecs)
            else:
                log.roll()
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=least, max_size=40)):
        match kind:
            case "plain":
                _data(draw, log, codecs)
            case "idempotent" | "txn":
                _produced(draw, log, codecs, in_txn=kind == "txn")
            case "commit" | "abort":
                marker = ControlType[kind.upper()]
                log.end_txn(draw(st.sampled_from(PRODUCERS)), marker)
            case "leader":
                log.leader_epoch += 1
                log.append(
                    builders.leader_change_batch(
                        base_offset=log.next_offset,
                        leader_epoch=log.leader_epoch,
                        timestamp=log.timestamp,
                    )
                )
            case _:
                log.roll()
    return log
