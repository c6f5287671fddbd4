"""Where a follower is cut, by its epochs and the leader's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.checkpoint.checkpoints import EpochEntry
from storage_core.cluster.replica import (
    Hindrance,
    HindranceKind,
    Leader,
    LogSpan,
    Truncation,
    find_truncation,
)
from storage_core.log.leader_epoch_cache import EpochRun


def log(
    end: int,
    *epochs: tuple[int, int],
    start: int = 0,
    high_watermark: int = 0,
    first_segment: int = 0,
) -> LogSpan:
    return LogSpan(
        log_start_offset=start,
        log_end_offset=end,
        high_watermark=high_watermark,
        epochs=[EpochEntry(*entry) for entry in epochs],
        first_segment_offset=first_segment,
    )


def cut(follower: LogSpan, leader: LogSpan) -> Truncation:
    epochs = [entry.epoch for each in (follower, leader) for entry in each.epochs]
    return find_truncation(follower, Leader(leader, 1 + max(epochs, default=0)))


@pytest.mark.item("REP-08")
def test_an_epoch_that_went_on_elsewhere_is_cut_where_the_leaders_ended():
    leader = log(150, (5, 100), (7, 130))
    assert cut(log(142, (5, 100)), leader) == Truncation(
        offset=130, is_restart=False, rounds=(130,)
    )


@pytest.mark.item("REP-08")
def test_a_follower_that_agrees_keeps_its_end():
    leader = log(150, (5, 100), (7, 130))
    for follower in (log(150, (5, 100), (7, 130)), log(120, (5, 100)), log(130, (5, 100))):
        assert cut(follower, leader).rounds == ()


@pytest.mark.item("REP-08")
def test_an_epoch_that_the_follower_does_not_know_takes_another_round():
    leader = log(60, (1, 0), (3, 20), (6, 50))
    follower = log(70, (1, 0), (2, 25), (5, 40))
    # Asked for 5, the leader says 3 up to 50; the follower's last one below is 2, up to 40.
    assert cut(follower, leader) == Truncation(offset=20, is_restart=False, rounds=(40, 20))


@pytest.mark.item("REP-08")
def test_a_leader_leads_in_an_epoch_that_begins_at_its_end():
    leader = log(50, (4, 0))
    assert cut(log(60, (4, 0)), leader).offset == 50


@pytest.mark.item("REP-09")
def test_a_follower_without_epochs_goes_back_to_its_high_watermark():
    leader = log(100, (2, 0))
    assert cut(log(80, high_watermark=60), leader).rounds == (60,)
    assert cut(log(120, high_watermark=110), leader).rounds == (110, 100)
    assert cut(log(80, high_watermark=0, start=30), leader).rounds == (30,)


@pytest.mark.item("REP-09")
def test_nothing_diverges_from_a_leader_without_epochs_but_its_end():
    leader = log(100)
    assert cut(log(80, (1, 0), (2, 50)), leader).rounds == ()
    assert cut(log(120, (1, 0), (2, 50)), leader).rounds == (100,)


@pytest.mark.item("REP-10")
def test_a_follower_that_ends_below_the_leaders_start_begins_anew_there():
    leader = log(200, (2, 150), start=150)
    assert cut(log(120, (2, 0)), leader) == Truncation(offset=150, is_restart=True, rounds=(150,))


@pytest.mark.item("REP-10")
def test_a_follower_that_ends_at_the_leaders_start_goes_on_there():
    leader = log(200, (2, 150), start=150)
    assert cut(log(150, (2, 0)), leader) == Truncation(offset=150, is_restart=False, rounds=())
    # It is asked there, too: what the follower has of a later epoch is not the leader's.
    assert cut(log(150, (2, 0), (5, 140)), leader) == Truncation(
        offset=150, is_restart=True, rounds=(140, 150)
    )


@pytest.mark.item("REP-10")
def test_a_cut_below_the_first_segment_leaves_an_empty_log():
    leader = log(30, (1, 0))
    follower = log(80, (1, 40), (2, 60), start=40, first_segment=40)
    found = cut(follower, leader)
    assert (found.offset, found.is_restart) == (30, True)


@pytest.mark.item("REP-10")
def test_a_cut_at_the_first_segment_keeps_the_log():
    follower = log(80, (1, 40), (2, 60), start=40, first_segment=40)
    assert cut(follower, log(40, (1, 0))) == Truncation(offset=40, is_restart=False, rounds=(40,))


@st.composite
def logs(draw: st.DrawFn) -> LogSpan:
    count = draw(st.integers(0, 5))
    numbers = st.integers(0, 12)
    epochs = sorted(draw(st.sets(numbers, min_size=count, max_size=count)))
    starts = sorted(draw(st.sets(st.integers(0, 30), min_size=count, max_size=count)))
    first = starts[0] if starts else draw(st.integers(0, 30))
    end = draw(st.integers(starts[-1] + 1 if starts else first, 40))
    start = draw(st.integers(first, end))
    watermark = draw(st.integers(0, 45))
    entries = zip(epochs, starts, strict=True)
    return log(end, *entries, start=start, high_watermark=watermark, first_segment=first)


@given(follower=logs(), leader=logs())
def test_rounds_end_and_each_goes_further_back(follower: LogSpan, leader: LogSpan):
    found = cut(follower, leader)
    cuts = found.rounds[:-1] if found.is_restart else found.rounds
    assert list(cuts) == sorted(set(cuts), reverse=True)
    assert all(offset < follower.log_end_offset for offset in cuts)
    assert found.offset == (found.rounds[-1] if found.rounds else follower.log_end_offset)
    if not found.is_restart:
        assert found.offset <= leader.log_end_offset or not found.rounds


def runs(*batches: tuple[int, int, int]) -> list[EpochRun]:
    """Return runs by epoch, first and last offset."""
    return [
        EpochRun(epoch=epoch, first_offset=first, last_offset=last)
        for epoch, first, last in batches
    ]


@pytest.mark.item("REP-08")
def test_a_follower_above_the_leaders_epoch_is_neither_cut_nor_ever_in_sync():
    """As brokers of 4.4 did: each fetch is answered that its offset is out of range."""
    follower = log(51, (0, 0), (2, 41), (1_000_000, 50))
    leader = Leader(log(51, (0, 0), (2, 41)), 3)
    hindrance = Hindrance(kind=HindranceKind.EPOCH_UNKNOWN, epoch=1_000_000, offset=50)
    expected = Truncation(offset=51, is_restart=False, rounds=(), hindrance=hindrance)
    assert find_truncation(follower, leader) == expected
    # A leader that ends before it cuts the epoch away.
    shorter = Leader(log(48, (0, 0), (2, 41)), 3)
    assert find_truncation(follower, shorter) == Truncation(
        offset=48, is_restart=False, rounds=(48,)
    )
    later = Leader(log(80, (2, 60), start=60), 3)
    assert find_truncation(follower, later).rounds == (60,)


@pytest.mark.item("REP-08")
def test_a_batch_above_the_leaders_epoch_is_never_taken():
    batches = runs((0, 0, 40), (2, 41, 49), (1_000_000, 50, 50))
    leader = Leader(log(51, (0, 0), (2, 41), (1_000_000, 50)), 3, batches)
    hindrance = Hindrance(kind=HindranceKind.BATCH_SKIPPED, epoch=1_000_000, offset=50)
    assert find_truncation(log(46, (0, 0), (2, 41)), leader).hindrance == hindrance
    # The follower that has it does not fetch it: its own epochs decide.
    assert find_truncation(log(51, (0, 0), (2, 41)), leader).hindrance is None


@pytest.mark.item("REP-08")
def test_a_last_batch_of_a_lower_epoch_is_taken_and_cut_again_and_again():
    batches = runs((0, 0, 40), (2, 41, 49), (0, 50, 50))
    follower = log(46, (0, 0), (2, 41))
    leader = Leader(log(51, (0, 0), (2, 41)), 3, batches)
    hindrance = Hindrance(kind=HindranceKind.CUT_AGAIN, epoch=0, offset=50)
    assert find_truncation(follower, leader).hindrance == hindrance
    # A leader without an epoch file knows of no end of that epoch but its own.
    assert find_truncation(follower, Leader(log(51), 3, batches)).hindrance is None
    more = [*batches, *runs((2, 51, 51))]
    assert find_truncation(follower, Leader(log(52, (0, 0), (2, 41)), 3, more)).hindrance is None
