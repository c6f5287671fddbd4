"""What a recovery says before it does anything, and what it leaves to be done again: nothing."""

import shutil

import pytest

from storage_core import errors, filenames
from storage_core.commit import SyncDirectory, SyncFile
from storage_core.config import CleanerConfig, LogConfig
from storage_core.maintenance.recovery.partition import plan_recovery
from storage_core.maintenance.recovery.salvage import count_lost_records
from storage_core.store.local import LocalStore
from tests.kit.builders import SOME_TIME_MS, BatchSpec, RecordSpec, some_batches
from tests.kit.compare import read_tree
from tests.kit.damage import with_wrong_crc
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.golden_data import goldens
from tests.kit.golden_loading import plan_golden, redo
from tests.kit.one_partition import recover_partition, retain_partition, truncate_partition

RECOVERIES = [golden for golden in goldens("recover-*") if "error" not in golden.case["expected"]]
SETTINGS = {
    "config": LogConfig.from_topic_overrides({}),
    "cleaner": CleanerConfig(),
    "now_ms": SOME_TIME_MS,
}


def write_log(directory, *bases, count=2):
    """Ten offsets a segment, in batches of five."""
    parts = [
        SegmentSpec(
            base_offset=base, batches=some_batches(count=count, records=5, base_offset=base)
        )
        for base in bases
    ]
    write_partition(directory, parts)
    return directory


def damage_batch(path, number):
    data = path.read_bytes()
    position = 0
    for _ in range(number):
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    size = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    bad = with_wrong_crc(data[position : position + size])
    path.write_bytes(data[:position] + bad + data[position + size :])
    return position


@pytest.mark.sampled(26)
@pytest.mark.item("REC-31", "REC-32")
@pytest.mark.parametrize("golden", RECOVERIES, ids=lambda golden: golden.name)
def test_a_plan_writes_nothing_and_tells_exactly_the_bytes_that_go(golden, tmp_path):
    directory = golden.unpack(tmp_path)
    before = read_tree(directory)
    log = plan_golden(golden, LocalStore(directory))
    assert read_tree(directory) == before
    redo(golden, directory)
    after = read_tree(directory)

    def logs(tree):
        return sum(len(data) for name, data in tree.items() if name.endswith(".log"))

    assert log.repairs.truncated_bytes == logs(before) - logs(after)
    assert log.size_bytes == logs(after)


@pytest.mark.sampled(22)
@pytest.mark.item("REC-32")
@pytest.mark.parametrize("golden", RECOVERIES, ids=lambda golden: golden.name)
def test_a_second_recovery_changes_nothing_more(golden, tmp_path):
    directory = golden.unpack(tmp_path)
    redo(golden, directory)
    after = read_tree(directory)
    again = plan_golden(golden, LocalStore(directory))
    assert again.repairs.cuts == ()
    redo(golden, directory)
    found = read_tree(directory)
    if again.log_start_offset == again.log_end_offset:
        # Kafka's own two truncations of the epochs do not agree about a log that is empty.
        del found[filenames.LEADER_EPOCH_FILE], after[filenames.LEADER_EPOCH_FILE]
    assert found == after


@pytest.mark.item("REC-15", "REC-31", "FLT-02")
def test_every_cut_is_told_with_its_place_its_bytes_and_what_could_still_be_read(tmp_path):
    directory = write_log(tmp_path / "t-0", 0, 10, 20, count=4)
    sizes = {base: (directory / filenames.log_file(base)).stat().st_size for base in (0, 10, 20)}
    position = damage_batch(directory / filenames.log_file(10), 1)
    store = LocalStore(directory)
    log = plan_recovery(store, **SETTINGS)
    middle, last = log.repairs.cuts
    assert (middle.file, middle.position) == (filenames.log_file(10), position)
    assert middle.size_bytes == sizes[10] - position
    assert middle.first_offset == 15
    assert "CRC" in middle.reason
    assert count_lost_records(store, middle) == 10  # of three batches the first one is damaged
    assert (last.file, last.is_whole_segment) == (filenames.log_file(20), True)
    assert count_lost_records(store, last) == 20
    assert log.log_end_offset == 15
    assert [segment.base_offset for segment in log.segments] == [0, 10]


def test_a_segment_of_which_nothing_is_valid_is_cut_and_an_empty_one_behind_it_removed(tmp_path):
    directory = write_log(tmp_path / "t-0", 0, 10)
    write_partition(directory, [SegmentSpec(base_offset=20, batches=[])])
    size = (directory / filenames.log_file(10)).stat().st_size
    damage_batch(directory / filenames.log_file(10), 0)
    log = plan_recovery(LocalStore(directory), **SETTINGS)
    assert [(s.base_offset, s.size_bytes > 0) for s in log.segments] == [(0, True), (10, False)]
    assert [
        (cut.base_offset, cut.size_bytes, cut.is_whole_segment) for cut in log.repairs.cuts
    ] == [
        (10, size, False),
        (20, 0, True),
    ]
    assert log.repairs.deleted_segments == 1


@pytest.mark.item("REC-16")
def test_a_segment_with_repeated_batches_is_emptied_and_the_later_ones_go(tmp_path):
    directory = write_log(tmp_path / "t-0", 0, 10, 20)
    path = directory / filenames.log_file(10)
    path.write_bytes(path.read_bytes() * 2)
    config = LogConfig.from_topic_overrides({"index.interval.bytes": "0"})
    log = plan_recovery(LocalStore(directory), **SETTINGS | {"config": config})
    assert [(s.base_offset, s.size_bytes) for s in log.segments] == [
        (0, (directory / filenames.log_file(0)).stat().st_size),
        (10, 0),
    ]
    assert log.log_end_offset == 10
    assert "does not rise" in log.repairs.cuts[0].reason


@pytest.mark.item("SEG-02")
@pytest.mark.parametrize("clean_shutdown", [True, False], ids=["closed", "killed"])
def test_a_log_of_a_time_before_its_format_is_refused_and_not_begun_anew(tmp_path, clean_shutdown):
    """Kafka 0.7 wrote ``<byte position>.kafka``; an empty log beside that would hide it."""
    directory = tmp_path / "t-0"
    directory.mkdir()
    (directory / "00000000000000000000.kafka").write_bytes(b"\0\0\0\x0a")
    before = read_tree(directory)
    with pytest.raises(errors.UnsupportedFormatError, match=r"0\.7 or older") as caught:
        recover_partition(directory, **SETTINGS, clean_shutdown=clean_shutdown)
    assert caught.value.file == "00000000000000000000.kafka"
    assert read_tree(directory) == before
    # Beside a log it is a file like any other.
    write_log(directory, 0)
    assert recover_partition(directory, **SETTINGS).log_end_offset == 10


@pytest.mark.item("SEG-03")
def test_what_is_none_of_kafkas_stays_where_it_is(tmp_path):
    directory = write_log(tmp_path / "t-0", 0, 10)
    strange = {"foo.txt": b"1", "5.txt": b"2", "notes": b"3", "00000000000000000003.kafka": b"4"}
    for name, content in strange.items():
        (directory / name).write_bytes(content)
    (directory / "folder").mkdir()
    (directory / (filenames.segment_file(0, ".log") + ".deleted")).write_bytes(b"")
    recover_partition(directory, **SETTINGS)
    truncate_partition(directory, **SETTINGS, to=15)
    retain_partition(
        directory,
        **SETTINGS | {"config": LogConfig.from_topic_overrides({"retention.bytes": "0"})},
    )
    tree = read_tree(directory)
    assert {name: tree[name] for name in strange} == strange
    assert (directory / "folder").is_dir()
    assert [name for name in tree if name.endswith(".deleted")] == []


@pytest.mark.item("REC-22")
def test_a_directory_on_its_way_out_is_loaded_without_a_look_at_its_records(tmp_path):
    directory = write_log(tmp_path / f"t-0.{'0' * 32}-delete", 0, 10)
    damage_batch(directory / filenames.log_file(10), 0)
    sizes = {path.name: path.stat().st_size for path in directory.glob("*.log")}
    recover_partition(directory, **SETTINGS)
    assert {path.name: path.stat().st_size for path in directory.glob("*.log")} == sizes


@pytest.mark.item("REC-14")
def test_only_segments_from_the_recovery_point_on_are_read(tmp_path):
    directory = write_log(tmp_path / "t-0", 0, 10, 20)
    log = plan_recovery(LocalStore(directory), **SETTINGS, recovery_point=15)
    assert log.repairs.rebuilt == (10, 20)
    synced = [step.name for step in log.operations if isinstance(step, SyncFile)]
    assert synced == [filenames.log_file(10), filenames.log_file(20)]
    assert isinstance(log.operations[-1], SyncDirectory)


@pytest.mark.parametrize("name", ["notes.cleaned", "leader-epoch-checkpoint.swap"])
def test_unfinished_files_of_no_segment_are_refused_as_kafka_refuses_them(tmp_path, name):
    directory = write_log(tmp_path / "t-0", 0)
    (directory / name).write_bytes(b"")
    before = read_tree(directory)
    with pytest.raises(errors.InvalidNameError, match=name):
        recover_partition(directory, **SETTINGS)
    assert read_tree(directory) == before


@pytest.mark.parametrize("content", [b"", b"version: 0\n", b"version: 0\ntopic_id: x y\n"])
def test_a_topic_id_that_kafka_does_not_read_is_refused(tmp_path, content):
    directory = write_log(tmp_path / "t-0", 0)
    (directory / filenames.PARTITION_METADATA_FILE).write_bytes(content)
    with pytest.raises(errors.CheckpointError, match=filenames.PARTITION_METADATA_FILE):
        recover_partition(directory, **SETTINGS)


def test_an_active_index_larger_than_the_topic_allows_is_refused(tmp_path):
    directory = write_log(tmp_path / "t-0", 0)
    (directory / filenames.segment_file(0, ".index")).write_bytes(bytes(64))
    config = LogConfig.from_topic_overrides({"segment.index.bytes": "36"})
    with pytest.raises(errors.IndexFullError, match=r"64 bytes, segment\.index\.bytes allows 32"):
        recover_partition(directory, **SETTINGS | {"config": config}, clean_shutdown=True)


def test_a_batch_that_begins_below_the_first_offset_there_is_is_refused(tmp_path):
    """Its last offset fits the segment, so that its leader epoch is what Kafka stops at."""
    spec = BatchSpec(
        records=(RecordSpec(key=b"k", value=b"v"),),
        base_offset=-1,
        last_offset_delta=3,
        leader_epoch=0,
    )
    directory = tmp_path / "t-0"
    write_partition(directory, [SegmentSpec(base_offset=0, batches=[spec])])
    (directory / filenames.LEADER_EPOCH_FILE).unlink(missing_ok=True)
    before = read_tree(directory)
    with pytest.raises(errors.CorruptRecordError, match="found epoch 0 at offset -1") as caught:
        recover_partition(directory, **SETTINGS)
    assert caught.value.file == filenames.log_file(0)
    assert read_tree(directory) == before


@pytest.mark.item("REC-25")
def test_a_split_keeps_every_batch_and_the_time_of_the_file(tmp_path):
    directory = tmp_path / "t-0"
    record = RecordSpec(key=b"k", value=b"v")
    batches = [BatchSpec(records=(record,), base_offset=offset) for offset in (0, 2**31, 2**32 + 5)]
    write_partition(directory, [SegmentSpec(base_offset=0, batches=batches)])
    for path in directory.glob("*.index"):
        path.unlink()
    whole = (directory / filenames.log_file(0)).read_bytes()
    time_ns = (directory / filenames.log_file(0)).stat().st_mtime_ns // 1_000_000 * 1_000_000
    result = recover_partition(directory, **SETTINGS)
    assert result.segments == 3
    parts = sorted(directory.glob("*.log"))
    assert [int(path.stem) for path in parts] == [0, 2**31, 2**32 + 5]
    assert b"".join(path.read_bytes() for path in parts) == whole
    assert {path.stat().st_mtime_ns for path in parts} == {time_ns}


@pytest.mark.item("REC-18", "REC-25")
def test_a_segment_that_cannot_be_split_is_left_as_it_is(tmp_path):
    directory = tmp_path / "t-0"
    record = RecordSpec(key=b"k", value=b"v")
    batches = [BatchSpec(records=(record,), base_offset=offset) for offset in (0, 2**31)]
    write_partition(directory, [SegmentSpec(base_offset=0, batches=batches)])
    with (directory / filenames.log_file(0)).open("ab") as file:
        file.write(b"half a batch")
    before = read_tree(directory)
    with pytest.raises(errors.CorruptRecordError, match="whole batches"):
        recover_partition(directory, **SETTINGS)
    assert read_tree(directory) == before
    shutil.rmtree(directory)
