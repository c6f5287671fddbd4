"""The end of a log that was closed cleanly: what a load of it says, or that a load is needed."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import IndexFullError, PylogError
from storage_core.filenames import LEADER_EPOCH_FILE, segment_file
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY
from storage_core.index.segment_indexes import AbortedTxn, encode_transaction_index
from storage_core.local_files import OpenFolder, open_folder
from storage_core.log.log_loader import find_clean_end
from storage_core.log.log_truncation import read_clean_end
from storage_core.store import LocalStore
from tests.kit import directories
from tests.kit.builders import some_batches
from tests.kit.one_partition import load_partition

NOW = 1_700_000_000_000
BATCHES = some_batches(count=2000, records=1, base_offset=100)
END = 2100
MOST_INDEX_BYTES = LogConfig().segment_index_bytes
LOG, INDEX = segment_file(100, ".log"), segment_file(100, ".index")
TXN_INDEX = segment_file(0, ".txnindex")
ABORTED = encode_transaction_index(
    [AbortedTxn(producer_id=1, first_offset=0, last_offset=1, last_stable_offset=2)]
)

Change = Callable[[Path], object]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log of two segments; the index of the newest has more entries than a search reads first."""
    segments = [
        directories.SegmentSpec(base_offset=0, batches=some_batches(count=2, records=1)),
        directories.SegmentSpec(base_offset=100, batches=BATCHES),
    ]
    written = directories.write_partition(tmp_path / "t-0", segments, index_interval_bytes=1)
    assert (written / INDEX).stat().st_size > 8192 + 2 * OFFSET_INDEX_ENTRY.itemsize
    return written


def clean_end(directory: Path, *, log_start: int = 0) -> int | None:
    others = [path.name for path in directory.iterdir() if path.suffix != ".log"]
    with open_folder(directory) as descriptor:
        folder = OpenFolder(descriptor)
        return read_clean_end(
            folder,
            directory,
            bases=(0, 100),
            log_start=log_start,
            others=others,
            most_index_bytes=MOST_INDEX_BYTES,
        )


def loaded_end(directory: Path, *, log_start: int = 0) -> int | None:
    """What a load says; None where it says more than where the log ends."""
    try:
        log = load_partition(directory, now_ms=NOW, log_start_checkpoint=log_start)
    except PylogError:
        return None
    return log.log_end_offset if log.last_stable_offset == log.log_end_offset else None


def nothing(_: Path) -> None:
    """Leave a log as it is."""


def writes(name: str, content: bytes) -> Change:
    return lambda directory: (directory / name).write_bytes(content)


def snapshot(offset: int, *producers: directories.ProducerSpec) -> Change:
    return writes(
        segment_file(offset, ".snapshot"), directories.encode_producer_snapshot(producers)
    )


def tear(directory: Path) -> None:
    (directory / LOG).write_bytes((directory / LOG).read_bytes() + b"torn")


def cut_log(directory: Path) -> None:
    os.truncate(directory / LOG, (directory / LOG).stat().st_size - 5)


def empty(directory: Path) -> None:
    for name in (LOG, INDEX):
        os.truncate(directory / name, 0)


def fill_with_zeros(directory: Path) -> None:
    empty(directory)
    (directory / LOG).write_bytes(bytes(200))


def disorder(directory: Path) -> None:
    index = np.frombuffer((directory / INDEX).read_bytes(), OFFSET_INDEX_ENTRY).copy()
    index["relative_offset"][-1] = 3
    (directory / INDEX).write_bytes(index.tobytes())


@pytest.mark.parametrize(
    ("change", "end"),
    [
        pytest.param(nothing, END, id="no producers"),
        pytest.param(snapshot(END), END, id="a snapshot at the end"),
        pytest.param(snapshot(END, directories.ProducerSpec(producer_id=1)), END, id="a producer"),
        pytest.param(tear, END, id="a torn tail"),
        pytest.param(cut_log, 100, id="a last batch cut"),  # to which the index points
        pytest.param(empty, 100, id="an empty segment"),
        pytest.param(lambda d: (d / LEADER_EPOCH_FILE).unlink(), END, id="no epochs"),
        pytest.param(lambda d: os.truncate(d / INDEX, 0), END, id="an empty index"),
        pytest.param(lambda d: os.truncate(d / INDEX, 8 * 1500 + 3), END, id="a ragged index"),
        pytest.param(writes(TXN_INDEX, b""), END, id="no aborted transaction"),
        pytest.param(writes(TXN_INDEX, ABORTED), END, id="an aborted transaction"),
    ],
)
def test_it_is_what_a_load_says(directory: Path, change: Change, end: int):
    change(directory)
    assert clean_end(directory) == loaded_end(directory) == end


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(writes(LEADER_EPOCH_FILE, b"0\n1\n-1 0\n"), id="a negative epoch"),
        pytest.param(writes(LEADER_EPOCH_FILE, b"0\n2\n0 0\n"), id="an epoch less"),
        pytest.param(fill_with_zeros, id="no batches"),
        pytest.param(writes(TXN_INDEX, b"\xff" * 34), id="an unknown transaction index"),
        pytest.param(
            snapshot(END, directories.ProducerSpec(producer_id=1, current_txn_first_offset=50)),
            id="an open transaction",
        ),
    ],
)
def test_where_a_load_says_more_there_is_none(directory: Path, change: Change):
    change(directory)
    assert clean_end(directory) is None
    assert loaded_end(directory) is None


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_there_is_none_where_a_broker_cannot_resize_an_index(directory: Path, suffix: str):
    os.truncate(directory / segment_file(100, suffix), MOST_INDEX_BYTES + 12)
    assert clean_end(directory) is None
    with pytest.raises(IndexFullError):
        find_clean_end(
            LocalStore(directory), config=LogConfig(), cleaner=CleanerConfig(), now_ms=NOW
        )


def test_an_index_is_believed_as_a_load_believes_it(directory: Path):
    writes(INDEX, b"\0\0\0\1\0\0\0\7")(directory)
    assert clean_end(directory) == loaded_end(directory) != END


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(snapshot(100), id="a snapshot before the end"),
        pytest.param(snapshot(END + 1), id="a snapshot beyond the end"),
        pytest.param(writes(segment_file(END, ".snapshot"), b"?" * 20), id="a broken snapshot"),
        pytest.param(disorder, id="an index out of order"),
    ],
)
def test_what_takes_a_load_to_tell_is_left_to_it(directory: Path, change: Change):
    change(directory)
    assert clean_end(directory) is None


@pytest.mark.parametrize(("log_start", "end"), [(END, END), (END - 1, None), (END + 1, None)])
def test_a_snapshot_at_the_log_start_counts_only_at_the_end(directory: Path, log_start, end):
    """Kafka drops it, and plays what follows the log's start."""
    snapshot(0)(directory)
    assert clean_end(directory, log_start=log_start) == end
    if log_start != END - 1:
        assert loaded_end(directory, log_start=log_start) == end


def test_a_log_that_ends_below_its_start_has_none(directory: Path):
    """Kafka would delete every segment of it."""
    assert clean_end(directory, log_start=END + 1) is None
    assert loaded_end(directory, log_start=END + 1) is None


@pytest.mark.parametrize("name", [LOG, INDEX, LEADER_EPOCH_FILE])
def test_what_cannot_be_opened_is_an_error(directory: Path, name: str):
    (directory / name).unlink()
    (directory / name).mkdir()
    with pytest.raises(OSError, match="directory"):
        clean_end(directory)
