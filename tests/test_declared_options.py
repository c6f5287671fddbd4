"""Every option is declared once; what a command line says of it arrives where jobs read it."""

import dataclasses
import enum
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.cli.command import Command, CommandGroup
from pylog_spark.cli.commands import COMMANDS
from pylog_spark.cluster.cli import commands as of_cluster
from pylog_spark.options import JobOptions, RunLimits, declared, of_partitions
from pylog_spark.options import load as load_module
from pylog_spark.options.choices import OutputFormat, RecordOutput
from pylog_spark.options.declared import EXCLUDE, OPTIONS, OUTPUT, TOPICS
from pylog_spark.options.load import load_config
from pylog_spark.options.option import CommandLine, Option, options_of
from tests.pylog_spark.cli.test_chosen_topics import CALLS
from tests.pylog_spark.cli.test_csv import COMMANDS as COMMANDS_WITH_CSV

NOW_MS = 1_700_000_000_000
OF_RUNS = {**options_of(JobOptions), **options_of(RunLimits)}
# What a job reads while its options are made, and what only a command reads.
READ_BY_LOAD = {
    *("config_files", "settings", "server_properties"),
    *("recompress", "recompress_all", "key_sidecars"),
}
READ_BY_COMMANDS = {
    *("deep", "directory", "fail_on", "in_place", "live", "managed", "mirror", "origin"),
    *("output", "path", "plan", "report", "roots", "run", "segments", "settle", "show"),
    *("isolation", "only_run", "sync_stopped", "by", "last", "per_topic", "wide"),
    # Of the commands that show records.
    *("allow_data_loss", "columns", "end", "format", "full", "key_format", "keys", "max_records"),
    *("need", "null", "out", "partitions", "sample", "start", "to", "topic", "value_format"),
    "lateness",
    *("key_schema", "value_schema", "schemas", "with_local", "decryption_key", "topic_id"),
    *("reader_schema", "reader_message", "on_error", "logical_types"),
    *("all_commands", "as_records", "folder", "quiet", "root_of_topic", "state", "up"),
    *("targets", "new_names", "keep_producers", "allow_abort", "offsets_out"),
    *("archive", "metadata_partitions", "newest", "topics_out"),
    *("copy", "copy_prefix", "offset_map", "donors", "quorum"),
    *("controller_listener", "initial_controllers", "older_copy", "release_version"),
    *("archive", "grace", "recheck"),
    *("attest", "election_out", "into", "leader", "leader_epoch", "level", "lost_keys", "timeline"),
}


def commands() -> list[Command]:
    found = []
    for command in COMMANDS:
        found += command.commands if isinstance(command, CommandGroup) else [command]
    return found


def written(option: Option[Any], tmp_path: Path) -> Any:
    """Return something that a command line may have for an option."""
    kind = option.kind
    if kind.written is bool:
        return option.says
    if isinstance(kind.written, type) and issubclass(kind.written, enum.Enum):
        return list(kind.written)[-1]
    texts = {
        "max_bytes": "7GiB",
        "max_duration": "7m",
        "min_free": "7KiB",
        "max_delete_ratio": "0.7",
        "purge_after": "7h",
        "metrics_push": "http://seven:9091",
        "overrides": ["NOT_THE_OWNER"],
    }
    if option.name in texts:
        return texts[option.name]
    if option.name == "topic_dump":
        file = tmp_path / "topics.json"
        file.write_text('{"format": "pylog-topics", "version": 1, "taken_ms": 1, "topics": {}}')
        return file
    values = {str: "/seven", int: 7, Path: Path("/seven"), list[str]: ["seven"]}
    return values[kind.written]


@pytest.mark.parametrize("option", OF_RUNS.values(), ids=lambda option: option.name)
def test_an_option_of_a_run_arrives_where_jobs_read_it_and_nowhere_else(
    option: Option[Any], tmp_path: Path
):
    if option.flag is None:
        return
    line = {option.name: written(option, tmp_path)}
    if option.name == "exact":
        line["dry_run"] = True
    options = load_config(CommandLine(line), now_ms=NOW_MS).options
    plain = load_config(CommandLine({}), now_ms=NOW_MS).options
    changed = {
        field.name
        for values, others in ((options, plain), (options.limits, plain.limits))
        for field in dataclasses.fields(values)
        if field.name != "limits" and getattr(values, field.name) != getattr(others, field.name)
    }
    (field,) = [name for name, each in OF_RUNS.items() if each is option]
    assert changed - {"now_is_said", "dry_run"} == {field} - {"dry_run"}
    assert field in changed
    assert ("now_is_said" in changed) == (field == "now_ms")


@pytest.mark.parametrize("command", commands(), ids=lambda command: command.work)
def test_every_option_of_a_command_is_read_by_somebody(command: Command):
    names = {option.name for option in command.options}
    assert len(names) == len(command.options)
    if command.work.startswith("pylog_spark.cli.partition_"):
        return
    assert names <= {option.name for option in OF_RUNS.values()} | READ_BY_LOAD | READ_BY_COMMANDS


def test_every_option_belongs_to_a_command_or_to_files():
    declarations = [
        value
        for module in (declared, of_partitions, of_cluster)
        for value in vars(module).values()
        if isinstance(value, Option)
    ]
    flags = {(option.name, option.flag) for command in commands() for option in command.options}
    for option in declarations:
        assert (option.name, option.flag) in flags or option.is_in_files, option.name
    # Two commands may mean an option of one name and flag in two ways.
    pairs = {(option.name, option.flag) for option in OPTIONS}
    assert len({name for name, _ in pairs}) == len(pairs)
    of_flag = [flag for _, flag in pairs if flag is not None]
    assert len(set(of_flag)) == len(of_flag)


def test_the_defaults_file_says_what_the_code_does_where_there_is_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    with_file = load_config(CommandLine({}), now_ms=NOW_MS).options
    monkeypatch.setattr(load_module, "defaults_file", lambda: tmp_path / "none.yaml")
    assert load_config(CommandLine({}), now_ms=NOW_MS).options == with_file


def test_the_defaults_file_has_every_option_that_files_may_have():
    text = (Path(__file__).parents[1] / "conf" / "defaults.yaml").read_text()
    names = {line.partition(":")[0] for line in text.splitlines() if line[:1].isalpha()}
    assert names == {option.name for option in OPTIONS if option.is_in_files}


def test_a_marker_is_left_to_the_files_unless_somebody_says_no(tmp_path: Path):
    file = tmp_path / "a.yaml"
    file.write_text("mark_clean: false\n")
    for line, mark_clean in (
        ({}, True),
        ({"mark_clean": False}, False),
        ({"config_files": [file]}, False),
    ):
        options = load_config(CommandLine(line), now_ms=NOW_MS).options
        assert options.mark_clean is mark_clean


def test_zero_and_no_are_said_things():
    line = CommandLine({"now_ms": 0, "max_truncate_bytes": 0, "salvage": Path(), "include": []})
    options = load_config(line, now_ms=NOW_MS).options
    assert (options.now_ms, options.now_is_said, options.max_truncate_bytes) == (0, True, 0)
    assert options.salvage == str(Path().absolute())
    assert declared.TOPICS not in line


def test_every_command_that_chooses_topics_is_called_by_its_test():
    named = [
        (command.name if group is command else f"{group.name} {command.name}", command)
        for group in COMMANDS
        for command in (group.commands if isinstance(group, CommandGroup) else (group,))
    ]
    names = {option.name for option in (TOPICS, EXCLUDE)}
    chosen = {name for name, each in named if names & {option.name for option in each.options}}
    assert chosen == set(CALLS)


def test_every_command_with_a_table_has_csv_and_no_other():
    def output_of(command: Command) -> Any:
        return next((o.kind.written for o in command.options if o.name == OUTPUT.name), None)

    with_csv = {one.name for one in commands() if output_of(one) is OutputFormat}
    tested = {name.partition(" ")[0] for name in COMMANDS_WITH_CSV} - {"config"}
    others = {"explain", "doctor", "show", "promote", "adopt", "rebuild", "heal"}
    others |= {"transplant", "attach"}
    assert with_csv == tested | others
    assert {one.name for one in commands() if output_of(one) is RecordOutput} == {
        *("dump", "cat", "export", "replay")
    }
