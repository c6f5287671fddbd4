"""What ``__remote_log_metadata`` in brokers' log directories says of logs in a tier."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from storage_core import kafka_log
from storage_core.checkpoint.checkpoints import EpochEntry
from storage_core.coordinators.remote_log import RemoteSegment, SegmentState
from storage_core.errors import OffsetsInTierError
from storage_core.filenames import TopicPartition, log_file
from storage_core.maintenance.plain_inspection import inspect_partitions
from storage_core.reading.inspection import group_by_broker, inspect_root
from storage_core.roots.open_root import open_root
from storage_core.roots.remote_logs import RemoteLogs, Uploads
from storage_core.store.local import LocalStore
from storage_core.store.tier_manifest import TierSegmentId
from tests.kit.tier_archives import CASES, TierCase, unpack_tier


def of_case(case: TierCase) -> list[tuple[TopicPartition, Path, dict[str, Any]]]:
    """Each partition with its leader's directory, and what the living broker said."""
    return [
        (
            (partition := TopicPartition(truth["topic"], truth["partition"])),
            case.folder / truth["leader_root"] / str(partition),
            truth,
        )
        for truth in case.truth["partitions"]
    ]


def rows_of(roots: list[str]) -> dict[Path, dict[str, Any]]:
    """What `inspect` says of the partitions of brokers' log directories, by directory."""
    return {
        Path(entry.path): row
        for broker in group_by_broker([inspect_root(root) for root in roots])
        for view in broker
        for entry, row in zip(
            view.entries, inspect_partitions(view, view.entries, now_ms=0), strict=True
        )
    }


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", CASES)
def test_the_tier_ends_where_its_broker_said_and_no_reader_is_silent(name: str, tmp_path: Path):
    case = unpack_tier(name, tmp_path)
    roots = sorted(map(str, case.folder.glob("local/*")))
    remote = RemoteLogs(map(open_root, roots))
    inspected = rows_of(roots)
    for partition, folder, truth in of_case(case):
        uploads = remote.uploads(LocalStore(folder), partition)
        end, start = truth["tiered_end"] + 1, truth["log_start"]
        first = min(int(path.stem) for path in folder.glob("*.log"))
        assert (uploads.gap, uploads.end_offset) == ("", end or None)
        assert uploads.missing(start, first) == []
        row = inspected[folder]
        assert (row["log_start_offset"], row["tier_end_offset"]) == (start, end or None)
        assert row["local_log_start_offset"] == (None if start == first else first)
        assert row["tier_problem"] is None
        others = [root for root in roots if root != str(folder.parent)]
        logs = kafka_log.open_logs(folder)
        if start == first:
            assert logs.read(partition.topic).to_table()["offset"].to_pylist()[:1] == [first]
            continue
        with pytest.raises(OffsetsInTierError) as raised:
            logs.read(partition.topic)
        assert (raised.value.first, raised.value.end) == (start, first)
        if others:
            assert "in none of these log directories" in raised.value.details
        else:
            assert raised.value.details.endswith(" by " + uploads.source)
    if len(roots) > 1:
        return
    # A clue is enough: neither the checkpoint nor the cluster's metadata.
    (case.folder / "local/b1/log-start-offset-checkpoint").unlink(missing_ok=True)
    shutil.rmtree(case.folder / "local/b1/__cluster_metadata-0")
    for partition, folder, truth in of_case(case):
        if truth["log_start"] < min(int(path.stem) for path in folder.glob("*.log")):
            with pytest.raises(OffsetsInTierError, match="in the topic's tier"):
                kafka_log.open_logs(folder).read(partition.topic)


def segment(base: int, end: int, state: SegmentState, *, epoch: int = 0) -> RemoteSegment:
    return RemoteSegment(
        identity=TierSegmentId(
            topic_id="oQ-_Byz0SxiFgq7qKrX0Rw",
            partition=TopicPartition("orders", 0),
            segment_id="1rNpIxLbTvazERpTnXR9Cw",
        ),
        base_offset=base,
        end_offset=end,
        max_timestamp_ms=0,
        epochs=(EpochEntry(epoch, base),),
        size_bytes=1,
        is_txn_index_empty=True,
        broker_id=1,
        event_ms=0,
        custom=None,
        state=state,
    )


def test_only_finished_segments_of_the_logs_history_count():
    finished = SegmentState.COPY_SEGMENT_FINISHED
    uploads = Uploads(
        segments=(
            segment(0, 9, finished),
            segment(10, 19, SegmentState.COPY_SEGMENT_STARTED),
            segment(20, 29, finished),
            segment(25, 39, finished),
            segment(40, 49, SegmentState.DELETE_SEGMENT_STARTED),
            segment(50, 69, finished),
            segment(70, 99, finished, epoch=1),
            segment(120, 110, finished),  # its broker is no honest one
        ),
        lineage=(EpochEntry(0, 0), EpochEntry(2, 60)),
        source="__remote_log_metadata-4",
    )
    assert uploads.ranges == [(0, 10), (20, 40), (50, 60)]
    assert uploads.end_offset == 60
    assert uploads.missing(5, 55) == [(10, 20), (40, 50)]
    assert uploads.missing(0, 10) == []
    assert uploads.missing(58, 80) == [(60, 80)]
    assert uploads.tell(0, 10) == ", in 1 segment by __remote_log_metadata-4"
    assert uploads.tell(5, 55).endswith("has no segment for 10 to 19, 40 to 49")


def test_a_damaged_partition_of_the_topic_is_named(tmp_path: Path):
    case = unpack_tier("plain", tmp_path)
    partition, folder, _ = of_case(case)[0]
    whole = RemoteLogs([open_root(str(folder.parent))]).uploads(LocalStore(folder), partition)
    log = folder.parent / whole.source / log_file(0)
    content = bytearray(log.read_bytes())
    content[-20] ^= 1
    log.write_bytes(content)
    torn = RemoteLogs([open_root(str(folder.parent))]).uploads(LocalStore(folder), partition)
    assert whole.source in torn.gap
    assert "cannot be read to its end" in torn.gap


def test_inspection_names_the_partition_of_the_topic_that_is_not_there(tmp_path: Path):
    case = unpack_tier("elections", tmp_path)
    (row,) = (
        row
        for folder, row in rows_of([str(case.folder / "local/b1")]).items()
        if folder.name == "ledger-0"
    )
    assert (row["local_log_start_offset"], row["tier_end_offset"]) == (1_639, None)
    assert row["tier_problem"].startswith("__remote_log_metadata-1, which lists its segments, is")


def test_without_the_topic_nothing_is_said(tmp_path: Path):
    case = unpack_tier("local_active", tmp_path)
    partition, folder, _ = of_case(case)[0]
    for other in [
        *folder.parent.glob("__remote_log_metadata-*"),
        folder.parent / "__cluster_metadata-0",
        folder.parent / "remote-log-index-cache",
    ]:
        shutil.rmtree(other, ignore_errors=True)
    remote = RemoteLogs([open_root(str(folder.parent))])
    assert not remote.has_tier
    assert remote.uploads(LocalStore(folder), partition) == Uploads()
