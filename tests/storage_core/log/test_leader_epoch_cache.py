"""Which leader epoch began where, and which of them is believed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.checkpoint.checkpoints import (
    EpochEntry,
    encode_leader_epochs,
    parse_leader_epochs,
)
from storage_core.log import leader_epoch_cache


def cache(*entries: tuple[int, int]) -> leader_epoch_cache.LeaderEpochCache:
    return leader_epoch_cache.LeaderEpochCache(EpochEntry(*entry) for entry in entries)


def plain(leader_epochs: leader_epoch_cache.LeaderEpochCache) -> list[tuple[int, int]]:
    return [(entry.epoch, entry.start_offset) for entry in leader_epochs.entries]


@pytest.mark.item("CKP-09")
def test_lines_out_of_order_remove_the_earlier_ones_that_they_contradict():
    entries = parse_leader_epochs(b"0\n3\n5 100\n3 50\n4 200\n", file="f")
    assert plain(leader_epoch_cache.LeaderEpochCache(entries)) == [(3, 50), (4, 200)]


@pytest.mark.item("CKP-09")
def test_a_file_in_order_comes_back_as_it_was():
    data = b"0\n3\n0 0\n2 17\n7 9000000000\n"
    entries = leader_epoch_cache.LeaderEpochCache(parse_leader_epochs(data, file="f")).entries
    assert encode_leader_epochs(entries) == data


@pytest.mark.item("CKP-10")
@pytest.mark.parametrize(
    ("assigned", "left"),
    [
        pytest.param((5, 30), [(1, 0), (3, 10), (4, 20), (5, 30)], id="newer epoch, later"),
        pytest.param((4, 20), [(1, 0), (3, 10), (4, 20)], id="latest epoch, same offset"),
        pytest.param((4, 25), [(1, 0), (3, 10), (4, 20)], id="latest epoch, later"),
        pytest.param((4, 15), [(1, 0), (3, 10), (4, 15)], id="latest epoch, earlier"),
        pytest.param((4, 10), [(1, 0), (4, 10)], id="latest epoch, where another began"),
        pytest.param((5, 20), [(1, 0), (3, 10), (5, 20)], id="newer epoch, where the latest began"),
        pytest.param((5, 5), [(1, 0), (5, 5)], id="newer epoch, before others"),
        pytest.param((3, 30), [(1, 0), (3, 30)], id="older epoch, later"),
        pytest.param((2, 30), [(1, 0), (2, 30)], id="an epoch between two, later"),
        pytest.param((0, 0), [(0, 0)], id="before everything"),
    ],
)
def test_an_epoch_replaces_what_contradicts_it(assigned, left):
    known = cache((1, 0), (3, 10), (4, 20))
    assert known.assign(*assigned) == (left != [(1, 0), (3, 10), (4, 20)])
    assert plain(known) == left


@pytest.mark.item("CKP-10")
@pytest.mark.parametrize("assigned", [(-1, 0), (0, -1)], ids=["epoch", "offset"])
def test_a_negative_number_is_an_error(assigned):
    known = cache((1, 0))
    with pytest.raises(ValueError, match="epoch"):
        known.assign(*assigned)
    assert plain(known) == [(1, 0)]


@pytest.mark.item("CKP-10")
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12))
def test_both_columns_rise_whatever_is_assigned(assignments):
    known = leader_epoch_cache.LeaderEpochCache()
    for epoch, start in assignments:
        before = plain(known)
        changed = known.assign(epoch, start)
        after = plain(known)
        assert changed == (before != after)
        assert sorted(set(after)) == after
        assert len({e for e, _ in after}) == len({s for _, s in after}) == len(after)
        if changed:
            assert after[-1] == (epoch, start)
            assert after[:-1] == [(e, s) for e, s in before if e < epoch and s < start]


@pytest.mark.item("CKP-12")
@pytest.mark.parametrize(
    ("end_offset", "left"),
    [
        pytest.param(21, [(1, 0), (3, 10), (4, 20)], id="past the last start"),
        pytest.param(20, [(1, 0), (3, 10)], id="equal to the last start"),
        pytest.param(15, [(1, 0), (3, 10)], id="between two starts"),
        pytest.param(10, [(1, 0)], id="equal to a start"),
        pytest.param(0, [], id="everything"),
        pytest.param(-1, [(1, 0), (3, 10), (4, 20)], id="no offset"),
    ],
)
def test_the_end_is_cut_at_and_above_an_offset(end_offset, left):
    known = cache((1, 0), (3, 10), (4, 20))
    assert known.truncate_from_end(end_offset) == (len(left) < 3)
    assert plain(known) == left


@pytest.mark.item("CKP-13")
@pytest.mark.parametrize(
    ("start_offset", "left"),
    [
        pytest.param(4, [(1, 5), (3, 10), (4, 20)], id="below the first start"),
        pytest.param(7, [(1, 7), (3, 10), (4, 20)], id="inside the first epoch"),
        pytest.param(10, [(3, 10), (4, 20)], id="equal to a start"),
        pytest.param(15, [(3, 15), (4, 20)], id="inside an epoch"),
        pytest.param(1057, [(4, 1057)], id="past the last start"),
    ],
)
def test_the_epoch_that_holds_the_new_start_begins_there(start_offset, left):
    known = cache((1, 5), (3, 10), (4, 20))
    assert known.truncate_from_start(start_offset) == (start_offset >= 5)
    assert plain(known) == left


@pytest.mark.item("CKP-13")
def test_an_epoch_that_begins_right_at_the_new_start_counts_as_touched():
    known = cache((1, 5), (3, 10))
    assert known.truncate_from_start(5)
    assert plain(known) == [(1, 5), (3, 10)]


def test_an_empty_cache_has_nothing_to_cut():
    known = leader_epoch_cache.LeaderEpochCache()
    assert not known.truncate_from_end(0)
    assert not known.truncate_from_start(100)
    assert known.entries == ()


@pytest.mark.item("CKP-11")
@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        pytest.param(-1, (-1, -1), id="unknown"),
        pytest.param(1, (1, 10), id="below the earliest"),
        pytest.param(3, (3, 40), id="known"),
        pytest.param(5, (3, 40), id="between two"),
        pytest.param(6, (6, 70), id="before the latest"),
        pytest.param(8, (8, 99), id="the latest"),
        pytest.param(9, (-1, -1), id="above the latest"),
    ],
)
def test_an_epoch_ends_where_the_next_one_begins(epoch, expected):
    known = cache((3, 10), (6, 40), (8, 70))
    assert known.end_offset_for(epoch, 99) == expected


@pytest.mark.item("CKP-11")
def test_a_log_without_epochs_knows_no_end():
    assert cache().end_offset_for(0, 99) == (-1, -1)


@pytest.mark.item("CKP-14")
@pytest.mark.parametrize(("offset", "epoch"), [(9, None), (10, 3), (39, 3), (40, 6), (99, 6)])
def test_an_offset_belongs_to_the_last_epoch_that_began_at_or_below_it(offset, epoch):
    assert cache((3, 10), (6, 40)).epoch_for_offset(offset) == epoch


FLIPPED = 1_000_000


def runs_of(epochs: list[int]) -> list[leader_epoch_cache.EpochRun]:
    """Return a run for each batch of ten records."""
    return [
        leader_epoch_cache.EpochRun(epoch=epoch, first_offset=10 * at, last_offset=10 * at + 9)
        for at, epoch in enumerate(epochs)
    ]


def doubted(epochs: list[int], *known: list[tuple[int, int]], largest: int | None = None):
    files = [[EpochEntry(*entry) for entry in entries] for entries in known]
    believed = leader_epoch_cache.are_runs_believed(runs_of(epochs), files, largest_epoch=largest)
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
    last = leader_epoch_cache.find_last_epoch(runs_of([3, FLIPPED, 4, 4, FLIPPED]))
    assert last == leader_epoch_cache.LastEpoch(
        epoch=4, doubtful=leader_epoch_cache.DoubtfulEpoch(epoch=FLIPPED, offset=10)
    )
    assert leader_epoch_cache.find_last_epoch([]).epoch == -1


def test_an_epoch_without_a_record_yet_counts():
    entries = [EpochEntry(3, 0), EpochEntry(6, 30)]
    assert leader_epoch_cache.find_last_epoch(
        runs_of([3, 3, 3]), [entries]
    ) == leader_epoch_cache.LastEpoch(epoch=6)


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
    found = leader_epoch_cache.are_epochs_outside(np.array(epochs, np.int64), before)
    assert np.flatnonzero(found).tolist() == outside


def doubtful_of(*replicas: tuple[list[int], list[tuple[int, int]]], largest: int | None = None):
    """Return epoch, bounds and expected epoch of each replica's doubtful runs."""
    given = [
        (runs_of(epochs), [EpochEntry(*entry) for entry in entries]) for epochs, entries in replicas
    ]
    found = leader_epoch_cache.find_doubtful_runs(given, largest_epoch=largest)
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
    ((doubtful,),) = leader_epoch_cache.find_doubtful_runs([(runs, [EpochEntry(2, 0)])])
    kept = [EpochEntry(2, 0), EpochEntry(5, 30)]
    entries = [*kept[:1], EpochEntry(7, 10), EpochEntry(FLIPPED, 20), *kept[1:]]
    assert leader_epoch_cache.find_believed_entries(entries, runs, [doubtful]) == kept
    assert leader_epoch_cache.find_believed_entries(kept, [], []) == kept
