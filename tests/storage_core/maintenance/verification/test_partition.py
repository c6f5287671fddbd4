"""What decides how bad a finding is, and what is no finding at all."""

import dataclasses
import json
import os
import shutil
import struct
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import pytest

from storage_core import filenames
from storage_core.catalog.roles import Role
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import InvalidNameError, UnsupportedFormatError
from storage_core.formats.control import ControlType
from storage_core.log.log_loader import load_log
from storage_core.maintenance.partition_state import PartitionState
from storage_core.maintenance.verification.files import sort_files
from storage_core.maintenance.verification.findings import (
    Code,
    DirectoryContext,
    Finding,
    Severity,
    VerifyOptions,
)
from storage_core.maintenance.verification.partition import fold_partition, verify_segments
from storage_core.maintenance.verification.segment_scan import SegmentFacts
from storage_core.records import checked_headers as batch_finder
from storage_core.store import LocalStore
from tests.kit.builders import SOME_TIME_MS, BatchSpec, RecordSpec, encode_batch
from tests.kit.coordinator_records import STRANGE_RECORDS, StrangeRecord
from tests.kit.damage import with_lying_length, with_wrong_crc
from tests.kit.directories import (
    AbortedTxnSpec,
    ProducerSpec,
    SegmentSpec,
    encode_producer_snapshot,
    write_partition,
)
from tests.kit.golden_data import Golden
from tests.kit.log_reader import LogReader
from tests.kit.one_partition import load_partition, recover_partition, verify_partition
from tests.storage_core.maintenance.verification.accidents import middle_removed
from tests.storage_core.maintenance.verification.log_root import (
    ABORTS,
    COMMITS,
    END_OFFSET,
    IDEMPOTENT,
    INTERVAL_BYTES,
    NOW_MS,
    LogRoot,
    batch,
    log_root,
    marker,
    segments,
    transactional,
)

CLEAN_BROKER = DirectoryContext(role=Role.BROKER, is_clean=True)
OPTIONS = VerifyOptions(now_ms=NOW_MS)
CONFIG = LogConfig(index_interval_bytes=INTERVAL_BYTES)


@pytest.fixture
def root(tmp_path: Path) -> LogRoot:
    return log_root(tmp_path / "log")


def severities(root: LogRoot, code: Code, **options) -> set[Severity]:
    return {f.severity for f in root.findings(**options) if f.code is code}


def add_to_last(root: LogRoot, data: bytes) -> None:
    with root.file(30).open("ab") as file:
        file.write(data)


@pytest.mark.parametrize(
    ("role", "is_clean", "torn", "zeros"),
    [
        (Role.BROKER, True, Severity.ERROR, Severity.ERROR),
        (Role.BROKER, False, Severity.WARN, Severity.HARMLESS),
        (Role.MIRROR, True, Severity.HARMLESS, Severity.HARMLESS),
        (Role.MIRROR, False, Severity.HARMLESS, Severity.HARMLESS),
    ],
)
def test_bytes_behind_the_last_batch_are_as_bad_as_what_happens_next(
    root, role, is_clean, torn, zeros
):
    root = dataclasses.replace(root, role=role)
    if not is_clean:
        (root.path / filenames.CLEAN_SHUTDOWN_FILE).unlink()
    add_to_last(root, encode_batch(batch(40))[:-1])
    assert severities(root, Code.TORN_TAIL) == {torn}
    size = root.file(30).stat().st_size
    os.truncate(root.file(30), size - len(encode_batch(batch(40))) + 1)
    add_to_last(root, bytes(100))
    assert severities(root, Code.ZERO_TAIL) == {zeros}


def test_a_live_log_may_end_inside_of_a_batch_and_ahead_of_its_checkpoints(root):
    (root.path / filenames.CLEAN_SHUTDOWN_FILE).unlink()
    add_to_last(root, encode_batch(batch(40))[:-1])
    root.write_checkpoint(filenames.REPLICATION_FILE, 1000)
    assert root.codes(Severity.WARN, is_live=True) == set()
    assert root.codes(Severity.WARN) == {Code.TORN_TAIL, Code.HIGH_WATERMARK_BEYOND_END}


def test_a_checkpoint_ahead_of_its_log_is_less_bad_in_a_copy(root):
    root.write_checkpoint(filenames.REPLICATION_FILE, END_OFFSET + 1)
    assert severities(root, Code.HIGH_WATERMARK_BEYOND_END) == {Severity.ERROR}
    copy = dataclasses.replace(root, role=Role.MIRROR)
    assert severities(copy, Code.HIGH_WATERMARK_BEYOND_END) == {Severity.WARN}


@pytest.mark.item("CKP-07")
def test_a_high_watermark_up_to_the_end_is_no_finding(root):
    for offset in (0, 7, END_OFFSET):
        root.write_checkpoint(filenames.REPLICATION_FILE, offset)
        assert root.codes() == set()


def test_deletion_may_overtake_the_cleaner(root):
    root.write_checkpoint(filenames.CLEANER_FILE, 0)
    assert severities(root, Code.CLEANER_POINT_OUTSIDE_LOG) == {Severity.INFO}


def test_after_a_bad_batch_the_scan_goes_on(root):
    data = encode_batch(batch(5))
    root.write_batches(
        batch(0),
        with_wrong_crc(data),
        batch(10),
        with_lying_length(encode_batch(batch(15)), 2**30),
        batch(20),
        b"\0" * 40,
        batch(25),
    )
    found = [f for f in root.findings() if f.code is not Code.OFFSET_INDEX_WRONG]
    size = len(data)
    assert {(f.code, f.position) for f in found} == {
        (Code.BATCH_CRC_WRONG, size),
        (Code.BATCH_LENGTH_IMPOSSIBLE, 3 * size),
        (Code.BATCH_LENGTH_IMPOSSIBLE, 5 * size),
    }
    facts, _ = verify_partition(
        LocalStore(root.partition), CLEAN_BROKER, OPTIONS, PartitionCheckpoints()
    )
    assert (facts.log_end_offset, facts.batches) == (30, 5)


def test_headers_behind_damage_do_not_choose_how_much_is_read(root, monkeypatch):
    damaged = with_lying_length(encode_batch(batch(5)), 2**30)
    root.write_batches(batch(0), damaged, batch(10), batch(15))
    counts = []
    for most in (4, 0):
        monkeypatch.setattr(batch_finder, "_MOST_READS", most)
        facts, _ = verify_partition(
            LocalStore(root.partition), CLEAN_BROKER, OPTIONS, PartitionCheckpoints()
        )
        counts.append(facts.batches)
    assert counts == [3, 1]


def test_what_only_looks_like_a_batch_is_not_taken_for_one(root):
    """A header with a wrong checksum, and one whose offset does not follow, are passed over."""
    forged = with_wrong_crc(encode_batch(batch(20)))
    early = encode_batch(batch(0))
    root.write_batches(batch(0), batch(5), b"\0" * 30 + forged + early, batch(30))
    [gap] = [f for f in root.findings() if f.code is Code.BATCH_LENGTH_IMPOSSIBLE]
    size = len(early)
    assert gap.position == 2 * size
    assert f"found {30 + 2 * size} bytes further on" in gap.message


@pytest.mark.item("SEG-05")
def test_offsets_up_to_two_billion_above_the_base_fit(root):
    root.write_batches(batch(0), encode_batch(batch(2**31 - 5)))
    assert Code.OFFSET_OVERFLOW not in root.codes()
    (root.path / "again").mkdir()
    other = log_root(root.path / "again" / "log")
    other.write_batches(batch(0), encode_batch(batch(2**31 - 4)))
    assert Code.OFFSET_OVERFLOW in other.codes()


@pytest.mark.item("SEG-05")
def test_a_segment_of_2_gib_is_refused_by_kafka_and_so_fatal(root):
    os.truncate(root.file(30), 2**31)
    assert severities(root, Code.SEGMENT_TOO_LARGE) == {Severity.FATAL}


def test_a_transaction_may_span_segments(root):
    first = SegmentSpec(
        base_offset=0, batches=(transactional(0, ABORTS), transactional(4, COMMITS)), producers=()
    )
    middle = SegmentSpec(base_offset=8, batches=(batch(8),))
    aborted = AbortedTxnSpec(
        producer_id=ABORTS, first_offset=0, last_offset=14, last_stable_offset=4
    )
    last = SegmentSpec(
        base_offset=13,
        batches=(
            marker(13, COMMITS, ControlType.COMMIT),
            marker(14, ABORTS, ControlType.ABORT),
            transactional(15, ABORTS),
        ),
        aborted=(aborted,),
    )
    root.write_segments([first, middle, last])
    found = [f for f in root.findings() if not f.code.name.endswith("_END")]
    assert {f.code for f in found} <= {Code.TRANSACTION_OPEN, Code.CLEANER_POINT_OUTSIDE_LOG}
    [still_open] = [f for f in found if f.code is Code.TRANSACTION_OPEN]
    assert still_open.offset == 15
    root.file(13, ".txnindex").unlink()
    [missing] = [f for f in root.findings() if f.code is Code.TXN_INDEX_MISSING]
    assert (missing.offset, missing.severity) == (0, Severity.ERROR)


@pytest.mark.item("PRD-17")
def test_an_open_transaction_hangs_once_it_is_older_than_any_may_be(root):
    spec = transactional(5, COMMITS)
    root.write_batches(batch(0), spec)
    newest = max(record.timestamp for record in spec.records)
    limit = newest + 900_000 + 300_000
    [young] = [f for f in root.findings(now_ms=limit) if "TRANSACTION" in f.code]
    [late] = [f for f in root.findings(now_ms=limit + 1) if "TRANSACTION" in f.code]
    assert (young.code, late.code) == (Code.TRANSACTION_OPEN, Code.TRANSACTION_HANGING)
    assert (late.offset, late.severity) == (5, Severity.WARN)
    assert f"producer {COMMITS} " in late.message
    assert "1200 s old" in late.message


def test_the_snapshot_that_a_broker_starts_with_is_compared_too(root):
    """It stands at the end of the log, where no segment begins."""
    spec = batch(30, producer_id=IDEMPOTENT, producer_epoch=0, base_sequence=5, leader_epoch=3)
    known = ProducerSpec(
        producer_id=IDEMPOTENT,
        last_sequence=9,
        last_offset=34,
        offset_delta=4,
        last_timestamp=spec.largest_timestamp,
    )
    older = ProducerSpec(producer_id=IDEMPOTENT, last_sequence=4, last_offset=9, offset_delta=4)
    last = SegmentSpec(base_offset=30, batches=(spec, *segments()[3].batches[1:]), producers=())
    root.write_segments([*segments()[:3], last])
    for entries, is_found in (((known,), False), ((older,), True)):
        root.file(40, ".snapshot").write_bytes(encode_producer_snapshot(entries))
        found = [f for f in root.findings(is_deep=True) if f.code is Code.SNAPSHOT_WRONG]
        assert [f.file for f in found] == [root.file(40, ".snapshot").name] * is_found


@pytest.mark.parametrize(("epoch", "is_found"), [(0, True), (1, False), (2, False)])
def test_a_snapshot_knows_the_epoch_of_a_marker_that_compaction_emptied(root, epoch, is_found):
    """The epoch before it is that of a marker with its record: 1."""
    kept = marker(30, COMMITS, ControlType.COMMIT, leader_epoch=3)
    kept = dataclasses.replace(kept, producer_epoch=1)
    emptied = dataclasses.replace(kept, base_offset=34, producer_epoch=2, records=())
    entry = ProducerSpec(producer_id=COMMITS, producer_epoch=epoch)
    batches = (kept, emptied, segments()[3].batches[1])
    last = SegmentSpec(base_offset=30, batches=batches, producers=())
    root.write_segments([*segments()[:3], last])
    root.file(40, ".snapshot").write_bytes(encode_producer_snapshot([entry]))
    found = [f.file for f in root.findings(is_deep=True) if f.code is Code.SNAPSHOT_WRONG]
    assert found == [root.file(40, ".snapshot").name] * is_found


@pytest.mark.item("CKP-14")
@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("0\n2\n0 0\n3 15\n", True),
        ("0\n2\n0 5\n3 15\n", True),  # begins at the log start, as a broker trims it
        ("0\n3\n0 0\n2 15\n3 15\n", False),
        ("0\n3\n0 0\n3 15\n3 17\n", False),
        ("0\n3\n0 0\n3 15\n4 40\n", True),  # elected, and nothing written yet
        ("0\n2\n0 0\n3 16\n", False),
        ("0\n2\n0 0\n3 12\n", False),
        ("0\n1\n3 15\n", True),  # trimmed by a deletion that no checkpoint kept
        ("0\n1\n0 0\n", False),
        ("0\n0\n", False),
        ("", False),
    ],
)
def test_the_epoch_file_has_to_name_the_epoch_of_every_batch(root, text, is_right):
    (root.partition / filenames.LEADER_EPOCH_FILE).write_text(text)
    found = root.codes(Severity.WARN)
    assert (found == set()) == is_right
    assert is_right or found <= {Code.EPOCH_FILE_WRONG, Code.EPOCH_FILE_NOT_RISING}


def test_of_many_findings_of_a_kind_in_a_file_five_are_told_and_the_rest_counted(root):
    bad = [with_wrong_crc(encode_batch(batch(5 * n))) for n in range(1, 9)]
    root.write_batches(batch(0), *bad)
    found = [f for f in root.findings() if f.code is Code.BATCH_CRC_WRONG]
    assert len(found) == 6
    assert found[-1].message == "3 more like these in this file"
    assert found[-1].position is None


def test_facts_survive_their_way_between_tasks_and_stretches_give_what_the_whole_gives(root):
    """Segments verified apart, in any grouping, and put together: nothing gained, nothing lost."""
    root.change(root.file(20), -1, b"\x55")
    (root.partition / filenames.LEADER_EPOCH_FILE).write_text("0\n1\n0 0\n")
    root.file(10, ".txnindex").unlink()
    store = LocalStore(root.partition)
    said = PartitionCheckpoints(high_watermark=99)
    expected = verify_partition(store, CLEAN_BROKER, OPTIONS, said)
    files = sort_files(store.list_files())
    facts, found = [], []
    for segment in files.segments:
        [of_segment], findings = verify_segments(store, files, [segment], CLEAN_BROKER, OPTIONS)
        again = SegmentFacts.from_plain(json.loads(json.dumps(asdict(of_segment))))
        assert again == of_segment
        facts.append(again)
        found += findings
    whole, more = fold_partition(store, files, facts, CLEAN_BROKER, OPTIONS, said)
    assert found + more == expected[1]
    assert dataclasses.replace(whole, read_seconds=0.0) == dataclasses.replace(
        expected[0], read_seconds=0.0
    )


def test_verification_of_a_window_of_any_size_finds_the_same(root):
    root.change(root.file(20), -1, b"\x55")
    root.file(10, ".txnindex").unlink()
    add_to_last(root, b"\0" * 7)
    expected = root.findings()
    for window_bytes in (61, 200, 500):
        assert root.findings(window_bytes=window_bytes) == expected


@pytest.mark.thorough
@pytest.mark.parametrize("is_deep", [False, True], ids=["headers", "deep"])
def test_nothing_bad_is_found_in_what_apache_kafka_closed(tmp_path, is_deep):
    found = _findings_of("broker-dir", tmp_path, is_deep=is_deep)
    assert {f.code for f in found} == {Code.INDEX_PREALLOCATED}  # of the controllers' own log
    assert {f.severity for f in found} == {Severity.HARMLESS}


@pytest.mark.thorough
@pytest.mark.parametrize("is_deep", [False, True], ids=["headers", "deep"])
def test_after_a_kill_there_are_open_transactions_and_nothing_else_to_mend(tmp_path, is_deep):
    found = _findings_of("broker-dir-unclean", tmp_path, is_deep=is_deep)
    case = Golden("broker-dir-unclean").case["expected"]
    first_unstable = {
        name: of["expected"]["first_unstable"]
        for name, of in case.items()
        if of.get("expected", {}).get("first_unstable") is not None
    }
    bad = [f for f in found if f.severity.rank >= Severity.WARN.rank]
    assert {f.code for f in bad} == {Code.TRANSACTION_HANGING}
    assert sorted(f.offset for f in bad) == sorted(first_unstable.values())
    assert {f.code for f in found} == {
        Code.TRANSACTION_HANGING,
        Code.INDEX_PREALLOCATED,
        Code.LEFTOVER,
        Code.UNCLEAN_SHUTDOWN,
    }


def _findings_of(name: str, tmp_path: Path, *, is_deep: bool) -> list:
    golden = Golden(name)
    path = golden.unpack(tmp_path / "broker")
    case = golden.case
    root = LogRoot(path=path)
    # An hour later, so that no coordinator would still end what is open.
    return root.findings(is_deep=is_deep, now_ms=case["clock_ms"] + 3_600_000)


@pytest.mark.item("IDX-16")
@pytest.mark.parametrize(
    ("suffix", "content", "code"),
    [
        (".index", struct.pack(">ii", -3, 70), Code.OFFSET_INDEX_WRONG),
        (".index", struct.pack(">iib", 9, 150, 0), Code.INDEX_RAGGED),
        (".timeindex", struct.pack(">qiqi", 99, 4, 98, 9), Code.TIME_INDEX_WRONG),
        (".timeindex", struct.pack(">qi", 99, -4), Code.TIME_INDEX_WRONG),
        (".timeindex", struct.pack(">qib", 99, 4, 0), Code.INDEX_RAGGED),
        (".txnindex", struct.pack(">hqqqq", 0, 9, 1, 19, 20), Code.TXN_INDEX_BROKEN),
    ],
    ids=[
        "the offset index ends below the base",
        "the offset index ends inside of an entry",
        "the last time is before the first",
        "the time index ends below the base",
        "the time index ends inside of an entry",
        "an aborted transaction ends below the base",
    ],
)
def test_each_rule_of_an_index_has_its_finding(root, suffix, content, code):
    root.file(20, suffix).write_bytes(content)
    names = {f.file for f in root.findings() if f.code is code}
    assert names == {root.file(20, suffix).name}


@pytest.mark.item("SEG-02")
def test_a_log_of_kafka_0_7_is_an_error_and_a_file_of_its_kind_beside_a_log_is_none(root):
    (root.partition / "00000000000000000000.kafka").write_bytes(b"\0\0\0\x0a")
    assert severities(root, Code.FILE_UNKNOWN) == {Severity.INFO}
    for path in root.partition.glob("0*.*"):
        if path.suffix != ".kafka":
            path.unlink()
    assert severities(root, Code.FILE_UNKNOWN) == set()
    assert severities(root, Code.FILE_ANCIENT) == {Severity.ERROR}


@pytest.mark.item("SEG-02")
@pytest.mark.parametrize(
    ("name", "code"),
    [("00000000000000000000.kafka", Code.FILE_ANCIENT), ("notes.kafka", Code.FILE_UNKNOWN)],
)
def test_what_the_loader_refuses_for_its_age_is_what_is_found_to_be_an_error(root, name, code):
    for path in root.partition.glob("0*.*"):
        path.unlink()
    (root.partition / name).write_bytes(b"\0\0\0\x0a")
    assert {finding.code for finding in root.findings() if finding.file == name} == {code}
    is_refused = code is Code.FILE_ANCIENT
    refusal = pytest.raises(UnsupportedFormatError, match=name) if is_refused else nullcontext()
    with refusal:
        recover_partition(root.partition, config=CONFIG, cleaner=CleanerConfig(), now_ms=NOW_MS)
    assert root.file(0).exists() != is_refused


@pytest.mark.item("SEG-02")
@pytest.mark.parametrize("name", ["leader-epoch-checkpoint.cleaned", "notes.swap"])
def test_a_file_of_a_cleaning_without_an_offset_is_what_stops_a_broker(root, name):
    (root.partition / name).write_text("0\n0\n")
    found = {
        (finding.code, finding.severity) for finding in root.findings() if finding.file == name
    }
    assert found == {(Code.FILE_NAME_INVALID, Severity.FATAL)}
    with pytest.raises(InvalidNameError, match=name):
        recover_partition(root.partition, config=CONFIG, cleaner=CleanerConfig(), now_ms=NOW_MS)
    assert (root.partition / name).exists()


@pytest.mark.item("IDX-18")
def test_an_empty_time_index_makes_a_segment_as_old_as_its_file_until_it_is_rebuilt(root):
    """What retention goes by is the file's own time; the finding offers the rebuild."""

    def age() -> int:
        log = load_partition(root.partition, config=CONFIG, now_ms=NOW_MS)
        return PartitionState.of_log(log).segments[2].largest_timestamp

    newest = segments()[2].batches[-1].largest_timestamp
    assert age() == newest
    root.file(20, ".timeindex").write_bytes(b"")
    file_ms = root.file(20).stat().st_mtime_ns // 1_000_000
    assert age() == file_ms != newest
    [found] = root.findings()
    assert (found.code, found.severity) == (Code.TIME_INDEX_EMPTY, Severity.WARN)
    # A file that is older than its records has retention take them too early.
    os.utime(root.file(20), (0, 0))
    [found] = root.findings()
    assert (found.code, found.severity) == (Code.TIME_INDEX_EMPTY, Severity.ERROR)
    assert "a file of 0 ms" in found.message
    recover_partition(root.partition, config=CONFIG, cleaner=CleanerConfig(), now_ms=NOW_MS)
    assert age() == newest


def read_from(root: LogRoot, offset: int) -> int:
    """Return the base offset of the segment where a read from an offset begins."""
    store = LocalStore(root.partition)
    log = load_log(store, config=CONFIG, cleaner=CleanerConfig(), now_ms=NOW_MS)
    return LogReader(store, log).read(offset, max_bytes=1).segment_base_offset


@pytest.mark.item("FLT-05")
@pytest.mark.parametrize("clean_shutdown", [True, False], ids=["closed", "killed"])
def test_a_segment_that_was_deleted_by_hand_is_a_gap_over_which_reads_jump(root, clean_shutdown):
    root.file(20).unlink()
    found = root.findings()
    assert {f.code for f in found} == {Code.OFFSETS_MISSING, Code.INDEX_WITHOUT_LOG}
    [gap] = [f for f in found if f.code is Code.OFFSETS_MISSING]
    assert (gap.severity, gap.file, gap.offset) == (Severity.WARN, root.file(30).name, 20)
    assert "offsets 20 to 29 are missing" in gap.message
    result = recover_partition(
        root.partition,
        config=CONFIG,
        cleaner=CleanerConfig(),
        now_ms=NOW_MS,
        clean_shutdown=clean_shutdown,
    )
    assert (result.log_end_offset, result.truncated_bytes) == (END_OFFSET, 0)
    assert not list(root.partition.glob("00000000000000000020.*index"))
    assert [read_from(root, offset) for offset in (19, 20, 29, 30)] == [10, 30, 30, 30]
    assert root.codes() == {Code.OFFSETS_MISSING}


@pytest.mark.item("FLT-05")
def test_a_gap_that_compaction_or_the_log_start_explains_is_none(root):
    middle_removed(root)
    assert root.codes() == {Code.OFFSETS_MISSING}
    mirror = dataclasses.replace(root, role=Role.MIRROR)
    [gap] = [f for f in mirror.findings() if f.code is Code.OFFSETS_MISSING]
    assert gap.severity is Severity.INFO
    root.write_checkpoint(filenames.CLEANER_FILE, 29)
    assert root.codes() == {Code.OFFSETS_MISSING}
    root.write_checkpoint(filenames.CLEANER_FILE, 30)
    assert root.codes() == set()
    root.write_checkpoint(filenames.CLEANER_FILE, 10)
    root.write_checkpoint(filenames.LOG_START_FILE, 30)
    assert root.codes() <= {Code.CLEANER_POINT_OUTSIDE_LOG, Code.SNAPSHOT_STRAY}


@pytest.mark.item("FLT-07")
def test_a_transaction_index_behind_its_data_is_mended_by_recovery_only(root):
    """A crash between the write of an abort marker and that of its index entry."""
    specs = segments()
    late = (transactional(40, ABORTS, leader_epoch=3), marker(44, ABORTS, ControlType.ABORT))
    entry = AbortedTxnSpec(
        producer_id=ABORTS, first_offset=40, last_offset=44, last_stable_offset=45
    )
    early = (transactional(30, COMMITS, 4, leader_epoch=3), marker(34, COMMITS, ControlType.ABORT))
    first = AbortedTxnSpec(
        producer_id=COMMITS, first_offset=30, last_offset=34, last_stable_offset=35
    )
    late = tuple(dataclasses.replace(spec, leader_epoch=3) for spec in late)
    early = tuple(dataclasses.replace(spec, leader_epoch=3) for spec in early)
    specs[3] = SegmentSpec(
        base_offset=30, batches=(*early, *specs[3].batches[1:], *late), aborted=(first, entry)
    )
    root.write_segments(specs)
    index = root.file(30, ".txnindex")
    whole = index.read_bytes()
    index.write_bytes(whole[:34])
    settings = {"config": CONFIG, "cleaner": CleanerConfig(), "now_ms": NOW_MS}
    store = LocalStore(root.partition)

    closed = load_log(store, **settings)
    assert [txn.last_offset for txn in LogReader(store, closed).aborted_between(30, 45)] == [34]
    recover_partition(root.partition, **settings, clean_shutdown=True)
    assert index.read_bytes() == whole[:34]
    found = [f for f in root.findings() if f.code is Code.TXN_INDEX_INCOMPLETE]
    assert [f.file for f in found] == [index.name]

    result = recover_partition(root.partition, **settings)
    assert (result.log_end_offset, index.read_bytes()) == (45, whole)
    mended = load_log(store, **settings)
    assert [txn.last_offset for txn in LogReader(store, mended).aborted_between(30, 45)] == [34, 44]
    assert mended.last_stable_offset == 45
    assert Code.TXN_INDEX_INCOMPLETE not in root.codes()


def test_of_a_log_deleted_up_to_its_end_no_producer_is_forgotten(root):
    for path in root.partition.glob("*.snapshot"):
        path.unlink()
    assert Code.SNAPSHOT_MISSING in root.codes()
    root.write_checkpoint(filenames.LOG_START_FILE, END_OFFSET)
    assert Code.SNAPSHOT_MISSING not in root.codes()


@pytest.mark.parametrize("name", ["{}.log.1.gz", "{}.log.zst", "{}.log-20261128.gz", "{}.log.bak"])
def test_a_segment_of_another_name_is_missed_unless_it_lies_below_the_log_start(root, name):
    path = root.file(10)
    renamed = path.rename(path.with_name(name.format(path.stem)))
    missed = [f for f in root.findings() if f.code is Code.SEGMENT_RENAMED]
    assert [(f.file, f.severity, f.offset) for f in missed] == [
        (renamed.name, Severity.ERROR, 10),
    ]
    root.write_checkpoint(filenames.LOG_START_FILE, 20)
    (known,) = (f for f in root.findings() if f.code is Code.SEGMENT_RENAMED)
    assert known.severity is Severity.INFO
    shutil.copy(renamed, path)
    assert Code.SEGMENT_RENAMED not in root.codes()


CODES = {Code.COORDINATOR_NOT_LOADED, Code.COORDINATOR_RECORD_IGNORED}


def findings(
    directory: Path, *records: tuple[bytes, bytes | None], start: int | None = None
) -> list[Finding]:
    specs = tuple(
        RecordSpec(key=key, value=value, timestamp=SOME_TIME_MS) for key, value in records
    )
    batch = BatchSpec(base_offset=0, records=specs)
    write_partition(directory, [SegmentSpec(base_offset=0, batches=[batch])])
    _, found = verify_partition(
        LocalStore(directory),
        DirectoryContext(role=Role.BROKER, is_clean=True),
        VerifyOptions(now_ms=SOME_TIME_MS),
        PartitionCheckpoints(log_start_offset=start),
    )
    return [each for each in found if each.code in CODES]


@pytest.mark.parametrize("record", STRANGE_RECORDS, ids=lambda one: one.name)
def test_a_record_that_kafka_does_not_read_is_found(tmp_path: Path, record: StrangeRecord):
    directory = tmp_path / f"{record.topic}-3"
    one = (record.key, record.value)
    [found] = findings(directory, one, one)
    assert found.code is (
        Code.COORDINATOR_NOT_LOADED if record.stops_load else Code.COORDINATOR_RECORD_IGNORED
    )
    assert (found.offset, found.file) == (0, "00000000000000000000.log")
    assert "; 2 such records" in found.message
    is_lost = record.stops_load or record.topic == "__transaction_state"
    assert (found.severity.rank >= Severity.WARN.rank) == is_lost


def test_records_below_the_log_start_and_of_other_topics_do_not_count(tmp_path: Path):
    strange = next(one for one in STRANGE_RECORDS if one.stops_load)
    good = struct.pack(">hh1sh1si", 1, 1, b"g", 1, b"t", 0), None
    written = ((strange.key, strange.value), good)
    assert findings(tmp_path / "a" / f"{strange.topic}-0", *written, start=1) == []
    assert findings(tmp_path / "b" / "orders-0", *written) == []
    assert len(findings(tmp_path / "c" / f"{strange.topic}-0", *written)) == 1
