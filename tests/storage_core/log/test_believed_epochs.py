"""A leader epoch is believed between its neighbours, and within what epoch files know."""

import numpy as np
import pytest

from storage_core.checkpoint.checkpoints import EpochEntry
from storage_core.log.leader_epoch_cache import (
    DoubtfulEpoch,
    EpochRun,
    LastEpoch,
    are_epochs_outside,
    are_runs_believed,
    find_believed_entries,
    find_doubtful_runs,
    find_last_epoch,
)

FLIPPED = 1_000_000


def runs_of(epochs: list[int]) -> list[EpochRun]:
    """Return a run for each batch of ten records."""
    return [
        EpochRun(epoch=epoch, first_offset=10 * at, last_offset=10 * at + 9)
        for at, epoch in enumerate(epochs)
    ]


def doubted(epochs: list[int], *known: list[tuple[int, int]], largest: int | None = None):
    files = [[EpochEntry(*entry) for entry in entries] for entries in known]
    believed = are_runs_believed(runs_of(epochs), files, largest_epoch=largest)
    return [at for at, is_so in enumerate(believed.tolist()) if not is_so]


@pytest.mark.parametrize(
    ("epochs", "wrong"),
    [
        ([3, 3, 3], []),
        ([0, 1, 2, 4, 4], []),
        ([3, 3, FLIPPED, 3, 3], [2]),
        ([3, FLIPPED, 5, 6, 6], [1]),
        ([3, 3, 2, 3, 3], [2]),
        ([0, 0, 0, 2, 2, 0], [5]),
        ([0, 0, 0, 2, 2, 0, 2], [5]),
        ([3, 5, 3, 3, 7, 7, 7], [1]),
        ([3, 1, 6, 7, 7], [1]),
        ([3, 3, FLIPPED, FLIPPED, 3, 3], [2, 3]),
        ([FLIPPED, 3, 3], [0]),
        ([3, 3, FLIPPED], [2]),
        ([3, 3, 1], [2]),
        ([3, 3, 4], [2]),
        ([3, FLIPPED, 3], [1]),
        ([3], []),
        ([], []),
    ],
)
def test_without_an_epoch_file_the_neighbours_say_it(epochs, wrong):
    assert doubted(epochs) == wrong


@pytest.mark.parametrize(
    ("epochs", "entries", "wrong"),
    [
        # An epoch between its neighbours that no file has.
        ([3, 3, 7, 8, 8], [(3, 0), (8, 30)], [2]),
        ([3, 3, 7, 8, 8], [(3, 0), (7, 20), (8, 30)], []),
        # The first batch has no neighbour before it.
        ([1, 3, 3], [(3, 0)], [0]),
        # The newest one is believed if the file has it.
        ([3, 3, 4], [(3, 0), (4, 20)], []),
        ([3, 3, FLIPPED], [(3, 0)], [2]),
        # A start has believed the flipped epoch and written it down.
        ([3, 3, FLIPPED, 3], [(3, 0), (FLIPPED, 20)], [2]),
        # Several batches that the file does not know are believed: the file may be an old one.
        ([3, 3, 7, 7, 8, 8], [(3, 0)], []),
    ],
)
def test_an_epoch_file_confirms_and_contradicts(epochs, entries, wrong):
    assert doubted(epochs, entries) == wrong


def test_another_replica_knows_the_newest_epoch():
    assert doubted([3, 3, 4], [(3, 0)], [(3, 0), (4, 20)]) == []
    assert doubted([3, 3, FLIPPED], [(3, 0)], [(3, 0), (4, 20)]) == [2]


def test_the_quorum_confirms_and_contradicts_the_newest_epoch():
    assert doubted([3, 3, FLIPPED], largest=9) == [2]
    assert doubted([3, 3, 9], largest=9) == []
    assert doubted([3, 3, 2], largest=9) == [2]
    # Several batches have it: the quorum's file is an old one.
    assert doubted([3, 3, 9, 9], largest=8) == []


def test_the_newest_epoch_is_the_newest_that_is_believed():
    last = find_last_epoch(runs_of([3, FLIPPED, 4, 4, FLIPPED]))
    assert last == LastEpoch(epoch=4, doubtful=DoubtfulEpoch(epoch=FLIPPED, offset=10))
    assert find_last_epoch([]).epoch == -1


def test_an_epoch_without_a_record_yet_counts():
    entries = [EpochEntry(3, 0), EpochEntry(6, 30)]
    assert find_last_epoch(runs_of([3, 3, 3]), [entries]) == LastEpoch(epoch=6)


@pytest.mark.parametrize(
    ("epochs", "before", "outside"),
    [
        ([3, FLIPPED, 3], -1, [1]),
        ([FLIPPED, 3], 3, [0]),
        ([FLIPPED, 3], -1, []),
        ([3, FLIPPED], 3, []),
        ([3, 4, 5], 3, []),
        ([-1, -1, 3, 1, 3], -1, [3]),
        ([-1], 3, []),
        ([], 3, []),
    ],
)
def test_an_epoch_outside_of_both_neighbours_is_found(epochs, before, outside):
    found = are_epochs_outside(np.array(epochs, np.int64), before)
    assert np.flatnonzero(found).tolist() == outside


def doubtful_of(*replicas: tuple[list[int], list[tuple[int, int]]], largest: int | None = None):
    """Return epoch, bounds and expected epoch of each replica's doubtful runs."""
    given = [
        (runs_of(epochs), [EpochEntry(*entry) for entry in entries]) for epochs, entries in replicas
    ]
    found = find_doubtful_runs(given, largest_epoch=largest)
    return [[(e.run.epoch, e.least, e.most, e.expected) for e in own] for own in found]


def test_of_several_replicas_the_flipped_one_is_found():
    whole = ([2, 2, 4], [(2, 0), (4, 20)])
    for flipped in ([2, 2, FLIPPED], [2, 2, 0]):
        wrong = (flipped[2], 2, 4, 4)
        assert doubtful_of((flipped, whole[1]), whole) == [[wrong], []]
        # Without an epoch file the other replica's says it.
        assert doubtful_of((flipped, []), whole) == [[wrong], []]
    assert doubtful_of(([2, FLIPPED, 4], []), whole) == [[(FLIPPED, 2, 4, 2)], []]


def test_a_start_that_believed_an_epoch_does_not_make_it_right():
    believed = [(2, 0), (FLIPPED, 20)]
    whole = ([2, 2, 2], [(2, 0)])
    found = doubtful_of(([2, 2, FLIPPED], believed), whole, largest=3)
    assert found == [[(FLIPPED, 2, 3, 2)], []]


def test_two_replicas_with_one_epoch_are_believed_where_it_does_not_fall():
    assert doubtful_of(([2, 2, 9], []), ([2, 2, 9], []), largest=3) == [[], []]
    falls = [(0, 2, 3, 2)]
    assert doubtful_of(([2, 2, 0], []), ([2, 2, 0], []), largest=3) == [falls, falls]


def test_entries_that_batches_contradict_are_not_believed():
    runs = runs_of([2, 2, FLIPPED])
    ((doubtful,),) = find_doubtful_runs([(runs, [EpochEntry(2, 0)])])
    kept = [EpochEntry(2, 0), EpochEntry(5, 30)]
    entries = [*kept[:1], EpochEntry(7, 10), EpochEntry(FLIPPED, 20), *kept[1:]]
    assert find_believed_entries(entries, runs, [doubtful]) == kept
    assert find_believed_entries(kept, [], []) == kept
