"""Log directories of one broker: what one disk says holds for the others too."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.cli.export import EXPORT
from pylog_spark.engines.choice import Local
from pylog_spark.options.option import CommandLine
from pylog_spark.source.options import parse_options
from pylog_spark.source.reader import KafkaLogReader
from tests.kit.golden_data import Golden
from tests.kit.program import lines_of

NOW_MS = int(Golden("broker-dir").case["clock_ms"])
# What of a row names the disk, or is a sum over it.
OF_THE_DISK = {"root", "directory", "duration_ms"}


@pytest.fixture
def disks(broker_dir: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A copy of a broker's directory, every second partition moved to a second disk."""
    first, second = tmp_path / "first", tmp_path / "second"
    shutil.copytree(broker_dir, first)
    second.mkdir()
    for file in first.iterdir():
        if file.is_file():
            shutil.copy2(file, second / file.name)
    text = (second / "meta.properties").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("directory.id")]
    (second / "meta.properties").write_text("\n".join([*lines, "directory.id=" + "B" * 21 + "Q"]))
    partitions = sorted(path for path in first.iterdir() if path.is_dir())
    moved = [path for path in partitions if path.name != "__cluster_metadata-0"][::2]
    for path in moved:
        path.rename(second / path.name)
    return first, second


def rows_of(result: Any) -> list[str]:
    """Return all rows without what names the disk, in an order of their own."""
    assert result.exit_code == 0, result.stderr
    rows = lines_of(result)
    rows = [row for row in rows if row["type"] != "log_directory"]
    return sorted(
        json.dumps({key: value for key, value in row.items() if key not in OF_THE_DISK})
        for row in rows
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("command", ["groups", "transactions", "inspect"])
def test_two_disks_say_what_one_would(
    command: str, pylog: Any, broker_dir: Path, disks: tuple[Path, Path]
):
    clock = [] if command == "inspect" else ["--now-ms", NOW_MS]
    of_whole = rows_of(pylog(command, broker_dir, "--output", "json", *clock))
    assert of_whole
    for order in (disks, disks[::-1]):
        assert rows_of(pylog(command, *order, "--output", "json", *clock)) == of_whole


@pytest.mark.thorough
@pytest.mark.parametrize(
    "view", ["groups", "consumer_offsets", "transactions", "open_transactions"]
)
def test_views_in_spark_of_two_disks_say_what_those_of_one_would(
    view: str, broker_dir: Path, disks: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("storage_core.clock.SystemClock.now_ms", lambda _: NOW_MS)

    def rows(*paths: Path) -> list[str]:
        said = {"paths": json.dumps(list(map(str, paths))), "view": view}
        reader = KafkaLogReader(parse_options(said))
        batches = (batch for part in reader.partitions() for batch in reader.read(part))
        found = [row for batch in batches for row in batch.to_pylist()]
        assert not any(row["error"] for row in found)
        return sorted(str(row | dict.fromkeys(OF_THE_DISK)) for row in found)

    of_whole = rows(broker_dir)
    assert bool(of_whole) == (view != "open_transactions")
    for order in (disks, disks[::-1]):
        assert rows(*order) == of_whole


@pytest.mark.thorough
def test_transactions_say_where_what_judges_them_may_lie(pylog: Any, disks: tuple[Path, Path]):
    holder, other = sorted(disks, key=lambda disk: not list(disk.glob("__transaction_state-*")))
    for path in other.glob("__transaction_state-*"):
        path.rename(holder / path.name)
    alone = pylog("transactions", other, "--now-ms", NOW_MS)
    text = " ".join(alone.stdout.split())
    assert "no partition of __transaction_state is here" in text
    assert "the broker's other log directories (log.dirs)" in text
    assert "is here" not in pylog("transactions", *disks, "--now-ms", NOW_MS).stdout


@pytest.mark.thorough
def test_a_place_whose_log_is_on_a_disk_that_was_not_given_is_said_to_be_unknown(
    pylog: Any, disks: tuple[Path, Path]
):
    holder = next(disk for disk in disks if list(disk.glob("__consumer_offsets-*")))
    shown = pylog.done("groups", holder, "--now-ms", NOW_MS)
    text = " ".join(shown.stdout.split())
    assert "no log here of " in text
    assert "Give all log directories of the broker (log.dirs)" in text
    assert "at least " in text
    both = pylog("groups", *disks, "--now-ms", NOW_MS).stdout
    assert "no log here of" not in both
    assert "at least" not in both


@pytest.mark.thorough
def test_a_disk_without_the_clusters_metadata_says_where_policies_are_known(
    pylog: Any, disks: tuple[Path, Path]
):
    first, second = disks
    alone = " ".join(pylog("inspect", second).stdout.split())
    assert f"{second} has no __cluster_metadata: policies are not known." in alone
    assert "has no __cluster_metadata" not in " ".join(
        pylog("inspect", first, second).stdout.split()
    )


@pytest.mark.thorough
def test_a_disk_of_another_broker_is_not_asked(pylog: Any, disks: tuple[Path, Path]):
    first, second = disks
    properties = second / "meta.properties"
    properties.write_text(properties.read_text().replace("node.id=", "node.id=9"))
    shown = pylog("inspect", first, second, "--output", "json")
    rows = lines_of(shown)
    policies = {
        row["cleanup_policy"]
        for row in rows
        if row["type"] == "partition" and row["root"] == str(second)
    }
    assert policies == {None}


@pytest.mark.thorough
def test_config_init_asks_the_metadata_of_the_other_disk(pylog: Any, disks: tuple[Path, Path]):
    first, second = disks
    of_second = pylog("config", "init", second)
    of_both = pylog("config", "init", second, first)
    assert "cleanup.policy" in of_second.stdout
    assert "cleanup.policy" not in of_both.stdout


@pytest.mark.thorough
def test_an_export_of_one_disk_says_which_partitions_it_does_not_have(
    pylog: Any, disks: tuple[Path, Path], tmp_path: Path
):
    first, _ = disks
    (there,) = [int(path.name.rpartition("-")[2]) for path in first.glob("events-*")]
    words = ("--topic", "events", "--to", "csv", "--engine", "local")
    alone = pylog.done("export", first, *words, "--out", tmp_path / "alone")
    text = " ".join(alone.stdout.split())
    assert f"1 partition of events not in these directories (events-{1 - there})" in text
    told = pylog("export", first, *words, "--out", tmp_path / "json", "--output", "json")
    assert json.loads(told.stdout)["missing_partitions"] == [1 - there]
    both = pylog("export", *disks, *words, "--out", tmp_path / "both")
    assert "not in these directories" not in both.stdout
    chosen = ("--partition", there)
    said = pylog("export", first, *words, *chosen, "--out", tmp_path / "chosen")
    assert "not in these directories" not in said.stdout


@pytest.mark.thorough
def test_what_an_export_says_is_made_without_a_look_at_any_directory(
    disks: tuple[Path, Path], tmp_path: Path
):
    first, _ = disks
    written = {
        "roots": [str(first)],
        "topic": ["events"],
        "out": str(tmp_path / "out"),
        "to": "csv",
    }
    call = EXPORT.prepare(CommandLine(written))
    answer = EXPORT.operate(call, Local())
    (line,) = EXPORT.view(call, answer).lines
    shutil.rmtree(first)
    assert list(EXPORT.view(call, answer).lines) == [line]
    assert line.row["missing"]
