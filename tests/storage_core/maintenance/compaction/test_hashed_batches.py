"""Ranks of the keys that pass one hashed, in segments after the first."""

import numpy as np
import pytest

from storage_core.config import OffsetMapHash
from storage_core.maintenance.compaction.index import rank_of
from storage_core.maintenance.compaction.offset_map import KeyBlock
from storage_core.maintenance.compaction.pass_one import Choice, HashedBatches
from storage_core.records.payload import DEFAULT_LIMITS, open_batches
from tests.kit.builders import RecordSpec, segment_bytes
from tests.storage_core.maintenance.compaction.hand_made import batch
from tests.storage_core.maintenance.compaction.states import plan_of, segment
from tests.storage_core.records.memory_file import only_window_of


@pytest.mark.parametrize("first_rank", [0, 5, rank_of(1, 0), rank_of(3, 7), rank_of(2**31 - 1, 2)])
def test_ranks_count_from_that_of_the_first_record_each_time_keys_are_hashed(first_rank):
    a, b, keyless = RecordSpec(key=b"a"), RecordSpec(key=b"b"), RecordSpec()
    window = only_window_of(segment_bytes([batch(0, a, keyless, b), batch(3, b), batch(4, a, b)]))
    wanted = np.array([True, False, True])
    payload = open_batches(window, wanted, 0, DEFAULT_LIMITS)
    keys = KeyBlock(OffsetMapHash.SIPHASH, bytes(16))
    batches = HashedBatches(payload, Choice(wanted), plan_of([segment(0), segment(10)]), keys)

    def places() -> list[tuple[int, int, int]]:
        ranks = keys.rank[: keys.count].tolist()
        return [
            (rank - first_rank, batches.row_of(i), batches.place_of(i))
            for i, rank in enumerate(ranks)
        ]

    batches.hash_from(4)
    batches.count_from(first_rank)
    assert places() == [(3, 2, 0), (4, 2, 1)]
    batches.hash_from(0)
    assert places() == [(0, 0, 0), (2, 0, 2), (3, 2, 0), (4, 2, 1)]
