"""One bucket of exchanged keys, by hand; whole rounds are compared in test_golden_rounds."""

import numpy as np
import pytest

from storage_core.maintenance.compaction.index import rank_of
from storage_core.maintenance.compaction.key_exchange import KeyBucket, MessageKind, unpack_columns
from tests.storage_core.maintenance.compaction.states import plan_of, segment

SEGMENTS = [segment(0), segment(10), segment(20), segment(30)]


def message(*rows: tuple[int, int]) -> bytes:
    """Return keys, each the number of its hash and its rank."""
    hashes = np.array([key for key, _ in rows], np.uint64)
    ranks = np.array([rank for _, rank in rows], np.int64)
    return np.stack([hashes, hashes, ranks.view(np.uint64)]).tobytes()


def survivors(bucket: KeyBucket) -> dict[int, list[int]]:
    return {number: ordinals.tolist() for number, ordinals in bucket.survivors()}


def test_the_newest_record_of_each_key_survives_whatever_came_first():
    bucket = KeyBucket(plan_of(SEGMENTS))
    bucket.hear(MessageKind.KEYS, 1, message((5, rank_of(1, 0)), (6, rank_of(1, 3))))
    bucket.hear(MessageKind.KEYS, 0, message((5, rank_of(0, 9)), (7, rank_of(0, 2))))
    assert bucket.key_count == 3
    assert survivors(bucket) == {0: [2], 1: [0, 3]}


def test_a_record_that_asks_survives_unless_its_key_is_newer_elsewhere():
    bucket = KeyBucket(plan_of(SEGMENTS))
    bucket.hear(MessageKind.KEYS, 2, message((5, rank_of(2, 1))))
    bucket.hear(MessageKind.QUERIES, 0, message((5, rank_of(0, 0)), (8, rank_of(0, 1))))
    bucket.hear(MessageKind.QUERIES, 1, message((8, rank_of(1, 4))))
    # Of two clean records of one key both stay: only the dirty section takes records away.
    assert survivors(bucket) == {0: [1], 1: [4], 2: [1]}


def test_an_empty_bucket_has_no_survivors():
    assert survivors(KeyBucket(plan_of(SEGMENTS))) == {}


def test_a_question_before_the_keys_is_a_mistake():
    bucket = KeyBucket(plan_of(SEGMENTS))
    bucket.hear(MessageKind.QUERIES, 0, message((1, 0)))
    with pytest.raises(ValueError, match="KEYS after one of QUERIES"):
        bucket.hear(MessageKind.KEYS, 0, message((1, 0)))


def test_columns_of_a_message_can_be_written():
    assert unpack_columns(message((1, 2)), 3).flags.writeable
