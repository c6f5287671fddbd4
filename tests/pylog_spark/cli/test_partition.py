"""``pylog partition clean``: Kafka's rounds behind the command line, and what it refuses."""

import json
import shutil
from pathlib import Path

import pytest

from pylog_spark.exit_code import ExitCode
from tests.kit import damage
from tests.kit.builders import BatchSpec, RecordSpec, encode_batch, some_batches
from tests.kit.compare import compare_partitions, read_tree
from tests.kit.directories import SegmentSpec, plain_segment, write_partition
from tests.kit.golden_cleaning import exactness_of, expected_numbers
from tests.kit.golden_data import Golden, Side

COMPACT = ("--set", "cleanup.policy=compact")
END = 21
KEYS = [
    "next_offset",
    "messages_read",
    "messages_written",
    "bytes_read",
    "bytes_written",
    "map_messages_read",
    "invalid_messages_read",
    "segments",
    "size",
    "cleaner_checkpoint",
    "nothing_to_clean",
]
GOLDENS = [
    "clean-everything-none-s101-3",
    "clean-everything-mixed-s151-3",
    "clean-smallmap-none-s161-2",
    "clean-map-too-small-s195",
    "clean-checkpoint-beyond-s201",
    "clean-hw-none-s161",
    "clean-upto-none-s201",
]


def arguments_of(golden: Golden, directory: Path) -> list[object]:
    """Return the command line for what Kafka was asked to do in a golden case."""
    case = golden.case
    params = case["params"]
    config = {"cleanup.policy": "compact", "retention.ms": -1, "offset-map.hash": "md5"}
    config |= case["config"]
    config["internal.segment.bytes"] = config.pop("segment.bytes")
    found: list[object] = ["partition", "clean", directory, "--now-ms", case["clock_ms"]]
    for key, value in config.items():
        found += ["--set", f"{key}={value}"]
    options = {
        "hw": "--high-watermark",
        "map.bytes": "--offset-map-bytes",
        "load": "--load-factor",
        "log.start": "--log-start-offset",
    }
    for key, option in options.items():
        if params.get(key) is not None:
            found += [option, params[key]]
    if params.get("manager"):
        checkpoint = params.get("checkpoint", case.get("previous_checkpoint"))
        return found + ([] if checkpoint is None else ["--cleaner-checkpoint", checkpoint])
    found += ["--first-dirty-offset", params.get("first.dirty", 0)]
    if "first.uncleanable" in params:
        found += ["--first-uncleanable-offset", params["first.uncleanable"]]
    return found


def dirty_partition(folder: Path) -> Path:
    return write_partition(
        folder / "orders-0",
        [
            SegmentSpec(base_offset=0, batches=some_batches(count=5, records=4)),
            plain_segment(20, 1),
        ],
    )


@pytest.mark.parametrize("name", GOLDENS)
def test_the_command_leaves_and_answers_what_kafka_did(pylog, tmp_path: Path, name: str):
    golden = Golden(name)
    directory = golden.unpack(tmp_path / "before")
    result = pylog.done(*arguments_of(golden, directory))
    answer = json.loads(result.stdout)
    assert list(answer) == KEYS
    expected = golden.case["expected"]
    if expected.get("nothing_to_clean"):
        assert answer["nothing_to_clean"] is True
    else:
        numbers = expected_numbers(golden)
        assert {key: answer[key] for key in numbers} == numbers
    after = golden.unpack(tmp_path / "after", Side.AFTER)
    differences = compare_partitions(read_tree(after), read_tree(directory), exactness_of(golden))
    assert differences == []


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(pylog, tmp_path: Path):
    directory = dirty_partition(tmp_path)
    before = read_tree(directory)
    result = pylog("partition", "clean", directory, "--now-ms", 1, *COMPACT, "--dry-run")
    answer = json.loads(result.stdout)
    assert (answer["nothing_to_clean"], answer["groups"]) == (False, [[0]])
    assert answer["first_uncleanable_offset"] == 20
    assert answer["peak_extra_bytes"] == answer["cleanable_bytes"] > 0
    assert read_tree(directory) == before


def test_a_dry_run_of_a_log_that_is_not_due_says_why(pylog, tmp_path: Path):
    directory = dirty_partition(tmp_path)
    result = pylog("partition", "clean", directory, "--now-ms", 1, "--dry-run")
    assert json.loads(result.stdout)["reason"] == "NOT_COMPACTED"


def test_kafkas_map_of_128_mib_is_the_default(pylog, tmp_path: Path):
    directory = dirty_partition(tmp_path)
    small = pylog("partition", "clean", directory, "--now-ms", 1, *COMPACT, "--offset-map-bytes", 0)
    assert json.loads(small.stdout)["next_offset"] == 0
    usual = pylog("partition", "clean", directory, "--now-ms", 1, *COMPACT)
    assert json.loads(usual.stdout)["next_offset"] == 20


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--first-uncleanable-offset", 3], "needs --first-dirty-offset"),
        (["--first-dirty-offset", 3, "--cleaner-checkpoint", 3], "leaves no choice"),
        (["--set", "cleanup.polcy=compact"], "did you mean cleanup.policy?"),
        (["--set", "cleanup.policy=compress"], "cleanup.policy=compress"),
        (["--set", "cleanup.policy"], "expected KEY=VALUE"),
        (["--set", "segment.bytes=1000"], "at least 1048576"),
        (["--high-watermark", -1], "--high-watermark"),
        (["--high-watermark", 2**63], "9223372036854775807"),
        (["--load-factor", "nan"], "between 0 and 1"),
        (["--load-factor", 2], "between 0 and 1"),
        (["--io-buffer-bytes", "1e3"], "whole number"),
    ],
    ids=str,
)
def test_wrong_usage_is_said_and_touches_nothing(pylog, tmp_path: Path, options, said: str):
    directory = dirty_partition(tmp_path)
    before = read_tree(directory)
    result = pylog("partition", "clean", directory, "--now-ms", 1, *options)
    assert result.exit_code == ExitCode.USAGE
    assert said in " ".join(result.stderr.split())
    assert read_tree(directory) == before


@pytest.mark.parametrize("where", ["", "..", "../keys", "keys/deep"])
def test_key_sidecars_in_the_log_directory_of_the_partition_are_refused(
    pylog, tmp_path: Path, where: str
):
    directory = dirty_partition(tmp_path)  # there is no meta.properties beside it
    before = read_tree(directory)
    keys = directory / where
    result = pylog("partition", "clean", directory, "--now-ms", 1, *COMPACT, "--key-sidecars", keys)
    assert result.exit_code == ExitCode.USAGE
    assert "lies inside the log directory" in " ".join(result.stderr.split())
    assert read_tree(directory) == before


def test_a_clock_is_asked_for(pylog, tmp_path: Path):
    result = pylog("partition", "clean", dirty_partition(tmp_path))
    assert result.exit_code == ExitCode.USAGE
    assert "--now-ms" in result.stderr


@pytest.mark.parametrize("name", ["orders", "orders-", "orders-x", "or ders-0"])
def test_a_directory_of_another_name_is_refused(pylog, tmp_path: Path, name: str):
    shutil.copytree(dirty_partition(tmp_path), tmp_path / name)
    result = pylog("partition", "clean", tmp_path / name, "--now-ms", 1, *COMPACT)
    assert result.exit_code == ExitCode.USAGE
    assert name in result.stderr


def test_a_directory_that_is_not_there_is_refused(pylog, tmp_path: Path):
    result = pylog("partition", "clean", tmp_path / "orders-7", "--now-ms", 1)
    assert result.exit_code == ExitCode.USAGE
    assert "no such partition directory" in result.stderr


GOOD = encode_batch(BatchSpec(records=(RecordSpec(key=b"k", value=b"v"),)))


@pytest.mark.item("FLT-12")
def test_a_batch_larger_than_its_file_is_named_with_partition_segment_position_and_size(
    pylog, tmp_path: Path
):
    directory = dirty_partition(tmp_path)
    log = directory / "00000000000000000000.log"
    good_bytes = log.stat().st_size
    log.write_bytes(log.read_bytes() + damage.with_lying_length(GOOD, 2**31 - 1))
    before = read_tree(directory)
    result = pylog("partition", "clean", directory, "--now-ms", 1, *COMPACT)
    assert (result.exit_code, result.stdout) == (ExitCode.PARTLY_FAILED, "")
    assert read_tree(directory) == before
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"pylog: {directory}: {log.name}: position {good_bytes}: ")
    assert "2147483659 bytes" in line


@pytest.mark.parametrize("log_start", [21, 22, 100], ids=["at the end", "just above", "far above"])
@pytest.mark.parametrize("then", [(), ("--then-retain",)], ids=["round", "round and deletion pass"])
def test_a_log_that_starts_at_its_end_or_above_is_left_as_one_load_leaves_it(
    pylog, tmp_path: Path, log_start: int, then: tuple[str, ...]
):
    """A second load would forget the snapshot and the epoch that stand at the log's start."""
    trees = []
    options = ("--now-ms", 1, *COMPACT, "--log-start-offset", log_start)
    for name, command in (
        ("loaded", ("recover", "--clean-shutdown")),
        ("cleaned", ("clean", *then)),
    ):
        directory = dirty_partition(tmp_path / name)
        (directory / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
        pylog.done("partition", command[0], directory, *command[1:], *options)
        trees.append(read_tree(directory))
    loaded, cleaned = trees
    if log_start == END and then:
        # What lies below the log start goes, as it does in no load.
        loaded = {name: data for name, data in loaded.items() if not name.startswith(f"{0:020}.")}
    assert cleaned == loaded


def test_the_name_of_a_file_in_a_log_is_not_wrong_usage(pylog, tmp_path: Path):
    directory = dirty_partition(tmp_path)
    (directory / "leader-epoch-checkpoint.cleaned").touch()
    before = read_tree(directory)
    result = pylog("partition", "recover", directory, "--now-ms", 1)
    assert result.exit_code == ExitCode.PARTLY_FAILED
    assert "leader-epoch-checkpoint.cleaned" in result.stderr
    assert result.stderr.count("\n") == 1
    assert read_tree(directory) == before


@pytest.mark.parametrize("command", ["clean", "retain"])
def test_an_index_that_kafka_cannot_open_for_appends_is_refused(
    pylog, tmp_path: Path, command: str
):
    directory = dirty_partition(tmp_path)
    (directory / "00000000000000000020.index").write_bytes(bytes(80))
    before = read_tree(directory)
    small = ("--set", "segment.index.bytes=24")
    result = pylog("partition", command, directory, "--now-ms", 1, *COMPACT, *small)
    assert result.exit_code == ExitCode.PARTLY_FAILED
    assert "segment.index.bytes allows 24" in result.stderr
    assert result.stderr.count("\n") == 1
    assert read_tree(directory) == before
