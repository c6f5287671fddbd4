"""What is read before retention decides: tails of indexes, and no more than are needed."""

import os
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from storage_core import errors
from storage_core.config import CleanerConfig, LogConfig
from storage_core.filenames import segment_file
from storage_core.log.log_loader import find_clean_end
from storage_core.maintenance.retention import partition
from storage_core.store.base import FileReader
from storage_core.store.local import LocalStore
from tests.kit.builders import SOME_TIME_MS, BatchSpec, RecordSpec
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.golden_data import Side, goldens
from tests.kit.golden_loading import loading_of, settings_of
from tests.kit.one_partition import sweep_at_rest

DAY = 86_400_000
NOW = SOME_TIME_MS + 10 * DAY
SEGMENTS = 6
LOADS = [golden for golden in goldens("*load*") if golden.case["operation"] == "load"]


class CountingStore(LocalStore):
    """Notes which bytes of which file are read."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.reads: list[tuple[str, int]] = []

    def open_file(self, name: str) -> FileReader:  # type: ignore[override]
        reader = super().open_file(name)
        read_into = reader.read_into

        def counted(position, target):
            count = read_into(position, target)
            self.reads.append((name, count))
            return count

        reader.read_into = counted  # type: ignore[method-assign]
        return reader

    def read_file(self, name: str, *, limit_bytes: int) -> bytes:
        content = super().read_file(name, limit_bytes=limit_bytes)
        self.reads.append((name, len(content)))
        return content


def write_log(directory: Path, *, active: bool = True) -> Path:
    """Segments of one record each, a day apart; the active one empty unless told otherwise."""
    specs = [
        SegmentSpec(
            base_offset=10 * number,
            batches=[
                BatchSpec(
                    base_offset=10 * number,
                    records=(RecordSpec(value=b"x" * 50, timestamp=SOME_TIME_MS + number * DAY),),
                )
            ],
            producers=() if number else None,
        )
        for number in range(SEGMENTS)
    ]
    if active:
        specs.append(SegmentSpec(base_offset=51, producers=()))
    return write_partition(directory, specs)


def sweep(store: LocalStore, *, now_ms: int = NOW, **changes) -> partition.Sweep:
    settings = {"retention.ms": str(changes.pop("retention_ms", -1))}
    settings["retention.bytes"] = str(changes.pop("retention_bytes", -1))
    return sweep_at_rest(
        store,
        config=LogConfig.from_topic_overrides(settings),
        cleaner=CleanerConfig(),
        now_ms=now_ms,
        **changes,
    )


def tails(*numbers: int) -> list[tuple[str, int]]:
    return [(segment_file(10 * number, ".timeindex"), 12) for number in numbers]


@pytest.mark.item("RET-02", "RET-07")
@pytest.mark.parametrize(
    ("days", "read"), [(11, [0]), (10, [0]), (9, [0, 1]), (6, [0, 1, 2, 3, 4])]
)
def test_tails_are_read_oldest_first_up_to_the_first_that_stays(tmp_path, days, read):
    store = CountingStore(write_log(tmp_path / "t-0"))
    found = sweep(store, retention_ms=days * DAY)
    times = [each for each in store.reads if each[0].endswith(".timeindex")]
    # The entries of those that go are read once more, to compare them with the records.
    assert times == tails(*read, *read[:-1])
    assert found.decision.removed_base_offsets == tuple(10 * n for n in read[:-1])
    others = {name for name, _ in store.reads if not name.endswith(".timeindex")}
    # Before anything goes: the end of the log, as a broker's load looks for it.
    # Its index is empty: there is nothing to read.
    load = {segment_file(51, ".snapshot"), "leader-epoch-checkpoint"}
    load |= {segment_file(10 * number, ".log") for number in read[:-1]}
    assert others == (load if read[:-1] else set())


def test_nothing_is_read_where_age_does_not_count_or_nothing_is_replicated(tmp_path):
    store = CountingStore(write_log(tmp_path / "t-0"))
    assert not sweep(store).is_due
    assert not sweep(store, retention_bytes=10**6).is_due
    assert store.reads == []
    # The age of the first segment is asked all the same: what holds it is the high watermark.
    held = sweep(store, retention_ms=0, high_watermark=5)
    assert held.decision.blocked_by.hold == "HIGH_WATERMARK"
    assert store.reads == tails(0)


def test_what_is_known_already_is_read_only_of_what_goes(tmp_path):
    store = CountingStore(write_log(tmp_path / "t-0"))
    known = {10 * number: SOME_TIME_MS + number * DAY for number in range(SEGMENTS)}
    found = sweep(store, retention_ms=8 * DAY, max_timestamps=known)
    assert found.decision.removed_base_offsets == (0, 10)
    times = [each for each in store.reads if each[0].endswith(".timeindex")]
    assert times == tails(0, 1)


def test_files_that_were_verified_are_read_only_for_what_goes(tmp_path):
    store = CountingStore(write_log(tmp_path / "t-0"))
    first = sweep(store, retention_ms=9 * DAY)
    store.reads.clear()
    assert sweep(store, retention_ms=9 * DAY, verified_end=first.state.log_end) == first
    assert [name for name, _ in store.reads] == [
        *(name for name, _ in tails(0, 1)),
        "leader-epoch-checkpoint",
    ]


@pytest.mark.parametrize("name", ["x.log", "a\nb.log", "99999999999999999999.log"])
def test_by_counts_the_same_goes_whatever_else_ends_like_a_segment(tmp_path, name):
    store = LocalStore(write_log(tmp_path / "t-0"))
    (store.directory / name).touch()
    found = sweep(store, retention_ms=9 * DAY)
    names = store.scan().names
    steps, removed, start = partition.plan_known(store, names, (0, 0, 1), log_start_checkpoint=None)
    assert (steps, removed, start) == (found.steps, (0,), 10)


def time_entries(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">qi", *entry) for entry in entries)


LIARS = {
    "zeros behind the entries": time_entries((SOME_TIME_MS + DAY, 0), (0, 0), (0, 0)),
    "zeros alone": bytes(12 * 3),
    "an entry of another time": time_entries((SOME_TIME_MS - DAY, 0)),
    "an entry of an offset that nobody has": time_entries((SOME_TIME_MS + DAY, 7)),
    "half an entry behind zeros": bytes(12 * 2 + 7),
}


@pytest.mark.parametrize("content", LIARS.values(), ids=LIARS.keys())
def test_a_time_index_that_the_records_contradict_deletes_nothing(tmp_path, content):
    directory = write_log(tmp_path / "t-0")
    (directory / segment_file(10, ".timeindex")).write_bytes(content)
    # The segment before it stays, and nobody asks this one.
    assert not sweep(LocalStore(directory), retention_ms=10 * DAY).is_due
    with pytest.raises(errors.ContradictedAgeError, match=r"0010\.timeindex"):
        sweep(LocalStore(directory), retention_ms=9 * DAY - 1)


def test_the_active_segment_of_a_copy_is_not_closed(tmp_path):
    directory = write_log(tmp_path / "t-0", active=False)
    with (directory / segment_file(50, ".timeindex")).open("ab") as file:
        file.write(bytes(24))
    copy = sweep(LocalStore(directory), retention_ms=DAY, is_closed=False)
    assert copy.decision.roll_offset == 51
    with pytest.raises(errors.ContradictedAgeError, match=r"0050\.timeindex"):
        sweep(LocalStore(directory), retention_ms=DAY)


def test_an_old_time_of_a_file_without_entries_deletes_no_young_record(tmp_path):
    directory = write_log(tmp_path / "t-0")
    (directory / segment_file(0, ".timeindex")).write_bytes(b"")
    os.utime(directory / segment_file(0, ".log"), (0, 0))
    with pytest.raises(errors.ContradictedAgeError, match="no entry, and a file of 0 ms"):
        sweep(LocalStore(directory), retention_ms=10 * DAY)
    # The records are too old as well.
    assert sweep(LocalStore(directory), retention_ms=10 * DAY - 1).is_due
    with pytest.raises(errors.ContradictedAgeError, match="no entry, and a file of 0 ms"):
        partition.plan_retain(
            LocalStore(directory),
            config=LogConfig.from_topic_overrides({"retention.ms": str(10 * DAY)}),
            cleaner=CleanerConfig(),
            now_ms=NOW,
        )


@pytest.mark.thorough
def test_the_look_at_a_segment_that_goes_costs_few_bytes(tmp_path):
    batches = [
        BatchSpec(
            base_offset=number,
            records=(RecordSpec(value=b"x" * 1000, timestamp=SOME_TIME_MS + number),),
        )
        for number in range(3000)
    ]
    specs = [SegmentSpec(base_offset=0, batches=batches), SegmentSpec(base_offset=3000)]
    store = CountingStore(write_partition(tmp_path / "t-0", specs))
    assert sweep(store, retention_ms=DAY).decision.removed_base_offsets == (0,)
    read = sum(count for name, count in store.reads if name.startswith("0" * 20))
    assert 0 < read < 16_000


def test_only_a_log_of_which_all_goes_is_read_at_its_end(tmp_path):
    store = CountingStore(write_log(tmp_path / "t-0", active=False))
    found = sweep(store, retention_bytes=0, high_watermark=51)
    assert found.decision.roll_offset == 51
    assert segment_file(50, ".log") in [name for name, _ in store.reads]
    assert not [name for name, _ in store.reads if name == segment_file(40, ".log")]


@pytest.mark.item("RET-07", "FLT-04")
def test_a_missing_time_index_is_an_empty_one(tmp_path):
    directory = write_log(tmp_path / "t-0")
    (directory / segment_file(0, ".timeindex")).unlink()
    seconds = (NOW - DAY) / 1000
    os.utime(directory / segment_file(0, ".log"), (seconds, seconds))
    store = LocalStore(directory)
    assert not sweep(store, retention_ms=DAY).is_due
    assert sweep(store, retention_ms=DAY - 1).is_due


def test_a_ragged_tail_of_an_index_is_no_entry(tmp_path):
    directory = write_log(tmp_path / "t-0")
    with (directory / segment_file(0, ".timeindex")).open("ab") as file:
        file.write(b"\xff" * 7)
    assert sweep(LocalStore(directory), retention_ms=9 * DAY).is_due


@pytest.mark.item("FLT-04", "FLT-08")
@pytest.mark.parametrize(
    ("damage", "text"),
    [
        ("00000000000000000010.index", "is missing"),
        ("00000000000000000010.log.swap", "a swap was not finished"),
        ("00000000000000000010.log.cleaned", "a swap was not finished"),
    ],
)
def test_a_log_that_its_loader_would_repair_first_is_refused(tmp_path, damage, text):
    directory = write_log(tmp_path / "t-0")
    if damage.endswith(".index"):
        (directory / damage).unlink()
    else:
        (directory / damage).write_bytes(b"")
    with pytest.raises(errors.RecoveryRequiredError, match=text):
        sweep(LocalStore(directory), retention_ms=0)


def test_a_directory_without_segments_or_none_at_all_is_refused(tmp_path):
    (tmp_path / "t-0").mkdir()
    with pytest.raises(errors.RecoveryRequiredError, match="no segment"):
        sweep(LocalStore(tmp_path / "t-0"))
    with pytest.raises(errors.PartitionNotFoundError):
        sweep(LocalStore(tmp_path / "t-1"))


def test_a_log_start_beyond_the_log_end_is_refused_before_anything_goes(tmp_path):
    directory = write_log(tmp_path / "t-0")
    with pytest.raises(errors.RecoveryRequiredError, match="below its log start offset 99"):
        sweep(LocalStore(directory), log_start_checkpoint=99)


def test_damage_on_the_way_is_an_error_that_names_the_file(tmp_path):
    directory = write_log(tmp_path / "t-0", active=False)
    log = directory / segment_file(50, ".log")
    data = bytearray(log.read_bytes())
    data[8:12] = b"\xff\xff\xff\xff"
    log.write_bytes(data)
    with pytest.raises(errors.CorruptRecordError, match="0050"):
        sweep(LocalStore(directory), retention_bytes=0)
    (directory / "leader-epoch-checkpoint").write_text("0\n1\n-1 -1\n")
    with pytest.raises(errors.CheckpointError, match="leader-epoch-checkpoint"):
        sweep(LocalStore(directory), retention_bytes=400)


@pytest.mark.item("FLT-04")
@pytest.mark.parametrize("golden", LOADS, ids=lambda golden: golden.name)
def test_nothing_goes_from_a_log_that_kafka_does_not_load(tmp_path, golden):
    expected, loading = golden.case["expected"], loading_of(golden)
    store = LocalStore(golden.unpack(tmp_path / "t-0", Side.BEFORE))
    asked = {"log_start_checkpoint": loading["log_start_offset"], **settings_of(golden)}
    try:
        end = find_clean_end(store, **asked)
    except errors.RecoveryRequiredError:
        end = None  # Kafka repairs it first, or fails to
    except errors.PylogError:
        assert "error" in expected
        end = None
    assert end is None or end == expected.get("leo")
    if "error" not in expected:
        return
    sizes = [file.size_bytes for file in store.list_files() if file.name.endswith(".log")]
    # Nothing but the oldest segment would go.
    config = replace(asked.pop("config"), retention_bytes=sum(sizes[1:]))
    with pytest.raises(errors.PylogError):
        sweep_at_rest(store, config=config, **asked)


def test_the_zeros_of_a_copy_count_for_nothing(tmp_path):
    directory = write_log(tmp_path / "t-0", active=False)
    name = segment_file(50, ".log")
    size = sum(path.stat().st_size for path in directory.glob("*.log"))
    os.truncate(directory / name, 1 << 30)
    limit = {"retention_bytes": size}
    with pytest.raises(errors.CorruptRecordError, match="0050"):
        sweep(LocalStore(directory), **limit)
    copy = sweep(LocalStore(directory), is_closed=False, **limit)
    assert not copy.is_due
    assert copy.state.size_bytes == size
    assert copy.decision.percent_of_retention_bytes == 100
    assert sweep(LocalStore(directory), is_closed=False, retention_bytes=size - 118).is_due


def test_the_newest_timestamp_is_that_of_the_last_segment_with_records(tmp_path):
    store = LocalStore(write_log(tmp_path / "t-0"))
    found = sweep(store, retention_ms=9 * DAY)
    assert partition.newest_timestamp(store, found.state) == SOME_TIME_MS + 5 * DAY
    empty = write_partition(tmp_path / "t-1", [SegmentSpec(base_offset=0)])
    state = sweep(LocalStore(empty)).state
    assert partition.newest_timestamp(LocalStore(empty), state) is None


def test_the_newest_record_is_found_in_a_log_of_any_state_for_twelve_bytes(tmp_path):
    directory = write_log(tmp_path / "t-0")
    newest = SOME_TIME_MS + 5 * DAY
    for name in ("00000000000000000000.log.swap", "x.log", "00000000000000000000.log.deleted"):
        (directory / name).write_bytes(b"x")
    min(directory.glob("*.index")).unlink()
    store = CountingStore(directory)
    assert partition.newest_record_ms(store) == newest
    assert len(store.reads) <= 1
    assert partition.newest_record_ms(LocalStore(directory), {0: 1}) == newest
    last = max(path for path in directory.glob("0*.log") if path.stat().st_size)
    last.with_suffix(".timeindex").unlink()
    os.utime(last, (SOME_TIME_MS / 1000, SOME_TIME_MS / 1000))
    assert partition.newest_record_ms(LocalStore(directory)) == SOME_TIME_MS
    empty = write_partition(tmp_path / "t-1", [SegmentSpec(base_offset=0)])
    assert partition.newest_record_ms(LocalStore(empty)) is None


@pytest.mark.parametrize("entries", [0, 1, 2, 5, 64])
def test_of_a_log_that_was_copied_while_it_was_open_the_zeros_are_no_entries(tmp_path, entries):
    directory = write_partition(tmp_path / "t-0", [SegmentSpec(base_offset=0)])
    (directory / segment_file(0, ".log")).write_bytes(b"x")
    times = [(SOME_TIME_MS + n).to_bytes(8, "big") + n.to_bytes(4, "big") for n in range(entries)]
    (directory / segment_file(0, ".timeindex")).write_bytes(b"".join(times) + bytes(12 * 100))
    store = CountingStore(directory)
    limits = {"retention_ms": 10 * DAY, "now_ms": SOME_TIME_MS + entries, "high_watermark": 0}
    seconds = SOME_TIME_MS / 1000
    os.utime(directory / segment_file(0, ".log"), (seconds, seconds))
    block = sweep(store, is_closed=False, **limits).decision.blocked_by
    assert block.timestamp == SOME_TIME_MS + max(entries - 1, 0)
    assert len(store.reads) <= 10
    # Of a log that was closed they are what they say, as for Kafka: of 1970, so it would go.
    with pytest.raises(errors.RollError):
        sweep(LocalStore(directory), **limits)
