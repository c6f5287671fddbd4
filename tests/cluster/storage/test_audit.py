"""High watermark, candidates and losses of replicas that tests write."""

from dataclasses import replace
from pathlib import Path

import pytest

from storage_core.catalog.log_directories import DirectoryKind
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.cluster.audit import PartitionAudit, Weight, audit_partition
from storage_core.cluster.log_batches import clip, count, subtract
from storage_core.cluster.places import (
    ANY_INDEX_BYTES,
    PartitionRegistration,
    ReplicaPlace,
)
from storage_core.cluster.replica import Replica, open_replica
from storage_core.filenames import log_file
from tests.kit.builders import SOME_TIME_MS, BatchSpec, RecordSpec, end_txn_marker
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.flipped_epochs import FLIPPED, flip_epoch

NO_HIGH_WATERMARK = PartitionCheckpoints(high_watermark=0)


def replica(
    folder: Path,
    broker: int,
    *epochs: tuple[int, int],
    end: int,
    high_watermark: int | None = 0,
    log_start_offset: int | None = None,
) -> Replica:
    """Write a log of one record a batch, its epochs beginning at offsets, and open it."""
    starts = dict(epochs) or {0: 0}
    batches = []
    for offset in range(end):
        epoch = max(epoch for epoch, start in starts.items() if start <= offset)
        record = RecordSpec(key=b"k", value=b"%d in %d" % (offset, epoch))
        batches.append(BatchSpec(records=(record,), base_offset=offset, leader_epoch=epoch))
    checkpoints = PartitionCheckpoints(
        high_watermark=high_watermark, log_start_offset=log_start_offset
    )
    return written(folder, broker, batches, checkpoints)


def written(
    folder: Path,
    broker: int,
    batches: list[BatchSpec],
    checkpoints: PartitionCheckpoints = NO_HIGH_WATERMARK,
) -> Replica:
    """Write a log of these batches and open it."""
    directory = write_partition(
        folder / str(broker) / "t-0", [SegmentSpec(base_offset=0, batches=batches)]
    )
    place = ReplicaPlace(
        broker=broker,
        root=str(directory.parent),
        directory=str(directory),
        kind=DirectoryKind.PARTITION,
        is_clean=True,
        checkpoints=checkpoints,
    )
    opened = open_replica(place, 0, ANY_INDEX_BYTES)
    assert opened.error == ""
    return opened


def state(**changes: object) -> PartitionRegistration:
    known = {"replicas": (1, 2, 3), "isr": (1, 2, 3), "leader": 1, "leader_epoch": 1}
    return PartitionRegistration(topic="t", partition=0, topic_id="", **known | changes)


def losses(audit: PartitionAudit) -> dict[int | None, tuple[int, int, bool]]:
    return {
        each.replica.broker: (count(each.lost), count(each.committed), each.is_safe)
        for each in audit.candidates
    }


@pytest.mark.item("REP-03", "REP-04")
@pytest.mark.parametrize(("ends", "expected"), [((105, 104, 102), 102), ((105, 104, 105), 104)])
def test_the_high_watermark_is_the_smallest_end_in_sync(tmp_path, ends, expected):
    replicas = [replica(tmp_path, broker, end=end) for broker, end in enumerate(ends, start=1)]
    assert audit_partition(replicas, state()).high_watermark == expected
    assert audit_partition(replicas, None).high_watermark == expected


@pytest.mark.item("REP-03")
def test_it_is_no_less_than_a_checkpoint_and_counts_only_who_is_in_sync(tmp_path):
    replicas = [
        replica(tmp_path, 1, end=9),
        replica(tmp_path, 2, end=8, high_watermark=6),
        replica(tmp_path, 3, end=2),
    ]
    assert audit_partition(replicas, state(isr=(1, 2))).high_watermark == 8
    assert audit_partition(replicas, state(isr=())).high_watermark == 6
    assert audit_partition(replicas, state(isr=(), elr=(1,))).high_watermark == 9
    assert audit_partition(replicas, state(isr=(), last_known_elr=(1,))).high_watermark == 9


@pytest.mark.item("REP-03")
def test_a_checkpoint_above_the_log_end_counts_up_to_the_log_end(tmp_path):
    """Its log lost its end after the checkpoint was written."""
    replicas = [
        replica(tmp_path, 1, end=9, high_watermark=20),
        replica(tmp_path, 2, end=8, high_watermark=6),
    ]
    assert audit_partition(replicas, state(isr=(1, 2))).high_watermark == 9
    assert audit_partition(replicas, state(isr=())).high_watermark == 9
    assert audit_partition(replicas, state(isr=(2,))).high_watermark == 8


@pytest.mark.item("REP-05", "CFG-22")
def test_too_few_in_sync_commit_nothing(tmp_path):
    replicas = [replica(tmp_path, broker, end=9, high_watermark=4) for broker in (1, 2, 3)]
    few = state(isr=(1,), min_insync_replicas=2)
    assert audit_partition(replicas, few).high_watermark == 4
    # No more replicas are asked for than there are.
    one = state(replicas=(1,), isr=(1,), min_insync_replicas=2)
    assert audit_partition(replicas[:1], one).high_watermark == 9


@pytest.mark.item("REP-13", "REP-14")
def test_each_candidate_loses_what_others_have_from_where_they_part(tmp_path):
    replicas = [
        replica(tmp_path, 1, (0, 0), (2, 6), end=10, high_watermark=6),
        replica(tmp_path, 2, (0, 0), end=8, high_watermark=6),
        replica(tmp_path, 3, (0, 0), end=6, high_watermark=6),
    ]
    audit = audit_partition(replicas, state(isr=(1,), leader=1, leader_epoch=2))
    assert audit.divergence == 6
    # Broker 2's offsets 6 and 7 are of a branch that nobody was promised.
    assert losses(audit) == {1: (2, 0, True), 2: (4, 4, False), 3: (6, 4, False)}
    cuts = {each.replica.broker: (each.offset, each.rounds) for each in audit.candidates[0].cuts}
    assert cuts == {2: (6, (6,))}


@pytest.mark.item("REP-13")
@pytest.mark.parametrize(
    ("epoch", "is_clean", "leader_epoch", "expected"),
    [
        pytest.param(0, True, 1, (2, 0), id="who was in sync never had them"),
        pytest.param(0, True, 0, (2, 0), id="of the newest epoch"),
        pytest.param(0, False, 1, (0, 2), id="it may have lost them in its own crash"),
        pytest.param(0, True, -1, (0, 2), id="the state is older than the records"),
        pytest.param(3, True, 4, (0, 2), id="it may have been cut in a later epoch"),
    ],
)
def test_what_an_in_sync_replica_never_had_was_not_committed(
    tmp_path, epoch, is_clean, leader_epoch, expected
):
    """Broker 1 has two records more than broker 2, which is in sync."""
    one = replica(tmp_path, 1, (0, 0), end=10, high_watermark=6)
    epochs = [(0, 0), (epoch, 7)] if epoch else [(0, 0)]
    two = replica(tmp_path, 2, *epochs, end=8, high_watermark=6)
    two = replace(two, place=replace(two.place, is_clean=is_clean))
    known = state(replicas=(1, 2), isr=(1, 2), leader_epoch=leader_epoch)
    audit = audit_partition([one, two], known)
    lead = audit.candidates[1]
    above = clip(lead.lost, start=8)
    assert (count(above), count(clip(lead.committed, start=8))) == (2, 0)
    assert count(clip(lead.uncommitted, start=8)) == expected[0]
    assert count(subtract(above, lead.uncommitted)) == expected[1]


@pytest.mark.thorough
@pytest.mark.item("REP-13")
def test_a_loss_has_a_size_a_time_and_those_who_hold_it(tmp_path):
    replicas = [
        replica(tmp_path, 1, end=10, high_watermark=6),
        replica(tmp_path, 2, end=8, high_watermark=6),
        replica(tmp_path, 3, end=6, high_watermark=6),
    ]
    stray = replica(tmp_path / "stray", 3, end=9, high_watermark=6)
    [_, two, three] = audit_partition(replicas, state(), [stray]).candidates
    # A key of one byte, and a value such as "8 in 0".
    assert two.weight == Weight(
        size_bytes=14, first_timestamp_ms=SOME_TIME_MS, last_timestamp_ms=SOME_TIME_MS
    )
    assert three.weight.size_bytes == 4 * 7
    assert [(each.replica.place, each.records) for each in three.holders] == [
        (replicas[0].place, 4),
        (replicas[1].place, 2),
        (stray.place, 3),
    ]


@pytest.mark.item("REP-01", "REP-13")
def test_what_only_a_copy_of_no_broker_has_is_lost_too(tmp_path):
    replicas = [replica(tmp_path, broker, end=end) for broker, end in ((1, 9), (2, 6), (3, 6))]
    copy = replace(replicas[0], place=replace(replicas[0].place, broker=None))
    audit = audit_partition([copy, *replicas[1:]], state(isr=(2, 3)))
    assert losses(audit) == {2: (3, 0, True), 3: (3, 0, True)}
    lead = audit.candidates[0]
    assert [each.replica.broker for each in lead.holders] == [None]
    assert [each.replica.broker for each in lead.cuts] == []
    # Nothing says who the brokers are: then it may be one of them.
    assert len(audit_partition([copy, *replicas[1:]], None).candidates) == 3


@pytest.mark.item("REP-01", "REP-13")
def test_a_missing_replica_would_lead_with_nothing(tmp_path):
    place = ReplicaPlace(
        broker=2, root="/b2", directory="", kind=DirectoryKind.PARTITION, is_clean=True
    )
    replicas = [
        replica(tmp_path, 1, end=5, high_watermark=5),
        open_replica(place, 0, ANY_INDEX_BYTES),
    ]
    audit = audit_partition(replicas, state(replicas=(1, 2), isr=(), elr=(1, 2)))
    assert losses(audit) == {1: (0, 0, True), 2: (5, 5, False)}


@pytest.mark.item("REP-13")
def test_the_first_millisecond_is_a_time_and_none_is_not(tmp_path):
    def batches(*times_ms: int) -> list[BatchSpec]:
        return [
            BatchSpec(records=(RecordSpec(value=b"v", timestamp=at),), base_offset=offset)
            for offset, at in enumerate(times_ms)
        ]

    replicas = [written(tmp_path, 1, batches(5)), written(tmp_path, 2, batches(5, -1, 0, 7))]
    lead = audit_partition(replicas, state(replicas=(1, 2), isr=(1, 2))).candidates[0]
    assert (lead.weight.first_timestamp_ms, lead.weight.last_timestamp_ms) == (0, 7)


@pytest.mark.item("REP-12")
def test_the_divergence_is_the_smallest_of_all_pairs(tmp_path):
    replicas = [
        replica(tmp_path, 1, (0, 0), end=10),
        replica(tmp_path, 2, (0, 0), (1, 5), end=10),
        replica(tmp_path, 3, (0, 0), (2, 3), end=10),
    ]
    assert audit_partition(replicas, state()).divergence == 3


@pytest.mark.item("REP-12")
def test_records_may_differ_in_one_epoch_where_nobody_cuts(tmp_path):
    """Offset 3 is another record; no epoch tells."""
    one, two = (
        [
            BatchSpec(
                records=(RecordSpec(key=b"k", value=odd if offset == 3 else b"v"),),
                base_offset=offset,
            )
            for offset in range(6)
        ]
        for odd in (b"a", b"b")
    )
    replicas = [written(tmp_path, 1, one), written(tmp_path, 2, two)]
    stray = written(tmp_path / "stray", 3, one[:3] + two[3:4] + one[4:])
    audit = audit_partition(replicas, state(replicas=(1, 2), isr=(1, 2)), [stray])
    assert audit.divergence == 3
    [cut] = audit.candidates[0].cuts
    assert (cut.offset, cut.rounds, cut.same_until) == (6, (), 3)
    # A copy that was set aside is no replica.
    assert audit_partition(replicas[:1], state(replicas=(1,), isr=(1,)), [stray]).divergence is None


@pytest.mark.item("REP-13")
def test_records_that_a_leader_lacks_below_a_cut(tmp_path):
    """The leader ends at 8 and has no offset 2; the follower has 0 to 9."""
    batches = [
        BatchSpec(records=(RecordSpec(key=b"k", value=b"v"),), base_offset=offset)
        for offset in range(10)
    ]
    replicas = [
        written(tmp_path, 1, [*batches[:2], *batches[3:8]]),
        written(tmp_path, 2, batches, PartitionCheckpoints(high_watermark=10)),
    ]
    known = state(replicas=(1, 2), isr=(1, 2))
    lead = audit_partition(replicas, known).candidates[0]
    assert lead.committed.tolist() == [[2, 2, 0], [8, 9, 0]]
    # The follower keeps offset 2: the cut does not take it.
    assert [cut.committed.tolist() for cut in lead.cuts] == [[[8, 9, 0]]]
    # The cleaner of the leader may have removed it.
    known = replace(known, is_compacted=True)
    assert audit_partition(replicas, known).candidates[0].lost.tolist() == [[8, 9, 0]]


@pytest.mark.item("REP-08", "REP-13")
def test_a_follower_cut_to_the_high_watermark_stays_eligible(tmp_path):
    replicas = [replica(tmp_path, 1, end=6), replica(tmp_path, 2, end=8)]
    [lead, _] = audit_partition(replicas, state(replicas=(1, 2), isr=(1, 2))).candidates
    assert [(cut.offset, cut.stays_eligible) for cut in lead.cuts] == [(6, True)]


@pytest.mark.item("REP-13")
def test_what_a_replica_in_sync_has_deleted_is_not_lost(tmp_path):
    replicas = [
        replica(tmp_path, 1, end=10),
        replica(tmp_path, 2, end=0),
        replica(tmp_path, 3, end=10, log_start_offset=4),
    ]
    assert losses(audit_partition(replicas, state()))[2][0] == 6


@pytest.mark.item("REP-03", "REP-13")
def test_the_high_watermark_binds_a_log_as_far_as_any_in_sync_has_it(tmp_path):
    """Broker 3 follows broker 1 to the end, and broker 2 up to offset 5."""
    replicas = [
        replica(tmp_path, 1, (0, 0), end=10),
        replica(tmp_path, 2, (0, 0), (1, 5), end=8),
        replica(tmp_path, 3, (0, 0), end=9),
    ]
    audit = audit_partition(replicas, state(isr=(1, 2)))
    assert audit.high_watermark == 8
    cuts = {cut.replica.broker: cut for cut in audit.candidates[1].cuts}
    assert (cuts[3].rounds, cuts[3].committed.tolist()) == ((5,), [[5, 7, 0]])


@pytest.mark.item("REP-14")
def test_nobody_is_safe_while_a_replica_cannot_be_read(tmp_path):
    good = replica(tmp_path, 1, end=5)
    (tmp_path / "2" / "t-0").mkdir(parents=True)
    (tmp_path / "2" / "t-0" / "leader-epoch-checkpoint").write_bytes(b"0\n2\n0 0\n")
    place = ReplicaPlace(
        broker=2,
        root=str(tmp_path / "2"),
        directory=str(tmp_path / "2" / "t-0"),
        kind=DirectoryKind.PARTITION,
        is_clean=True,
    )
    broken = open_replica(place, 0, ANY_INDEX_BYTES)
    assert "leader-epoch-checkpoint" in broken.error
    audit = audit_partition([good, broken], state(replicas=(1, 2)))
    assert losses(audit) == {1: (0, 0, False)}


@pytest.mark.item("REP-08", "REP-13")
def test_a_cut_inside_of_a_batch_takes_all_of_the_batch(tmp_path):
    """The follower has offsets 0 to 9 in a batch; the leader's epoch ended at 5."""
    records = tuple(
        RecordSpec(key=b"k", value=b"%d" % number, timestamp=SOME_TIME_MS + number)
        for number in range(10)
    )
    leader = written(tmp_path, 1, [BatchSpec(records=records[:5])])
    follower = written(tmp_path, 2, [BatchSpec(records=records)])
    [lead, _] = audit_partition([leader, follower], state(replicas=(1, 2), isr=(1, 2))).candidates
    [cut] = lead.cuts
    assert (cut.offset, cut.rounds, cut.same_until) == (5, (5,), 0)
    assert not cut.stays_eligible
    assert lead.weight == Weight(
        size_bytes=5 * 2, first_timestamp_ms=SOME_TIME_MS + 5, last_timestamp_ms=SOME_TIME_MS + 9
    )
    # Kafka fetches 0 to 4 anew: only what the leader lacks is lost.
    assert (count(lead.lost), lead.lost[0].tolist()) == (5, [5, 9, 0])


@pytest.mark.item("REP-12", "REP-13")
def test_a_marker_that_the_leader_lacks_is_no_lost_record(tmp_path):
    """Both have a batch across offset 1: of one log a marker is there, of the other a record."""
    record = RecordSpec(key=b"k", value=b"v")
    two = BatchSpec(records=(record, record, record))
    leader = written(tmp_path, 1, [two])
    follower = written(
        tmp_path,
        2,
        [
            BatchSpec(records=(record,)),
            end_txn_marker(base_offset=1, producer_id=7, producer_epoch=0),
            BatchSpec(records=(record,), base_offset=2),
        ],
    )
    audit = audit_partition([leader, follower], state(replicas=(1, 2), isr=(1, 2)))
    assert audit.divergence == 1
    assert losses(audit)[1] == (0, 0, True)
    # The other way round it is a record that would be lost.
    assert losses(audit)[2] == (1, 1, False)


def flip_last(whole: Replica, epoch: int, *, is_clean: bool) -> Replica:
    """Give a replica's last batch a leader epoch that no leader had, and open it again."""
    flip_epoch(Path(whole.place.directory, log_file(0)), -1, epoch)
    return open_replica(replace(whole.place, is_clean=is_clean), 0, ANY_INDEX_BYTES)


def hindrances(audit: PartitionAudit) -> dict[tuple[int | None, int | None], str]:
    return {
        (each.replica.broker, cut.replica.broker): str(cut.hindrance.kind)
        for each in audit.candidates
        for cut in each.cuts
        if cut.hindrance is not None
    }


@pytest.mark.item("REP-08", "REP-13")
@pytest.mark.parametrize(
    ("epoch", "is_clean", "found"),
    [
        pytest.param(FLIPPED, True, {(1, 3): "batch_skipped"}, id="no start reads it"),
        pytest.param(
            FLIPPED, False, {(1, 3): "batch_skipped", (2, 1): "epoch_unknown"}, id="believed"
        ),
        pytest.param(0, True, {(1, 3): "cut_again"}, id="falls"),
        pytest.param(0, False, {(1, 3): "cut_again"}, id="falls after a kill"),
    ],
)
def test_a_flipped_epoch_costs_no_record_and_keeps_followers_out_of_sync(
    tmp_path, epoch, is_clean, found
):
    """As three brokers of 4.4 did; the oracle's test of such batches asks them."""
    epochs = (0, 0), (2, 4)
    replicas = [
        flip_last(replica(tmp_path, 1, *epochs, end=9), epoch, is_clean=is_clean),
        replica(tmp_path, 2, *epochs, end=9),
        replica(tmp_path, 3, *epochs, end=7),
    ]
    audit = audit_partition(replicas, state(leader_epoch=2))
    assert hindrances(audit) == found
    assert {each.rounds for each in audit.candidates[1].cuts} == {()}
    # Each of the two records is lost once, though two epochs name the last one.
    assert losses(audit) == {1: (0, 0, True), 2: (0, 0, True), 3: (2, 0, True)}
    (doubtful,) = audit.doubtful[0]
    assert (doubtful.run.epoch, doubtful.run.first_offset) == (epoch, 8)
    assert (doubtful.least, doubtful.most, doubtful.expected) == (2, 2, 2)
    assert audit.largest_epoch == 2


@pytest.mark.item("REP-08")
def test_the_next_leader_leads_in_the_epoch_after_that_of_the_metadata(tmp_path):
    """A follower of an epoch that the leader's is above is told where to cut."""
    replicas = [
        replica(tmp_path, 1, (0, 0), (3, 5), end=9),
        replica(tmp_path, 2, (0, 0), end=9),
    ]
    audit = audit_partition(replicas, state(replicas=(1, 2), isr=(1, 2), leader_epoch=7))
    assert [each.rounds for each in audit.candidates[1].cuts] == [(5,)]
    assert hindrances(audit) == {}


@pytest.mark.item("REP-05")
def test_a_flipped_epoch_does_not_hide_what_was_never_committed(tmp_path):
    """A witness whose start has believed an epoch was not cut in it."""
    longer = replica(tmp_path, 1, (0, 0), end=9, high_watermark=4)
    witness = flip_last(replica(tmp_path, 2, (0, 0), end=7), FLIPPED, is_clean=False)
    witness = replace(witness, place=replace(witness.place, is_clean=True))
    audit = audit_partition([longer, witness], state(replicas=(1, 2), isr=(2,), leader_epoch=0))
    assert [count(each.uncommitted) for each in audit.candidates] == [0, 2]
