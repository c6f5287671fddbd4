"""What goes wrong with log directories, and what is left when somebody has dealt with it."""

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage_core import filenames
from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import CheckpointError, CorruptIndexError, StorageError
from storage_core.log.log_loader import load_log
from storage_core.maintenance.recovery.partition import RecoverResult
from storage_core.maintenance.verification.findings import Code
from storage_core.store import LocalStore
from tests.kit.builders import encode_batch
from tests.kit.compare import read_tree
from tests.kit.one_partition import recover_partition
from tests.storage_core.maintenance.compaction.hand_made import cleaning
from tests.storage_core.maintenance.compaction.test_bad_input import DEFAULT_CONFIG, damaged_log
from tests.storage_core.maintenance.verification import log_root

CONFIG = LogConfig(index_interval_bytes=log_root.INTERVAL_BYTES)
SETTINGS = {"config": CONFIG, "cleaner": CleanerConfig(), "now_ms": log_root.NOW_MS}
LAST = 30
TORN = encode_batch(log_root.batch(log_root.END_OFFSET))[:-1]
TAILS = {"torn": TORN, "a piece of a header": TORN[:40]}
GARBAGE_EPOCHS = "0\n1\nx 0\n"


@pytest.fixture
def root(tmp_path: Path) -> log_root.LogRoot:
    return log_root.log_root(tmp_path / "log")


def recover(root: log_root.LogRoot, **said: int | bool) -> RecoverResult:
    return recover_partition(root.partition, **SETTINGS, **said)


@pytest.mark.item("FLT-01")
@pytest.mark.parametrize("tail", ["torn", "a piece of a header"])
def test_a_bad_tail_of_a_log_that_was_closed_stays_and_is_reported(root, tail):
    log = root.file(LAST)
    log.write_bytes(log.read_bytes() + TAILS[tail])
    before = read_tree(root.partition)
    result = recover(root, clean_shutdown=True)
    assert (result.log_end_offset, result.truncated_bytes) == (log_root.END_OFFSET, 0)
    assert read_tree(root.partition)[log.name] == before[log.name]
    [found] = [f for f in root.findings() if f.code is Code.TORN_TAIL]
    assert (found.file, found.position) == (log.name, len(before[log.name]) - len(TAILS[tail]))


def swap_with_neighbour(path: Path) -> None:
    """Give a file of the third segment what the same file of the second or last one has."""
    for base in (10, 30, 0):
        neighbour = path.with_name(f"{base:020d}{path.suffix}")
        if neighbour.exists() and neighbour != path:
            mine, other = path.read_bytes(), neighbour.read_bytes()
            path.write_bytes(other)
            neighbour.write_bytes(mine)
            return
    path.rename(path.with_name(f"{20:020d}{path.suffix}"))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "removed": Path.unlink,
    "emptied": lambda path: path.write_bytes(b""),
    "cut in mid-entry": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "swapped with a neighbour's": swap_with_neighbour,
}
SIDE_FILES = {".index": 20, ".timeindex": 20, ".txnindex": 10, ".snapshot": 40}
# With fewer entries look-ups read more of the log, with an older snapshot more is replayed: both
# end with the same. A snapshot of less than there was may have lost producers by their age.
NOT_REPORTED = {
    ("emptied", ".index"),
    ("removed", ".snapshot"),
    ("swapped with a neighbour's", ".snapshot"),
}


@pytest.mark.item("FLT-04")
@pytest.mark.parametrize("suffix", SIDE_FILES)
@pytest.mark.parametrize("what", DAMAGES)
def test_a_side_file_that_is_missing_or_wrong_is_reported_and_rebuilt_as_it_was(root, suffix, what):
    recover(root)
    before = read_tree(root.partition)
    assert root.findings(is_deep=True) == []
    DAMAGES[what](root.file(SIDE_FILES[suffix], suffix))
    assert read_tree(root.partition) != before
    assert bool(root.findings(is_deep=True)) == ((what, suffix) not in NOT_REPORTED)
    result = recover(root)
    assert (result.log_end_offset, result.truncated_bytes) == (log_root.END_OFFSET, 0)
    # A transaction index of a segment without aborts stays, emptied, as Kafka leaves it.
    after = {name: data for name, data in read_tree(root.partition).items() if data}
    assert after == {name: data for name, data in before.items() if data}


@pytest.mark.item("FLT-06")
@pytest.mark.parametrize(
    ("gone", "log_start", "bases", "end"),
    [
        ((30,), 35, [35], 35),
        ((30,), 5, [0, 10, 20], 30),
        ((0, 10, 20, 30), 500, [500], 500),
        ((0, 10, 20, 30), 0, [0], 0),
    ],
    ids=[
        "the last one, below the log start",
        "the last one",
        "all, with a log start",
        "all, without one",
    ],
)
@pytest.mark.parametrize("clean_shutdown", [True, False], ids=["closed", "killed"])
def test_a_log_that_lost_its_end_or_all_of_it_begins_where_its_checkpoint_says(
    root, gone, log_start, bases, end, clean_shutdown
):
    for base in gone:
        root.file(base).unlink()
    result = recover(root, log_start_offset=log_start, clean_shutdown=clean_shutdown)
    assert sorted(int(path.stem) for path in root.partition.glob("*.log")) == bases
    assert (result.log_end_offset, result.log_start_offset) == (end, log_start)
    if bases == [end]:
        assert root.file(end).read_bytes() == b""
        # Epochs go with segments that are removed for the log start, not with those that are gone.
        kept = b"0\n1\n3 500\n" if end > log_root.END_OFFSET else b"0\n0\n"
        assert (root.partition / filenames.LEADER_EPOCH_FILE).read_bytes() == kept
        assert not {path.stem for path in root.partition.glob("*.snapshot")} - {f"{end:020d}"}


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """Let every write beyond this length of a file fail, as a quota does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.item("FLT-09")
def test_a_disk_that_is_full_ends_a_round_and_leaves_nothing_of_it(tmp_path):
    directory = damaged_log(tmp_path / "t-0", encode_batch(log_root.batch(11)))
    twin = damaged_log(tmp_path / "twin" / "t-0", encode_batch(log_root.batch(11)))
    # First, for kernels that are compiled are written down too, and to files without this limit.
    cleaning(overrides=DEFAULT_CONFIG).clean(twin)
    before = read_tree(directory)
    with files_of_at_most(70), pytest.raises(StorageError):
        cleaning(overrides=DEFAULT_CONFIG).clean(directory)
    assert read_tree(directory) == before
    assert {path.name for path in tmp_path.iterdir()} == {"t-0", "twin"}
    assert cleaning(overrides=DEFAULT_CONFIG).clean(directory) is not None
    assert read_tree(directory) == read_tree(twin)


@pytest.mark.item("FLT-11")
@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        (filenames.RECOVERY_POINT_FILE, "0\n1\nt 0\n", Code.CHECKPOINT_BROKEN),
        (filenames.META_PROPERTIES_FILE, "version=7\n", Code.META_PROPERTIES_BROKEN),
        (f"t-0/{filenames.LEADER_EPOCH_FILE}", GARBAGE_EPOCHS, Code.EPOCH_FILE_BROKEN),
        (
            f"t-0/{filenames.PARTITION_METADATA_FILE}",
            "version: 0\n",
            Code.PARTITION_METADATA_BROKEN,
        ),
    ],
)
def test_a_small_file_that_is_broken_is_named_and_the_rest_is_looked_at(root, name, content, code):
    (root.path / name).write_text(content)
    root.change(root.file(20), -1, b"\x55")
    found = root.findings()
    assert {f.code for f in found} == {code, Code.BATCH_CRC_WRONG}
    [broken] = [f for f in found if f.code is code]
    assert broken.file == Path(name).name
    # A marker that cannot be read is a marker all the same.
    (root.path / filenames.CLEAN_SHUTDOWN_FILE).write_bytes(b"\xff not json")
    assert {f.code for f in root.findings()} == {code, Code.BATCH_CRC_WRONG}


@pytest.mark.item("FLT-11", "CKP-14")
@pytest.mark.parametrize("clean_shutdown", [True, False], ids=["closed", "killed"])
def test_a_broken_epoch_file_stops_its_log_and_is_rebuilt_once_it_is_away(root, clean_shutdown):
    recover(root)
    path = root.partition / filenames.LEADER_EPOCH_FILE
    whole = path.read_bytes()
    path.write_text(GARBAGE_EPOCHS)
    before = read_tree(root.partition)
    with pytest.raises(CheckpointError, match="line 3"):
        recover(root, clean_shutdown=clean_shutdown)
    assert read_tree(root.partition) == before
    path.unlink()
    recover(root)
    assert path.read_bytes() == whole


@pytest.mark.item("FLT-04", "IDX-19")
@pytest.mark.parametrize("clean_shutdown", [True, False], ids=["closed", "killed"])
def test_an_unknown_version_of_a_transaction_index_stops_its_log_and_names_it(root, clean_shutdown):
    """What is to be done stands in the finding: remove it, recover the segment."""
    index = root.file(10, ".txnindex")
    whole = index.read_bytes()
    root.change(index, 1, b"\x09")
    before = read_tree(root.partition)
    with pytest.raises(CorruptIndexError, match="version 0, found 9") as caught:
        recover(root, clean_shutdown=clean_shutdown)
    assert (caught.value.file, read_tree(root.partition)) == (index.name, before)
    [found] = [f for f in root.findings() if f.code is Code.TXN_INDEX_VERSION_UNKNOWN]
    assert found.file == index.name
    index.unlink()
    recover(root)
    assert index.read_bytes() == whole
    assert load_log(LocalStore(root.partition), **SETTINGS).log_end_offset == log_root.END_OFFSET
    assert (root.partition / filenames.log_file(10)).exists()
