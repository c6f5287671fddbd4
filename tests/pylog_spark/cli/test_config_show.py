"""``pylog config show``: every key, its value, and whose it is."""

import json
from pathlib import Path

from pylog_spark.options import TUNING_KEYS
from storage_core.config.log_config import TOPIC_KEYS
from storage_core.config.settings import CLEANER_KEYS


def test_every_key_that_a_job_heeds_is_listed_once(pylog):
    result = pylog.done("config", "show", "--output", "json")
    keys = [json.loads(line)["key"] for line in result.stdout.splitlines()]
    assert len(keys) == len(set(keys))
    assert {*TOPIC_KEYS, *CLEANER_KEYS, *TUNING_KEYS, "role", "ledger"} <= set(keys)


def test_origins_are_shown_on_demand(pylog, tmp_path: Path):
    file = tmp_path / "night.yaml"
    file.write_text("settings: {retention.ms: 5}\n")
    arguments = ["config", "show", "--config", file, "--set", "segment.ms=7"]
    plain = pylog(*arguments).stdout
    assert str(file) not in plain
    listed = pylog(*arguments, "--origin", "--output", "json").stdout
    rows = {row["key"]: row for row in map(json.loads, listed.splitlines())}
    assert (rows["retention.ms"]["value"], rows["retention.ms"]["origin"]) == ("5", str(file))
    assert (rows["segment.ms"]["value"], rows["segment.ms"]["origin"]) == ("7", "--set")
    assert rows["segment.bytes"]["origin"] == "default"
    table = pylog(*arguments, "--origin", "--wide").stdout
    assert str(file) in table
    assert "a segment is closed at this age" in table
