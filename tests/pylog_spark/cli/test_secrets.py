"""A password that is said in a URL, or in the ``spark:`` section, is shown nowhere."""

import json

import pytest

from pylog_spark.cli.error_text import report_error
from pylog_spark.discovery import resolve_roots
from pylog_spark.options import JobOptions
from pylog_spark.report import json_line, partition_name
from pylog_spark.run.guards import check_ledger
from pylog_spark.run.job import Job, open_recorder
from pylog_spark.text import escaped, printable, readable_bytes
from storage_core.catalog.roles import Role
from storage_core.errors import ConfigError, StorageError
from storage_core.store import open_object_store

URL = "sftp://me:hunter2@host/logs"
HIDDEN = "sftp://me:***@host/logs"


@pytest.mark.parametrize("prefix", ["", "managed+"])
def test_a_root_with_a_password_is_refused_and_not_repeated(prefix):
    with pytest.raises(ConfigError, match="FSSPEC_<SCHEME>_PASSWORD") as caught:
        resolve_roots([prefix + URL], role=Role.MIRROR)
    assert str(caught.value).startswith(f"ROOT={prefix}{HIDDEN}: ")
    with pytest.raises(ConfigError, match=r"^location=sftp://me:\*\*\*@host/logs: "):
        open_object_store(URL)


def test_a_ledger_with_a_password_is_refused_and_not_repeated():
    with pytest.raises(ConfigError, match=r"^--ledger=s3a://k:\*\*\*@b/x: Spark writes a URL"):
        check_ledger([], "s3a://k:hunter2@b/x")


@pytest.mark.parametrize(
    "command", ["inspect", "doctor", "verify", "run", "dump", "explain", "survey"]
)
def test_no_command_repeats_it(pylog, command):
    result = pylog(command, URL)
    assert result.exit_code == 2
    assert "hunter2" not in result.stdout + result.stderr
    assert ":***@" in result.stderr


@pytest.mark.parametrize("debug", [False, True])
def test_no_error_repeats_it(capsys, debug):
    for error in (StorageError(URL, "x"), ValueError(f"cannot {URL}"), OSError(2, "x", URL)):
        report_error(error, debug=debug)
    said = capsys.readouterr().err
    assert "hunter2" not in said
    assert said.count(HIDDEN) >= 3


def test_no_row_repeats_it():
    row = {"root": URL, "topic": None, "error": f"{URL}/x: gone"}
    line = json_line("result", row)
    assert json.loads(line) == {
        "type": "result",
        "root": HIDDEN,
        "topic": None,
        "error": f"{HIDDEN}/x: gone",
    }
    assert partition_name(row) == HIDDEN
    # What records hold is not ours to change.
    assert escaped(URL) == readable_bytes(URL.encode(), limit=99) == URL
    assert printable(URL) == HIDDEN


def test_the_settings_in_force_are_shown_without_secrets(pylog, tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text(
        f"master: 'sc://host:15002/;token=hunter2'\nledger: '{URL}'\n"
        "spark:\n  spark.hadoop.fs.s3a.secret.key: hunter2\n"
        f"  spark.jars.repositories: 'https://me:hunter2@nexus/'\n"
    )
    for output in ("table", "json"):
        result = pylog.done("config", "show", "--config", config, "--output", output)
        assert "hunter2" not in result.stdout + result.stderr
        assert "https://me:***@nexus/" in result.stdout
    config.write_text("spark:\n  spark.hadoop.fs.s3a.secret.key: {a: hunter2}\n")
    result = pylog("config", "show", "--config", config)
    assert result.exit_code == 2
    assert "hunter2" not in result.stdout + result.stderr


def test_the_ledger_of_a_run_has_its_options_without_them():
    options = JobOptions(
        now_ms=1, master="sc://host:15002/;token=hunter2", file_list="https://me:hunter2@h/x"
    )
    job = Job(run_id="r", action="run", roots=(), options=options)
    said = open_recorder(None, job).facts["options"]
    assert "hunter2" not in said
    assert json.loads(said)["file_list"] == "https://me:***@h/x"
