"""A round that Kafka played, played again by us from the same bytes: everything has to agree."""

from collections.abc import Mapping

import pytest

from storage_core.errors import PylogError
from storage_core.filenames import LOG_SUFFIX
from tests.kit.compare import Exactness, compare_partitions, read_tree
from tests.kit.decode import decode_segment
from tests.oracle.ours import clean_by_us
from tests.oracle.rounds import CleanAnswer, PlayedRound

# Compressed batches that Kafka wrote anew have other bytes where the compressor's build differs.
NOT_IF_RECOMPRESSED = ("bytes_written",)


def compare_round(played: PlayedRound, exactness: Exactness) -> None:
    if played.answer is None:
        fails_too(played)
        return
    before = read_tree(played.before)
    answer = clean_by_us(played.before, played.task)
    kafkas, ours = read_tree(played.after), read_tree(played.before)
    differences = compare_partitions(kafkas, ours, exactness)
    assert not differences, "\n".join([str(played.task), *map(str, differences)])
    copied = batches_of(before) & batches_of(kafkas)
    assert copied <= batches_of(ours), "a batch that Kafka copies as it is was written anew"
    assert comparable(answer, exactness) == comparable(played.answer, exactness), played.task


def batches_of(tree: Mapping[str, bytes]) -> set[bytes]:
    """Return the bytes of every batch of a partition."""
    return {
        data[batch.position : batch.position + batch.size]
        for file, data in tree.items()
        if file.endswith(LOG_SUFFIX)
        for batch in decode_segment(data)[0]
    }


def fails_too(played: PlayedRound) -> None:
    """Where Kafka throws, we refuse with an error of ours and leave the partition alone."""
    before = read_tree(played.before)
    with pytest.raises(PylogError):
        clean_by_us(played.before, played.task)
    assert read_tree(played.before) == before, f"{played.task}: a failed round left changes"


def comparable(answer: CleanAnswer, exactness: Exactness) -> CleanAnswer:
    if exactness is Exactness.BYTES:
        return answer
    numbers = {k: v for k, v in answer.numbers.items() if k not in NOT_IF_RECOMPRESSED}
    return CleanAnswer(
        numbers=numbers,
        segments=answer.segments,
        cleaner_checkpoint=answer.cleaner_checkpoint,
        nothing_to_clean=answer.nothing_to_clean,
        deleted_segments=answer.deleted_segments,
    )
