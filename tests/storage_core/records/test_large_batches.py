"""A batch that says it is very large, in a file with holes, is not taken into memory for that."""

import json
import struct
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pylog_spark.cli.dump_files import DumpRequest, dump_path
from pylog_spark.operations.compact.task import count_records
from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import CorruptRecordError
from storage_core.filenames import TIME_INDEX_SUFFIX, log_file, segment_file
from storage_core.formats.batch_v2 import NO_TIMESTAMP, Codec
from storage_core.formats.control import ControlType
from storage_core.log import batch_search
from storage_core.log.committed_view import scan_batch_tables, scan_committed_view
from storage_core.log.directory_view import DirectoryView
from storage_core.log.log_loader import load_log
from storage_core.log.segment_scan import scan_segment
from storage_core.maintenance.recovery.partition import plan_recovery
from storage_core.reading.inspection import _oldest, _read_tail
from storage_core.records import reader as reader_module
from storage_core.records.batch_table import BatchTable
from storage_core.records.payload import DEFAULT_LIMITS
from storage_core.records.reader import (
    CrcCheck,
    Large,
    Tail,
    check_crc,
    scan_headers,
    scan_windows,
)
from storage_core.store.local import LocalFileReader, LocalStore
from tests.kit.builders import (
    BatchSpec,
    RecordSpec,
    encode_batch,
    end_txn_marker,
    segment_bytes,
    some_batches,
)
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.golden_data import goldens
from tests.kit.legacy import LegacyMessage, LegacySet, encode_entry
from tests.kit.log_reader import Isolation, LogReader, consume
from tests.kit.offset_queries import OffsetTarget, find_offset

CLAIMED = 256 << 20
MOST = 8 << 20
LOAD = {"cleaner": CleanerConfig(), "now_ms": 10**13}


@pytest.fixture
def sparse(tmp_path: Path) -> LocalStore:
    """A partition of two good batches, and one that says that all the rest, a hole, is its own."""
    directory = tmp_path / "t-0"
    write_partition(directory, [SegmentSpec(base_offset=0, batches=some_batches(count=3))])
    path = directory / log_file(0)
    data = bytearray(path.read_bytes())
    starts = [0]
    for _ in range(2):
        starts.append(starts[-1] + 12 + struct.unpack_from(">i", data, starts[-1] + 8)[0])
    struct.pack_into(">i", data, starts[2] + 8, CLAIMED - 12)
    with path.open("wb") as file:
        file.write(data)
        file.truncate(starts[2] + CLAIMED)
    for suffix in (".index", ".timeindex"):
        (directory / segment_file(0, suffix)).write_bytes(b"")
    return LocalStore(directory)


@pytest.fixture
def reads(monkeypatch) -> list[int]:
    """How much each read asked for."""
    sizes: list[int] = []
    plain = LocalFileReader.read_into

    def read_into(self: LocalFileReader, position: int, target: np.ndarray) -> int:
        sizes.append(target.size)
        return plain(self, position, target)

    monkeypatch.setattr(LocalFileReader, "read_into", read_into)
    return sizes


def test_a_recovery_reads_it_in_pieces_and_cuts_it(sparse, reads):
    log = plan_recovery(sparse, config=LogConfig.from_topic_overrides({}), **LOAD)
    (cut,) = log.repairs.cuts
    assert (cut.size_bytes, "the CRC of the batch" in cut.reason) == (CLAIMED, True)
    assert max(reads) <= MOST


def test_a_first_batch_without_end_does_not_keep_an_inspection(sparse, reads):
    path = Path(sparse.location, log_file(0))
    with path.open("r+b") as file:
        file.seek(8)
        file.write(struct.pack(">i", CLAIMED - 12))
    (log,) = [file for file in sparse.list_files() if file.name == log_file(0)]
    assert _oldest(sparse, log, 0) == NO_TIMESTAMP
    assert max(reads) <= MOST


def test_looks_at_headers_read_no_more_than_headers(sparse, reads):
    with closing(sparse.open_file(log_file(0))) as reader:
        size = reader.size_bytes
        found = batch_search.find_batch_for_offset(reader, 10**6)
        assert found is None
        batch_search.first_batch_timestamp(reader)
    sizes = {file.name: file.size_bytes for file in sparse.list_files()}
    log = next(file for file in sparse.list_files() if file.name == log_file(0))
    assert _read_tail(sparse, log, sizes)[0] is not None
    assert max(reads) <= MOST
    assert sum(reads) < size // 4


@pytest.mark.sampled(2)
@pytest.mark.parametrize("crc", [CrcCheck.NOTE, CrcCheck.RAISE, CrcCheck.LATER])
def test_a_wrong_checksum_is_found_before_any_of_it_is_kept(sparse, reads, crc):
    with closing(sparse.open_file(log_file(0))) as reader:
        windows = scan_windows(reader, crc=crc, tail=Tail.STOP, large=Large.VALID)
        next(windows)
        if crc is not CrcCheck.NOTE:
            with pytest.raises(CorruptRecordError, match="CRC-32C of the batch at offset"):
                next(windows)
        else:
            assert next(windows).batches.crc_ok.tolist() == [0]
    assert max(reads) <= MOST


def dumped(path: Path, capsys) -> tuple[bool, list[dict]]:
    is_whole = dump_path(path, DumpRequest(as_json=True))
    return is_whole, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_dump_shows_its_header_and_no_records(sparse, reads, capsys):
    is_whole, lines = dumped(Path(sparse.location, log_file(0)), capsys)
    assert [line["type"] for line in lines if line["type"] != "record"] == [*["batch"] * 3, "error"]
    assert lines[-2]["size"] == CLAIMED
    assert (lines[-2]["crc_ok"], lines[-1]["position"]) == (False, lines[-2]["position"])
    assert not is_whole
    assert max(reads) <= MOST


def test_a_dump_goes_on_behind_a_large_batch_that_is_wrong(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(reader_module, "LARGE_BATCH_BYTES", 2_000_000)
    large = BatchSpec(base_offset=0, records=[RecordSpec(value=bytes(3_000_000))])
    data = bytearray(segment_bytes([large, BatchSpec(base_offset=1, records=[RecordSpec()])]))
    path = tmp_path / log_file(0)
    path.write_bytes(data)
    assert len(dumped(path, capsys)[1]) == 4
    data[1_000_000] ^= 1
    path.write_bytes(data)
    kinds = [line["type"] for line in dumped(path, capsys)[1]]
    assert kinds == ["batch", "error", "batch", "record"]


def test_counts_of_records_and_searches_for_transactions_read_headers(sparse, reads):
    size = next(file.size_bytes for file in sparse.list_files() if file.name == log_file(0))
    assert count_records(sparse, [log_file(0)]) == 3
    assert scan_committed_view(sparse).last_stable_offset == 3
    assert batch_search.find_batch_base_offset(DirectoryView(sparse), [0], 2) == 2
    assert max(reads) <= MOST
    assert sum(reads) < size // 4


@pytest.mark.thorough
def test_a_compressed_message_of_old_has_its_checksum_looked_at_before_it_is_opened(sparse, reads):
    path = Path(sparse.location, log_file(0))
    data = bytearray(encode_entry(LegacySet(messages=[LegacyMessage(offset=0)], codec=Codec.GZIP)))
    struct.pack_into(">i", data, 8, CLAIMED - 12)
    with path.open("r+b") as file:
        file.write(data)
        file.truncate(CLAIMED)
    with pytest.raises(CorruptRecordError, match="CRC-32 of the batch at offset"):
        count_records(sparse, [log_file(0)])
    with pytest.raises(CorruptRecordError, match="CRC-32 of the batch at offset"):
        batch_search.find_batch_base_offset(DirectoryView(sparse), [0], 0)
    assert max(reads) <= MOST


def test_a_control_batch_without_end_is_known_by_its_beginning(sparse, reads):
    path = Path(sparse.location, log_file(0))
    marker = bytearray(
        encode_batch(
            end_txn_marker(
                base_offset=0, producer_id=1, producer_epoch=0, control_type=ControlType.ABORT
            )
        )
    )
    struct.pack_into(">i", marker, 8, CLAIMED - 12)
    with path.open("r+b") as file:
        file.write(marker)
        file.truncate(CLAIMED)
    (table,) = [batches.columns.copy() for batches in scan_batch_tables(sparse, log_file(0))]
    assert BatchTable(table).control_type.tolist() == [ControlType.ABORT]
    assert max(reads) <= MOST


def loaded(store: LocalStore) -> LogReader:
    """The log as far as a load without recovery takes it: with the large batch."""
    log = load_log(
        store,
        config=LogConfig.from_topic_overrides({}),
        **LOAD,
    )
    return LogReader(store, log)


def test_a_consumer_gets_what_stands_before_it_and_an_error(sparse, reads):
    windows = consume(loaded(sparse), 0, isolation=Isolation.LOG_END, max_bytes=1 << 20)
    with pytest.raises(CorruptRecordError, match="CRC-32C of the batch at offset"):
        for _ in windows:
            pass
    assert max(reads) <= MOST


def test_the_newest_record_is_looked_for_with_headers_and_a_large_batch_checked_first(
    sparse, reads
):
    with closing(sparse.open_file(log_file(0))) as file:
        *_, last = scan_headers(file)
    offset, timestamp = int(last.batches.last_offset[-1]), int(last.batches.max_timestamp[-1])
    times = Path(sparse.location, segment_file(0, TIME_INDEX_SUFFIX))
    times.write_bytes(struct.pack(">qi", timestamp, offset))
    reader = loaded(sparse)
    with pytest.raises(CorruptRecordError, match="CRC-32C of the batch at offset"):
        find_offset(reader, OffsetTarget.MAX_TIMESTAMP, limits=DEFAULT_LIMITS)
    assert max(reads) <= MOST


@pytest.mark.parametrize("large", Large)
@pytest.mark.parametrize("crc", CrcCheck)
def test_a_large_batch_that_is_right_says_the_same_however_it_is_read(
    tmp_path, monkeypatch, crc, large
):
    monkeypatch.setattr(reader_module, "LARGE_BATCH_BYTES", 10_000)
    records = [RecordSpec(value=bytes([number]) * 9_000) for number in range(3)]
    batches = [*some_batches(count=2), BatchSpec(base_offset=100, records=records)]
    write_partition(tmp_path / "t-0", [SegmentSpec(base_offset=0, batches=batches)])
    store = LocalStore(tmp_path / "t-0")

    def rows(**options) -> list:
        """Of each batch all but its position, which counts from its window."""
        with closing(store.open_file(log_file(0))) as reader:
            found = []
            for window in scan_windows(reader, crc=crc, **options):
                if crc is CrcCheck.LATER and window.is_whole:
                    check_crc(window)
                found += window.batches.columns[1:].T.tolist()
            return found

    expected = rows()
    small = rows(window_bytes=400, large=large)
    assert small == expected


@pytest.mark.parametrize("golden", goldens("recover-*")[:12], ids=lambda golden: golden.name)
def test_scans_of_segments_are_the_same_where_every_batch_is_large(golden, tmp_path, monkeypatch):
    store = LocalStore(golden.unpack(tmp_path))
    logs = [file.name for file in store.list_files() if file.name.endswith(".log")]

    def scans(**options) -> list:
        found = []
        for name in logs:
            with closing(store.open_file(name)) as reader:
                scan = scan_segment(
                    reader, 0, index_interval_bytes=100, max_index_bytes=1 << 20, **options
                )
                plain = replace(scan, epochs=None, events=None)
                found.append((plain, scan.epochs.tolist(), scan.events.tolist()))
        return found

    expected = scans()
    monkeypatch.setattr(reader_module, "LARGE_BATCH_BYTES", 1)
    assert scans(window_bytes=1) == expected
