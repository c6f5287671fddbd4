"""Compaction of an adopted tier (KIP-405) against Kafka's cleaner on the same log on a disk."""

import json
import shutil
from pathlib import Path

import pytest

from storage_core.filenames import TopicPartition
from storage_core.kafka_log import open_logs
from tests.kit.tier_archives import unpack_tier
from tests.oracle.cleaner import clean_as_manager_chooses
from tests.oracle.kafka import Kafka

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]

CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0"}
NOW_MS = 1_900_000_000_000


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        *(
            pytest.param(each, marks=pytest.mark.thorough)
            for each in ("aiven_aes", "txn", "elections_rolls")
        ),
    ],
)
def test_an_adopted_tier_is_compacted_as_by_kafka(pylog, tmp_path, name):
    case = unpack_tier(name, tmp_path / "case")
    managed, log = tmp_path / "managed", tmp_path / "log"
    (topic,) = {row["topic"] for row in case.truth["alone"]}
    leader = case.truth["partitions"][0]
    disk, number = case.folder / leader["leader_root"], leader["partition"]
    key = [] if case.key is None else ["--decryption-key", case.key]
    pylog.done(
        *("ingest", case.archive, managed, "--with-local", disk, "--topics", topic, *key),
        *("--sync-stopped", "--settle", "0s", "--high-watermark", "log-end"),
    )
    # A disk that still has what was uploaded is that of the broker; else the log is written to one.
    if name == "plain":
        shutil.copytree(disk / f"{topic}-{number}", log / f"{topic}-{number}")
    else:
        pylog.done("materialize", managed, log)
    config = tmp_path / "topics.json"
    config.write_text(json.dumps({"topics": {topic: CONFIG}}))
    only = [TopicPartition(topic, number)]
    before = open_logs(managed).read(partitions=only).to_table()
    pylog.done(
        *("compact", managed, "--role", "managed", "--config", config, "--now-ms", NOW_MS),
        *("--engine", "local"),
    )
    ours = open_logs(managed).read(partitions=only).to_table()
    assert 0 < ours.num_rows < before.num_rows
    clean_by_kafka(log / f"{topic}-{number}", leader)
    assert ours == open_logs(log).read(partitions=only).to_table()
    # What Kafka's loader opens has the same records, too.
    pylog.done("materialize", managed, tmp_path / "out")
    assert open_logs(tmp_path / "out").read(partitions=only).to_table() == ours


def clean_by_kafka(path: Path, facts: dict[str, int]) -> None:
    kafka = Kafka(now_ms=NOW_MS)
    with kafka.open_partition(
        path, config=CONFIG, log_start_offset=facts["log_start"], recovery_point=0
    ) as partition:
        partition.set_high_watermark(facts["high_watermark"])
        assert clean_as_manager_chooses(kafka, partition) is not None
    (path.parent / "cleaner-offset-checkpoint").unlink(missing_ok=True)
