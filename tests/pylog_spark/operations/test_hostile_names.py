"""Names that are not UTF-8, in whole runs on Spark: rows, and nothing else goes wrong."""

import json
import os

import pytest

from pylog_spark.cli.jobs import run_page
from pylog_spark.cli.runner import PageLook
from pylog_spark.cli.verify import verify_page
from pylog_spark.discovery import resolve_roots
from pylog_spark.operations.nightly import run_nightly
from pylog_spark.operations.survey import survey
from pylog_spark.operations.verify.driver import verify
from pylog_spark.report import json_line
from pylog_spark.report_page import write_page
from pylog_spark.source import register
from storage_core.catalog.roles import Role
from storage_core.errors import ConfigError
from storage_core.maintenance.verification.findings import Code
from tests.kit.hostile_names import NOT_UTF8, SPELLED_OUT, STEERING, add_hostile_names
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS
from tests.pylog_spark.crashed_roots import crashed_directory

SMALL = ["clean-headers-none-s101", "clean-hw-none-s161"]
DONE = sorted((name, step, "done") for name in SMALL for step in ("compact", "recover"))


@pytest.mark.thorough
@pytest.mark.spark
def test_a_directory_name_that_is_not_utf8_is_a_row_and_the_others_are_done(spark, tmp_path):
    crashed = crashed_directory(tmp_path / "log", SMALL)
    add_hostile_names(crashed.path, f"{SMALL[0]}-0")
    options = crashed.with_options(now_ms=FIRST_ROUNDS_MS)
    report = run_nightly(spark, [crashed.path], options)
    rows = report.results.to_pylist()
    steps = [(r["topic"], r["action"], r["status"]) for r in rows if r["topic"] is not None]
    assert sorted(steps) == DONE
    foreign = [row for row in rows if row["topic"] is None]
    assert {row["reason"] for row in foreign} == {"INVALID_DIRECTORY_NAME"}
    errors = {json.loads(json_line("result", row))["error"] for row in foreign}
    assert f"{SPELLED_OUT}: expected <topic>-<partition>" in errors
    assert len(errors) == len(NOT_UTF8 + STEERING)
    page = tmp_path / "page.html"
    look = PageLook(ledger=None, past_runs=())
    write_page(page, run_page(report, look, now_ms=FIRST_ROUNDS_MS))
    shown = page.read_text(encoding="utf-8")
    assert SPELLED_OUT in shown
    assert shown.count("<script>") == 1
    assert "\x1b" not in shown


@pytest.mark.thorough
@pytest.mark.spark
def test_whoever_only_looks_finds_such_names_too(spark, tmp_path):
    crashed = crashed_directory(tmp_path / "log", SMALL)
    add_hostile_names(crashed.path, f"{SMALL[0]}-0")
    options = crashed.with_options(role=Role.MIRROR)

    found = survey(spark, [crashed.path], options).results.to_pylist()
    assert f"{SPELLED_OUT}: expected <topic>-<partition>" in {row["error"] for row in found}
    report = verify(spark, [crashed.path], options)
    files = {(row["code"], row["file"]) for row in report.findings}
    assert (Code.DIRECTORY_FOREIGN, f"{crashed.path}/{SPELLED_OUT}") in files
    assert (Code.FILE_UNKNOWN, rf"{crashed.path}/{SMALL[0]}-0/\xff.log") in files
    page = tmp_path / "page.html"
    write_page(page, verify_page(report, PageLook(ledger=None, past_runs=())))
    assert SPELLED_OUT in page.read_text(encoding="utf-8")
    register(spark)
    records = spark.read.format("kafka-log").option("subscribe", SMALL[0]).load(str(crashed.path))
    assert records.count() > 0


def test_a_root_that_is_not_utf8_is_refused_with_what_to_do(tmp_path):
    root = tmp_path / os.fsdecode(b"logs\xff")
    crashed_directory(root, SMALL[:1])
    with pytest.raises(ConfigError, match="give it a link that is"):
        resolve_roots([root], role=Role.BROKER)
    link = tmp_path / "logs"
    link.symlink_to(root)
    (resolved,) = resolve_roots([link], role=Role.BROKER)
    assert resolved.location == str(link)
