"""The numbers for Prometheus: each is one of the ledger's, and nothing else depends on them."""

import base64
import fcntl
import os
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import deltalake
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pylog_spark.engines.choice import Local
from pylog_spark.operations.apply import ApplyOptions, apply_plan
from pylog_spark.operations.compact.driver import compact
from pylog_spark.operations.nightly import run_nightly
from pylog_spark.operations.recover.driver import recover
from pylog_spark.operations.retain.driver import retain
from pylog_spark.operations.verify.driver import verify
from pylog_spark.options import JobOptions, RunLimits
from pylog_spark.run.metrics import METRICS, MetricsFile, MetricsPush
from pylog_spark.run.run_report import Report, RunState
from storage_core.errors import GuardRefusedError
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, broker_directory
from tests.pylog_spark.crashed_roots import crashed_directory, tear

CLEANED = ["clean-headers-none-s101", "clean-hw-none-s161"]
CRASHED = ["clean-sparse-none-s221", "clean-group-all-s211"]
SWEPT = ["retain-size-s501", "retain-logstart-mid-s501"]
HERE = Local(1)
ANYTHING = RunLimits(max_delete_ratio=1.0, overrides=frozenset({"CLOCK_PAST_RETENTION"}))
NOW = datetime(2026, 11, 23, 2, 15, tzinfo=UTC)
DOCUMENT = Path(__file__).parents[3] / "docs" / "signals.md"
# A number: its name, without the prefix, and its labels beside the action.
Key = tuple[str, frozenset[tuple[str, str]]]


def samples_of(text: str, *, action: str) -> dict[Key, float]:
    """Return the numbers of a text, whose action is this one."""
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.type == "gauge"
        assert family.documentation == METRICS[family.name.removeprefix("pylog_")]
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("action") == action
            found[sample.name.removeprefix("pylog_"), frozenset(labels.items())] = sample.value
    return found


def key(name: str, root: Path, **labels: str) -> Key:
    return name, frozenset({"root": str(root), **labels}.items())


def rows_of(ledger: Path, table: str, run_id: str) -> list[dict[str, Any]]:
    rows = deltalake.DeltaTable(str(ledger / table)).to_pyarrow_table().to_pylist()
    return [row for row in rows if row["run_id"] == run_id]


def damage(root: Path, name: str) -> None:
    """Change a byte of a partition's first segment, and not its time."""
    (segment, *_) = sorted((root / f"{name}-0").glob("*.log"))
    content, times = bytearray(segment.read_bytes()), segment.stat()
    content[70] ^= 0xFF
    segment.write_bytes(content)
    os.utime(segment, ns=(times.st_atime_ns, times.st_mtime_ns))


def two_roots(path: Path, names: list[str]) -> tuple[list[Path], JobOptions]:
    """Return two log directories of one broker; in the second a partition is damaged."""
    roots = [broker_directory(path / each, names) for each in ("one", "two")]
    for number, root in enumerate(roots):
        topics = {f"{name}-of-{number}": config for name, config in root.configs.items()}
        for name in names:
            (root.path / f"{name}-0").rename(root.path / f"{name}-of-{number}-0")
        renamed = broker_files(root, number)
        renamed.configs = topics
        renamed.write_files()
    damage(roots[1].path, f"{names[-1]}-of-1")
    configs = {**roots[0].configs, **roots[1].configs}
    options = roots[0].options(FIRST_ROUNDS_MS, topic_configs=configs, limits=ANYTHING)
    return [root.path for root in roots], options


def broker_files(root: Any, number: int) -> Any:
    """Return what is known of a log directory whose topics have got other names."""
    for name in ("high_watermarks", "log_starts", "cleaner_points"):
        entries = getattr(root, name)
        moved = {replace(tp, topic=f"{tp.topic}-of-{number}"): at for tp, at in entries.items()}
        setattr(root, name, moved)
    return root


def expected_of_run(ledger: Path, report: Report, root: Path) -> dict[Key, float]:
    """Return the numbers of a run that rows of the ledger say of a root."""
    (start,) = [r for r in rows_of(ledger, "runs", report.run_id) if r["event"] == "START"]
    (end,) = [r for r in rows_of(ledger, "runs", report.run_id) if r["event"] == "END"]
    results = [r for r in rows_of(ledger, "results", report.run_id) if r["root"] == str(root)]
    done = [row for row in results if row["status"] == "done"]
    statuses = Counter(row["status"] for row in results)
    reasons = Counter(row["reason"] for row in results if row["status"] == "skipped")
    return {
        key("run_start_time_seconds", root): start["at"].timestamp(),
        key("run_end_time_seconds", root): end["at"].timestamp(),
        key("run_exit_status", root): end["exit_code"],
        key("run_duration_seconds", root): end["duration_ms"] / 1000,
        key("run_bytes_before", root): sum(row["bytes_before"] or 0 for row in done),
        key("run_bytes_after", root): sum(row["bytes_after"] or 0 for row in done),
        **{
            key("run_partitions", root, status=status): statuses[status]
            for status in ("done", "skipped", "failed")
        },
        **{
            key("run_skipped_partitions", root, reason=reason): count
            for reason, count in reasons.items()
        },
    }


def expected_of_cleaner(ledger: Path, report: Report, root: Path) -> dict[Key, float]:
    """Return the same of Kafka's cleaner; none of the partitions was past its largest lag."""
    of_root = [
        [row for row in rows_of(ledger, table, report.run_id) if row["root"] == str(root)]
        for table in ("cleanings", "results")
    ]
    cleanings, results = of_root
    due = [row for row in results if row["action"] == "compact" and row["status"] != "skipped"]
    failed = [row for row in due if row["status"] == "failed"]
    plans = report.plans.to_pylist()
    dirty = {(row["root"], row["topic"]): row["cleanable_bytes"] for row in plans}
    ratio = {(row["root"], row["topic"]): row["cleanable_ratio"] for row in plans}
    read = sum(row["bytes_read"] for row in cleanings)
    written = sum(row["bytes_written"] for row in cleanings)
    ratios = [ratio[row["root"], row["topic"]] for row in due]
    for row in cleanings:
        assert row["cleanable_ratio"] == ratio[row["root"], row["topic"]]
    numbers = {
        "max_dirty_percent": int(100 * max(ratios, default=0)),
        "cleaner_recopy_percent": int(100 * written / max(read, 1)),
        "max_buffer_utilization_percent": 0,
        "max_clean_time_secs": int(max((row["elapsed_secs"] for row in cleanings), default=0)),
        "max_compaction_delay_secs": max(row["compaction_delay_ms"] for row in cleanings) // 1000,
        "cleanable_partitions": len(due),
        "delayed_partitions": 0,
        "uncleanable_partitions_count": len(failed),
        "uncleanable_bytes": sum(dirty[row["root"], row["topic"]] for row in failed),
    }
    return {key(name, root): number for name, number in numbers.items()}


@pytest.mark.thorough
def test_the_numbers_of_a_compaction_are_those_of_its_ledger_root_by_root(tmp_path):
    roots, options = two_roots(tmp_path, CLEANED)
    ledger, file = tmp_path / "ledger", tmp_path / "pylog.prom"
    options = replace(options, ledger=str(ledger), metrics_file=str(file))
    report = compact(HERE, roots, options)
    assert report.exit_code == 4
    expected: dict[Key, float] = {}
    for root in roots:
        expected |= expected_of_run(ledger, report, root)
        expected |= expected_of_cleaner(ledger, report, root)
    found = samples_of(file.read_text(), action="compact")
    assert found == expected
    assert found[key("uncleanable_partitions_count", roots[0])] == 0
    assert found[key("uncleanable_partitions_count", roots[1])] == 1
    assert found[key("uncleanable_bytes", roots[1])] > 0
    # What the run says as a whole is what its roots have together.
    (end,) = [r for r in rows_of(ledger, "runs", report.run_id) if r["event"] == "END"]
    for status in ("done", "skipped", "failed"):
        counts = [found[key("run_partitions", root, status=status)] for root in roots]
        assert sum(counts) == end[f"partitions_{status}"]
    for name in ("bytes_before", "bytes_after"):
        assert sum(found[key(f"run_{name}", root)] for root in roots) == end[name]
    # Nothing but the file lies there, and no part of it.
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "ledger",
        "one",
        "pylog.prom",
        "two",
    ]


def test_the_numbers_of_a_retention_are_those_of_its_ledger(tmp_path):
    root = broker_directory(tmp_path / "log", SWEPT)
    ledger, file = tmp_path / "ledger", tmp_path / "pylog.prom"
    options = root.options(
        FIRST_ROUNDS_MS, limits=ANYTHING, ledger=str(ledger), metrics_file=str(file)
    )
    report = retain(HERE, [root.path], options)
    found = samples_of(file.read_text(), action="retain")
    assert found == expected_of_run(ledger, report, root.path)
    assert found[key("run_bytes_after", root.path)] < found[key("run_bytes_before", root.path)]


@pytest.mark.thorough
def test_what_a_recovery_leaves_is_counted_as_kafkas_loader_counts_it(tmp_path):
    root = crashed_directory(tmp_path / "log", CRASHED)
    tear(root.path / f"{CRASHED[1]}-0", segment=0)
    ledger, file = tmp_path / "ledger", tmp_path / "pylog.prom"
    options = replace(
        root.options, ledger=str(ledger), metrics_file=str(file), max_truncate_bytes=0
    )
    report = recover(HERE, [root.path], options)
    assert report.exit_code == 3
    found = samples_of(file.read_text(), action="recover")
    left = {
        key("remaining_logs_to_recover", root.path): 1,
        key("remaining_segments_to_recover", root.path): found[
            key("remaining_segments_to_recover", root.path)
        ],
    }
    assert found == expected_of_run(ledger, report, root.path) | left
    segments = list((root.path / f"{CRASHED[1]}-0").glob("*.log"))
    assert found[key("remaining_segments_to_recover", root.path)] == len(segments)
    recover(HERE, [root.path], replace(options, max_truncate_bytes=1 << 40, allow_truncate=True))
    found = samples_of(file.read_text(), action="recover")
    assert found[key("remaining_logs_to_recover", root.path)] == 0
    assert found[key("remaining_segments_to_recover", root.path)] == 0


@pytest.mark.thorough
def test_a_night_has_the_numbers_of_all_its_steps(tmp_path):
    root = crashed_directory(tmp_path / "log", [*CLEANED, *SWEPT]).with_options(
        now_ms=FIRST_ROUNDS_MS
    )
    ledger, file = tmp_path / "ledger", tmp_path / "pylog.prom"
    options = replace(root, ledger=str(ledger), metrics_file=str(file), limits=ANYTHING)
    report = run_nightly(HERE, [tmp_path / "log"], options)
    found = samples_of(file.read_text(), action="run")
    (end,) = [r for r in rows_of(ledger, "runs", report.run_id) if r["event"] == "END"]
    log = tmp_path / "log"
    for name in ("done", "skipped", "failed"):
        assert found[key("run_partitions", log, status=name)] == end[f"partitions_{name}"]
    assert found[key("run_bytes_before", log)] == end["bytes_before"]
    assert found[key("run_bytes_after", log)] == end["bytes_after"]
    cleaner = expected_of_cleaner(ledger, report, log)
    assert {name: found[name] for name in cleaner} == cleaner
    assert found[key("remaining_logs_to_recover", log)] == 0


@pytest.mark.thorough
def test_findings_are_counted_by_root_and_severity(tmp_path):
    roots, options = two_roots(tmp_path, CLEANED)
    ledger, file = tmp_path / "ledger", tmp_path / "pylog.prom"
    options = replace(options, ledger=str(ledger), metrics_file=str(file))
    report = verify(HERE, roots, options)
    assert report.exit_code == 1
    found = samples_of(file.read_text(), action="verify")
    findings = rows_of(ledger, "findings", report.run_id)
    expected: dict[Key, float] = {}
    for root in roots:
        counts = Counter(row["severity"] for row in findings if row["root"] == str(root))
        expected |= expected_of_run(ledger, report, root)
        for severity in ("fatal", "error", "warn", "harmless", "info"):
            expected[key(f"findings_{severity}", root)] = counts[severity]
    assert found == expected
    bad = [
        found[key("findings_error", root)] + found[key("findings_fatal", root)] for root in roots
    ]
    assert bad[0] < bad[1]


def test_a_run_that_an_error_ended_says_so_and_no_more(tmp_path):
    root = broker_directory(tmp_path / "log", SWEPT)
    file = tmp_path / "pylog.prom"
    options = root.options(FIRST_ROUNDS_MS, metrics_file=str(file))
    with closing(held(root.path)), pytest.raises(GuardRefusedError, match="lock"):
        compact(HERE, [root.path], options)
    found = samples_of(file.read_text(), action="compact")
    names = {"run_start_time_seconds", "run_end_time_seconds", "run_exit_status"}
    assert {name for name, _ in found} == names
    assert found[key("run_exit_status", root.path)] == 3


def held(path: Path) -> Any:
    """Hold the lock of a log directory as a broker does, until it is closed."""
    lock = (path / ".lock").open("wb")
    fcntl.lockf(lock, fcntl.LOCK_EX)
    return lock


def test_a_root_of_any_name_is_a_label(tmp_path):
    hostile = '/srv/a"b\\n\n{} \udcff'
    row = {"run_id": "r", "action": "run", "roots": [hostile], "event": "END"}
    state = RunState(row={**row, "at": NOW}, started=NOW, exit_code=130)
    file = tmp_path / "pylog.prom"
    MetricsFile(str(file)).tell(state)
    found = samples_of(file.read_text(), action="run")
    labels = frozenset({("root", '/srv/a"b\\n\n{} \\xff')})
    assert found["run_exit_status", labels] == 130
    assert found["run_end_time_seconds", labels] == NOW.timestamp()


def test_a_run_that_begins_leaves_the_numbers_of_the_last_one(tmp_path):
    row = {"run_id": "r", "action": "run", "roots": ["/log"], "event": "START"}
    state = RunState(row={**row, "at": NOW}, started=NOW)
    MetricsFile(str(tmp_path / "pylog.prom")).tell(state)
    MetricsPush("http://127.0.0.1:1").tell(state)
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_leaves_the_file_of_the_last_run(tmp_path):
    root = broker_directory(tmp_path / "log", SWEPT)
    file = tmp_path / "pylog.prom"
    file.write_text("as it was")
    options = root.options(FIRST_ROUNDS_MS, metrics_file=str(file), dry_run=True)
    retain(HERE, [root.path], options)
    assert file.read_text() == "as it was"


@pytest.mark.thorough
def test_a_plan_keeps_no_place_for_metrics_and_its_application_is_told_one(tmp_path):
    root = broker_directory(tmp_path / "log", SWEPT)
    plan, file, other = (tmp_path / name for name in ("plan.json", "a.prom", "b.prom"))
    options = root.options(FIRST_ROUNDS_MS, limits=ANYTHING)
    dry = replace(options, dry_run=True, plan_out=str(plan), metrics_file=str(other))
    retain(HERE, [root.path], dry)
    assert "b.prom" not in plan.read_text()
    said = ApplyOptions(overrides=ANYTHING.overrides, metrics_file=str(file))
    report = apply_plan(HERE, plan, said)
    found = samples_of(file.read_text(), action="retain")
    assert found[key("run_partitions", root.path, status="done")] == report.summary.done > 0
    assert not other.exists()


@pytest.fixture
def gateway() -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """A gateway that takes everything: its URL, and method, path and body of each request."""
    requests: list[tuple[str, str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            requests.append((self.command, self.path, body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", requests
    server.shutdown()
    thread.join()
    server.server_close()


def group_of(path: str) -> dict[str, str]:
    """Return the labels that a Pushgateway reads from a path."""
    names = path.removeprefix("/metrics/").split("/")
    group = {}
    for name, value in zip(names[::2], names[1::2], strict=True):
        plain, _, coding = name.partition("@")
        text = base64.urlsafe_b64decode(value).decode() if coding == "base64" else value
        group[plain] = text
    return group


@pytest.mark.thorough
def test_each_root_is_a_group_of_a_gateway(tmp_path, gateway):
    url, requests = gateway
    roots, options = two_roots(tmp_path, CLEANED)
    file = tmp_path / "pylog.prom"
    compact(HERE, roots, replace(options, metrics_push=url, metrics_file=str(file)))
    assert {method for method, *_ in requests} == {"PUT"}
    assert [group_of(path) for _, path, _ in requests] == [
        {
            "job": "pylog",
            "action": "compact",
            "root": str(root),
            "instance": socket.gethostname(),
        }
        for root in roots
    ]
    pushed: dict[Key, float] = {}
    for _, _, body in requests:
        pushed |= samples_of(body, action="compact")
    assert pushed == samples_of(file.read_text(), action="compact")


@pytest.mark.thorough
@pytest.mark.parametrize("changes", ["file", "push"])
def test_what_cannot_be_written_is_a_warning_and_the_run_what_it_was(tmp_path, caplog, changes):
    root = broker_directory(tmp_path / "log", SWEPT)
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    place = {
        "file": {"metrics_file": str(tmp_path / "gone" / "pylog.prom")},
        "push": {"metrics_push": f"http://127.0.0.1:{port}"},
    }[changes]
    options = root.options(FIRST_ROUNDS_MS, limits=ANYTHING, **place)
    report = retain(HERE, [root.path], options)
    assert (report.exit_code, report.summary.failed) == (0, 0)
    assert report.summary.done > 0
    (record,) = [r for r in caplog.records if r.name == "pylog_spark.run.recording"]
    assert record.levelname == "WARNING"
    assert next(iter(place.values())) in record.getMessage()
    assert "changes nothing for the run" in record.getMessage()


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("--metrics-file", "log/pylog.prom", "lies inside the log directory"),
        ("--metrics-file", "none/pylog.prom", "there is no folder"),
        ("--metrics-push", "localhost:9091", "expected http://HOST:PORT"),
        ("--metrics-push", "http://me:hunter2@host:9091", "without user and password"),
        ("--metrics-push", "file:///tmp/x", "expected http://HOST:PORT"),
    ],
)
@pytest.mark.parametrize("command", ["retain", "verify"])
def test_a_place_that_cannot_be_is_refused_before_anything_is_done(
    pylog, tmp_path, monkeypatch, command, option, value, why
):
    root = broker_directory(tmp_path / "log", SWEPT)
    monkeypatch.chdir(tmp_path)
    role = ["--role", "broker"]
    result = pylog(command, root.path, *role, "--engine", "local", option, value)
    assert result.exit_code == 2
    assert why in result.stderr
    assert "hunter2" not in result.stderr
    assert not list(tmp_path.glob("**/*.prom"))


def test_the_document_has_each_metric_and_no_other():
    named = set(re.findall(r"\bpylog_([a-z_]+)\b", DOCUMENT.read_text()))
    # Of a path and of a module.
    assert named - {"run", "spark"} == set(METRICS)
