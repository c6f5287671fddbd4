"""What would become of each segment: held against what retention and the cleaner's plans say."""

import json
from pathlib import Path

import pytest

from storage_core.catalog.log_directories import DirectoryKind
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.config import CleanupPolicy, LogConfig
from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.maintenance.compaction.plan import CleanRequest
from storage_core.maintenance.partition_state import PartitionState
from storage_core.maintenance.survey import observe_segments, segment_states
from storage_core.reading.inspection import inspect_partition, inspect_root
from storage_core.store import FileInfo
from tests.kit.builders import some_batches
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.golden_broker import broker_origin, unpack_broker

NOW_MS = 1_000_000
# A segment every hundred offsets, the last one active.
SIZES = (1000, 1000, 1000, 1000)


def states_of(
    config: LogConfig | None,
    *,
    timestamps: tuple[int, ...] = (100, 200, 300, 400),
    cleaner_offset: int | None = None,
) -> list[str]:
    bases = [number * 100 for number in range(len(SIZES))]
    files = [
        FileInfo(f"{base:020}.log", size, 900_000) for base, size in zip(bases, SIZES, strict=True)
    ]
    checkpoints = PartitionCheckpoints(high_watermark=400, cleaner_offset=cleaner_offset)
    state = PartitionState.of_listing(
        "/logs/t-0",
        files,
        checkpoints=checkpoints,
        max_timestamps=dict(zip(bases, timestamps, strict=True)),
    )
    request = CleanRequest(now_ms=NOW_MS, checkpoints=checkpoints)
    return [str(found) for found in segment_states(state, config, request)]


COMPACTED = LogConfig(cleanup_policy=frozenset({CleanupPolicy.COMPACT}))


def deleted(**settings: int) -> LogConfig:
    policy = frozenset({CleanupPolicy.DELETE})
    return LogConfig(
        cleanup_policy=policy, **({"retention_bytes": -1, "retention_ms": -1} | settings)
    )


@pytest.mark.parametrize(
    ("config", "checkpoint", "expected"),
    [
        (None, None, ["kept", "kept", "kept", "active"]),
        (None, 200, ["clean", "clean", "dirty", "active"]),
        (deleted(), 200, ["kept", "kept", "kept", "active"]),
        (deleted(retention_bytes=2000), None, ["expired", "expired", "kept", "active"]),
        (deleted(retention_ms=NOW_MS - 250), None, ["expired", "expired", "kept", "active"]),
        (COMPACTED, None, ["dirty", "dirty", "dirty", "active"]),
        (COMPACTED, 200, ["clean", "clean", "dirty", "active"]),
        (COMPACTED, 199, ["clean", "dirty", "dirty", "active"]),
        (COMPACTED, 300, ["clean", "clean", "clean", "active"]),
    ],
    ids=[
        "nobody says the config",
        "nobody says it, but it was compacted",
        "no limit, and no longer compacted",
        "too large",
        "too old",
        "never cleaned",
        "cleaned to a segment's base",
        "cleaned to inside of a segment",
        "clean",
    ],
)
def test_the_first_that_holds_is_the_state(config, checkpoint, expected):
    assert states_of(config, cleaner_offset=checkpoint) == expected


def test_of_a_segment_without_a_timestamp_the_age_of_the_file_counts():
    config = deleted(retention_ms=NOW_MS - 250)
    assert states_of(config, timestamps=(NO_TIMESTAMP, 200, 300, 400))[0] == "kept"


def test_of_a_segment_without_a_time_index_the_age_of_the_file_counts(tmp_path: Path):
    segments = [
        SegmentSpec(base_offset=base, batches=some_batches(count=1, records=10, base_offset=base))
        for base in (0, 10)
    ]
    path = write_partition(tmp_path / "orders-0", segments)
    path.joinpath(f"{0:020}.timeindex").unlink()
    view = inspect_root(tmp_path)
    (entry,) = view.entries
    written_ms = path.joinpath(f"{0:020}.log").stat().st_mtime_ns // 1_000_000
    found = {}
    for age_ms in (1_000, 10_000):
        rows = observe_segments(
            view,
            entry,
            entry.topic_partition,
            config=deleted(retention_ms=5_000),
            now_ms=written_ms + age_ms,
        )
        found[age_ms] = [(row["newest_timestamp"], row["state"]) for row in rows]
    assert [rows[0] for rows in found.values()] == [(None, "kept"), (None, "expired")]


def test_which_segments_of_a_tiered_topic_were_uploaded_is_not_guessed():
    config = deleted(retention_bytes=0, remote_storage_enable=True)
    assert states_of(config) == ["kept", "kept", "kept", "active"]


@pytest.mark.parametrize("hours", [1, 24 * 40])
def test_a_brokers_directory_is_as_retain_and_inspect_say(pylog, tmp_path: Path, hours: int):
    root = unpack_broker(tmp_path / "log")
    now_ms = int(broker_origin()["clock_ms"]) + hours * 3_600_000
    options = ("--role", "broker", "--now-ms", now_ms, "--engine", "local", "--output", "json")
    lines = map(json.loads, pylog("retain", root, *options, "--dry-run").stdout.splitlines())
    removed = {
        (line["topic"], line["partition"]): line["deleted_segments"]
        for line in lines
        if line["type"] == "retention"
    }
    view = inspect_root(root)
    seen = set()
    for entry in view.entries:
        if entry.kind is not DirectoryKind.PARTITION:
            continue
        partition = entry.topic_partition
        config = view.catalog.config_for(partition.topic)
        rows = observe_segments(view, entry, partition, config=config, now_ms=now_ms)
        states = [row["state"] for row in rows]
        seen |= set(states)
        # A topic that is compacted is swept after its round, not by this command.
        if not config.is_compacted:
            assert states.count("expired") == removed.get((partition.topic, partition.partition), 0)
        inspected = inspect_partition(view, entry, now_ms=now_ms)
        if inspected["dirty_bytes"] is not None and "expired" not in states:
            dirty = sum(row["size_bytes"] for row in rows if row["state"] == "dirty")
            assert dirty == inspected["dirty_bytes"]
    assert {"active", "dirty", "expired"} <= seen
