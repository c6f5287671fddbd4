"""``pylog sql``: topics as tables."""

import json
import math
import os
import pty
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pylog_spark.cli.sql_prompt import complete_word
from pylog_spark.exit_code import ExitCode
from pylog_spark.ledger.local_ledger import LocalLedger
from pylog_spark.ledger.tables import LedgerTable
from tests.kit.builders import SOME_TIME_MS, BatchSpec, RecordSpec
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.file_damage import flip

pytest.importorskip("duckdb")


def write_topic(root: Path, topic: str, *records: tuple[bytes | None, bytes | None]) -> None:
    specs = tuple(
        RecordSpec(key=key, value=value, timestamp=SOME_TIME_MS + number)
        for number, (key, value) in enumerate(records)
    )
    batch = BatchSpec(base_offset=0, records=specs)
    write_partition(root / f"{topic}-0", [SegmentSpec(base_offset=0, batches=[batch])])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sql")
    orders = [(b"a", b'{"by": 1, "total": 7.5}'), (b"b", b'{"by": 2}'), (b"c", None)]
    write_topic(made, "orders", *orders)
    write_topic(made, "people.of-1", (b"1", b"Ada"), (b"2", b"\xff"))
    return made


def rows_of(pylog, root: Path, query: str, *words: object) -> list[dict[str, object]]:
    rows = pylog.rows("sql", root, query, *words)
    assert {row.pop("type") for row in rows} == {"row"}
    return rows


def test_two_topics_are_joined_by_what_their_values_hold(pylog, root):
    query = """
        SELECT o.key, p.value AS name, (o.value->>'$.total')::DOUBLE AS total
        FROM orders o LEFT JOIN "people.of-1" p ON p.key = o.value->>'$.by' ORDER BY o."offset"
    """
    assert rows_of(pylog, root, query) == [
        {"key": "a", "name": "Ada", "total": 7.5},
        {"key": "b", "name": "\\xff", "total": None},
        {"key": "c", "name": None, "total": None},
    ]


def test_values_of_all_types_are_json(pylog, root):
    query = """
        SELECT "offset", timestamp, headers, sum("offset") OVER () AS sum, 1.50::DECIMAL(4, 2) AS d,
            'nan'::DOUBLE AS n, 'x'::BLOB AS b, DATE '2026-11-29' AS day, {'a': [1]} AS s, key, key,
            1 AS type
        FROM orders LIMIT 1
    """
    (row,) = rows_of(pylog, root, query)
    assert row == {
        "offset": 0,
        "timestamp": "2023-11-14T22:13:20Z",
        "headers": None,
        "sum": 3,
        "d": "1.50",
        "n": "nan",
        "b": "eA==",
        "day": "2026-11-29",
        "s": {"a": [1]},
        "key": "a",
        "key_2": "a",
        "type_2": 1,
    }


@pytest.mark.thorough
def test_maps_are_objects_and_intervals_are_iso_8601(pylog, root):
    query = """
        SELECT MAP {'a': [MAP {'x'::BLOB: 1}]} AS m, MAP {} AS none, {'m': MAP {1: NULL}} AS s,
            INTERVAL '1 month 2 days 3.5 seconds' AS i, INTERVAL 0 DAY AS zero
    """
    expected = {"m": {"a": [{"eA==": 1}]}, "none": {}, "s": {"m": {"1": None}}}
    assert rows_of(pylog, root, query) == [expected | {"i": "P1M2DT3.5S", "zero": "PT0S"}]
    assert '{"a":[{"eA==":1}]}  {}    {"m":{"1":null}}' in pylog.done("sql", root, query).stdout


def test_a_time_without_a_zone_is_in_utc_wherever_the_machine_is(pylog, root, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        rows = rows_of(pylog, root, "SELECT TIMESTAMP '2026-01-01' AS t")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert rows == [{"t": "2026-01-01T00:00:00Z"}]


def test_what_does_not_fit_into_memory_waits_outside_of_the_working_directory(pylog, root):
    (row,) = rows_of(pylog, root, "SELECT current_setting('temp_directory') AS place")
    place = Path(row["place"])
    assert (place.parent, place.exists()) == (Path(tempfile.gettempdir()), False)


@pytest.mark.thorough
def test_topics_that_are_one_name_in_sql_are_not_taken_for_each_other(pylog, tmp_path):
    write_topic(tmp_path, "Orders", (b"a", b"x"), (b"b", b"y"))
    write_topic(tmp_path, "orders", (b"a", b"z"))
    write_topic(tmp_path, "People", (b"a", b"z"))
    count = "SELECT count(*) AS n FROM"
    for name, number in (("Orders", 2), ("orders", 1), ("PEOPLE", 1)):
        assert rows_of(pylog, tmp_path, f"{count} {name}") == [{"n": number}]
    for query in ("FROM Orders JOIN orders USING (key)", f"{count} ORDERS"):
        result = pylog("sql", tmp_path, query)
        assert result.exit_code == ExitCode.USAGE
        assert "Orders and orders are one name in SQL" in result.stderr


def test_tables_are_shown(pylog, root):
    shown = [row["name"] for row in rows_of(pylog, root, "SHOW TABLES")]
    assert shown[:3] == ["orders", "people.of-1", "pylog_consumer_offsets"]


def test_what_lies_there_are_tables_too(pylog, root):
    query = "SELECT topic, segments FROM pylog_partitions JOIN pylog_segments USING (topic)"
    assert rows_of(pylog, root, f"{query} ORDER BY 1 LIMIT 1") == [
        {"topic": "orders", "segments": 1}
    ]


@pytest.mark.thorough
def test_groups_and_their_places_are_those_of_the_command(pylog, unclean_broker_dir):
    told = pylog.rows("groups", unclean_broker_dir)
    groups = rows_of(pylog, unclean_broker_dir, 'SELECT "group", lag, members FROM pylog_groups')
    expected = [row for row in told if row["type"] == "group"]
    assert groups == [{name: row[name] for name in groups[0]} for row in expected]
    places = rows_of(pylog, unclean_broker_dir, "FROM pylog_consumer_offsets")
    names = ("group", "topic", "partition", "offset", "log_end_offset", "lag")
    assert [[row[name] for name in names] for row in places] == [
        [row[name] for name in names] for row in told if row["type"] == "commit"
    ]
    query = "SELECT verdict, producer_id FROM pylog_open_transactions"
    told = pylog.rows("transactions", unclean_broker_dir)
    opened = [row for row in told if row["type"] == "open_transaction"]
    expected = [{name: row[name] for name in ("verdict", "producer_id")} for row in opened]
    assert rows_of(pylog, unclean_broker_dir, query) == expected


@pytest.mark.thorough
def test_runs_are_those_of_a_ledger(pylog, root, tmp_path):
    ledger = LocalLedger.open(str(tmp_path / "ledger"), run_id="20260101T000000Z-1")
    at = datetime(2026, 1, 1, tzinfo=UTC)
    row = {"run_id": ledger.run_id, "event": "start", "at": at, "action": "retain", "roots": ["/a"]}
    ledger.append_row(LedgerTable.RUNS, row, number=1)
    query = "SELECT run_id, action, has_ended, roots, undo FROM pylog_runs"
    assert rows_of(pylog, root, query, "--ledger", tmp_path / "ledger") == [
        {
            "run_id": ledger.run_id,
            "action": "retain",
            "has_ended": False,
            "roots": ["/a"],
            "undo": None,
        }
    ]
    result = pylog("sql", root, query)
    assert (result.exit_code, "--ledger" in result.stderr) == (ExitCode.USAGE, True)


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


ODD_ROWS = """
    SELECT 'a,"b' AS text, '' AS empty, NULL AS nothing, 7 AS key, 8 AS Key, 'x'::BLOB AS bytes,
        [{'value': '\\xFF'::BLOB}] AS headers, 'nan'::DOUBLE AS nan, 'x' AS "a ""b",
        TIMESTAMPTZ '2026-01-01 00:00:01.5+00' AS time; -- a remark
"""


@pytest.mark.parametrize("to", ["parquet", "csv", "jsonl"])
def test_rows_become_a_file(pylog, root, tmp_path, to):
    out = tmp_path / f"it's.{to}"
    (told,) = pylog.rows("sql", root, ODD_ROWS, "--out", out)
    assert told == {
        "type": "file",
        "out": str(out),
        "format": to,
        "records": 1,
        "size_bytes": out.stat().st_size,
    }
    assert names(tmp_path) == [out.name]
    if to == "csv":
        assert out.read_text().splitlines() == [
            'text,empty,nothing,key,Key_2,bytes,headers,nan,"a ""b",time',
            '"a,""b","",,7,8,eA==,"[{""value"":""/w==""}]",,x,2026-01-01T00:00:01.500000Z',
        ]
        return
    if to == "jsonl":
        (line,) = out.read_text().splitlines()
        row = json.loads(line, parse_constant=pytest.fail)
        as_json = {"bytes": "eA==", "headers": [{"value": "/w=="}], "nan": None}
        assert row["time"] == "2026-01-01T00:00:01.500000Z"
    else:
        (row,) = pq.read_table(out).to_pylist()
        as_json = {"bytes": b"x", "headers": [{"value": b"\xff"}]}
        assert math.isnan(row["nan"])
        assert row["time"] == datetime(2026, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
    plain = {"text": 'a,"b', "empty": "", "nothing": None, "key": 7, "Key_2": 8, 'a "b': "x"}
    assert {name: row[name] for name in plain | as_json} == plain | as_json


def test_records_of_a_topic_become_a_file(pylog, root, tmp_path):
    out = tmp_path / "orders.table"
    done = pylog.done("sql", root, "FROM orders", "--out", out, "--to", "parquet", "--max", 2)
    assert done.stdout.startswith("2 rows in ")
    table = pq.read_table(out)
    assert (table["key"].to_pylist(), table["offset"].to_pylist()) == (["a", "b"], [0, 1])


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--out", "{tmp}/there.csv"], "is there already"),
        (["--out", "{root}/orders-0/x.csv"], "log directory"),
        (["--out", "{root}/x.csv"], "log directory"),
        (["--out", "{tmp}/nowhere/x.csv"], "there is no folder"),
        (["--out", "{tmp}/x.xlsx"], ".parquet, .csv"),
        (["--out", "s3://bucket/x.csv"], "this machine"),
        (["--to", "csv"], "is for --out"),
    ],
)
def test_a_file_that_is_not_to_be_written_is_refused(pylog, root, tmp_path, words, reason):
    (tmp_path / "there.csv").write_text("mine")
    words = [word.format(tmp=tmp_path, root=root) for word in words]
    result = pylog("sql", root, "SELECT 1", *words)
    assert (result.exit_code, reason in result.stderr) == (ExitCode.USAGE, True), result.stderr
    assert names(tmp_path) == ["there.csv"]
    assert (tmp_path / "there.csv").read_text() == "mine"


def test_a_full_disk_is_no_wrong_query(pylog, root, tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        out = tmp_path / "x.csv"
        result = pylog("sql", root, "FROM range(1000000)", "--out", out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (result.exit_code, result.stderr) == (ExitCode.FAILED, f"pylog: {out}: File too large\n")
    assert not names(tmp_path)
    result = pylog("sql", root, "FROM 'nowhere.csv'", "--out", out)
    assert (result.exit_code, "nowhere.csv" in result.stderr) == (ExitCode.USAGE, True)


@pytest.mark.thorough
def test_the_next_query_removes_what_a_killed_one_has_left(pylog, root, tmp_path):
    out = tmp_path / "x.csv"
    endless = "FROM range(10000000000000) WHERE range % 1000003 = 1"
    command = [sys.executable, "-m", "pylog_spark", "sql", root, endless, "--out", out]
    with subprocess.Popen(command) as killed:
        while not any(tmp_path.glob(".x.csv.*/x.csv")):
            assert killed.poll() is None
            time.sleep(0.01)
        assert pylog("sql", root, "SELECT 1 AS a", "--out", out).exit_code == ExitCode.DONE
        assert len(names(tmp_path)) == 2  # that of the other one, which still writes
        killed.kill()
    out.unlink()
    pylog.done("sql", root, "SELECT 2 AS a", "--out", out)
    assert (names(tmp_path), out.read_text()) == (["x.csv"], "a\n2\n")


def test_a_query_that_fails_leaves_no_file(pylog, tmp_path):
    (tmp_path / "logs").mkdir()
    write_topic(tmp_path / "logs", "orders", (b"a", b"one"))
    flip(tmp_path / "logs/orders-0/00000000000000000000.log", 70)
    result = pylog("sql", tmp_path / "logs", "FROM orders", "--out", tmp_path / "x.csv")
    assert (result.exit_code, "CRC-32C" in result.stderr) == (ExitCode.PARTLY_FAILED, True)
    assert names(tmp_path) == ["logs"]


@pytest.mark.thorough
def test_a_query_says_how_much_it_has_read(pylog, root):
    size = (root / "orders-0" / "00000000000000000000.log").stat().st_size
    for query in ("FROM orders", 'FROM orders WHERE "offset" < 1 OR "offset" > 1'):
        # Its end was looked for before, so each byte was read several times.
        told = pylog("sql", root, query).stderr
        assert told == f"pylog: read {size} B from segments of {size} B\n"
    assert pylog("sql", root, "SELECT 1").stderr == ""
    query = "FROM orders WHERE timestamp < TIMESTAMPTZ '2023-11-14 22:13:20.001+00'"
    assert [row["key"] for row in rows_of(pylog, root, query, "--lateness", "0s")] == ["a"]


@pytest.mark.thorough
def test_a_query_says_where_a_lateness_would_leave_out_much(pylog, tmp_path):
    batches = [
        BatchSpec(
            base_offset=2 * number,
            records=tuple(
                RecordSpec(value=bytes(5000), timestamp=SOME_TIME_MS + 1000 * number + part)
                for part in range(2)
            ),
        )
        for number in range(200)
    ]
    write_partition(tmp_path / "orders-0", [SegmentSpec(base_offset=0, batches=batches)])
    query = "SELECT count(*) FROM orders WHERE timestamp < TIMESTAMPTZ '2023-11-14 22:13:30+00'"
    told = pylog("sql", tmp_path, query).stderr
    assert re.search(r"; 1\.8 MiB of it lies behind the latest .* --lateness TIME ends", told), told
    for words in (["--lateness", "1m"], ["--lateness", "0s"]):
        assert "--lateness" not in pylog("sql", tmp_path, query, *words).stderr
    early = "SELECT count(*) FROM orders WHERE timestamp < TIMESTAMPTZ '2023-11-14 22:16:00+00'"
    assert "--lateness" not in pylog("sql", tmp_path, early).stderr  # little lies behind that


@pytest.mark.thorough
@pytest.mark.parametrize("words", [[], ["--out", "{tmp}/x.csv"]])
def test_a_terminal_is_shown_how_far_a_long_query_has_come(
    pylog, monkeypatch, root, tmp_path, words
):
    words = [word.format(tmp=tmp_path) for word in words]
    monkeypatch.setenv("FORCE_COLOR", "1")  # standard error counts as a terminal
    soon = pylog("sql", root, "FROM orders", *words)
    assert (soon.exit_code, "reading" in soon.stderr) == (ExitCode.DONE, False)
    monkeypatch.setattr("pylog_spark.cli.sql._PATIENCE_SECONDS", 0)
    query = 'FROM orders JOIN "people.of-1" USING (partition)'
    late = pylog("sql", root, query, *[word.replace("x.", "y.") for word in words])
    assert (late.exit_code, "reading" in late.stderr, "reading" in late.stdout) == (0, True, False)
    # Rows on their way to a program, or to this terminal, have no line among them.
    rows = pylog("sql", root, query, "--output", "json")
    assert (rows.exit_code, "reading" in rows.stderr) == (ExitCode.DONE, False)


@pytest.mark.thorough
def test_a_person_gets_a_table_of_the_first_rows(pylog, root):
    result = pylog.done("sql", root, 'SELECT "offset", key FROM orders', "--max", 2)
    assert result.stdout.splitlines() == ["offset  key", "     0  a", "     1  b"]
    decimals = "SELECT 974::DECIMAL(9, 2) AS d, 1::HUGEINT AS n, 0.5::DECIMAL(2, 1) AS h"
    assert pylog.done("sql", root, decimals).stdout.splitlines()[1].split() == [
        "974.00",
        "1",
        "0.5",
    ]
    assert rows_of(pylog, root, decimals) == [{"d": 974, "n": 1, "h": "0.5"}]
    many = pylog.done("sql", root, "SELECT range AS n FROM range(101)").stdout
    assert many.splitlines()[-1].startswith("these are the first 100 rows")
    assert pylog.done("sql", root, "FROM orders WHERE key = 'z'").stdout == "no rows\n"
    assert pylog.done("sql", root, "FROM orders", "--output", "csv").stdout.count("\n") == 4


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELEC 1", "syntax error"),
        ("SELECT 1; SELECT 2", "expected one query"),
        ("COPY (SELECT 1) TO 'x.csv'", "expected a SELECT, "),
        ("DROP TABLE orders", "expected a SELECT, "),
        ("FROM people.of-1", '; the topic needs quotes: "people.of-1"'),
        ("FROM order", "syntax error"),
        ("FROM nowhere", "There are orders, people.of-1, pylog_partitions"),
        ("SELECT total FROM orders", "total"),
        ("FROM root", "does not exist"),
    ],
)
def test_what_is_no_query_of_these_tables_is_one_sentence(pylog, root, query, reason):
    result = pylog("sql", root, query)
    assert result.exit_code == ExitCode.USAGE
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1


def test_bytes_that_cannot_be_read_are_named(pylog, tmp_path):
    write_topic(tmp_path, "orders", (b"a", b"one"))
    log = tmp_path / "orders-0" / "00000000000000000000.log"
    flip(log, 70)
    result = pylog("sql", tmp_path, "FROM orders")
    assert result.exit_code == ExitCode.PARTLY_FAILED
    assert f"{log}: position 0: CRC-32C" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.thorough
def test_a_value_that_does_not_fit_is_named(pylog, root):
    result = pylog("sql", root, "SELECT value FROM orders", "--value-format", "avro-registry")
    assert (result.exit_code, "--value-schema" in result.stderr) == (ExitCode.USAGE, True)
    result = pylog("sql", root, 'SELECT value FROM "people.of-1"', "--value-format", "json")
    assert result.exit_code == ExitCode.USAGE
    assert "offset 0 of people.of-1-0 is not" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_root_is_needed(pylog):
    result = pylog("sql", "SELECT 1")
    assert (result.exit_code, "ROOT..." in result.stderr) == (ExitCode.USAGE, True)


class Prompt:
    """``pylog sql`` on a terminal of its own."""

    def __init__(self, root: Path, state: Path) -> None:
        self.text = ""
        environment = {"XDG_STATE_HOME": str(state), "TERM": "dumb", "COLUMNS": "80"}
        command = [sys.executable, "-m", "pylog_spark", "sql", str(root)]
        self.pid, self._terminal = pty.fork()
        if not self.pid:
            os.execve(command[0], command, os.environ | environment)  # noqa: S606
        self.wait_for("sql> ")

    def wait_for(self, text: str) -> str:
        """Return what comes up to a text."""
        deadline = time.monotonic() + 120
        while text not in self.text:
            assert time.monotonic() < deadline, self.text
            if select.select([self._terminal], [], [], 1)[0]:
                self.text += os.read(self._terminal, 4096).decode()
        before, _, self.text = self.text.partition(text)
        return before

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def ask(self, text: str) -> str:
        """Type a line; return what is answered."""
        self.type(f"{text}\n")
        self.wait_for("\n")  # its echo
        return self.wait_for("sql> ").replace("\r", "")

    def end(self) -> int:
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        finally:
            os.close(self._terminal)


@pytest.fixture
def prompt(root, tmp_path) -> Iterator[Prompt]:
    prompt = Prompt(root, tmp_path / "state")
    yield prompt
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(prompt.pid, signal.SIGKILL)
        os.waitpid(prompt.pid, 0)


@pytest.mark.thorough
def test_a_person_asks_at_a_prompt(prompt, tmp_path):
    assert prompt.ask('SELECT "offset", key FROM orders LIMIT 1;').startswith("offset  key\n")
    prompt.type("SELECT 40 + 2\n")
    prompt.wait_for("...> ")
    assert "\n42\n" in prompt.ask("AS answer;").replace(" ", "")
    assert "pylog: QUERY" in prompt.ask("SELEC 1;")
    assert "orders\n" in prompt.ask(".tables")
    assert "orders (key, value, " in prompt.ask(".columns")
    assert prompt.ask(".columns orders").startswith("orders (key, value, ")
    assert "there is no command .x" in prompt.ask(".x")
    prompt.type("SELECT ';\n")
    prompt.wait_for("...> ")
    prompt.type("\x03")  # what was typed is forgotten
    prompt.wait_for("sql> ")
    assert "7" in prompt.ask("SELECT 7;")
    prompt.type('SELECT "off\t')  # completed to the column's name
    assert prompt.ask(" FROM orders LIMIT 1;").startswith("offset\n     0\n")
    prompt.type("\\q\n")
    assert prompt.end() == ExitCode.DONE
    history = tmp_path / "state" / "pylog" / "sql_history"
    assert "FROM orders LIMIT 1;" in history.read_text()
    assert history.stat().st_mode & 0o777 == 0o600
    assert history.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.thorough
def test_no_interrupt_while_somebody_types_ends_the_prompt(prompt):
    for _ in range(100):  # one in some dozens did, when its thread was late
        prompt.type("SELECT ';\n")
        prompt.wait_for("...> ")
        prompt.type("\x03")
        prompt.wait_for("sql> ")
    assert "7" in prompt.ask("SELECT 7;")


@pytest.mark.thorough
def test_an_interrupt_cancels_a_query_and_the_end_of_input_leaves(prompt):
    forever = "FROM range(10000000) a, range(10000000) b WHERE (a.range * b.range) % 1000003 = 9"
    prompt.type(f"SELECT count(*) {forever};\n")
    prompt.wait_for("\n")
    time.sleep(1)
    prompt.type("\x03")
    assert "pylog: cancelled" in prompt.wait_for("sql> ")
    assert "8" in prompt.ask("SELECT 8;")
    prompt.type("\x04")
    assert prompt.end() == ExitCode.DONE


def test_a_query_is_needed_without_a_terminal(pylog, root):
    for words in ([root], [root, root]):
        result = pylog("sql", *words)
        assert result.exit_code == ExitCode.USAGE
        assert '"SELECT ..."; a prompt needs a terminal' in result.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("orde", ["orders", "ORDER BY"]),
        ('"peo', ['"people.of-1"']),
        ("peo", ['"people.of-1"']),
        ("wh", ["WHERE", "WHEN"]),
    ],
)
def test_words_are_completed(text, words):
    columns = {"orders": ["key", "offset"], "people.of-1": ["key", "offset"]}
    assert complete_word(text, columns) == words
    assert complete_word("off", columns) == ['"offset"']


@pytest.mark.thorough
@pytest.mark.parametrize("output", ["table", "json", "csv"])
def test_answers_are_utf_8_in_every_locale(root, output):
    command = [sys.executable, "-m", "pylog_spark", "sql", root, "SELECT 'Ö 日本' AS a"]
    done = subprocess.run(
        [*command, "--output", output],
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=True,
    )
    assert ("Ö 日本".encode() in done.stdout, done.stderr) == (True, b"")


@pytest.mark.thorough
@pytest.mark.parametrize("out", [False, True])
@pytest.mark.parametrize("query", ["SELECT count(*) FROM orders", "FROM nowhere"])
def test_the_program_ends_without_a_word_of_the_library(root, tmp_path, query, out):
    command = [sys.executable, "-m", "pylog_spark", "sql", str(root), query, "--output", "json"]
    if out:
        command += ["--out", str(tmp_path / "x.csv")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.stderr.count("\n") <= 1
    if not out and done.stdout:
        assert json.loads(done.stdout)["count_star()"] == 3
