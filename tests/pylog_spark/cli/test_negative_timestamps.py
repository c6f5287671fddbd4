"""A compacted topic that Kafka's cleaner gives up: every command says it, and no night fails."""

import json
from pathlib import Path

import pytest
import yaml

from pylog_spark.exit_code import ExitCode
from storage_core.filenames import log_file
from tests.kit.builders import SOME_TIME_MS, BatchSpec, RecordSpec
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.program import lines_of

KEEP = ("--set", "keep.negative.timestamps=true")


@pytest.fixture
def words(tmp_path: Path) -> list[object]:
    """Two compacted partitions; in the first one, a negative timestamp stays beside what goes."""
    root = tmp_path / "log"
    for number, timestamp in enumerate((-5, SOME_TIME_MS)):
        kept = RecordSpec(key=b"kept", value=b"x", timestamp=timestamp)
        again = RecordSpec(key=b"again", value=b"x", timestamp=SOME_TIME_MS)
        batches = [
            BatchSpec(base_offset=0, records=(kept, again)),
            BatchSpec(base_offset=2, records=(again,)),
        ]
        segments = [SegmentSpec(base_offset=0, batches=batches), SegmentSpec(base_offset=3)]
        write_partition(root / f"t-{number}", segments)
    (root / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=a\n")
    (root / ".kafka_cleanshutdown").write_text('{"version":0}')
    (root / "replication-offset-checkpoint").write_text("0\n2\nt 0 3\nt 1 3\n")
    config = tmp_path / "topics.yaml"
    topic = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    config.write_text(yaml.safe_dump({"topics": {"t": topic}}))
    at = ["--now-ms", SOME_TIME_MS + 10**9, "--override", "FILESYSTEM_UNKNOWN"]
    return [root, "--config", config, *at, "--engine", "local", "--role", "broker"]


def rows_of(pylog, *words: object) -> tuple[int, dict[int, tuple[str, str | None]]]:
    result = pylog(*words, "--output", "json")
    lines = lines_of(result)
    found = {
        line["partition"]: (line["status"], line["reason"])
        for line in lines
        if line["type"] == "result"
    }
    return result.exit_code, found


@pytest.mark.sampled(1)
@pytest.mark.parametrize("exact", ["--dry-run", "--dry-run=exact"])
def test_the_dry_run_and_the_night_give_one_answer(pylog, words, exact):
    skipped = ("skipped", "NEGATIVE_TIMESTAMP")
    code, planned = rows_of(pylog, "compact", *words, exact)
    assert (code, planned) == (ExitCode.DONE, {0: skipped, 1: ("planned", None)})
    code, done = rows_of(pylog, "compact", *words)
    assert (code, done) == (ExitCode.DONE, {0: skipped, 1: ("done", None)})


@pytest.mark.thorough
def test_by_an_option_it_is_compacted(pylog, words):
    code, done = rows_of(pylog, "compact", *words, *KEEP)
    assert (code, done) == (ExitCode.DONE, {0: ("done", None), 1: ("done", None)})


def test_explain_and_verify_say_it_with_partition_and_offset(pylog, words):
    root = words[0]
    said = pylog("explain", root, *words[1:5], "--output", "json")
    first = json.loads(said.stdout.splitlines()[0])
    (block,) = [row for row in first["statements"] if row["code"] == "NEGATIVE_TIMESTAMP"]
    assert (first["partition"], block["verdict"]) == (0, "blocks")
    assert log_file(0) in block["text"]
    found = pylog("verify", root, "--output", "json")
    lines = lines_of(found)
    places = [
        (line["topic"], line["partition"], line["offset"])
        for line in lines
        if line.get("code") == "NEGATIVE_TIMESTAMP"
    ]
    assert places == [("t", 0, 0)]
