"""A managed root that adopted a tier (KIP-405): its records, its upkeep, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pylog_spark.exit_code import ExitCode
from storage_core.filenames import TOPIC_CONFIGS_FILE
from storage_core.kafka_log import Logs, open_logs
from tests.kit.program import lines_of
from tests.kit.tier_archives import CASES, TierCase, unpack_tier

USUAL = {"plain", "aiven_aes", "elections_rolls"}


def adopt(pylog: Any, case: TierCase, managed: Path, *words: object) -> dict[str, Any]:
    key = [] if case.key is None else ["--decryption-key", case.key]
    answer = ("--settle", "0s", "--engine", "local", "--output", "json")
    result = pylog("ingest", case.archive, managed, *key, *words, *answer)
    assert result.exit_code in {ExitCode.DONE, ExitCode.PARTLY_FAILED}, result.stderr
    rows = lines_of(result, "ingest")
    return {f"{row['topic']}-{row['partition']}": row for row in rows}


def table_of(logs: Logs, topic: str) -> pa.Table:
    return logs.read(topic).to_table()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "name",
    [
        each if each in USUAL else pytest.param(each, marks=pytest.mark.thorough)
        for each in CASES
        if each != "topic_deleted"
    ],
)
def test_a_managed_root_has_what_the_tier_gives(pylog, tmp_path, name):
    case, managed = unpack_tier(name, tmp_path), tmp_path / "managed"
    rows = adopt(pylog, case, managed)
    assert {row["status"] for row in rows.values()} == {"done"}
    tier = open_logs(case.archive, decryption_key=case.key)
    for topic in tier.topics():
        assert table_of(open_logs(managed), topic) == table_of(tier, topic)
    # An open transaction, and offsets that a compaction took away, are the tier's own.
    known = {"TRANSACTION_HANGING", "OFFSETS_MISSING"}
    found = pylog.row("verify", managed, "--deep", "--engine", "local", kind="run")["findings"]
    assert {row["code"] for row in found} <= known
    again = adopt(pylog, case, managed)
    assert {row["reason"] for row in again.values()} == {"NOTHING_TO_INGEST"}


@pytest.mark.thorough
def test_with_the_disk_it_has_the_whole_log_and_no_tiered_topic(pylog, tmp_path):
    case, managed = unpack_tier("local_active", tmp_path), tmp_path / "managed"
    disk = case.folder / "local" / "b1"
    first = adopt(pylog, case, managed, "--with-local", disk)["stock_levels-0"]
    assert first["left_because"] == "OPEN"
    second = adopt(pylog, case, managed, "--with-local", disk, "--sync-stopped")["stock_levels-0"]
    assert (second["segments_before"], second["taken_segments"]) == (first["taken_segments"], 1)
    whole = open_logs(case.archive, with_local=[disk])
    for topic in ("stock_levels", "audit.log"):
        assert table_of(open_logs(managed), topic) == table_of(whole, topic)
    carried = json.loads((managed / TOPIC_CONFIGS_FILE).read_text())["topics"]["stock_levels"]
    assert carried["remote.storage.enable"] == "false"


@pytest.mark.thorough
def test_a_mirror_without_its_tier_is_taken_only_on_demand(pylog, tmp_path):
    case, managed = unpack_tier("local_active", tmp_path), tmp_path / "managed"
    words = (case.folder / "local" / "b1", managed, "--sync-stopped", "--settle", "0s")
    answer = ("--engine", "local", "--output", "json")
    refused = pylog("ingest", *words, *answer)
    assert refused.exit_code == ExitCode.REFUSED
    rows = {row["directory"]: row for row in lines_of(refused, "ingest")}
    assert (rows["stock_levels-0"]["status"], rows["audit.log-0"]["status"]) == ("skipped", "done")
    assert rows["stock_levels-0"]["reason"] == "OFFSETS_IN_TIER"
    assert "offsets 0 to 964 are in no segment here" in rows["stock_levels-0"]["error"]
    taken = pylog("ingest", *words, *answer, "--allow-data-loss")
    assert taken.exit_code == ExitCode.DONE
    offsets = table_of(open_logs(managed), "stock_levels")["offset"].to_pylist()
    assert offsets[0] == 965
    # From now on it goes on from what it has.
    assert pylog("ingest", *words, *answer).exit_code == ExitCode.DONE


@pytest.mark.thorough
def test_retention_of_an_adopted_tier_and_the_way_back(pylog, tmp_path):
    case, managed = unpack_tier("plain", tmp_path), tmp_path / "managed"
    adopt(pylog, case, managed)
    before = table_of(open_logs(managed), "stock_levels")
    config = tmp_path / "topics.json"
    settings = {"retention.bytes": 140_000, "retention.ms": -1}
    config.write_text(json.dumps({"topics": {"stock_levels": settings}}))
    words = ("--role", "managed", "--engine", "local", "--config", config)
    run = pylog.row("retain", managed, *words, "--max-delete-ratio", "1", kind="run")
    kept = table_of(open_logs(managed), "stock_levels")
    assert 0 < kept.num_rows < before.num_rows
    pylog.done("undo", run["run_id"], managed, "--engine", "local")
    assert table_of(open_logs(managed), "stock_levels") == before


@pytest.mark.thorough
def test_two_topics_of_one_name_are_one_failure_and_taken_by_their_id(pylog, tmp_path):
    case, managed = unpack_tier("topic_deleted", tmp_path), tmp_path / "managed"
    rows = adopt(pylog, case, managed)
    assert (rows["page-views-0"]["status"], rows["ledger-0"]["status"]) == ("failed", "done")
    wanted = next(row for row in case.truth["alone"] if row["topic"] == "page-views")
    rows = adopt(pylog, case, managed, "--topic-id", wanted["topic_id"])
    assert rows["page-views-0"]["status"] == "done"
    assert open_logs(managed).topics() == ["ledger", "page-views"]


def test_objects_of_a_tier_are_not_adopted_in_place(pylog, tmp_path):
    case = unpack_tier("plain", tmp_path)
    words = ("ingest", case.archive, tmp_path / "managed", "--in-place", "--sync-stopped")
    result = pylog(*words)
    assert result.exit_code == ExitCode.USAGE
    assert "brokers own its objects" in result.stderr
