"""``pylog.yaml`` and ``PYLOG_CONFIG``: what a place says, who is believed, what wins."""

import os
from pathlib import Path

import pytest

from pylog_spark.exit_code import ExitCode
from pylog_spark.options.declared import CONFIG_FILES, LEDGER, ROLE, ROOTS, TRASH
from pylog_spark.options.option import CommandLine, Place
from pylog_spark.options.place import PLACE_FILE, PLACE_VARIABLE, read_place
from storage_core.catalog.roles import Role
from storage_core.errors import ConfigError
from tests.kit.directories import plain_segment, write_partition


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with two log directories and no file of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(PLACE_VARIABLE, raising=False)
    for number in (1, 2):
        write_partition(tmp_path / f"logs{number}" / "orders-0", [plain_segment(0, number)])
    return tmp_path


def say(place: Path, text: str, name: str = PLACE_FILE) -> Path:
    path = place / name
    path.write_text(text)
    path.chmod(0o644)
    return path


def test_paths_are_those_of_the_file_and_urls_are_kept(place: Path):
    assert read_place() is None
    say(
        place,
        "roots: [logs1, /srv/logs, 's3://bucket/root', managed+own]\nrole: mirror\n"
        "ledger: s3://bucket/ledger\ntrash: trash\nconfig: [a.yaml]\n",
    )
    read = read_place()
    assert read == Place(
        file=str(place / PLACE_FILE),
        values={
            "roots": [f"{place}/logs1", "/srv/logs", "s3://bucket/root", f"managed+{place}/own"],
            "role": Role.MIRROR,
            "ledger": "s3://bucket/ledger",
            "trash": f"{place}/trash",
            "config_files": [place / "a.yaml"],
        },
    )
    line = CommandLine({"trash": "/elsewhere"}, read)
    assert (line[TRASH], line[ROLE], line[LEDGER]) == (
        "/elsewhere",
        Role.MIRROR,
        "s3://bucket/ledger",
    )
    assert (line[CONFIG_FILES], ROOTS in line) == ((place / "a.yaml",), False)


@pytest.mark.thorough
def test_the_command_line_wins_over_the_environment_over_the_directory(
    pylog, place: Path, monkeypatch
):
    assert pylog("inspect").exit_code == ExitCode.USAGE
    say(place, "roots: logs1\n")
    assert [row["size_bytes"] > 0 for row in pylog.rows("inspect", kind="partition")] == [True]
    named = say(place / "logs2", "roots: [.]\n", "of-this-shell.yaml")
    monkeypatch.setenv(PLACE_VARIABLE, str(named))
    (row,) = pylog.rows("inspect", kind="partition")
    assert row["root"] == str(place / "logs2")
    (row,) = pylog.rows("inspect", place / "logs1", kind="partition")
    assert row["root"] == str(place / "logs1")
    monkeypatch.setenv(PLACE_VARIABLE, "")
    refused = pylog("inspect")
    assert (refused.exit_code, refused.stderr) == (
        ExitCode.USAGE,
        "pylog: missing argument 'ROOT' (see: pylog inspect --help)\n",
    )


def test_settings_are_shown_with_their_file(pylog, place: Path):
    path = say(place, "roots: [logs1, logs2]\nrole: broker\ntrash: t\nconfig: c.yaml\n")
    say(place, "role: mirror\nmax_bytes: 1GiB\n", "c.yaml")
    rows = {row["key"]: row for row in pylog.rows("config", "show", "--origin")}
    assert rows["roots"]["value"] == f"{place}/logs1, {place}/logs2"
    assert (rows["trash"]["value"], rows["trash"]["origin"]) == (f"{place}/t", str(path))
    # A config file is about more than this place, but it was named for this command or place.
    assert (rows["role"]["value"], rows["role"]["origin"]) == ("mirror", f"{place}/c.yaml")
    assert rows["max_bytes"]["value"] == "1GiB"
    other = say(place, "order: name\n", "d.yaml")
    rows = {row["key"]: row for row in pylog.rows("config", "show", "--origin", "--config", other)}
    assert (rows["role"]["value"], rows["role"]["origin"]) == ("broker", str(path))
    assert "config" not in rows


def test_roots_only_stand_in_where_a_command_needs_some(pylog, place: Path):
    say(place, "roots: logs1\ntrash: trash\n")
    (place / "trash").mkdir(mode=0o700)
    result = pylog("purge", "--dry-run", "--output", "json")
    assert result.exit_code == 0, result.stderr
    assert "logs1" not in result.stdout


@pytest.mark.thorough
def test_a_query_and_a_topic_are_asked_of_the_roots_of_the_place(pylog, place: Path):
    say(place, "roots: logs2\n")
    (row,) = pylog.rows("sql", "SELECT count(*) AS n FROM orders")
    assert row["n"] == 2
    assert len(pylog.rows("cat", "--topic", "orders")) == 2
    query = pylog("sql", "SELECT count(*) FROM orders", "--output", "csv")
    assert query.exit_code == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("roots: logs1\nrool: broker\n", "line 2: rool=broker: unknown key; did you mean role?"),
        ("roots: [1]\n", "line 1: roots=[1]: expected a text, or a list of texts"),
        ("roots: []\n", "line 1: roots"),
        ("\n\nrole: brokr\n", "line 3: role=brokr: expected one of: broker, mirror, managed"),
        ("trash: [a]\n", "line 1: trash"),
        ("roots: a\nroots: b\n", "stands twice"),
        ("yes: 1\n", "True=1: unknown key"),
        ("\0", "is no YAML"),
        ("- roots\n", "expected a mapping"),
        ("roots: !!python/object:os.system x\n", "is no YAML"),
        ("a: " + "[" * 50, "levels deep"),
        ("x" * (1 << 20) + ": 1", "is larger than"),
    ],
)
def test_what_it_may_not_say_is_named_by_file_and_line(place: Path, text: str, reason: str):
    path = say(place, text)
    with pytest.raises(ConfigError) as refused:
        read_place()
    assert reason in str(refused.value)
    assert str(path) in str(refused.value)


def test_a_file_that_others_can_write_is_refused(pylog, place: Path, monkeypatch):
    path = say(place, "roots: logs1\n")
    for mode in (0o664, 0o646):
        path.chmod(mode)
        refused = pylog("inspect")
        assert refused.exit_code == ExitCode.USAGE
        assert "may be written by others" in refused.stderr
        assert str(path) in refused.stderr
    path.chmod(0o644)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    monkeypatch.setattr("storage_core.local_files.ROOT_USER", os.getuid() + 2)
    with pytest.raises(ConfigError, match="belongs to user"):
        read_place()
    monkeypatch.setenv(PLACE_VARIABLE, "")
    assert read_place() is None


def test_a_link_or_a_fifo_is_no_file_of_a_place(place: Path, monkeypatch):
    kept = say(place / "logs1", "roots: .\n")
    (place / PLACE_FILE).symlink_to(kept)
    with pytest.raises(ConfigError, match="is a link"):
        read_place()
    monkeypatch.setenv(PLACE_VARIABLE, PLACE_FILE)
    named = read_place()
    assert named is not None
    assert named.file == str(place / PLACE_FILE)
    monkeypatch.delenv(PLACE_VARIABLE)
    (place / PLACE_FILE).unlink()
    os.mkfifo(place / PLACE_FILE)
    with pytest.raises(ConfigError, match="FIFO"):
        read_place()


def test_a_file_that_is_named_must_be_there(pylog, place: Path, monkeypatch):
    monkeypatch.setenv(PLACE_VARIABLE, "absent.yaml")
    refused = pylog("inspect", place / "logs1")
    assert refused.exit_code == ExitCode.USAGE
    assert f"{PLACE_VARIABLE}={place}/absent.yaml" in refused.stderr
    assert pylog("--version").exit_code == 0
