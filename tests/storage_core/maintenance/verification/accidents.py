"""For each code, what has to happen to a whole log directory so that it is found."""

import dataclasses
import gzip
import shutil
import struct
from collections.abc import Callable

from storage_core import filenames
from storage_core.formats.batch_v2 import LEADER_EPOCH_AT, MAGIC_AT
from storage_core.formats.control import ControlType
from storage_core.maintenance.verification.findings import Code
from tests.kit import damage, directories
from tests.kit.builders import RecordSpec, encode_batch
from tests.storage_core.maintenance.verification.log_root import (
    ABORTS,
    COMMITS,
    END_OFFSET,
    IDEMPOTENT,
    LogRoot,
    batch,
    marker,
    segments,
    transactional,
)

HEX = "0123456789abcdef0123456789abcdef"
Accident = Callable[[LogRoot], None]


def crc(root: LogRoot) -> None:
    root.change(root.file(20), -1, b"\x55")


def length(root: LogRoot) -> None:
    data = encode_batch(batch(5))
    root.write_batches(batch(0), damage.with_lying_length(data, 3), batch(10))


def torn_tail(root: LogRoot) -> None:
    with root.file(30).open("ab") as file:
        file.write(encode_batch(batch(40))[:-1])


def zero_tail(root: LogRoot) -> None:
    with root.file(30).open("ab") as file:
        file.write(bytes(5000))


def torn_segment(root: LogRoot) -> None:
    path = root.file(0)
    path.write_bytes(path.read_bytes()[:-1])


def magic(root: LogRoot) -> None:
    root.change(root.file(20), MAGIC_AT, b"\x03")


def legacy(root: LogRoot) -> None:
    message = struct.pack(">bbii", 0, 0, -1, 1) + b"v"
    entry = struct.pack(">I", __import__("zlib").crc32(message)) + message
    root.write_batches(struct.pack(">qi", 0, len(entry)) + entry, batch(1))


def control_record(root: LogRoot) -> None:
    spec = marker(5, COMMITS, ControlType.COMMIT)
    bad = dataclasses.replace(spec, records=(RecordSpec(key=b"\0", value=b""),))
    root.write_batches(batch(0), bad)


def record_count(root: LogRoot) -> None:
    root.write_batches(batch(0), damage.with_lying_count(encode_batch(batch(5)), -1))


def records(root: LogRoot) -> None:
    root.write_batches(
        batch(0), damage.bad_record(damage.BadRecord.LENGTH_PAST_THE_END, batch(5)), batch(6)
    )


def codec(root: LogRoot) -> None:
    root.write_batches(batch(0), damage.with_codec(encode_batch(batch(5)), 6), batch(10))


def record_offset(root: LogRoot) -> None:
    root.write_batches(dataclasses.replace(batch(0), last_offset_delta=2))


def record_time(root: LogRoot) -> None:
    spec = batch(0)
    root.write_batches(dataclasses.replace(spec, max_timestamp=spec.records[0].timestamp))


def negative_timestamp(root: LogRoot) -> None:
    spec = batch(5)
    old = tuple(dataclasses.replace(record, timestamp=-5_000) for record in spec.records)
    root.write_batches(batch(0), dataclasses.replace(spec, records=old))


def offsets(root: LogRoot) -> None:
    root.write_batches(batch(0), batch(5), batch(3))


def below_base(root: LogRoot) -> None:
    root.write_batches(batch(5), batch(10), base_offset=8)


def overflow(root: LogRoot) -> None:
    root.write_batches(batch(0), encode_batch(batch(2**31 - 3)))


def overlap(root: LogRoot) -> None:
    specs = segments()
    specs[2] = directories.SegmentSpec(
        base_offset=20, batches=(batch(20, leader_epoch=3), batch(28, leader_epoch=3))
    )
    root.write_segments(specs)


def middle_removed(root: LogRoot) -> None:
    for suffix in (".log", ".index", ".timeindex"):
        root.file(20, suffix).unlink()


def too_large(root: LogRoot) -> None:
    with root.file(30).open("r+b") as file:
        file.truncate(2**31)


def epoch_back(root: LogRoot) -> None:
    root.write_batches(batch(0, leader_epoch=4), batch(5, leader_epoch=2))


def epoch_doubtful(root: LogRoot) -> None:
    """Let one batch have an epoch between its neighbours' that no leader had."""
    path = root.file(10)
    first_size = 12 + int.from_bytes(path.read_bytes()[8:12])
    root.change(path, first_size + LEADER_EPOCH_AT, (2).to_bytes(4))


def gone(name: str) -> Accident:
    return lambda root: (root.partition / name).unlink()


def written(name: str, text: str) -> Accident:
    def write(root: LogRoot) -> None:
        (root.partition / name).write_text(text)

    return write


def preallocated(root: LogRoot) -> None:
    with root.file(30, ".index").open("ab") as file:
        file.write(bytes(80))


def time_index_padded(root: LogRoot) -> None:
    with root.file(20, ".timeindex").open("ab") as file:
        file.write(bytes(24))


def ragged(root: LogRoot) -> None:
    with root.file(20, ".timeindex").open("ab") as file:
        file.write(b"\x07")


def beyond_log(root: LogRoot) -> None:
    with root.file(30, ".index").open("ab") as file:
        file.write(struct.pack(">ii", 12, 5000))


def offset_index(root: LogRoot) -> None:
    root.change(root.file(20, ".index"), 7, b"\x01")


def time_index(root: LogRoot) -> None:
    root.change(root.file(20, ".timeindex"), 7, b"\xff")


def time_index_unfinished(root: LogRoot) -> None:
    specs = [
        directories.SegmentSpec(base_offset=0, batches=[batch(n) for n in (0, 5, 10, 15)]),
        *segments()[2:],
    ]
    root.write_segments(specs)
    path = root.file(0, ".timeindex")
    path.write_bytes(path.read_bytes()[:-12])


def txn_index(*entries: tuple[int, int, int]) -> Accident:
    def write(root: LogRoot) -> None:
        specs = [
            directories.AbortedTxnSpec(
                producer_id=producer_id,
                first_offset=first,
                last_offset=last,
                last_stable_offset=last + 1,
            )
            for producer_id, first, last in entries
        ]
        root.file(10, ".txnindex").write_bytes(directories.encode_txn_index(specs))

    return write


def txn_version(root: LogRoot) -> None:
    root.change(root.file(10, ".txnindex"), 1, b"\x09")


def snapshot_corrupt(root: LogRoot) -> None:
    root.change(root.file(10, ".snapshot"), -1, b"\x55")


def snapshots_missing(root: LogRoot) -> None:
    for path in root.partition.glob("*.snapshot"):
        path.unlink()


def snapshot_stray(root: LogRoot) -> None:
    shutil.copy(root.file(10, ".snapshot"), root.file(99, ".snapshot"))


def snapshot_wrong(root: LogRoot) -> None:
    entry = directories.ProducerSpec(
        producer_id=IDEMPOTENT, last_sequence=3, last_offset=9, offset_delta=4
    )
    root.file(10, ".snapshot").write_bytes(directories.encode_producer_snapshot([entry]))


def open_transaction(root: LogRoot) -> None:
    root.write_batches(batch(0), transactional(5, COMMITS))


def hanging_transaction(root: LogRoot) -> None:
    spec = transactional(5, COMMITS)
    old = tuple(dataclasses.replace(r, timestamp=r.timestamp - 2_000_000) for r in spec.records)
    root.write_batches(batch(0), dataclasses.replace(spec, records=old))


def invalid_transaction(root: LogRoot) -> None:
    plain = batch(9, producer_id=COMMITS, producer_epoch=0, base_sequence=4)
    root.write_batches(batch(0), transactional(5, COMMITS), plain)


def no_segment(root: LogRoot) -> None:
    for path in root.partition.glob("0*"):
        path.unlink()


def compressed(root: LogRoot) -> None:
    log = root.file(0)
    log.with_name(f"{log.name}.1.gz").write_bytes(gzip.compress(log.read_bytes()))
    for path in root.partition.glob("00000000000000000000.*"):
        if not path.name.endswith(".gz"):
            path.unlink()


def ancient(root: LogRoot) -> None:
    no_segment(root)
    (root.partition / "00000000000000000000.kafka").write_bytes(b"\0\0\0\x0a")


def metadata_directory(name: str) -> Accident:
    def make(root: LogRoot) -> None:
        shutil.copytree(root.partition, root.path / name)

    return make


def another_topic(root: LogRoot) -> None:
    shutil.copytree(root.partition, root.path / "t-1")
    other = "version: 0\ntopic_id: 4CCfqQbWRHy_3kC4SIuLMw"
    (root.path / "t-1" / filenames.PARTITION_METADATA_FILE).write_text(other)


def checkpoint(name: str, offset: int) -> Accident:
    return lambda root: root.write_checkpoint(name, offset)


def in_root(name: str, text: str | None) -> Accident:
    def change(root: LogRoot) -> None:
        if text is None:
            (root.path / name).unlink()
        else:
            (root.path / name).write_text(text)

    return change


def unreadable(root: LogRoot) -> None:
    # Longer than any such file may be.
    (root.partition / filenames.PARTITION_METADATA_FILE).write_bytes(b"x" * (1 << 17))


ACCIDENTS: dict[Code, Accident] = {
    Code.BATCH_CRC_WRONG: crc,
    Code.BATCH_LENGTH_IMPOSSIBLE: length,
    Code.TORN_TAIL: torn_tail,
    Code.ZERO_TAIL: zero_tail,
    Code.TORN_SEGMENT: torn_segment,
    Code.MAGIC_UNKNOWN: magic,
    Code.LEGACY_FORMAT: legacy,
    Code.CONTROL_RECORD_MALFORMED: control_record,
    Code.RECORD_COUNT_NEGATIVE: record_count,
    Code.RECORDS_MALFORMED: records,
    Code.CODEC_UNKNOWN: codec,
    Code.RECORD_OFFSET_OUTSIDE_BATCH: record_offset,
    Code.RECORD_NEWER_THAN_BATCH: record_time,
    Code.NEGATIVE_TIMESTAMP: negative_timestamp,
    Code.OFFSETS_NOT_RISING: offsets,
    Code.OFFSET_BELOW_BASE: below_base,
    Code.OFFSET_OVERFLOW: overflow,
    Code.SEGMENTS_OVERLAP: overlap,
    Code.OFFSETS_MISSING: middle_removed,
    Code.SEGMENT_TOO_LARGE: too_large,
    Code.EPOCH_GOES_BACK: epoch_back,
    Code.EPOCH_DOUBTFUL: epoch_doubtful,
    Code.EPOCH_FILE_MISSING: gone(filenames.LEADER_EPOCH_FILE),
    Code.EPOCH_FILE_BROKEN: written(filenames.LEADER_EPOCH_FILE, "0\n1\nx 0\n"),
    Code.EPOCH_FILE_SHORT: written(filenames.LEADER_EPOCH_FILE, "0\n2\n0 8\n3 15\n"),
    Code.EPOCH_FILE_NOT_RISING: written(filenames.LEADER_EPOCH_FILE, "0\n3\n5 0\n0 0\n3 15\n"),
    Code.EPOCH_FILE_WRONG: written(filenames.LEADER_EPOCH_FILE, "0\n2\n0 0\n3 20\n"),
    Code.OFFSET_INDEX_MISSING: gone("00000000000000000020.index"),
    Code.TIME_INDEX_MISSING: gone("00000000000000000020.timeindex"),
    Code.TIME_INDEX_EMPTY: written("00000000000000000020.timeindex", ""),
    Code.TXN_INDEX_MISSING: gone("00000000000000000010.txnindex"),
    Code.INDEX_PREALLOCATED: preallocated,
    Code.INDEX_RAGGED: ragged,
    Code.INDEX_BEYOND_LOG: beyond_log,
    Code.OFFSET_INDEX_WRONG: offset_index,
    Code.TIME_INDEX_WRONG: time_index,
    Code.TIME_INDEX_UNFINISHED: time_index_unfinished,
    Code.TIME_INDEX_PADDED: time_index_padded,
    Code.TXN_INDEX_BROKEN: txn_index((ABORTS, 3, 4)),
    Code.TXN_INDEX_VERSION_UNKNOWN: txn_version,
    Code.TXN_INDEX_INCOMPLETE: txn_index(),
    Code.TXN_INDEX_WRONG: txn_index((COMMITS, 10, 14), (ABORTS, 15, 19)),
    Code.SNAPSHOT_CORRUPT: snapshot_corrupt,
    Code.SNAPSHOT_MISSING: snapshots_missing,
    Code.SNAPSHOT_STRAY: snapshot_stray,
    Code.SNAPSHOT_WRONG: snapshot_wrong,
    Code.TRANSACTION_OPEN: open_transaction,
    Code.TRANSACTION_HANGING: hanging_transaction,
    Code.TRANSACTION_STATE_INVALID: invalid_transaction,
    Code.NO_SEGMENT: no_segment,
    Code.INDEX_WITHOUT_LOG: written("00000000000000000077.index", ""),
    Code.LEFTOVER: written("00000000000000000077.log.deleted", ""),
    Code.SWAP_UNFINISHED: written("00000000000000000077.log.swap", ""),
    Code.FILE_UNKNOWN: written("foo.txt", "not Kafka's"),
    Code.SEGMENT_RENAMED: compressed,
    Code.FILE_ANCIENT: ancient,
    Code.FILE_NAME_UNPADDED: written("77.log", ""),
    Code.FILE_NAME_INVALID: written("foo.log", ""),
    Code.FILE_UNREADABLE: unreadable,
    Code.FILE_IS_FOLDER: lambda root: (root.partition / "00000000000000000020.txnindex").mkdir(),
    Code.CHANGED_WHILE_READ: lambda root: root.file(20).rename(root.partition / "moving"),
    Code.PARTITION_METADATA_MISSING: gone(filenames.PARTITION_METADATA_FILE),
    Code.PARTITION_METADATA_BROKEN: written(filenames.PARTITION_METADATA_FILE, "version: 0\n"),
    Code.PARTITION_METADATA_EMPTY: written(filenames.PARTITION_METADATA_FILE, ""),
    Code.TOPIC_ID_INCONSISTENT: another_topic,
    Code.CHECKPOINT_BROKEN: in_root(filenames.RECOVERY_POINT_FILE, "0\n1\nt 0\n"),
    Code.CHECKPOINT_PARTITION_UNKNOWN: in_root(filenames.CLEANER_FILE, "0\n1\ngone 3 7\n"),
    Code.HIGH_WATERMARKS_UNKNOWN: in_root(filenames.REPLICATION_FILE, ""),
    Code.RECOVERY_POINT_BEYOND_END: checkpoint(filenames.RECOVERY_POINT_FILE, END_OFFSET + 1),
    Code.LOG_START_BEYOND_END: checkpoint(filenames.LOG_START_FILE, END_OFFSET + 1),
    Code.HIGH_WATERMARK_BEYOND_END: checkpoint(filenames.REPLICATION_FILE, END_OFFSET + 1),
    Code.CLEANER_POINT_OUTSIDE_LOG: checkpoint(filenames.CLEANER_FILE, END_OFFSET + 1),
    Code.UNCLEAN_SHUTDOWN: in_root(filenames.CLEAN_SHUTDOWN_FILE, None),
    Code.DIRECTORY_FOREIGN: lambda root: (root.path / "lost+found").mkdir(),
    Code.DIRECTORY_DELETED: metadata_directory(f"t-5.{HEX}-delete"),
    Code.DIRECTORY_STRAY: metadata_directory(f"t-5.{HEX}-stray"),
    Code.DIRECTORY_FUTURE: metadata_directory(f"t-5.{HEX}-future"),
    Code.META_PROPERTIES_MISSING: in_root(filenames.META_PROPERTIES_FILE, None),
    Code.META_PROPERTIES_BROKEN: in_root(filenames.META_PROPERTIES_FILE, "version=1\n"),
    Code.META_PROPERTIES_INCOMPLETE: in_root(filenames.META_PROPERTIES_FILE, ""),
}
# What follows from the same bytes: batches that were put in as they stand are in no index.
_NOT_INDEXED = {Code.OFFSET_INDEX_WRONG, Code.TIME_INDEX_UNFINISHED}
# There is nothing that a checkpoint could refer to.
FOLLOWING: dict[Code, set[Code]] = {
    Code.BATCH_LENGTH_IMPOSSIBLE: _NOT_INDEXED,
    Code.RECORDS_MALFORMED: _NOT_INDEXED,
    Code.CODEC_UNKNOWN: _NOT_INDEXED,
    Code.RECORD_COUNT_NEGATIVE: _NOT_INDEXED,
    Code.OFFSET_OVERFLOW: _NOT_INDEXED,
    Code.OFFSETS_NOT_RISING: {Code.OFFSET_INDEX_WRONG},
    Code.EPOCH_GOES_BACK: {Code.EPOCH_DOUBTFUL},
    # The indexes know of the batch that is not whole any more.
    Code.TORN_SEGMENT: {Code.INDEX_BEYOND_LOG},
    # What is not read has no end.
    Code.SEGMENT_TOO_LARGE: {Code.HIGH_WATERMARK_BEYOND_END, Code.RECOVERY_POINT_BEYOND_END},
    Code.FILE_ANCIENT: {Code.NO_SEGMENT},
    Code.LOG_START_BEYOND_END: {Code.CLEANER_POINT_OUTSIDE_LOG},
}
DEEP = {
    Code.RECORDS_MALFORMED,
    Code.CODEC_UNKNOWN,
    Code.RECORD_OFFSET_OUTSIDE_BATCH,
    Code.RECORD_NEWER_THAN_BATCH,
    Code.SNAPSHOT_WRONG,
}
