"""Checkpoint files: what Kafka reads and refuses, byte for byte, and all of a directory."""

import os
import tracemalloc
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.checkpoint.checkpoints import (
    CHECKPOINT_FILES,
    Checkpoints,
    EpochEntry,
    PartitionCheckpoints,
    encode_leader_epochs,
    encode_offset_checkpoint,
    log_start_entry,
    merge_entries,
    parse_leader_epochs,
    parse_offset_checkpoint,
    read_checkpoints,
)
from storage_core.errors import CheckpointError, StorageError
from storage_core.filenames import (
    CLEANER_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    TopicPartition,
)
from storage_core.store import LocalStore
from tests.kit.golden_data import Golden

FILE = "/data/recovery-point-offset-checkpoint"
BROKER_FILES = [
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
    "replication-offset-checkpoint",
]

# What Kafka 4.4 reads without complaint, and what it finds.
READABLE = {
    "empty file": (b"", {}),
    "version only": (b"0\n", {}),
    "version without a newline": (b"0", {}),
    "no entries": (b"0\n0\n", {}),
    "one entry": (b"0\n1\na 0 5\n", {("a", 0): 5}),
    "last newline missing": (b"0\n1\na 0 5", {("a", 0): 5}),
    "carriage returns": (b"0\r\n1\r\na 0 5\r\n", {("a", 0): 5}),
    "tabs and runs of blanks": (b"0\n1\na\t0 \t 5\n", {("a", 0): 5}),
    "blanks after the entry": (b"0\n1\na 0 5  \n", {("a", 0): 5}),
    "negative offset": (b"0\n1\na 0 -1\n", {("a", 0): -1}),
    "signs and leading zeros": (b"+0\n+1\na 00 +5\n", {("a", 0): 5}),
    "largest numbers": (
        b"0\n1\na 2147483647 9223372036854775807\n",
        {("a", 2**31 - 1): 2**63 - 1},
    ),
    "the same partition twice": (b"0\n2\na 0 5\na 0 3\n", {("a", 0): 3}),
}
# What Kafka 4.4 refuses, and the line that is to blame (0: the file).
UNREADABLE = {
    "another version": (b"1\n0\n", 1),
    "version that is no number": (b"zero\n0\n", 1),
    "blank before the version": (b" 0\n0\n", 1),
    "empty version": (b"\n0\n", 1),
    "count that is no number": (b"0\nmany\n", 2),
    "empty count": (b"0\n\n", 2),
    "negative count": (b"0\n-1\n", 2),
    "fewer entries than announced": (b"0\n2\na 0 5\n", 2),
    "more entries than announced": (b"0\n0\na 0 5\n", 2),
    "two fields": (b"0\n1\na 5\n", 3),
    "four fields": (b"0\n1\na 0 5 6\n", 3),
    "blank line": (b"0\n1\n\n", 3),
    "leading blank": (b"0\n1\n a 0 5\n", 3),
    "leading blank that makes three fields": (b"0\n1\n 0 5\n", 3),
    "partition that is no number": (b"0\n1\na x 5\n", 3),
    "offset that is no number": (b"0\n1\na 0 x\n", 3),
    "offset of 65 bits": (b"0\n1\na 0 9223372036854775808\n", 3),
    "endless offset": (b"0\n1\na 0 " + b"9" * 100_000 + b"\n", 3),
    "bytes that are no UTF-8": (b"0\n1\na\xff 0 5\n", 3),
}
# What Kafka 4.4 reads, but no broker ever wrote: no such partition can exist.
IMPOSSIBLE = {
    "topic with a slash": b"0\n1\n../../etc 0 5\n",
    "topic with a NUL": b"0\n1\na\x00b 0 5\n",
    "topic too long": b"0\n1\n" + b"a" * 250 + b" 0 5\n",
    "negative partition": b"0\n1\na -1 5\n",
}

topics = st.from_regex(r"[a-zA-Z0-9_-]{1,20}(\.[a-zA-Z0-9_-]{1,20})?", fullmatch=True)
partitions = st.builds(TopicPartition, topics, st.integers(0, 2**31 - 1))


@pytest.mark.item("CKP-01", "CKP-02")
@pytest.mark.parametrize("name", READABLE)
def test_a_checkpoint_is_read_as_kafka_reads_it(name: str):
    data, offsets = READABLE[name]
    found = parse_offset_checkpoint(data, file=FILE)
    assert found == {TopicPartition(*partition): offset for partition, offset in offsets.items()}


@pytest.mark.item("CKP-03")
@pytest.mark.parametrize("name", UNREADABLE)
def test_a_malformed_checkpoint_is_refused_with_its_file_and_line(name: str):
    data, line = UNREADABLE[name]
    with pytest.raises(CheckpointError) as raised:
        parse_offset_checkpoint(data, file=FILE)
    assert (raised.value.file, raised.value.line) == (FILE, line)
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_partition_that_cannot_exist_is_refused(name: str):
    with pytest.raises(CheckpointError) as raised:
        parse_offset_checkpoint(IMPOSSIBLE[name], file=FILE)
    assert raised.value.line == 3


@pytest.mark.item("CKP-01")
def test_no_entries_are_written_as_version_and_zero():
    assert encode_offset_checkpoint({}) == b"0\n0\n"


@pytest.mark.item("CKP-01", "CKP-02")
def test_entries_are_written_as_kafka_writes_them():
    offsets = {
        TopicPartition("b.x", 10): 7,
        TopicPartition("a", 2): -1,
        TopicPartition("b.x", 9): 0,
    }
    assert encode_offset_checkpoint(offsets) == b"0\n3\na 2 -1\nb.x 9 0\nb.x 10 7\n"


@pytest.mark.item("CKP-02")
@given(st.dictionaries(partitions, st.integers(-(2**63), 2**63 - 1)))
def test_what_is_written_is_read_again(offsets: dict[TopicPartition, int]):
    assert parse_offset_checkpoint(encode_offset_checkpoint(offsets), file=FILE) == offsets


@given(st.binary(max_size=60) | st.text("0123 -+a\n\r\t", max_size=30).map(str.encode))
def test_no_bytes_do_anything_but_parse_or_raise(data: bytes):
    try:
        offsets = parse_offset_checkpoint(data, file=FILE)
    except CheckpointError:
        return
    assert parse_offset_checkpoint(encode_offset_checkpoint(offsets), file=FILE) == offsets


@pytest.mark.thorough
@pytest.mark.item("CKP-02")
@pytest.mark.parametrize("name", BROKER_FILES)
def test_a_brokers_own_files_are_read_and_written_back_line_for_line(name: str, tmp_path: Path):
    data = (Golden("broker-dir").unpack(tmp_path) / name).read_bytes()
    written = encode_offset_checkpoint(parse_offset_checkpoint(data, file=name))
    assert sorted(written.splitlines()) == sorted(data.splitlines())


@pytest.mark.thorough
@pytest.mark.item("CKP-06")
def test_a_brokers_recovery_points_cover_every_partition_of_the_directory(tmp_path: Path):
    golden = Golden("broker-dir")
    data = (golden.unpack(tmp_path) / RECOVERY_POINT_FILE).read_bytes()
    points = parse_offset_checkpoint(data, file=RECOVERY_POINT_FILE)
    expected = {
        name: facts["recovery_point_checkpoint"]
        for name, facts in golden.case["expected"].items()
        if not name.startswith("__cluster_metadata")
    }
    assert {str(partition): offset for partition, offset in points.items()} == expected


@pytest.mark.thorough
@pytest.mark.item("CKP-06")
def test_a_log_that_begins_at_its_first_segment_has_no_log_start_entry(tmp_path: Path):
    # A broker after its own retention: two logs begin far above 0, but at a segment's base.
    golden = Golden("broker-dir")
    entries = {}
    starts = set()
    for name, facts in golden.case["expected"].items():
        if "expected" in facts:
            topic, _, partition = name.rpartition("-")
            start = facts["expected"]["log_start"]
            starts.add(start)
            entry = log_start_entry(start, facts["expected"]["segments"][0][0])
            entries[TopicPartition(topic, int(partition))] = entry
    assert starts > {195, 222}
    data = (golden.unpack(tmp_path) / LOG_START_FILE).read_bytes()
    assert encode_offset_checkpoint(merge_entries({}, entries)) == data


@pytest.mark.item("CKP-06")
def test_a_log_whose_first_segment_holds_deleted_records_has_a_log_start_entry():
    assert log_start_entry(7, 6) == 7
    assert log_start_entry(6, 6) is None


@pytest.mark.item("CKP-04")
@pytest.mark.parametrize("fails_at", range(4), ids=["sync", "rename", "directory sync", "nothing"])
def test_a_crash_while_a_checkpoint_is_written_leaves_the_old_or_the_new_file(
    fails_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    old, new = b"0\n1\na 0 5\n", encode_offset_checkpoint({TopicPartition("a", 0): 6})
    path = tmp_path / RECOVERY_POINT_FILE
    path.write_bytes(old)
    calls = []

    def step(name: str, do: object) -> object:
        def wrapped(*arguments: object, **options: object) -> object:
            calls.append(name)
            if len(calls) - 1 == fails_at:
                raise OSError(5, "the machine lost power")
            return do(*arguments, **options)  # type: ignore[operator]

        return wrapped

    monkeypatch.setattr(os, "fsync", step("sync", os.fsync))
    monkeypatch.setattr(os, "replace", step("rename", os.replace))
    if fails_at < 3:
        with pytest.raises(StorageError):
            LocalStore(tmp_path).write_file(RECOVERY_POINT_FILE, new)
    else:
        LocalStore(tmp_path).write_file(RECOVERY_POINT_FILE, new)
        assert calls == ["sync", "rename", "sync"]
    assert path.read_bytes() == (old if fails_at < 2 else new)
    # What is left beside it is the temporary file, of which a broker takes no notice.
    assert {entry.name for entry in tmp_path.iterdir()} <= {path.name, f"{path.name}.tmp"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b"0\n9\n" + b"t 0 0\n" * 60_000, "expected at most 1000 entries", id="lines"),
        pytest.param(b"0\n1\n" + b"a " * 600_000, "expected 3 fields, found", id="fields"),
        pytest.param(b"0\n" * 600_000, "expected 3 fields, found", id="numbers"),
        pytest.param(b"\n" * 1_200_000, "expected a number", id="nothing"),
    ],
)
def test_a_file_of_any_content_takes_no_multiple_of_its_size(content, reason, monkeypatch):
    monkeypatch.setattr("storage_core.checkpoint.checkpoints.MAX_ENTRIES", 1000)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=reason):
        parse_offset_checkpoint(content, file="f")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * len(content) + (4 << 20)


def test_a_byte_that_is_no_text_is_found_wherever_it_is():
    content = b"0\n1\n" + "ä".encode() * (1 << 20)
    with pytest.raises(CheckpointError, match="3: byte 2097156 is not UTF-8"):
        parse_offset_checkpoint(content + b"\xff", file="f")


def test_as_many_entries_as_there_may_be_are_taken_and_one_more_is_not(monkeypatch):
    monkeypatch.setattr("storage_core.checkpoint.checkpoints.MAX_ENTRIES", 3)
    entries = [f"t {partition} 5\n" for partition in range(4)]
    content = "".join(["0\n3\n", *entries[:3]]).encode()
    assert len(parse_offset_checkpoint(content, file="f")) == 3
    with pytest.raises(CheckpointError, match="expected at most 3 entries"):
        parse_offset_checkpoint("".join(["0\n4\n", *entries]).encode(), file="f")


def test_of_a_line_that_is_no_number_a_few_characters_are_quoted_and_zeros_are_counted():
    for data, quoted in (
        (bytes(64), "found 64 zero bytes"),
        (b"x" * 41, f"found '{'x' * 40}'..."),
        (b"x\x00", r"found 'x\x00'"),
    ):
        with pytest.raises(CheckpointError) as raised:
            parse_offset_checkpoint(data, file="f")
        assert str(raised.value).endswith(quoted)


LEADER_EPOCH_FILE = "leader-epoch-checkpoint"


@pytest.mark.item("CKP-01")
@pytest.mark.parametrize("data", [b"", b"0\n", b"0\n0\n"], ids=["empty", "version", "no entries"])
def test_a_file_without_entries_has_none(data: bytes):
    assert parse_leader_epochs(data, file=LEADER_EPOCH_FILE) == []


@pytest.mark.item("CKP-01", "CKP-03")
def test_entries_come_in_file_order_whatever_their_numbers():
    data = b"0\n4\n5 100\n3 50\n4 200\n-1 -7\n"
    entries = [EpochEntry(5, 100), EpochEntry(3, 50), EpochEntry(4, 200), EpochEntry(-1, -7)]
    assert parse_leader_epochs(data, file=LEADER_EPOCH_FILE) == entries
    assert encode_leader_epochs(entries) == data


@pytest.mark.item("CKP-03")
@pytest.mark.parametrize(
    ("data", "line"),
    [
        pytest.param(b"0\n1\n5\n", 3, id="one field"),
        pytest.param(b"0\n1\n5 100 7\n", 3, id="three fields"),
        pytest.param(b"0\n2\n5 100\nfive 7\n", 4, id="epoch that is no number"),
        pytest.param(b"0\n1\n2147483648 7\n", 3, id="epoch of 33 bits"),
        pytest.param(b"0\n1\n 5\n", 3, id="leading blank that makes two fields"),
        pytest.param(b"0\n2\n5 100\n", 2, id="fewer entries than announced"),
        pytest.param(b"2\n0\n", 1, id="another version"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(data: bytes, line: int):
    with pytest.raises(CheckpointError) as raised:
        parse_leader_epochs(data, file=LEADER_EPOCH_FILE)
    assert (raised.value.file, raised.value.line) == (LEADER_EPOCH_FILE, line)


@pytest.mark.thorough
@pytest.mark.item("CKP-01")
def test_a_brokers_own_files_are_written_back_byte_for_byte(tmp_path: Path):
    directory = Golden("broker-dir").unpack(tmp_path)
    files = sorted(directory.glob(f"*/{LEADER_EPOCH_FILE}"))
    assert len(files) > 10
    for file in files:
        data = file.read_bytes()
        assert encode_leader_epochs(parse_leader_epochs(data, file=str(file))) == data


OURS, OTHER = TopicPartition("ours", 0), TopicPartition("other", 3)


@dataclass
class Files:
    """Small files in memory; notes which are asked for."""

    content: dict[str, bytes]
    location: str = "/log"
    asked: list[str] = field(default_factory=list)

    def read(self, name, *, limit_bytes):
        self.asked.append(name)
        return self.content.get(name)


@pytest.fixture
def files() -> Files:
    offsets = {RECOVERY_POINT_FILE: 4, LOG_START_FILE: 1, REPLICATION_FILE: 3, CLEANER_FILE: 2}
    return Files({name: encode_offset_checkpoint({OURS: at}) for name, at in offsets.items()})


def test_each_file_says_one_offset_of_a_partition(files):
    assert read_checkpoints(files).of(OURS) == PartitionCheckpoints(
        recovery_point=4, log_start_offset=1, high_watermark=3, cleaner_offset=2
    )
    assert read_checkpoints(files).of(OTHER) == PartitionCheckpoints()
    assert set(files.asked) == set(CHECKPOINT_FILES)


def test_a_file_that_is_not_there_or_not_asked_for_says_nothing(files):
    del files.content[REPLICATION_FILE]
    read = read_checkpoints(files, [REPLICATION_FILE, LOG_START_FILE])
    assert read.of(OURS) == PartitionCheckpoints(log_start_offset=1)
    assert files.asked == [REPLICATION_FILE, LOG_START_FILE]
    assert not read.problems


@pytest.mark.item("CKP-01")
def test_a_malformed_file_is_an_error_or_is_told_and_counts_as_empty(files):
    files.content[CLEANER_FILE] = b"0\n1\nours 0\n"
    with pytest.raises(CheckpointError, match=f"/log/{CLEANER_FILE}: line 3"):
        read_checkpoints(files)
    read = read_checkpoints(files, strict=False)
    assert list(read.problems) == [CLEANER_FILE]
    assert str(read.problems[CLEANER_FILE]).startswith(f"/log/{CLEANER_FILE}: line 3")
    assert read.of(OURS) == PartitionCheckpoints(
        recovery_point=4, log_start_offset=1, high_watermark=3
    )


def test_nothing_read_says_nothing():
    assert Checkpoints().of(OURS) == PartitionCheckpoints()


def test_changes_replace_add_and_take_out_entries():
    changes = {OURS: None, OTHER: 0}
    assert merge_entries({OURS: 1, TopicPartition("a", 1): 2}, changes) == {
        OTHER: 0,
        TopicPartition("a", 1): 2,
    }
    assert merge_entries({}, {OURS: None}) == {}


@pytest.mark.parametrize(("start", "point"), [(7, 9), (12, 12)])
def test_no_recovery_point_stays_below_a_log_start_that_moves(start, point):
    before = PartitionCheckpoints(recovery_point=9, high_watermark=20, cleaner_offset=5)
    moved = before.moved(PartitionCheckpoints(log_start_offset=start))
    assert moved == PartitionCheckpoints(
        log_start_offset=start, recovery_point=point, high_watermark=20, cleaner_offset=5
    )
    assert before.moved(PartitionCheckpoints(cleaner_offset=0)).cleaner_offset == 0
    assert before.moved(PartitionCheckpoints()) == before


def test_a_checkpoint_that_is_read_again_is_another_dictionary():
    content = encode_offset_checkpoint({TopicPartition("t", 0): 5})
    parse_offset_checkpoint(content, file="f").clear()
    assert parse_offset_checkpoint(content, file="f") == {TopicPartition("t", 0): 5}
