"""``pylog find``: versions of a key before and after compaction, wherever they are left."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.exit_code import ExitCode
from tests.kit.builders import BatchSpec, RecordSpec
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.file_damage import flip
from tests.kit.golden_broker import broker_origin, unpack_broker
from tests.kit.program import lines_of
from tests.kit.source_disk import write_source, write_states

CLOCK_MS = int(broker_origin()["clock_ms"]) + 3_600_000
TOPIC = "user-profiles"


def find(pylog, root: Path, key: str, *words: object) -> Any:
    return pylog.done("find", root, "--topic", TOPIC, "--key", key, "--output", "json", *words)


def offsets_of(result: Any) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for row in lines_of(result, "version")]


@pytest.fixture(scope="module")
def folder(pylog, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory before its compaction, one after it with the trash, a managed root after."""
    made = tmp_path_factory.mktemp("found")
    unpack_broker(made / "before")
    unpack_broker(made / "after")
    job = ("--topics", TOPIC, "--now-ms", CLOCK_MS, "--engine", "local")
    pylog.done("compact", made / "after", "--role", "broker", *job, "--trash", made / "trash")
    managed = made / "managed"
    take = ("--topics", TOPIC, "--sync-stopped", "--settle", "1s", "--engine", "local")
    pylog.done("ingest", made / "before", managed, *take)
    config = ("--config", made / "topics.yaml")
    (made / "topics.yaml").write_text(f"topics:\n  {TOPIC}:\n    cleanup.policy: compact\n")
    pylog.done("compact", managed, "--role", "managed", *job, *config)
    return made


@pytest.fixture(scope="module")
def key(pylog, folder: Path) -> str:
    """A key with several versions."""
    result = pylog("cat", TOPIC, "--root", folder / "before", "-f", "%k\n")
    return Counter(result.stdout.split()).most_common(1)[0][0]


@pytest.mark.thorough
def test_the_newest_are_told_and_how_many_are_not(pylog, folder, key):
    every = find(pylog, folder / "before", key)
    some = find(pylog, folder / "before", key, "--max", 2)
    offsets = offsets_of(every)
    assert len(offsets) > 3
    assert offsets_of(some) == offsets[-2:]
    left_out = [sum(row["left_out"] for row in lines_of(each, "history")) for each in (every, some)]
    assert left_out == [0, len(offsets) - 2]
    words = ("find", folder / "before", "--topic", TOPIC, "--key", key, "--wide")
    note = f"{len(offsets) - 2} older records are left out; --max says how many"
    assert note in pylog(*words, "--max", 2).stdout
    assert "left out" not in pylog(*words).stdout


def test_all_versions_are_found_before_compaction_and_the_newest_after(pylog, folder, key):
    before = find(pylog, folder / "before", key)
    versions = lines_of(before, "version")
    cat = ("cat", TOPIC, "--root", folder / "before", "--key", key, "--output", "json")
    records = [json.loads(line) for line in pylog(*cat).stdout.splitlines()]
    assert [(row["offset"], row["value"], row["timestamp"]) for row in versions] == [
        (row["offset"], row["value"], row["timestamp"]) for row in records
    ]
    assert len(versions) > 1
    following = [row["offset"] for row in versions[1:]]
    assert [row["superseded_by"] for row in versions] == [*following, None]
    after = find(pylog, folder / "after", key)
    assert set(offsets_of(after)) < set(offsets_of(before))
    assert offsets_of(after)[-1] == offsets_of(before)[-1]
    number = versions[0]["partition"]
    told = {row["partition"]: row for row in lines_of(after, "history")}[number]
    assert told["erased_offsets"] > 0
    assert "compaction or a cut has taken them" in told["sentence"]


@pytest.mark.thorough
def test_the_trash_has_what_a_run_took_away(pylog, folder, key):
    found = find(pylog, folder / "after", key, "--trash", folder / "trash")
    assert offsets_of(found) == offsets_of(find(pylog, folder / "before", key))
    versions = lines_of(found, "version")
    (run,) = {copy["name"] for row in versions for copy in row["copies"] if copy["name"]}
    assert (folder / "trash" / run / "run.json").is_file()
    gone = [row for row in versions if not row["is_visible"]]
    assert {copy["kind"] for row in gone for copy in row["copies"]} == {"trash"}
    assert all(Path(copy["path"]).is_file() for row in versions for copy in row["copies"])
    text = pylog(
        *("find", folder / "after", "--topic", TOPIC, "--key", key),
        *("--trash", folder / "trash", "--wide"),
    ).stdout
    assert f"trash of run {run}" in text
    assert f"superseded by {versions[1]['offset']:,}" in text


@pytest.mark.thorough
def test_former_generations_of_a_managed_root_have_theirs(pylog, folder, key):
    found = find(pylog, folder / "managed", key)
    assert offsets_of(found) == offsets_of(find(pylog, folder / "before", key))
    gone = [row for row in lines_of(found, "version") if not row["is_visible"]]
    assert {copy["kind"] for row in gone for copy in row["copies"]} == {"generation"}
    assert {copy["name"] for row in gone for copy in row["copies"]} == {"1"}
    # What both generations have, in one and the same object, is told once.
    cat = ("cat", TOPIC, "--root", folder / "managed", "-p", 0, "--from", -1, "-f", "%k")
    last = lines_of(find(pylog, folder / "managed", pylog(*cat).stdout), "version")[-1]
    assert [copy["kind"] for copy in last["copies"]] == ["log"]


def test_values_and_keys_come_as_they_are_asked_for(pylog, folder, key):
    digits = key.encode().hex()
    words = ("--key-format", "hex", "--value-format", "text")
    found = find(pylog, folder / "before", digits, *words)
    assert offsets_of(found) == offsets_of(find(pylog, folder / "before", key))
    assert {row["key"] for row in lines_of(found, "version")} == {digits}
    wrong = pylog("find", folder / "before", "--topic", TOPIC, "--key", "x", "--key-format", "hex")
    assert wrong.exit_code == ExitCode.USAGE


def test_a_key_that_is_nowhere_is_said_with_what_is_sure_about_it(pylog, folder):
    words = ("--topic", TOPIC, "--key", "nobody")
    before = pylog("find", folder / "before", *words).stdout
    assert "no version is left" in before
    after = " ".join(pylog("find", folder / "after", *words).stdout.split())
    assert "versions of the key may have been among them" in after


def test_what_is_not_there_is_wrong_usage(pylog, folder):
    root = folder / "before"
    for words in (
        ("--topic", "nothing", "--key", "k"),
        ("--topic", TOPIC, "--key", "k", "--partition", 99),
        ("--topic", TOPIC, "--key", "k", "--trash", folder / "nowhere"),
        ("--topic", TOPIC),
        ("--key", "k"),
    ):
        assert pylog("find", root, *words).exit_code == ExitCode.USAGE, words


@pytest.mark.thorough
def test_a_partition_that_cannot_be_read_is_a_row_and_the_others_are_told(pylog, folder, tmp_path):
    root = tmp_path / "log"
    unpack_broker(root)
    log = min((root / f"{TOPIC}-0").glob("*.log"))
    log.write_bytes(b"\0" * 100 + log.read_bytes()[100:])
    result = pylog("find", root, "--topic", TOPIC, "--key", "k", "--output", "json")
    assert result.exit_code == ExitCode.PARTLY_FAILED
    assert {row["partition"] for row in lines_of(result, "partition")} == {0}
    assert len(lines_of(result, "history")) == 3
    text = pylog("find", root, "--topic", TOPIC, "--key", "k").stdout
    assert log.name in text


def test_an_old_version_before_damage_is_not_called_the_newest(pylog, tmp_path):
    batches = [
        BatchSpec(base_offset=n, records=(RecordSpec(key=b"k", value=b"v%d" % n),))
        for n in range(3)
    ]
    write_partition(tmp_path / "orders-0", [SegmentSpec(base_offset=0, batches=batches)])
    log = tmp_path / "orders-0" / "00000000000000000000.log"
    flip(log)
    words = ("find", tmp_path, "--topic", "orders", "--key", "k")
    result = pylog(*words, "--wide")
    assert result.exit_code == ExitCode.PARTLY_FAILED
    assert "the newest that was read" in result.stdout
    assert "no version is missing" not in result.stdout
    assert str(log) in result.stdout
    (told,) = lines_of(pylog(*words, "--output", "json"), "history")
    assert (told["is_whole"], told["end_offset"]) == (False, 2)
    assert "newer versions may be there" in told["sentence"]
    nowhere = " ".join(pylog(*words[:-1], "nobody").stdout.split())
    assert "of 1 partition, 1 was not read to the end" in nowhere


@pytest.mark.parametrize(
    ("status", "transaction", "shown"),
    [
        (2, "commit", "commit decided"),
        (3, "abort", "abort decided"),
        (4, "commit", "commit decided"),
        (None, "undecided", "undecided"),
    ],
)
def test_an_open_transaction_ends_as_its_coordinator_has_decided(
    pylog, tmp_path, status, transaction, shown
):
    """``cat`` and ``transactions`` say it of the same records; the coordinator may be elsewhere."""
    data, states = tmp_path / "d1", tmp_path / "d2"
    write_source(data)
    states.mkdir()
    if status is not None:
        write_states(states, {"transaction_status": status})
    words = ("find", data, states, "--topic", "orders", "--key", "k")
    older, newest = pylog.rows(*words, kind="version")[-2:]
    assert (older["transaction"], newest["transaction"]) == (None, transaction)
    # A version that is committed supersedes others; one that may never be does not.
    superseding = newest["offset"] if transaction == "commit" else None
    assert older["superseded_by"] == superseding
    assert shown in pylog(*words).stdout
