"""The program as a whole: help, start-up, what errors become."""

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.accumulators import (
    AccumulatorTCPServer,
    AccumulatorUnixServer,
    UpdateRequestHandler,
)

from pylog_spark.cli import error_text
from pylog_spark.cli.command import Command
from pylog_spark.cli.commands import COMMANDS as COMMAND_TABLE
from pylog_spark.cli.warmup import write_sample
from pylog_spark.exit_code import ExitCode, TerminatedError, exit_code_of
from pylog_spark.java import JavaNotFoundError
from storage_core import __version__
from storage_core.errors import (
    ChangedWhileReadError,
    CheckpointError,
    ConfigError,
    CorruptRecordError,
    GuardRefusedError,
    InvalidNameError,
    PartitionNotFoundError,
    RecoveryRequiredError,
    StorageError,
)
from storage_core.filenames import TopicPartition, log_file
from storage_core.store import open_object_store
from storage_core.store.generations import (
    FileEntry,
    Manifest,
    create_root,
    data_key,
    encode_manifest,
    manifest_key,
)
from storage_core.threads import count_processors
from tests.kit.golden_data import Golden
from tests.kit.program import run_to_end

COMMANDS = [
    *("run", "recover", "retain", "compact", "verify", "doctor", "inspect", "dump", "explain"),
    *("cat", "export", "find", "sql", "free", "groups", "transactions"),
    *("survey", "apply", "runs", "undo", "purge", "ingest", "materialize"),
    *("partition clean", "partition recover", "partition retain", "partition truncate"),
    *("config show", "config init", "warmup"),
]
HEAVY = {"pyspark", "pandas", "delta", "py4j", "s3fs", "fsspec"}


def modules_after(*arguments: object) -> set[str]:
    """Return the modules that the program has imported once a command has ended."""
    code = """
import contextlib, sys
from pylog_spark.cli import main
with contextlib.suppress(SystemExit):
    main(sys.argv[1:])
sys.stderr.write("\\n" + " ".join(sys.modules))
"""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = run_to_end(command, check=True)
    return set(done.stderr.splitlines()[-1].split())


def test_the_help_lists_every_command(pylog):
    result = pylog.done("--help")
    for command in COMMANDS:
        assert f" {command.split()[0]} " in result.stdout


@pytest.mark.sampled(10)
@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_has_an_example(pylog, command: str):
    result = pylog.done(*command.split(), "--help")
    assert f"Example: pylog {command}" in " ".join(result.stdout.split())


@pytest.mark.parametrize("command", [*COMMANDS, "partition", "config", ""])
def test_the_short_help_fits_on_a_screen_and_names_every_option(pylog, command: str):
    result = pylog.done(*command.split(), "-h")
    lines = result.stdout.splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 80
    assert lines[-1] == f"All of it: {' '.join(['pylog', *command.split()])} --help"
    declared = {each.name: each for each in COMMAND_TABLE}.get(command)
    if isinstance(declared, Command):
        flags = {each.flag for each in declared.options if each.flag and not each.is_hidden}
        assert flags <= set(re.findall(r"--[a-z-]+", result.stdout))


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["inspect", "partition clean", ""])
def test_help_is_a_command_too(pylog, command: str):
    asked = pylog.done("help", *command.split())
    assert asked.stdout == pylog(*command.split(), "--help").stdout


def test_version_is_a_command_too(pylog):
    assert pylog("version").stdout == pylog("--version").stdout == f"pylog {__version__}\n"


def test_a_command_that_is_not_there_yet_does_not_exist(pylog):
    result = pylog("rewind", "/logs")
    assert result.exit_code == ExitCode.USAGE
    assert "no such command" in result.stderr


def test_a_misspelled_command_names_the_nearest_one(pylog):
    result = pylog("inspekt")
    assert result.exit_code == ExitCode.USAGE
    assert "inspect" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--nonsense", "no such option: --nonsense (see: pylog --help)"),
        ("dump --nonsense x", "no such option: --nonsense (see: pylog dump --help)"),
        ("run", "missing argument 'ROOT' (see: pylog run --help)"),
        ("run x --role boss", "'boss' is not one of 'broker', 'mirror', 'managed'"),
        ("run x --dry-run=exakt", "expected --dry-run or --dry-run=exact"),
        ("run x --exact", "--exact: expected --dry-run=exact"),
        ("undo x --dry-run=exact", "this command has only --dry-run (see: pylog undo --help)"),
        (
            "partition clean t-0 --dry-run=exact",
            "--dry-run=exact: this command has only --dry-run (see: pylog partition clean --help)",
        ),
        ("survey nope://x/y", "ROOT=nope://x/y: expected a URL that fsspec knows"),
        ("run nope://x/y --role mirror", "ROOT=nope://x/y: expected a URL that fsspec knows"),
        ("inspect nope://x/y", "ROOT=nope://x/y: expected a URL that fsspec knows"),
        ("dump nope://x/y", "PATH=nope://x/y: expected a URL that fsspec knows"),
        ("partition klean", "Did you mean 'clean'? (see: pylog partition --help)"),
        ("partition clean t-0 --now-ms soon", "found 'soon' (see: pylog partition clean --help)"),
    ],
)
def test_wrong_usage_is_one_line_that_says_where_help_is(pylog, arguments: str, said: str):
    result = pylog(*arguments.split())
    assert result.exit_code == ExitCode.USAGE
    assert result.stdout == ""
    assert result.stderr.startswith("pylog: ")
    assert result.stderr.count("\n") == 1
    assert said in result.stderr
    assert "Value error" not in result.stderr


@pytest.mark.parametrize("arguments", [[], ["partition"], ["config"]])
def test_a_group_without_a_command_shows_its_help(pylog, arguments: list[str]):
    result = pylog(*arguments)
    assert result.exit_code == ExitCode.USAGE
    assert "Usage: pylog" in result.stdout
    assert result.stderr == ""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "words", [("inspect", "{root}"), ("dump", "{log}"), ("partition", "clean", "{partition}")]
)
def test_commands_with_machine_code_at_hand_import_no_numba(tmp_path: Path, words: tuple[str, ...]):
    write_sample(tmp_path / "t-0")
    places = {
        "root": tmp_path,
        "partition": tmp_path / "t-0",
        "log": tmp_path / "t-0" / log_file(0),
    }
    arguments = [word.format(**places) for word in words]
    if words[0] == "partition":
        arguments += ["--now-ms", "1800000000000", "--first-dirty-offset", "0"]
    shutil.copytree(tmp_path, tmp_path / "once")  # the first one compiles what is not there yet
    modules_after(*(argument.replace(str(tmp_path), f"{tmp_path}/once") for argument in arguments))
    shutil.rmtree(tmp_path / "once")
    assert "numba" not in modules_after(*arguments)


@pytest.mark.thorough
@pytest.mark.skipif(count_processors() == 1, reason="BLAS starts no thread on one processor")
def test_a_command_starts_no_thread_of_blas_unless_it_is_told_to(tmp_path: Path):
    (tmp_path / log_file(0)).touch()
    code = (
        "import os, sys; from pylog_spark.cli.program import run; run(sys.argv[1:]); import numpy; "
        "sys.stderr.write(str(len(os.listdir('/proc/self/task'))))"
    )
    command = [sys.executable, "-c", code, "dump", tmp_path / log_file(0), "--output", "json"]

    def threads_of(said: dict[str, str]) -> int:
        environment = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"} | said
        done = run_to_end(command, check=True, env=environment)
        return int(done.stderr)

    assert threads_of({}) == threads_of({"OPENBLAS_NUM_THREADS": "2"}) - 1


@pytest.mark.thorough
@pytest.mark.parametrize("arguments", [["--help"], ["compact", "--help"], ["partition", "--help"]])
def test_help_imports_no_spark(arguments: list[str]):
    assert modules_after(*arguments) & (HEAVY | {"numba", "pyarrow", "numpy"}) == set()


@pytest.mark.thorough
def test_a_partition_command_imports_neither_spark_nor_pandas(tmp_path: Path):
    (tmp_path / "t-0").mkdir()
    found = modules_after("partition", "clean", tmp_path / "t-0", "--now-ms", 1)
    assert found & (HEAVY | {"rich", "humanize"}) == set()


@pytest.mark.thorough
def test_dump_imports_neither_spark_nor_pandas(tmp_path: Path):
    (tmp_path / "00000000000000000000.log").touch()
    found = modules_after("dump", tmp_path / "00000000000000000000.log", "--output", "json")
    assert found & (HEAVY | {"rich", "humanize"}) == set()


# What few commands need.
SPARED = {
    *HEAVY,
    *("deltalake", "pyarrow.acero", "pyarrow.csv", "pyarrow.dataset", "pyarrow.json"),
    *("pyarrow.parquet", "pylog_spark.operations.nightly", "rich.progress"),
}
PLANNED = ("--role", "broker", "--assume-defaults", "*", "--engine", "local", "--dry-run")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("command", "spared"),
    [
        (("inspect",), {"pyarrow", "pylog_spark.engines.engine"}),
        (("doctor",), set()),
        (("retain", *PLANNED), set()),
        (("compact", *PLANNED), set()),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_start_imports_nothing_that_it_can_spare(
    tmp_path: Path, command: tuple[str, ...], spared: set[str]
):
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=1\n")
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / log_file(0)).touch()
    found = modules_after(*command, tmp_path)
    assert "storage_core.kernels.file_starts" in found
    assert found & (SPARED | spared) == set()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("retention.ms", "x", "expected a whole number"), 2),
        (InvalidNameError("orders", "expected <topic>-<partition>"), 2),
        (PartitionNotFoundError("/nowhere"), 2),
        (ModuleNotFoundError("No module named 'pyspark'", name="pyspark"), 2),
        (GuardRefusedError("LOCKED", "a broker runs"), 3),
        (CorruptRecordError("0.log", 7, "bad"), 4),
        (CheckpointError("leader-epoch-checkpoint", 1, "bad"), 4),
        (RecoveryRequiredError("/t-0", "no index"), 4),
        (ChangedWhileReadError("0.log", "1", "2"), 4),
        (StorageError("/t-0", "disk full"), 5),
        (JavaNotFoundError(("PATH: nothing",)), 5),
        (OSError(28, "No space left on device"), 5),
        (MemoryError(), 5),
        (ZeroDivisionError("division by zero"), 5),
        (KeyboardInterrupt(), 130),
        (TerminatedError(), 143),
        (BrokenPipeError(), 141),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_an_error_has_its_exit_status(error: BaseException, code: int):
    assert exit_code_of(error) == code


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let the command ``warmup`` raise."""

    def warmup(_line: object) -> int:
        raise error

    monkeypatch.setattr("pylog_spark.cli.warmup.warmup", warmup)


def test_an_unexpected_error_is_one_line_that_says_how_to_see_more(pylog, monkeypatch):
    raising(monkeypatch, ZeroDivisionError("division\nby zero"))
    result = pylog("warmup")
    assert result.exit_code == ExitCode.FAILED
    assert result.stderr.count("\n") == 1
    assert "unexpected ZeroDivisionError: division by zero" in result.stderr
    assert "--debug" in result.stderr
    assert "Traceback" not in result.stderr


def test_debug_shows_where_an_error_happened(pylog, monkeypatch):
    raising(monkeypatch, ZeroDivisionError("division by zero"))
    result = pylog("--debug", "warmup")
    assert result.exit_code == ExitCode.FAILED
    assert "Traceback" in result.stderr


def test_the_text_of_an_error_cannot_steer_the_terminal(pylog, monkeypatch):
    raising(monkeypatch, StorageError("/logs/\x1b[2Jorders-0", "disk full"))
    result = pylog("warmup")
    assert "\x1b" not in result.stderr
    assert "\\x1b[2Jorders-0" in result.stderr


def test_a_missing_package_is_named_with_the_extra_that_brings_it(pylog, monkeypatch):
    raising(monkeypatch, ModuleNotFoundError("No module named 'pyspark'", name="pyspark"))
    result = pylog("warmup")
    assert result.exit_code == ExitCode.USAGE
    assert "pip install 'pylog-spark[local]'" in result.stderr


def test_a_failure_of_spark_is_short(capsys):
    error = type("AnalysisException", (Exception,), {"__module__": "pyspark.errors"})
    error_text.report_error(error("boom\n\tat org.apache.Spark(x.java:1)\nend"), debug=False)
    assert capsys.readouterr().err == "pylog: Spark failed: AnalysisException: boom end\n"


def test_an_interrupted_command_ends_with_130(pylog, monkeypatch):
    raising(monkeypatch, KeyboardInterrupt())
    assert pylog("warmup").exit_code == ExitCode.INTERRUPTED


def test_a_library_that_logs_an_interruption_is_not_heard(caplog):
    error_text.leave_out_interruptions()
    error_text.leave_out_interruptions()
    lost = ConnectionResetError("what an interruption leads to")
    lost.__context__ = TerminatedError()
    for error in (KeyboardInterrupt(), TerminatedError(), lost, ValueError("heard")):
        # To the root logger, as py4j does.
        logging.error("while sending a command", exc_info=error)  # noqa: LOG015
    assert [record.exc_info[0] for record in caplog.records] == [ValueError]


def test_a_server_whose_jvm_has_gone_prints_nothing(capsys, monkeypatch):
    for kind in (AccumulatorTCPServer, AccumulatorUnixServer):
        monkeypatch.setattr(kind, "handle_error", kind.handle_error)
    error_text.leave_out_lost_connections()
    with AccumulatorTCPServer(("127.0.0.1", 0), UpdateRequestHandler, "token") as server:
        server.handle_error(server.socket, ("127.0.0.1", 1))
    assert capsys.readouterr().err == ""


def test_nothing_is_looked_for_on_a_disk_before_ctrl_c_ends_the_process_silently():
    code = """
import sys
before = set(sys.modules)
import pylog_spark.cli
print(sorted(set(sys.modules) - before))
import signal
pylog_spark.cli.end_silently()
print(signal.getsignal(signal.SIGINT) is signal.SIG_DFL)
"""
    done = run_to_end([sys.executable, "-c", code])
    assert done.stdout == "['pylog_spark', 'pylog_spark.cli']\nTrue\n"


def test_as_a_module_ctrl_c_is_silent_before_anything_of_ours_is_looked_for():
    code = """
import runpy, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "storage_core":
            print(signal.getsignal(signal.SIGINT) is signal.SIG_DFL)
sys.meta_path.insert(0, Finder())
runpy.run_module("pylog_spark.__main__", run_name="imported")
"""
    done = run_to_end([sys.executable, "-c", code])
    assert done.stdout == "True\n"


@pytest.mark.thorough
def test_sigterm_ends_a_command_with_143():
    code = """
import time
import pylog_spark.cli.warmup as module
from pylog_spark.cli import main
def warmup(line) -> int:
    print("ready", flush=True)
    time.sleep(60)
module.warmup = warmup
main(["warmup"])
"""
    assert end_when_ready(code) == (ExitCode.TERMINATED, "pylog: terminated\n")


def end_when_ready(code: str) -> tuple[int, str]:
    """Run a program, end it by SIGTERM when it has said "ready"; return its status and stderr."""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=20)
        finally:
            process.kill()
    return process.returncode, said


@pytest.mark.thorough
def test_sigterm_does_not_wait_for_an_object_store_that_does_not_answer():
    code = """
import threading
from pylog_spark.cli import main
from tests.kit.memory_objects import MemoryObjectStore
url = "memory://unanswered/logs"
store = MemoryObjectStore(url)
for name in ("a-0", "b-0", "c-0"):
    store.put(f"{name}/00000000000000000000.log", b"")
several = threading.Barrier(2)
def unanswered(plain):
    def ask(*arguments, **options):
        if threading.current_thread() is threading.main_thread():
            return plain(*arguments, **options)
        if several.wait() == 0:
            print("ready", flush=True)
        threading.Event().wait()
    return ask
for name in ("get", "list"):
    setattr(type(store), name, unanswered(getattr(type(store), name)))
main(["inspect", url])
"""
    status, said = end_when_ready(code)
    assert (status, said) == (ExitCode.TERMINATED, "pylog: terminated\n")


@pytest.mark.thorough
@pytest.mark.parametrize("names", [["a"], ["a", "b"]], ids=["one partition", "several"])
def test_sigterm_ends_a_look_at_a_manifest_with_very_many_files(names: list[str], tmp_path: Path):
    objects = open_object_store(str(tmp_path))
    create_root(objects, now_ms=1_700_000_000_000)
    for name in names:
        partition = TopicPartition(name, 0)
        files = {
            log_file(offset): FileEntry(
                key=data_key(partition, "attempt", log_file(offset)),
                start=0,
                size_bytes=100,
                etag="e",
                modified_ms=1,
            )
            for offset in range(20_000)
        }
        manifest = Manifest(
            partition=partition, generation=1, run_id="r", attempt_id="attempt", files=files
        )
        objects.put(manifest_key(partition), encode_manifest(manifest))
    code = f"""
from pylog_spark.cli import main
from storage_core.store import generations as manifest
plain = manifest.validate_file_name
def validate(name):
    manifest.validate_file_name = plain
    print("ready", flush=True)
    return plain(name)
manifest.validate_file_name = validate
main(["inspect", "managed+{tmp_path}"])
"""
    status, said = end_when_ready(code)
    assert (status, said) == (ExitCode.TERMINATED, "pylog: terminated\n")


@pytest.mark.parametrize("output", ["table", "json"])
def test_the_largest_retention_of_records_of_the_future_is_no_error(
    output: str, pylog, broker_dir: Path
):
    job = ["retain", broker_dir, "--role", "broker", "--dry-run", "--engine", "local"]
    limits = ["--set", f"retention.ms={2**63 - 1}", "--now-ms", 1_000_000]
    done = pylog.done(*job, *limits, "--topics", "events", "--wide", "--output", output)
    assert "FUTURE_TIMESTAMP" in done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "streams", "status", "said"),
    [
        ("inspect {}", ">/dev/full", 5, "pylog: No space left on device\n"),
        ("inspect {} --output json", ">/dev/full", 5, "pylog: No space left on device\n"),
        ("--version", ">/dev/full", 5, "pylog: No space left on device\n"),
        ("inspect /nonexistent", "2>/dev/full", 2, ""),
        ("inspect {}", ">&-", 0, ""),
        ("dump {}/events-0", "<&- >&-", 0, ""),
        ("inspect /nonexistent", "2>&-", 2, ""),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "-u "], ids=["buffered", "unbuffered"])
def test_streams_that_are_full_or_closed_end_no_command_with_1(
    arguments: str, streams: str, status: int, said: str, unbuffered: str, broker_dir: Path
):
    program = f"{sys.executable} {unbuffered}-m pylog_spark"
    command = f"{program} {arguments.replace('{}', str(broker_dir))}"
    done = run_to_end(["/bin/sh", "-c", f"{command} {streams}"])
    assert (done.returncode, done.stdout, done.stderr) == (status, "", said)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "words",
    ["dump {}/events-0 --output json | head -1", "run --help | true"],
    ids=["early", "in the middle of a help text"],
)
def test_a_reader_that_goes_away_ends_the_command_quietly(broker_dir: Path, words: str):
    command = f"{sys.executable} -m pylog_spark {words.replace('{}', str(broker_dir))}"
    done = run_to_end(["/bin/bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"])
    assert done.stderr == ""
    assert done.returncode in {ExitCode.READER_GONE, ExitCode.DONE}


# Before anything of ours is imported: this Python says of itself that it has no interpreter lock.
FREE_THREADED = """
import sys
import sysconfig
ask = sysconfig.get_config_var
sysconfig.get_config_var = lambda name: 1 if name == "Py_GIL_DISABLED" else ask(name)
from pylog_spark.cli import main
main(sys.argv[1:])
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "{}"),
        ("dump", "{}/events-0"),
        ("verify", "{}", "--engine", "local"),
        ("run", "{}", "--role", "broker", "--engine", "local"),
    ],
    ids=lambda words: words[0],
)
def test_a_python_that_is_not_supported_is_one_error_before_work_begins(tmp_path, words):
    root = Golden("broker-dir").unpack(tmp_path)
    before = sorted(root.rglob("*"))
    done = run_to_end([sys.executable, "-c", FREE_THREADED, *(word.format(root) for word in words)])
    assert (done.returncode, done.stdout) == (ExitCode.FAILED, "")
    (line,) = done.stderr.splitlines()
    version = ".".join(map(str, sys.version_info[:3]))
    assert line.startswith(f"pylog: Python {version} ")
    assert "it is free-threaded" in line
    assert "use CPython 3.11, 3.12, 3.13 or 3.14" in line
    assert sorted(root.rglob("*")) == before
