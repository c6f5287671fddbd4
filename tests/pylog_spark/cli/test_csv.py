"""``--output csv``: of every command that prints a table the rows of one kind, as in its JSON."""

import csv
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from pylog_spark.cli.runner import RowLines
from pylog_spark.exit_code import ExitCode
from pylog_spark.options.choices import OutputFormat
from pylog_spark.structured_logs import LogFormat, use_log_format
from pylog_spark.view import OutputLine
from tests.kit.golden_broker import broker_origin, unpack_broker
from tests.kit.golden_data import Golden
from tests.kit.tier_archives import unpack_tier

HOUR_MS: Final = 3_600_000
CLOSED_MS: Final = int(broker_origin()["clock_ms"]) + HOUR_MS
UNCLEAN: Final = Golden("broker-dir-unclean")
UNCLEAN_MS: Final = int(UNCLEAN.case["clock_ms"]) + HOUR_MS
BROKER: Final = f"{{}}/log --role broker --now-ms {CLOSED_MS} --engine local --dry-run"
# What is of one run alone.
VARYING: Final = frozenset({"run_id", "duration_ms", "listed_ms"})

# The kind of rows that CSV has, and a command line.
COMMANDS: Final = {
    "inspect": ("partition", "inspect {}/log {}/unclean"),
    "inspect topics": ("topic", "inspect {}/log --per-topic"),
    "find": ("version", "find {}/log --topic clickstream --key 2a5070b2cfb4d1f8"),
    "sql": (
        "row",
        'sql {}/log SELECT"offset",key,timestamp,headers[1]AS"h"FROM"orders-by-id"LIMIT(3)',
    ),
    "free": ("free_step", f"free {{}}/log --now-ms {CLOSED_MS} --engine local"),
    "groups": ("commit", f"groups {{}}/unclean --now-ms {UNCLEAN_MS}"),
    "transactions": ("open_transaction", f"transactions {{}}/unclean --now-ms {UNCLEAN_MS}"),
    "survey": ("survey", f"survey {{}}/log --now-ms {CLOSED_MS} --engine local"),
    "audit": ("partition", f"audit {{}}/log --now-ms {CLOSED_MS} --engine local"),
    "differences": ("difference", "differences {}/log {}/follower --level bytes --engine local"),
    "copies": ("difference", "copies {}/log --copy {}/unclean --engine local"),
    "timeline": ("change", "timeline {}/log"),
    "verify": ("finding", f"verify {{}}/unclean --now-ms {UNCLEAN_MS} --engine local"),
    "scrub": ("finding", "scrub {}/tier --engine local --recheck 0s"),
    "run": ("result", f"run {BROKER}"),
    "retain": ("result", f"retain {BROKER}"),
    "compact": ("result", f"compact {BROKER}"),
    "recover": (
        "result",
        f"recover {{}}/unclean --role broker --now-ms {UNCLEAN_MS} --engine local --dry-run",
    ),
    "ingest": (
        "ingest",
        "ingest {}/log {}/new --sync-stopped --settle 1s --dry-run --engine local",
    ),
    "materialize": ("materialize", "materialize {}/managed {}/plain --dry-run --engine local"),
    "apply": ("result", "apply {}/plan.json --dry-run --engine local"),
    "undo": ("result", "undo RUN --trash {}/trash --dry-run"),
    "purge": ("result", "purge --trash {}/trash --older-than 0s --dry-run"),
    "runs": ("past_run", "runs --trash {}/trash"),
    "config": ("setting", "config show --origin"),
}


@pytest.fixture(scope="module")
def folder(pylog, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories of a broker, a plan, a trash with a run, and a managed root."""
    made = tmp_path_factory.mktemp("csv")
    unpack_broker(made / "log")
    UNCLEAN.unpack(made).rename(made / "unclean")
    killed = unpack_tier("upload_killed", made / "killed")
    killed.archive.rename(made / "tier")
    shutil.copytree(made / "log", made / "done")
    shutil.copytree(made / "log", made / "follower")
    properties = made / "follower" / "meta.properties"
    properties.write_text(re.sub(r"node.id=\d+", "node.id=99", properties.read_text()))
    max((made / "follower" / "clickstream-0").glob("*.log")).write_bytes(b"")
    jobs = (
        f"retain {{}}/done --role broker --now-ms {CLOSED_MS} --engine local --trash {{}}/trash",
        f"compact {BROKER} --plan-out {{}}/plan.json",
        "ingest {}/log {}/managed --sync-stopped --settle 0s --engine local --topics clickstream",
    )
    for job in jobs:
        pylog.done(*job.replace("{}", str(made)).split())
    return made


def run(pylog, folder: Path, command: str, output: str) -> Any:
    runs = [path.name for path in (folder / "trash").iterdir() if path.name[0].isdigit()]
    words = command.replace("{}", str(folder)).replace("RUN", runs[0]).split()
    result = pylog(*words, "--output", output)
    assert result.exit_code in {0, 1, 3}, result.stderr
    return result


def cell_of(value: Any) -> str:
    """What the documents say of a value: written here anew, on purpose."""
    if value is None:
        return ""
    if isinstance(value, bool | list | dict):
        return json.dumps(value, separators=(",", ":"))
    text = str(value)
    return f"'{text}" if isinstance(value, str) and text[:1] in "=+-@" and text else text


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", COMMANDS)
def test_csv_has_the_keys_and_values_of_the_rows_of_json(pylog, folder, name: str):
    kind, command = COMMANDS[name]
    lines = run(pylog, folder, command, "json").stdout.splitlines()
    rows = [row for row in map(json.loads, lines) if row["type"] == kind]
    assert rows
    written = list(csv.DictReader(io.StringIO(run(pylog, folder, command, "csv").stdout)))
    # What a dry run would do with each partition is JSON's alone.
    extra = {"type", "plan"}
    keys = [key for key in rows[0] if key not in extra]
    assert list(written[0]) == keys
    if name == "find":  # keys and values are texts, where JSON has Base64
        assert {row["key"] for row in written} == {"2a5070b2cfb4d1f8"}
        extra |= {"key", "value"}
    told = [{key: row[key] for key in keys if key not in VARYING | extra} for row in written]
    assert told == [
        {key: cell_of(row[key]) for key in each} for each, row in zip(told, rows, strict=True)
    ]


def test_a_segment_names_its_partition(pylog, folder):
    result = run(pylog, folder, "inspect {}/log --segments --topics clickstream", "csv")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    found = {(row["topic"], row["partition"], row["file"]) for row in rows}
    logs = {
        ("clickstream", path.parent.name[-1], path.name)
        for path in (folder / "log").glob("clickstream-*/*.log")
    }
    assert found == logs
    assert {row["root"] for row in rows} == {str(folder / "log")}


@pytest.mark.thorough
def test_each_predicate_of_an_explanation_is_a_row(pylog, folder):
    command = f"explain {{}}/log --topics clickstream --now-ms {CLOSED_MS}"
    lines = run(pylog, folder, command, "json").stdout.splitlines()
    explained = [
        (row["directory"], statement["code"], statement["text"], cell_of(statement["until_ms"]))
        for row in map(json.loads, lines)
        for statement in row["statements"]
    ]
    rows = csv.DictReader(io.StringIO(run(pylog, folder, command, "csv").stdout))
    assert [(row["directory"], row["code"], row["text"], row["until_ms"]) for row in rows] == (
        explained
    )


@pytest.mark.thorough
def test_a_diagnosis_is_its_findings(pylog, folder):
    command = f"doctor {{}}/unclean --now-ms {UNCLEAN_MS} --engine local"
    (told,) = map(json.loads, run(pylog, folder, command, "json").stdout.splitlines())
    rows = list(csv.DictReader(io.StringIO(run(pylog, folder, command, "csv").stdout)))
    assert [(row["code"], row["file"], row["message"]) for row in rows] == [
        (one["code"], cell_of(one["file"]), one["message"]) for one in told["findings"]
    ]


@pytest.mark.parametrize("command", ["cat events --root {}/log", "dump {}/log/events-0"])
def test_records_are_no_table(pylog, folder, command: str):
    words = command.replace("{}", str(folder)).split()
    assert pylog(*words, "--output", "csv").exit_code == ExitCode.USAGE


def test_an_answer_without_rows_has_its_names(pylog, folder):
    lines = run(pylog, folder, "inspect {}/log --topics nothing*", "csv").stdout.splitlines()
    assert [line.split(",")[0] for line in lines] == ["root"]


def test_what_a_run_says_besides_goes_to_standard_error(pylog, folder):
    command = f"survey {{}}/log --topics nothing* --now-ms {CLOSED_MS} --engine local"
    result = run(pylog, folder, command, "csv")
    assert len(result.stdout.splitlines()) == 1
    notes = json.loads(run(pylog, folder, command, "json").stdout)["notes"]
    assert len(notes) == 2
    assert result.stderr == "".join(f"pylog: {note}\n" for note in notes)


@pytest.mark.thorough
def test_a_partition_that_cannot_be_read_is_told(pylog, folder, tmp_path):
    root = unpack_broker(tmp_path / "log")
    log = min((root / "user-profiles-0").glob("*.log"))
    log.write_bytes(b"\0" * 100 + log.read_bytes()[100:])
    words = ("find", root, "--topic", "user-profiles", "--key", "k", "--output", "csv")
    result = pylog(*words)
    assert result.exit_code == ExitCode.PARTLY_FAILED
    assert log.name in result.stderr
    assert len(result.stdout.splitlines()) == 1
    logged = pylog("--log-format", "json", *words)
    use_log_format(LogFormat.TEXT)
    messages = [json.loads(line)["message"] for line in logged.stderr.splitlines()]
    assert [f"pylog: {message}" for message in messages] == result.stderr.splitlines()


def written(*rows: dict[str, Any], **data: str) -> str:
    parts: list[str] = []
    lines = RowLines(OutputFormat.CSV, "row", [*rows[0], *data], write=parts.append)
    lines.write(OutputLine("row", row, data) for row in rows)
    return "".join(parts)


def test_lines_and_quotes_are_those_of_rfc_4180():
    text = written({"a": 'say "no", please', "b": None, "c": 1.5})
    assert text == 'a,b,c\r\n"say ""no"", please",,1.5\r\n'


@pytest.mark.parametrize("start", "=+-@\uff1d\uff0b\uff0d\uff20")
def test_a_text_is_no_formula_of_a_spreadsheet(start: str):
    text = written(
        {"topic": f"{start}1", "offset": -1}, key=json.dumps(f"{start}cmd|' /C calc'!A0")
    )
    assert text.splitlines()[1] == f"'{start}1,-1,'{start}cmd|' /C calc'!A0"


def test_a_control_character_steers_no_terminal_and_breaks_no_line():
    text = written({"error": "a\x1b[31m\nb\tc"}, value=json.dumps("\x1b]0;title\r\n=1"))
    assert re.search(r"[\x00-\x1f]", text.replace("\r\n", "")) is None
    assert text.count("\r\n") == 2


def test_secrets_of_locations_are_left_out_and_data_is_as_it_is():
    url = "https://user:secret@host/x"
    text = written({"error": url}, value=json.dumps(url))
    assert text.splitlines()[1].count("secret") == 1
