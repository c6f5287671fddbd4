"""Where a batch seems to begin: of what lies in a file, the first that others follow."""

import numpy as np
import pytest

from storage_core.records.checked_headers import guess_batch_start
from storage_core.records.reader import scan_windows
from tests.kit.builders import BatchSpec, RecordSpec, encode_batch, segment_bytes, some_batches
from tests.kit.damage import with_lying_length
from tests.storage_core.records.memory_file import MemoryFile

LOG = segment_bytes(some_batches(count=30, records=8))


def guess(data: bytes, position: int) -> int | None:
    return guess_batch_start(MemoryFile(data), position, len(data))


def starts_of(data: bytes) -> list[int]:
    (window,) = scan_windows(MemoryFile(data))
    return [int(position) for position in window.batches.position]


def test_the_next_batch_is_found_from_every_place():
    starts = np.array(starts_of(LOG))
    for position in range(starts[-2] + 1):
        assert guess(LOG, position) == starts[np.searchsorted(starts, position)]


def test_the_last_batch_is_no_place_to_begin_as_none_follows():
    assert guess(LOG, starts_of(LOG)[-2] + 1) is None


def test_nothing_behind_the_stop_counts():
    starts = starts_of(LOG)
    assert guess_batch_start(MemoryFile(LOG), 1, starts[3]) == starts[1]
    assert guess_batch_start(MemoryFile(LOG), 1, starts[3] - 1) is None


def test_batches_that_are_large_are_found_in_a_larger_look():
    value = bytes(200_000)
    specs = [
        BatchSpec(records=(RecordSpec(key=b"k", value=value),), base_offset=offset)
        for offset in range(4)
    ]
    data = segment_bytes(specs)
    assert guess(data, 1000) == starts_of(data)[1]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(bytes(100_000), id="zeros"),
        pytest.param(bytes([2, 0]) * 50_000, id="bytes like those of headers"),
        pytest.param(encode_batch(some_batches(count=1)[0]) * 9, id="offsets that do not rise"),
        pytest.param(
            b"".join(with_lying_length(encode_batch(spec), 7) for spec in some_batches(count=9)),
            id="lengths that lie",
        ),
        pytest.param(b"", id="nothing"),
    ],
)
def test_what_is_no_batch_is_no_place_to_begin(data):
    assert guess(data, 0) is None
