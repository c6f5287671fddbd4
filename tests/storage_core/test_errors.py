"""Each error, what triggers it, and Kafka's number; and what an error says of its place."""

import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage_core import errors
from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import PylogError, facts_of, kafka_code_of
from storage_core.filenames import log_file
from storage_core.formats.batch_v2 import LENGTH_OVERHEAD, Codec
from storage_core.formats.error_codes import KafkaErrorCode, kafka_error_name
from storage_core.index.segment_indexes import IndexBuilder, parse_transaction_index
from storage_core.log.log_loader import load_log
from storage_core.log.producer_snapshot import parse_producer_snapshot
from storage_core.maintenance.compaction import partition as compaction_partition
from storage_core.maintenance.compaction.commit import verify_inputs
from storage_core.maintenance.recovery.partition import plan_recovery
from storage_core.records.batch_builder import BatchSettings, build_all
from storage_core.records.payload import Limits
from storage_core.roots.broker import BrokerRoot
from storage_core.store.local import LocalStore
from tests.kit import damage
from tests.kit.builders import SOME_TIME_MS, RecordSpec, encode_batch, some_batches
from tests.kit.compare import read_tree
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.legacy import LegacyMessage, LegacySet, encode_entry
from tests.kit.log_reader import LogReader
from tests.kit.offset_queries import find_offset
from tests.storage_core.log.append_logs import batch, open_log
from tests.storage_core.maintenance.compaction.hand_made import cleaning
from tests.storage_core.maintenance.compaction.test_bad_input import (
    DEFAULT_CONFIG,
    POSITION,
    SPEC,
    damaged_log,
    falling_offsets,
)
from tests.storage_core.records.new_columns import columns_of

HOUR_MS = 3_600_000
GOOD = encode_batch(SPEC)
# Writes what is wrong below a directory, and returns what fails because of it.
Trigger = Callable[[Path], Callable[[], Any]]


def cleaned(bad: bytes, behind: bytes | None = None, **overrides: Any) -> Trigger:
    """A round over a log whose second segment has these bytes behind its first batch."""

    def prepare(home: Path) -> Callable[[], Any]:
        directory = damaged_log(home / "t-0", bad, behind=behind)
        named = {name.replace("_", "."): value for name, value in overrides.items()}
        return lambda: cleaning(overrides=DEFAULT_CONFIG | named).clean(directory)

    return prepare


def appended(*data: bytes, before: bytes | None = None, **settings: Any) -> Trigger:
    """An append to a log that may have a batch."""

    def prepare(home: Path) -> Callable[[], Any]:
        open_log(home, **settings).close()

        def act() -> None:
            with open_log(home, **settings) as log:
                if before is not None:
                    log.append_as_leader(before, leader_epoch=0)
                log.append_as_leader(b"".join(data), leader_epoch=0)

        return act

    return prepare


def followed(*data: bytes, before: bytes) -> Trigger:
    """The append of a follower to a log that has a batch."""

    def prepare(home: Path) -> Callable[[], Any]:
        def act() -> None:
            with open_log(home) as log:
                log.append_as_leader(before, leader_epoch=0)
                log.append_as_follower(b"".join(data), leader_epoch=0)

        return act

    return prepare


def fenced(home: Path) -> Callable[[], Any]:
    def act() -> None:
        with open_log(home) as log:
            log.append_as_leader(produced(is_transactional=True), leader_epoch=0)
            for epoch in (5, 4):
                log.end_transaction(
                    producer_id=9,
                    producer_epoch=1,
                    is_abort=False,
                    leader_epoch=0,
                    coordinator_epoch=epoch,
                )

    return act


def fenced_marker(home: Path) -> Callable[[], Any]:
    def act() -> None:
        with open_log(home) as log:
            log.append_as_leader(produced(is_transactional=True), leader_epoch=0)
            log.end_transaction(producer_id=9, producer_epoch=0, is_abort=True, leader_epoch=0)

    return act


def closed(home: Path) -> Callable[[], Any]:
    log = open_log(home)
    log.close()
    return log.flush


def read(size_bytes: int, offset: int = 0) -> Trigger:
    def prepare(home: Path) -> Callable[[], Any]:
        write_partition(home / "t-0", [SegmentSpec(base_offset=0, batches=some_batches(count=2))])
        store = LocalStore(home / "t-0")
        log = load_log(store, config=LogConfig(), cleaner=CleanerConfig(), now_ms=SOME_TIME_MS)
        return lambda: LogReader(store, log).read(offset, max_bytes=size_bytes)

    return prepare


def falling(home: Path) -> Callable[[], Any]:
    directory = falling_offsets(home / "t-0")
    overrides = {"internal.segment.bytes": 200, "index.interval.bytes": 0}
    return lambda: cleaning(overrides=overrides).clean(directory)


def changing(home: Path) -> Callable[[], Any]:
    """A round is aborted: a broker appends to a segment between its plan and its commit."""
    directory = damaged_log(home / "t-0", GOOD)

    def act() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compaction_partition, "verify_inputs", grown)
            cleaning(overrides=DEFAULT_CONFIG).clean(directory)

    def grown(store: LocalStore, plan: Any) -> None:
        with (directory / log_file(10)).open("ab") as file:
            file.write(b"an append")
        verify_inputs(store, plan)

    return act


def index_of(*batches: tuple[int, int]) -> None:
    """Index batches of 100 bytes: (last offset, timestamp)."""
    builder = IndexBuilder("0.log", 0, interval_bytes=0, max_index_bytes=4096)
    rows = np.array([[100, offset, time] for offset, time in batches], np.int64)
    builder.add(*np.ascontiguousarray(rows.T))


BOMB = damage.decompression_bomb(Codec.GZIP, value_bytes=2**24, batch=SPEC)


def bomb(home: Path) -> Callable[[], Any]:
    directory = damaged_log(home / "t-0", BOMB)
    cleaner = CleanerConfig(max_decompressed_batch_bytes=2**20)
    return lambda: cleaning(overrides=DEFAULT_CONFIG, cleaner=cleaner).clean(directory)


def old_with_headers() -> None:
    records = columns_of([RecordSpec(key=b"k", headers=(("h", b"v"),))])
    build_all(records, BatchSettings(magic=1))


def plain(act: Callable[[Path], Any]) -> Trigger:
    return lambda home: lambda: act(home)


def produced(**fields: Any) -> bytes:
    return batch(**({"producer_id": 9, "producer_epoch": 1, "base_sequence": 0} | fields))


SIZE = len(batch(3))
NESTED = LegacySet(messages=(LegacyMessage(value=b"", attributes=1),))
NO_VALUE = LegacySet(messages=(LegacyMessage(value=b"x"),), payload=None)

NUMBERED: dict[str, tuple[str, type[PylogError], Trigger]] = {
    # ERR-02
    "a wrong CRC": (
        "CORRUPT_MESSAGE",
        errors.CorruptRecordError,
        cleaned(damage.with_wrong_crc(GOOD)),
    ),
    "a size below the least": (
        "CORRUPT_MESSAGE",
        errors.CorruptRecordError,
        cleaned(damage.with_lying_length(GOOD, 3)),
    ),
    "an unknown magic": (
        "CORRUPT_MESSAGE",
        errors.CorruptRecordError,
        cleaned(encode_batch(dataclasses.replace(SPEC, magic=3))),
    ),
    "an unknown magic, appended": (
        "CORRUPT_MESSAGE",
        errors.CorruptRecordError,
        appended(batch(magic=3)),
    ),
    # ERR-04
    "a read of a negative size": ("INVALID_FETCH_SIZE", errors.InvalidFetchSizeError, read(-1)),
    "a read below the log": ("OFFSET_OUT_OF_RANGE", errors.OffsetOutOfRangeError, read(9, -1)),
    # ERR-05
    "a batch over max.message.bytes": (
        "MESSAGE_TOO_LARGE",
        errors.RecordTooLargeError,
        appended(batch(4), max_message_bytes=SIZE),
    ),
    "an append over segment.bytes": (
        "RECORD_LIST_TOO_LARGE",
        errors.RecordBatchTooLargeError,
        appended(batch(4), internal_segment_bytes=SIZE),
    ),
    # ERR-08
    "a timestamp too far ahead": (
        "INVALID_TIMESTAMP",
        errors.InvalidTimestampError,
        appended(batch(2, timestamp=SOME_TIME_MS + 2 * HOUR_MS)),
    ),
    "a timestamp too far back": (
        "INVALID_TIMESTAMP",
        errors.InvalidTimestampError,
        appended(batch(2, timestamp=SOME_TIME_MS - 51), message_timestamp_before_max_ms=50),
    ),
    "a count that is wrong": (
        "INVALID_RECORD",
        errors.InvalidRecordError,
        appended(batch(2, record_count=5)),
    ),
    "an endless varint": (
        "INVALID_RECORD",
        errors.InvalidRecordError,
        cleaned(damage.bad_record(damage.BadRecord.ENDLESS_LENGTH, SPEC)),
    ),
    "a negative count": (
        "INVALID_RECORD",
        errors.InvalidRecordError,
        cleaned(damage.with_lying_count(GOOD, -1)),
    ),
    "a compressed set inside of one": (
        "INVALID_RECORD",
        errors.InvalidRecordError,
        cleaned(encode_entry(dataclasses.replace(NESTED, offset=11))),
    ),
    "a compressed message without a value": (
        "INVALID_RECORD",
        errors.InvalidRecordError,
        cleaned(encode_entry(dataclasses.replace(NO_VALUE, offset=11))),
    ),
    # ERR-09
    "a codec that does not exist": (
        "UNSUPPORTED_COMPRESSION_TYPE",
        errors.UnsupportedCompressionError,
        cleaned(damage.with_codec(GOOD, 6)),
    ),
    "headers in an old format": (
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        errors.UnsupportedForMessageFormatError,
        plain(lambda _: old_with_headers()),
    ),
    # ERR-10
    "a sequence that skips": (
        "OUT_OF_ORDER_SEQUENCE_NUMBER",
        errors.OutOfOrderSequenceError,
        appended(produced(base_sequence=5), before=produced()),
    ),
    "an epoch that was fenced": (
        "INVALID_PRODUCER_EPOCH",
        errors.InvalidProducerEpochError,
        appended(produced(producer_epoch=0, base_sequence=1), before=produced()),
    ),
    "a plain batch within a transaction": (
        "INVALID_TXN_STATE",
        errors.ProducerTxnStateError,
        appended(produced(base_sequence=1), before=produced(is_transactional=True)),
    ),
    "a marker of an epoch that was fenced": (
        "INVALID_PRODUCER_EPOCH",
        errors.InvalidProducerEpochError,
        fenced_marker,
    ),
    "a coordinator that was replaced": (
        "TRANSACTION_COORDINATOR_FENCED",
        errors.TransactionCoordinatorFencedError,
        fenced,
    ),
    # ERR-11
    "a file that is not there": (
        "KAFKA_STORAGE_ERROR",
        errors.StorageError,
        plain(lambda home: LocalStore(home).read_file("nothing", limit_bytes=9)),
    ),
    "a log that was closed": ("KAFKA_STORAGE_ERROR", errors.LogClosedError, closed),
    "a log directory that is not there": (
        "LOG_DIR_NOT_FOUND",
        errors.LogDirectoryNotFoundError,
        plain(lambda home: BrokerRoot(home / "nothing").directories()),
    ),
}
WITHOUT_A_NUMBER: dict[str, tuple[type[PylogError], Trigger]] = {
    "a transaction that ended below its segment": (
        errors.CorruptIndexError,
        plain(lambda _: parse_transaction_index("i", 10, bytes(34))),
    ),
    "a snapshot of another version": (
        errors.CorruptSnapshotError,
        plain(lambda _: parse_producer_snapshot("s", bytes(10))),
    ),
    "an offset out of its segment's reach": (
        errors.OffsetOverflowError,
        cleaned(encode_batch(dataclasses.replace(SPEC, base_offset=2**40)), b""),
    ),
    "offsets that fall, where an index is built": (errors.CorruptIndexError, falling),
    "an offset out of an index's reach": (
        errors.OffsetOverflowError,
        plain(lambda _: index_of((5, 1), (2**31, 2))),
    ),
    "an index without room": (
        errors.IndexFullError,
        plain(lambda _: index_of(*((n, n) for n in range(600)))),
    ),
    "a segment that changed before the commit": (errors.ChangedWhileReadError, changing),
    "appended offsets that do not rise": (
        errors.OffsetsOutOfOrderError,
        followed(batch(base_offset=30), batch(base_offset=25), before=batch()),
    ),
    "a follower's offsets below the end": (
        errors.UnexpectedAppendOffsetError,
        followed(batch(base_offset=0), before=batch(2)),
    ),
}


def neighbour(home: Path) -> Path:
    write_partition(home / "u-0", [SegmentSpec(base_offset=0, batches=some_batches(count=2))])
    return home / "u-0"


def raised_by(trigger: Trigger, home: Path) -> PylogError:
    """Return the error, which nothing but its own partition may have noticed."""
    other = neighbour(home)
    before = read_tree(other)
    act = trigger(home)
    with pytest.raises(PylogError) as caught:
        act()
    assert read_tree(other) == before
    plan = plan_recovery(
        LocalStore(other), config=LogConfig(), cleaner=CleanerConfig(), now_ms=SOME_TIME_MS
    )
    assert (plan.log_end_offset, plan.repairs.truncated_bytes) == (2, 0)
    return caught.value


@pytest.mark.item("ERR-02", "ERR-04", "ERR-05", "ERR-08", "ERR-09", "ERR-10", "ERR-11")
@pytest.mark.parametrize("what", NUMBERED)
def test_each_trigger_raises_its_error_with_kafkas_number_and_harms_no_other_partition(
    tmp_path, what
):
    name, kind, trigger = NUMBERED[what]
    error = raised_by(trigger, tmp_path)
    assert isinstance(error, kind)
    assert error.kafka_code == KafkaErrorCode[name]
    assert kafka_code_of(type(error).__name__) == KafkaErrorCode[name]


@pytest.mark.item("ERR-15")
@pytest.mark.parametrize("what", WITHOUT_A_NUMBER)
def test_what_kafka_has_no_number_for_is_known_by_its_name(tmp_path, what):
    kind, trigger = WITHOUT_A_NUMBER[what]
    error = raised_by(trigger, tmp_path)
    assert (type(error), error.kafka_code) == (kind, None)
    assert facts_of(error).name == kind.__name__


@pytest.mark.item("ERR-10")
def test_a_batch_that_is_sent_again_is_an_answer_and_no_error(tmp_path):
    """46, DUPLICATE_SEQUENCE_NUMBER: Kafka answers with the offsets of the first time as well."""
    with open_log(tmp_path) as log:
        first = log.append_as_leader(produced(), leader_epoch=0)
        again = log.append_as_leader(produced(), leader_epoch=0)
        assert (again.is_duplicate, again.first_offset) == (True, first.first_offset)
        assert log.log_end_offset == 1
    assert KafkaErrorCode.DUPLICATE_SEQUENCE_NUMBER == 46
    assert 46 not in {kind.kafka_code for kind in every_error()}


@pytest.mark.item("ERR-09")
def test_a_search_by_time_in_messages_without_timestamps_finds_none(tmp_path):
    directory = tmp_path / "t-0"
    messages = [LegacyMessage(offset=offset, value=b"v", magic=0) for offset in range(3)]
    write_partition(directory, [SegmentSpec(base_offset=0, batches=messages)])
    store = LocalStore(directory)
    log = load_log(store, config=LogConfig(), cleaner=CleanerConfig(), now_ms=SOME_TIME_MS)
    limits = Limits(max_record_bytes=1 << 20, max_batch_bytes=1 << 20)
    for target_ms in (0, SOME_TIME_MS):
        assert find_offset(LogReader(store, log), target_ms, limits=limits) is None


def every_error() -> list[type[PylogError]]:
    known = [PylogError]
    for kind in known:
        known += kind.__subclasses__()
    return known


@pytest.mark.item("ERR-16")
def test_numbers_are_of_kafkas_table_and_those_of_requests_are_never_raised():
    raised = {kind.kafka_code for kind in every_error()} - {None}
    assert raised <= {code.value for code in KafkaErrorCode}
    only_named = {-1, 0, *range(5, 10), 11, *range(13, 17), *range(19, 28), *range(29, 32)}
    assert not raised & only_named
    assert {kafka_error_name(code) for code in (-1, 0, 6)} == {
        "UNKNOWN_SERVER_ERROR",
        "NONE",
        "NOT_LEADER_OR_FOLLOWER",
    }
    assert kafka_error_name(12345) == "12345"
    assert kafka_code_of("ZeroDivisionError") is None


def test_an_error_names_directory_partition_file_position_and_offset(tmp_path):
    error = raised_by(cleaned(damage.with_wrong_crc(GOOD)), tmp_path)
    facts = facts_of(error)
    assert facts == errors.ErrorFacts(
        name="CorruptRecordError",
        kafka_code=2,
        directory=str(tmp_path / "t-0"),
        partition="t-0",
        file=log_file(10),
        position=POSITION,
        offset=11,
    )
    assert facts_of(pickle.loads(pickle.dumps(error))) == facts  # our own bytes


@pytest.mark.parametrize("what", NUMBERED)
def test_errors_arrive_from_a_worker_as_they_were(tmp_path, what):
    error = raised_by(NUMBERED[what][2], tmp_path)
    again = pickle.loads(pickle.dumps(error))  # our own bytes
    assert (str(again), facts_of(again)) == (str(error), facts_of(error))


@pytest.mark.parametrize("kind", [kind for kind in every_error() if kind.template])
def test_an_error_is_its_facts_and_its_template(kind):
    """Braces in a fact are shown as they are; no fact and no text is lost on the way."""
    names = [each.name for each in dataclasses.fields(kind) if each.init]
    values = {
        name: 7 if name in {"end", "line", "offset"} or name.endswith("_ms") else f"{name} {{0}}"
        for name in names
    }
    error = kind(**values)
    assert error.args == tuple(values.values())
    assert str(error)
    again = pickle.loads(pickle.dumps(error))  # our own bytes
    assert (str(again), vars(again)) == (str(error), vars(error))
    assert str(kind(*values.values())) == str(error)


LARGE = {
    "a batch that says it is larger than its file": (
        cleaned(damage.with_lying_length(GOOD, 2**31 - 1)),
        str(2**31 - 1 + LENGTH_OVERHEAD),
    ),
    "a record that expands beyond its limit": (
        cleaned(
            damage.decompression_bomb(Codec.GZIP, value_bytes=2**20, batch=SPEC),
            max_decompressed_message_bytes=65_536,
        ),
        "max.decompressed.message.bytes",
    ),
    "a batch that expands beyond its limit": (
        bomb,
        f"{len(BOMB)} bytes",
    ),
}


@pytest.mark.item("FLT-12")
@pytest.mark.parametrize("what", LARGE)
def test_what_is_too_large_is_named_with_partition_segment_position_and_size(tmp_path, what):
    trigger, size = LARGE[what]
    error = raised_by(trigger, tmp_path)
    facts = facts_of(error)
    assert (facts.partition, facts.file, facts.position) == ("t-0", log_file(10), POSITION)
    assert str(error).startswith(f"{log_file(10)}: position {POSITION}: ")
    assert size in str(error)
    assert " bytes" in str(error)
