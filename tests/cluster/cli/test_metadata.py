"""``pylog metadata``: what is shown of copies, and a voter that gets one."""

import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.cluster.cli.metadata import PROMOTE
from pylog_spark.exit_code import ExitCode
from pylog_spark.operations.doctor.driver import find_absent_voters
from pylog_spark.options import JobOptions
from pylog_spark.options.option import CommandLine
from pylog_spark.run.catalogs import read_meta_properties
from pylog_spark.view import Verbatim
from storage_core.catalog.cluster_metadata import CLUSTER_METADATA_DIRECTORY
from storage_core.filenames import META_PROPERTIES_FILE
from tests.cluster.storage.test_metadata_copies import copy_of, elected, led
from tests.kit.cluster_truth import Cluster
from tests.storage_core.catalog import metadata_bytes as md


@pytest.fixture
def roots(tmp_path: Path) -> list[Path]:
    """Three brokers' log directories; their one controller's is lost."""
    return Cluster("clean", tmp_path / "cluster").roots


def rows_of(result: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def make_unreadable(root: Path) -> None:
    md.write_segment(root / CLUSTER_METADATA_DIRECTORY, [md.batch(b"\xff")])


def test_copies_are_rows_and_what_they_say_together_are_sentences(pylog, roots: list[Path]):
    shown = pylog("metadata", "show", *roots)
    assert shown.exit_code == ExitCode.DONE
    text = " ".join(shown.stdout.split())
    assert "1 voter by the last election in the log: 0; without a copy here: 0" in text
    assert "are committed is not known: the copies of a majority tell" in text
    rows = rows_of(pylog("metadata", "show", *roots, "--output", "json"))
    copies = " ".join(row["root"] for row in rows[:3])
    assert f"pylog metadata promote {copies} --into 0=DIR --dry-run" in text
    assert [row["type"] for row in rows] == ["metadata_copy"] * 3 + ["metadata_quorum"]
    assert {row["node_id"] for row in rows[:3]} == {1, 2, 3}
    assert (rows[3]["voters"][0]["root"], rows[3]["majority_offset"]) == (None, None)
    assert rows[0]["log_end_offset"] == rows[3]["log_end_offset"]


def test_a_directory_without_a_copy_is_no_failure(pylog, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    shown = pylog("metadata", "show", tmp_path / "empty")
    assert shown.exit_code == ExitCode.DONE
    assert "no copy of __cluster_metadata is here" in shown.stdout
    assert "`pylog metadata rebuild` makes the metadata anew" in " ".join(shown.stdout.split())


@pytest.mark.thorough
def test_a_copy_that_cannot_be_read_is_a_row_with_its_error(pylog, roots: list[Path]):
    make_unreadable(roots[0])
    shown = pylog("metadata", "show", *roots, "--output", "json")
    assert shown.exit_code == ExitCode.PARTLY_FAILED
    rows = rows_of(shown)
    assert [row["root"] for row in rows[:3] if row["error"]] == [str(roots[0])]


@pytest.mark.thorough
def test_a_root_that_cannot_be_read_hides_no_other(pylog, roots: list[Path]):
    """Its row has no identity: the sentence under it names the root."""
    (roots[0] / "meta.properties").write_text("version=99\n")
    shown = pylog("metadata", "show", *roots)
    assert shown.exit_code == ExitCode.PARTLY_FAILED
    text = " ".join(shown.stdout.split())
    assert "meta.properties: version: expected 0 or 1, found 99" in text
    assert f"no cluster id in {roots[0]}: no copy can be read" in text
    assert "1 voter by the last election in the log: 0" in text
    rows = rows_of(pylog("metadata", "show", *roots, "--output", "json"))
    assert {row["node_id"] for row in rows if row["type"] == "metadata_copy"} == {None, 2, 3}
    (quorum,) = [row for row in rows if row.get("cluster_id", "") is None and "majority" in row]
    assert quorum["log_end_offset"] is None
    refused = pylog("metadata", "promote", *roots, "--into", f"0={roots[0].parent}")
    assert refused.exit_code == ExitCode.USAGE
    assert f"ROOT={roots[0]}: cannot be read" in refused.stderr


def test_a_copy_without_a_node_id_is_nobodys_and_one_copy_is_shown_once(pylog, roots: list[Path]):
    (roots[0] / "meta.properties").unlink()
    rows = rows_of(pylog("metadata", "show", roots[0], roots[0], "--output", "json"))
    assert [row["type"] for row in rows] == ["metadata_copy", "metadata_quorum"]
    assert (rows[0]["is_voter"], rows[0]["error"]) == (None, None)


@pytest.mark.thorough
def test_a_voter_gets_a_copy_once(pylog, roots: list[Path], tmp_path: Path):
    target = tmp_path / "controller"
    target.mkdir()
    words = ("metadata", "promote", *roots, "--into", f"0={target}")
    planned = pylog(*words, "--dry-run")
    assert (planned.exit_code, list(target.iterdir())) == (ExitCode.DONE, [])
    assert "planned" in planned.stdout
    assert "start the controllers first, then the brokers" in planned.stdout
    done, again = (json.loads(pylog(*words, "--output", "json").stdout) for _ in range(2))
    assert (done["status"], again["status"]) == ("done", "skipped")
    assert done["source"] in map(str, roots)
    rows = rows_of(pylog("metadata", "show", target, *roots, "--output", "json"))
    assert rows[-1]["voters"][0]["root"] == str(target)
    assert rows[-1]["majority_offset"] == rows[-1]["log_end_offset"]
    assert [row["may_lead"] for row in rows if row.get("node_id") == 0] == [True]


@pytest.mark.thorough
@pytest.mark.parametrize("is_formatted", [False, True])
def test_the_way_back_is_the_command_that_is_printed(
    pylog, roots: list[Path], tmp_path: Path, is_formatted: bool, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "400")
    target = tmp_path / "controller"
    target.mkdir()
    if is_formatted:
        own = read_meta_properties(str(roots[0]))
        identity = f"version=1\ncluster.id={own.cluster_id}\nnode.id=0\n"
        (target / META_PROPERTIES_FILE).write_text(identity)
    before = list(target.iterdir())
    words = ("metadata", "promote", *roots, "--into", f"0={target}")
    assert "the way back" not in pylog(*words, "--dry-run").stdout
    lines = pylog(*words).stdout.splitlines()
    command = lines[lines.index("the way back, before one of these nodes has started:") + 1]
    subprocess.run(shlex.split(command), check=True)
    assert list(target.iterdir()) == before


@pytest.mark.thorough
def test_the_way_back_is_told_without_a_look_at_any_directory(roots: list[Path], tmp_path: Path):
    target = tmp_path / "controller"
    target.mkdir()
    written = {"roots": [*map(str, roots)], "into": [f"0={target}"]}
    # The second call finds what the first has written.
    answers = [PROMOTE.operate(PROMOTE.prepare(CommandLine(written)), None) for _ in range(2)]
    shutil.rmtree(target)
    for answer in answers:
        blocks = PROMOTE.view(PROMOTE.prepare(CommandLine(written)), answer).blocks
        identity, log = target / META_PROPERTIES_FILE, target / CLUSTER_METADATA_DIRECTORY
        assert Verbatim(f"rm -r {identity} {log}") in blocks


def test_a_voter_that_is_a_broker_too_is_told_to_have_no_records(pylog, tmp_path: Path):
    """Elected on an empty disk it would cut what the others have."""
    registered = [md.register_broker(node) for node in (1, 7)]
    copy = copy_of(tmp_path, 7, [elected(1, leader=1, voters=(1, 2, 7)), md.batch(*registered)])
    Path(copy.root, "meta.properties").write_text("version=1\ncluster.id=one\nnode.id=7\n")
    words = ["metadata", "promote", copy.root, "--dry-run"]
    for node in (1, 2):
        (tmp_path / str(node)).mkdir()
        words += ["--into", f"{node}={tmp_path / str(node)}"]
    text = " ".join(pylog(*words).stdout.split())
    assert "brokers as well, whose disks have no records now: 1. An empty replica" in text
    assert f"pylog audit {copy.root} {tmp_path / '1'} --up 7,1" in text


@pytest.mark.thorough
def test_the_doctor_names_the_controllers_that_have_to_run(pylog, roots: list[Path]):
    show = "must run; if the disks of 0 are lost for good, see `pylog metadata show"
    for given in (roots[:1], roots):
        text = " ".join(pylog("doctor", *given, "--engine", "local").stdout.split())
        assert f"controller 0 {show}" in text


def test_where_a_majority_of_the_controllers_is_given_no_other_is_needed(tmp_path: Path):
    places, records = [], md.batch(md.register_broker(7))
    for node in (1, 2, 7):
        copy = copy_of(tmp_path, node, [elected(1, leader=1, voters=(1, 2, 3)), records])
        identity = f"version=1\ncluster.id=one\nnode.id={node}\n"
        Path(copy.root, "meta.properties").write_text(identity)
        places.append(copy.root)
    voter, other, broker = places
    need = "2 of the controllers 1, 2, 3 must run; if the disks of {} are lost for good"
    for given, lost in (([voter], "2, 3"), ([broker], "1, 2, 3"), ([voter, other], None)):
        sentences = find_absent_voters(given, JobOptions(now_ms=0))
        assert [need.format(lost) in each for each in sentences] == [True] * (lost is not None)


@pytest.mark.thorough
def test_stray_directories_are_rows(pylog, roots: list[Path]):
    root = roots[0]
    shown = pylog("metadata", "adopt", root, "--dry-run")
    assert (shown.exit_code, shown.stdout) == (ExitCode.DONE, "no stray directory is here\n")
    name = f"stock_levels-0.{'0' * 32}-stray"
    (root / "stock_levels-0").rename(root / name)
    assert pylog("metadata", "adopt", root).exit_code == ExitCode.REFUSED  # nobody said the role
    words = ("metadata", "adopt", root, "--role", "broker")
    (planned,) = rows_of(pylog(*words, "--dry-run", "--output", "json"))
    assert (planned["status"], planned["directory"]) == ("planned", name)
    assert "before the brokers start, see who may lead" in pylog(*words).stdout
    assert (root / "stock_levels-0").is_dir()
    assert pylog("metadata", "adopt", root, "--role", "mirror").exit_code == ExitCode.USAGE


@pytest.mark.thorough
def test_a_copy_that_cannot_be_read_is_named_beside_stray_directories(pylog, roots: list[Path]):
    make_unreadable(roots[0])
    (roots[0] / "stock_levels-0").rename(roots[0] / f"stock_levels-0.{'0' * 32}-stray")
    words = ("metadata", "adopt", *roots, "--role", "broker")
    planned = pylog(*words, "--dry-run", "--output", "json")
    assert planned.exit_code == ExitCode.PARTLY_FAILED
    stray, copy = rows_of(planned)
    assert (stray["status"], copy["type"], copy["root"]) == (
        "planned",
        "metadata_copy",
        str(roots[0]),
    )
    text = f"{roots[0]}: its copy of the metadata, perhaps the longest, cannot be read: "
    assert f"{text}{copy['error']}" in planned.stderr
    done = pylog(*words)
    assert done.exit_code == ExitCode.PARTLY_FAILED
    assert " ".join(text.split()) in " ".join(done.stdout.split())
    assert (roots[0] / "stock_levels-0").is_dir()


@pytest.mark.parametrize("text", ["x=/tmp", "3", "3=", "3000000000=/tmp"])
def test_what_is_no_node_and_folder_is_wrong_usage(pylog, roots: list[Path], text: str):
    refused = pylog("metadata", "promote", *roots, "--into", text)
    assert refused.exit_code == ExitCode.USAGE
    assert "expected a node id and a folder: 3=/var/lib/kafka" in refused.stderr


def test_voters_that_a_majority_still_lacks_are_counted(pylog, tmp_path: Path):
    copy = copy_of(tmp_path, 7, [elected(1, leader=1, voters=(1, 2, 3)), led(1, 1)])
    Path(copy.root, "meta.properties").write_text("version=1\ncluster.id=one\nnode.id=7\n")
    (tmp_path / "new").mkdir()
    planned = pylog(
        "metadata", "promote", copy.root, "--into", f"1={tmp_path / 'new'}", "--dry-run"
    )
    assert "no leader yet: of 3 voters, 1 more must get a copy" in planned.stdout
