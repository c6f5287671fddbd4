"""``pylog free``: what could go, in which order, who would miss it; and nothing goes."""

import os
import shlex
import struct
from pathlib import Path
from typing import Any

import pytest
import yaml

from pylog_spark.exit_code import ExitCode
from pylog_spark.report import size_text
from storage_core.filenames import TopicPartition
from tests.kit.builders import BatchSpec, RecordSpec
from tests.kit.compare import read_tree
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.golden_data import Golden
from tests.kit.program import lines_of
from tests.pylog_spark.broker_roots import broker_directory

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
# Files and trash of a test are younger than its logs: by this clock they are old enough to go.
LATE_MS = 4_000_000_000_000
EXPIRED = ["retain-size-s501", "retain-logstart-mid-s501"]
COMPACTED = "clean-everything-none-s101-1"


def tree_of(root: Path) -> dict[str, dict[str, bytes]]:
    folders = [path for path in root.rglob("*") if path.is_dir()]
    return {str(path): read_tree(path) for path in [root, *folders]}


def commit_of(group: str, topic: str, offset: int) -> RecordSpec:
    """Return a commit as Kafka's coordinator writes it: key of version 1, value of version 3."""

    def text(value: str) -> bytes:
        return struct.pack(">h", len(value)) + value.encode()

    key = struct.pack(">h", 1) + text(group) + text(topic) + struct.pack(">i", 0)
    value = struct.pack(">hqi", 3, offset, -1) + text("") + struct.pack(">q", NOW_MS)
    return RecordSpec(key=key, value=value)


@pytest.fixture(scope="module")
def folder(pylog, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory with something of all kinds, and a trash that a retention has filled."""
    made = tmp_path_factory.mktemp("full")
    root = broker_directory(made / "log", [*EXPIRED, COMPACTED])
    (made / "topics.yaml").write_text(
        yaml.safe_dump({"topics": root.configs, "max_delete_ratio": 1})
    )
    pylog.done(
        *("retain", root.path, "--role", "broker", "--topics", EXPIRED[1], "--now-ms", NOW_MS),
        *("--config", made / "topics.yaml", "--engine", "local", "--trash", made / "trash"),
    )
    gone = root.path / f"gone-0.{'0' * 32}-delete"
    gone.mkdir()
    (gone / "00000000000000000000.log").write_bytes(b"\0" * 5000)
    return made


def free(pylog, folder: Path, *words: object, now_ms: int = LATE_MS) -> Any:
    config = ("--config", folder / "topics.yaml", "--now-ms", now_ms)
    trash = ("--trash", folder / "trash")
    return pylog("free", folder / "log", *config, *trash, "--output", "json", *words)


@pytest.mark.thorough
def test_steps_come_from_what_nobody_misses_to_what_is_an_estimate(pylog, folder):
    before = tree_of(folder)
    result = free(pylog, folder)
    assert result.exit_code == 0, result.stderr
    steps = lines_of(result, "free_step")
    sources = [step["source"] for step in steps]
    assert list(dict.fromkeys(sources)) == ["leftovers", "trash", "expired", "compaction"]
    leftovers, trash = steps[:2]
    assert (leftovers["frees_bytes"], leftovers["partitions"]) == (5000, 1)
    kept = [path for path in (folder / "trash").rglob("*") if path.is_file()]
    assert trash["frees_bytes"] == sum(path.stat().st_size for path in kept)
    assert trash["root"] == str(next((folder / "trash").iterdir()))
    assert [step["total_bytes"] for step in steps] == [
        sum(step["frees_bytes"] for step in steps[: n + 1]) for n in range(len(steps))
    ]
    assert tree_of(folder) == before


@pytest.mark.thorough
def test_the_commands_free_what_was_said(pylog, folder):
    """Each command's own dry run names the same bytes."""
    tried = set()
    for now_ms in (NOW_MS, LATE_MS):
        for step in lines_of(free(pylog, folder, "--exact", now_ms=now_ms), "free_step"):
            if step["refused_by"] is not None:
                continue
            tried.add(step["source"])
            words = shlex.split(step["command"])[1:]
            look = "--dry-run=exact" if step["source"] == "compaction" else "--dry-run"
            (run,) = pylog.rows(*words, look, "--engine", "local", kind="run")
            freed = run["bytes_before"] - run["bytes_after"]
            assert freed == step["frees_bytes"] == step["frees_at_most_bytes"] > 0
    assert tried == {"leftovers", "trash", "expired", "compaction"}


@pytest.mark.thorough
def test_a_trash_on_another_disk_frees_nothing_and_the_commands_keep_what_they_take_in_it(
    pylog, folder, tmp_path, other_disk
):
    root = broker_directory(tmp_path / "log", EXPIRED)
    said = ("--config", folder / "topics.yaml", "--trash", other_disk / "trash")
    words = ("retain", root.path, "--role", "broker", "--topics", EXPIRED[1], "--now-ms", NOW_MS)
    pylog.done(*words, *said, "--engine", "local")
    assert any(path.suffix == ".log" for path in (other_disk / "trash").rglob("*"))
    late = (*said, "--now-ms", LATE_MS, "--output", "json")
    result = pylog("free", root.path, *late)
    steps = lines_of(result, "free_step")
    assert {step["source"] for step in steps} == {"expired"}
    assert all(f"--trash {other_disk / 'trash'}" in step["command"] for step in steps)
    [whole] = lines_of(result, "free")
    told = "is on another filesystem: emptying it frees nothing here"
    assert any(told in note for note in whole["notes"])
    # It is the disk of a second root.
    broker_directory(other_disk / "log", [])
    both = pylog("free", root.path, other_disk / "log", *late)
    assert {step["source"] for step in lines_of(both, "free_step")} == {"trash", "expired"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_in_file", [False, True])
def test_no_command_fills_the_disk_with_a_trash_and_that_is_said(
    pylog, folder, tmp_path, is_in_file
):
    words = ["--trash", folder / "trash"]
    if is_in_file:
        words = ["--config", tmp_path / "trash.yaml"]
        (tmp_path / "trash.yaml").write_text(yaml.safe_dump({"trash": str(folder / "trash")}))
    config = ("--config", folder / "topics.yaml", "--now-ms", NOW_MS)
    result = pylog("free", folder / "log", *config, *words, "--output", "json")
    steps = lines_of(result, "free_step")
    jobs = [shlex.split(s["command"]) for s in steps if s["source"] in {"expired", "compaction"}]
    assert jobs
    for command in jobs:
        # An empty one is none, whatever a file says.
        named = command[command.index("--trash") + 1] if "--trash" in command else None
        assert named == ("" if is_in_file else None)
    [whole] = lines_of(result, "free")
    assert any("cannot be undone" in note for note in whole["notes"])


@pytest.mark.thorough
def test_groups_that_would_lose_their_place_are_named_and_their_topic_goes_last(
    pylog, folder, tmp_path
):
    root = broker_directory(tmp_path / "log", EXPIRED)
    (tmp_path / "topics.yaml").write_text((folder / "topics.yaml").read_text())
    (tmp_path / "trash").mkdir()
    plain = [s for s in lines_of(free(pylog, tmp_path), "free_step") if s["source"] == "expired"]
    assert [step["losses"] for step in plain] == [[], []]
    topic = plain[0]["topic"]
    logs = sorted((root.path / f"{topic}-0").glob("*.log"))
    bases = [int(log.name.partition(".")[0]) for log in logs]
    first = max(bases[0], root.log_starts.get(TopicPartition(topic, 0), 0))
    commits = [
        commit_of("loses", topic, first + 1),
        commit_of("lost before", topic, first - 1),
        commit_of("stays", topic, 10**6),
        commit_of("of another", "other", first + 1),
    ]
    batch = BatchSpec(records=tuple(commits))
    segment = SegmentSpec(base_offset=0, batches=[batch])
    write_partition(root.path / "__consumer_offsets-0", [segment])
    result = free(pylog, tmp_path)
    steps = [step for step in lines_of(result, "free_step") if step["source"] == "expired"]
    assert [step["topic"] for step in steps] == [step["topic"] for step in plain[::-1]]
    (loss,) = steps[-1]["losses"]
    assert (loss["group"], loss["committed_offset"]) == ("loses", first + 1)
    assert loss["log_start_offset"] > first + 1
    (whole,) = lines_of(result, "free")
    assert whole["offsets_partitions"] == 1
    text = pylog(
        *("free", root.path, "--config", tmp_path / "topics.yaml", "--wide"),
        *("--now-ms", LATE_MS),
    ).stdout
    assert "group loses would lose its place" in text
    assert "1 group would lose its place" in text


@pytest.mark.thorough
def test_the_exit_status_says_whether_it_is_enough(pylog, folder):
    (whole,) = lines_of(free(pylog, folder), "free")
    sure, most = whole["frees_bytes"], whole["frees_at_most_bytes"]
    assert 0 < sure < most
    shown = pylog(
        *("free", folder / "log", "--config", folder / "topics.yaml", "--now-ms", LATE_MS),
        *("--trash", folder / "trash", "--need", 1, "--wide"),
    ).stdout
    assert "1 B are needed: step 1 frees it" in shown
    for need, status in ((sure, 0), (sure + 1, ExitCode.FINDINGS), (most + 1, ExitCode.FINDINGS)):
        result = free(pylog, folder, "--need", need)
        assert result.exit_code == status
        (told,) = lines_of(result, "free")
        assert told["is_enough"] is (status == 0)
    config = ("--config", folder / "topics.yaml", "--now-ms", NOW_MS)
    text = " ".join(pylog("free", folder / "log", *config, "--need", "1TiB").stdout.split())
    assert "are missing" in text
    assert "--set retention.ms=86400000" in text


@pytest.mark.thorough
def test_what_a_guard_refuses_is_named_and_its_command_is_a_look(pylog, folder):
    steps = [s for s in lines_of(free(pylog, folder), "free_step") if s["source"] == "expired"]
    assert {step["refused_by"] for step in steps} == {"CLOCK_PAST_RETENTION"}
    for step in steps:
        assert "--dry-run" in step["command"]
        words = shlex.split(step["command"])[1:]
        result = pylog(*words, "--engine", "local", "--output", "json")
        reasons = [row["reason"] for row in lines_of(result, "result")]
        assert "CLOCK_PAST_RETENTION" in reasons


@pytest.mark.thorough
def test_what_has_expired_of_a_compacted_topic_is_for_the_compaction_that_takes_it(
    pylog: Any, tmp_path: Path
):
    root = Golden("broker-dir").unpack(tmp_path)
    late = ("--now-ms", 4 * 10**12, "--engine", "local", "--output", "json")
    [step] = [
        step
        for step in lines_of(
            pylog("free", root, "--topics", "compacted-delete", *late), "free_step"
        )
        if step["source"] == "expired"
    ]
    words = shlex.split(step["command"])[1:]
    rows = lines_of(pylog(*words, *late[2:]), "result")
    assert "CLOCK_PAST_RETENTION" in {row["reason"] for row in rows}


@pytest.mark.thorough
@pytest.mark.parametrize("exact", [(), ("--exact",)])
def test_what_retention_takes_is_not_compacted_as_well(pylog, tmp_path, exact):
    """Of a log that expires whole nothing is left to compact; of one in part, the younger part."""
    root = tmp_path / "log"
    old, young = 2 * DAY_MS, 60_000
    logs = {"whole": [old] * 4, "part": [old, *[young] * 3], "young": [young] * 4}
    for name, ages in logs.items():
        segments = [
            SegmentSpec(
                base_offset=10 * number,
                batches=[
                    BatchSpec(
                        base_offset=10 * number,
                        records=tuple(
                            RecordSpec(key=b"%d" % n, value=b"v" * 99, timestamp=NOW_MS - age)
                            for n in range(10)
                        ),
                    )
                ],
            )
            for number, age in enumerate(ages)
        ]
        write_partition(root / f"{name}-0", segments)
    (root / ".kafka_cleanshutdown").write_text("{}")
    words = ("--set", "cleanup.policy=compact,delete", "--set", f"retention.ms={DAY_MS}")
    words += ("--high-watermark", "log-end")
    words += ("--assume-defaults", "*", "--now-ms", NOW_MS, "--output", "json", *exact)
    result = pylog("free", root, "--role", "broker", *words)
    steps = lines_of(result, "free_step")
    [whole] = lines_of(result, "free")
    # Figures are not called exact beside a range.
    assert not any("no bounds" in note for note in whole["notes"])
    assert any("exact but for ranges" in note for note in whole["notes"]) == bool(exact)
    frees = {
        (step["source"], step["topic"]): (step["frees_bytes"], step["frees_at_most_bytes"])
        for step in steps
    }
    [size] = {log.stat().st_size for log in root.glob("*/*.log")}
    assert frees == {
        ("expired", "whole"): (4 * size, 4 * size),
        ("expired", "part"): (size, size),
        # All but the active segment is cleaned, and one of three stays.
        ("compaction", "young"): (2 * size, 2 * size) if exact else (0, 3 * size),
        # What retention takes may be all that compaction would have saved, or none of it.
        ("compaction", "part"): (size, 2 * size) if exact else (0, 2 * size),
    }


def test_without_a_partition_of_commits_that_is_said(pylog, folder):
    words = ("--config", folder / "topics.yaml", "--now-ms", LATE_MS)
    text = " ".join(pylog("free", folder / "log", *words).stdout.split())
    assert "no partition of __consumer_offsets is in these directories" in text


@pytest.mark.thorough
def test_which_engine_looked_is_said(pylog, folder):
    words = ("--engine", "local", "--now-ms", NOW_MS)
    assert "looked at with engine local" in pylog("free", folder / "log", *words).stdout
    [whole] = lines_of(free(pylog, folder, "--engine", "local"), "free")
    assert whole["engine"] == "local"


def test_an_empty_directory_has_nothing_to_give(pylog, tmp_path):
    root = broker_directory(tmp_path / "log", [])
    result = pylog.done("free", root.path)
    assert "nothing could go" in result.stdout


@pytest.mark.thorough
def test_after_a_crash_the_recovery_is_step_0_and_what_goes_then_follows(
    pylog: Any, tmp_path: Path
):
    root = Golden("broker-dir-unclean").unpack(tmp_path)
    steps = pylog.rows("free", root, "--now-ms", 1_800_000_000_000)
    steps = [step for step in steps if step["type"] == "free_step"]
    assert [step["step"] for step in steps] == list(range(len(steps)))
    assert steps[0]["source"] == "recovery"
    assert steps[0]["command"].startswith(f"pylog recover {root} --role broker")
    expired = [step for step in steps if step["source"] == "expired"]
    assert {step["topic"] for step in expired} == {"events", "recompressed", "compacted-delete"}
    assert all(step["frees_bytes"] > 0 and step["is_after_recovery"] for step in expired)
    # Guards and groups are asked once the logs are in order: the dry run shows them.
    assert all("--dry-run" in step["command"] for step in expired)
    shown = " ".join(pylog("free", root, "--now-ms", 1_800_000_000_000).stdout.split())
    assert "would lose" not in shown
    assert "nothing could go" not in shown


@pytest.mark.thorough
def test_what_a_broker_set_aside_is_counted_and_whether_its_topic_lives(pylog: Any, tmp_path: Path):
    root = Golden("broker-dir-unclean").unpack(tmp_path)
    (root / "events-1").rename(root / ("events-1." + "a" * 32 + "-stray"))
    gone = "BBBBBBBBBBBBBBBBBBBBBA"
    (root / "recompressed-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {gone}")
    (root / "recompressed-0").rename(root / ("recompressed-0." + "b" * 32 + "-delete"))
    size = sum(path.stat().st_size for path in root.glob("events-1.*/*"))
    shown = " ".join(pylog("free", root, "--now-ms", 1_800_000_000_000).stdout.split())
    told = f"{root}: events, 1 x -stray (partition 1), {size:,} bytes: it is assigned to this node"
    assert f"{told} (1), and no log here has its place: keep it" in shown
    assert "recompressed, 1 x -delete (partition 0), " in shown
    assert f"the metadata has no topic {gone}: it was deleted" in shown


@pytest.mark.thorough
def test_indexes_that_a_crashed_broker_left_preallocated_are_named_with_what_trims_them(
    pylog: Any, tmp_path: Path
):
    root = Golden("broker-dir-unclean").unpack(tmp_path)
    # A sparse one is as long as it may become, and has next to nothing of the disk.
    (sparse,) = (root / "events-0").glob("*631.index")
    sparse.write_bytes(b"")
    os.truncate(sparse, 10 * 2**20)
    padded = [
        path
        for path in root.glob("*/*index")
        if path.stat().st_size > 60_000 and path.parent.name != "__cluster_metadata-0"
    ]
    held = sum(path.stat().st_blocks * 512 for path in padded)
    assert held < len(padded) * 2**17

    def notes() -> list[str]:
        result = pylog("free", root, "--now-ms", 1_800_000_000_000, "--output", "json")
        [whole] = lines_of(result, "free")
        return [note for note in whole["notes"] if "preallocated" in note]

    of_partitions, of_metadata = notes()
    told = f"{size_text(held)} of the disk are held by {len(padded)} preallocated indexes of part"
    assert of_partitions.startswith(told)
    assert "`pylog recover`" in of_partitions
    assert "by 2 preallocated indexes of the cluster's metadata" in of_metadata
    assert of_metadata.endswith("pylog trims nothing of it")
    words = ("recover", root, "--role", "broker", "--now-ms", 1_800_000_000_000)
    assert pylog(*words, "--engine", "local").exit_code == 0
    assert notes() == [of_metadata]
