"""The checkpoint files of a directory: read strictly, or as far as they are sound."""

from dataclasses import dataclass, field

import pytest

from storage_core.checkpoint.checkpoints import (
    CHECKPOINT_FILES,
    Checkpoints,
    PartitionCheckpoints,
    encode_offset_checkpoint,
    merge_entries,
    read_checkpoints,
)
from storage_core.errors import CheckpointError
from storage_core.filenames import (
    CLEANER_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    TopicPartition,
)

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
