"""``pylog transplant``: what it plans, does and refuses, and what it hands over."""

import json
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from pylog_spark.cluster import transplant as driver
from pylog_spark.exit_code import ExitCode
from pylog_spark.operations.past_runs import list_past_runs
from storage_core.catalog.cluster_metadata import CLUSTER_METADATA_DIRECTORY
from storage_core.checkpoint.lock import LogDirectoryLock
from storage_core.cluster.transplant import replica
from storage_core.cluster.transplant.plan import TransplantReason
from storage_core.filenames import CLEAN_SHUTDOWN_FILE, log_file
from tests.cluster.transplant.clusters import PRODUCER_IDS, Target
from tests.cluster.transplant.test_plan import ONGOING, commit
from tests.kit.builders import BatchSpec, RecordSpec, in_a_row, segment_bytes, some_batches
from tests.kit.directories import SegmentSpec
from tests.kit.source_disk import (
    CLUSTER,
    END,
    OPEN_PRODUCER,
    write_properties,
    write_source,
    write_states,
)
from tests.storage_core.catalog import metadata_bytes as md

SOURCE_CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"


@pytest.fixture
def disks(tmp_path: Path) -> list[Path]:
    """The disks of a target with the topic orders, with its metadata on the first."""
    values = [
        *(md.topic("orders"), md.partition(0, replicas=(1, 2))),
        md.config("orders", "retention.ms", "-1"),
    ]
    return Target(folder=tmp_path / "target", values=values).as_brokers()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "old"
    write_source(root)
    write_properties(root, 5, SOURCE_CLUSTER)
    key = b"\0\1" + b"\0\5group" + b"\0\6orders" + bytes(4)
    record = RecordSpec(key=key, value=b"\0\3" + commit(9))
    segment = SegmentSpec(base_offset=0, batches=[BatchSpec(records=(record,))])
    write_source(root, [segment], name="__consumer_offsets-0")
    return root


def words_of(source: Path, disks: list[Path]) -> list[str]:
    to = [word for disk in disks for word in ("--to", str(disk))]
    words = ["transplant", str(source), *to, "--topics", "*", "--role", "broker"]
    return [*words, "--allow-abort"]


def answer(pylog: Any, status: ExitCode, *words: object) -> str:
    """Return what the program says, as one line: of wrong usage on standard error."""
    result = pylog(*words)
    assert result.exit_code == status, result.output
    said = result.stderr if status == ExitCode.USAGE else result.stdout
    return " ".join(said.split())


def rows_of(result: Any, kind: str = "transplant") -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    return [row for row in rows if row["type"] == kind]


@pytest.mark.thorough
def test_with_a_trash_the_way_back_is_printed_and_goes_back(
    pylog, source: Path, disks: list[Path], tmp_path: Path, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "200")
    trash = tmp_path / "trash"
    shown = pylog(*words_of(source, [d / ".." / d.name for d in disks]), "--trash", trash)
    (line,) = [line for line in shown.stdout.splitlines() if line.startswith("the way back")]
    words = shlex.split(line.partition(": ")[2])
    assert words[:2] == ["pylog", "undo"]
    assert all((disk / "orders-0").is_dir() for disk in disks)
    listed = pylog("runs", "--trash", trash, "--output", "json").stdout
    assert json.loads(listed)["action"] == "transplant"
    assert pylog(*words[1:]).exit_code == ExitCode.DONE
    assert not any((disk / "orders-0").exists() for disk in disks)
    # The trash may not lie where a broker looks.
    said = answer(pylog, ExitCode.USAGE, *words_of(source, disks), "--trash", disks[0] / "trash")
    assert f"lies inside the log directory {disks[0]}" in said


@pytest.mark.thorough
def test_partitions_go_with_what_belongs_to_them(pylog, source: Path, disks, tmp_path: Path):
    offsets = tmp_path / "offsets.csv"
    words = [*words_of(source, disks), "--offsets-out", str(offsets)]
    planned = pylog(*words, "--dry-run", "--output", "json")
    assert planned.exit_code == ExitCode.DONE, planned.stderr
    assert [row["status"] for row in rows_of(planned)] == ["planned"]
    assert not offsets.exists()
    assert {path.name for path in disks[1].iterdir()} == {"meta.properties"}
    done = pylog(*words, "--output", "json")
    assert done.exit_code == ExitCode.DONE, done.stderr
    (row,) = rows_of(done)
    assert (row["status"], row["target"], row["log_end_offset"]) == ("done", "orders-0", END + 1)
    assert row["directories"] == [str(disk / "orders-0") for disk in disks]
    assert row["aborted_transactions"] == 1
    assert all((disk / "orders-0" / log_file(0)).stat().st_size for disk in disks)
    assert offsets.read_text() == "group,orders,0,9\n"
    assert rows_of(done, "group_offset")[0]["offset"] == 9
    (topic,) = rows_of(done, "kafka_topic")
    assert topic["spec"] == {
        "topicName": "orders",
        "partitions": 1,
        "replicas": 2,
        "config": {"retention.ms": "-1"},
    }
    (cluster,) = rows_of(done, "target_cluster")
    assert f"--cluster-id {CLUSTER} " in cluster["format_command"]
    again = pylog(*words)
    assert again.exit_code == ExitCode.DONE
    text = " ".join(again.stdout.split())
    assert "a former call has written it" in text
    assert "--group group --reset-offsets --execute --from-file" in text
    start = again.stdout.index("---\n")
    assert yaml.safe_load(again.stdout[start:]) == {
        key: topic[key] for key in ("apiVersion", "kind", "metadata", "spec")
    }


def without_consent(source: Path, disks: list[Path]) -> list[str]:
    return [word for word in words_of(source, disks) if word != "--allow-abort"]


@pytest.mark.thorough
def test_an_open_transaction_is_aborted_with_consent_alone(pylog, source: Path, disks, monkeypatch):
    """Its coordinator is on another disk, and had it committed perhaps."""
    monkeypatch.setenv("COLUMNS", "80")
    words = without_consent(source, disks)
    text = answer(pylog, ExitCode.REFUSED, *words)
    assert "1 open transaction of 1 record is committed perhaps: no partition of" in text
    assert "TRANSACTION_UNDECIDED: name all log directories" in text
    assert not (disks[0] / "orders-0").exists()
    (row,) = rows_of(pylog(*words, "--output", "json"))
    assert (row["undecided_transactions"], row["undecided_records"]) == (1, 1)
    said = answer(pylog, ExitCode.DONE, *words_of(source, disks))
    assert "1 record in open transactions is aborted by --allow-abort, committed or not" in said


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("state", "is_commit"), [({}, True), ({"transaction_status": 3}, False)])
def test_an_open_transaction_ends_as_its_coordinator_has_decided(
    pylog, source: Path, disks, tmp_path: Path, state: dict[str, Any], is_commit: bool
):
    other = tmp_path / "other"
    write_states(other, state)
    write_properties(other, 6, SOURCE_CLUSTER)
    words = [*without_consent(source, disks), str(other)]
    (row,) = rows_of(pylog(*words, "--output", "json"))
    assert (row["status"], row["committed_transactions"]) == ("done", int(is_commit))
    assert (row["aborted_transactions"], row["undecided_transactions"]) == (int(not is_commit), 0)
    text = " ".join(pylog(*words).stdout.split())
    ending = "committed: their coordinators" if is_commit else "aborted: no commit of them"
    assert f"1 record in open transactions is {ending}" in text
    visible = pylog(
        "cat", disks[1], "--topic", "orders", "--isolation", "read_committed", "-f", "%s\n"
    )
    assert ("open" in visible.stdout.splitlines()) == is_commit


@pytest.mark.thorough
@pytest.mark.parametrize("is_known", [True, False], ids=["decided", "undecided"])
def test_offsets_in_an_open_transaction_go_once_its_commit_is_decided(
    pylog, source: Path, disks, tmp_path: Path, is_known: bool
):
    key = b"\0\1" + b"\0\5group" + b"\0\6orders" + bytes(4)
    batches = [
        BatchSpec(records=(RecordSpec(key=key, value=b"\0\3" + commit(9)),)),
        BatchSpec(
            records=(RecordSpec(key=key, value=b"\0\3" + commit(11)),),
            producer_id=OPEN_PRODUCER,
            producer_epoch=2,
            base_sequence=0,
            is_transactional=True,
        ),
    ]
    shutil.rmtree(source / "__consumer_offsets-0")
    (source / CLEAN_SHUTDOWN_FILE).unlink()
    segment = SegmentSpec(base_offset=0, batches=in_a_row(batches))
    write_source(source, [segment], name="__consumer_offsets-0", is_clean=False)
    if is_known:
        places = [{"topic": n, "partition_ids": [0]} for n in ("orders", "__consumer_offsets")]
        write_states(source, {"transaction_partitions": places})
    offsets = tmp_path / "offsets.csv"
    done = pylog(*words_of(source, disks), "--offsets-out", offsets)
    assert done.exit_code == ExitCode.DONE, done.stdout
    assert offsets.read_text() == f"group,orders,0,{11 if is_known else 9}\n"
    text = " ".join((done.stdout + done.stderr).split())
    said = "left out, committed perhaps: 1 offset of groups (group) in open transactions: no part"
    assert (said in text) == (not is_known)


@pytest.mark.thorough
def test_a_coordinators_replica_that_was_not_in_sync_decides_nothing(
    pylog, source: Path, disks, tmp_path: Path
):
    """The others have later records: it went on there."""
    write_states(source, ONGOING)
    for in_sync, exit_code in (((6,), ExitCode.REFUSED), ((5, 6), ExitCode.DONE)):
        records = [
            *(md.topic("orders", md.ID_A), md.partition(0, md.ID_A, replicas=(5,))),
            md.topic("__transaction_state", md.ID_B),
            md.partition(0, md.ID_B, replicas=(5, 6)),
            md.partition_change(0, md.ID_B, {0: md.numbers(*in_sync)}),
        ]
        md.write_segment(source / CLUSTER_METADATA_DIRECTORY, [md.batch(*records)])
        result = pylog(*without_consent(source, disks))
        assert result.exit_code == exit_code, result.stdout


@pytest.mark.thorough
def test_a_refusal_names_its_way_out_and_the_others_go(pylog, source: Path, disks):
    plain = [SegmentSpec(base_offset=0, batches=some_batches(count=4))]
    write_source(source, plain, name="bills-0")
    text = answer(pylog, ExitCode.REFUSED, *words_of(source, disks))
    assert "the target has no topic bills: create it with at least 1 partition" in text
    assert "TARGET_TOPIC_MISSING: start the target, create the topic" in text
    named = pylog(*words_of(source, disks), "--map", "orders=other")
    assert named.exit_code == ExitCode.REFUSED
    assert "Strimzi" not in named.stdout
    assert (disks[1] / "orders-0").is_dir()
    said = answer(pylog, ExitCode.USAGE, *words_of(source, disks), "--map", "bills=orders")
    assert "new name of several topics" in said


@pytest.mark.thorough
def test_nothing_is_written_while_a_broker_runs(pylog, source: Path, disks):
    for place in (source, disks[1]):
        with LogDirectoryLock(place):
            for words in (["--dry-run"], []):
                refused = pylog(*words_of(source, disks), *words)
                assert refused.exit_code == ExitCode.REFUSED
                assert str(place) in refused.stderr
    assert not (disks[0] / "orders-0").exists()


@pytest.mark.thorough
def test_a_disk_that_fails_fails_its_partition_alone(pylog, source: Path, tmp_path, monkeypatch):
    values = [
        *(md.topic("bills", md.ID_B), md.partition(0, md.ID_B)),
        *(md.topic("orders"), md.partition(0)),
        md.config("orders", "retention.ms", "-1"),
    ]
    disk, _ = Target(folder=tmp_path / "other", values=values).as_brokers()
    plain = [SegmentSpec(base_offset=0, batches=some_batches(count=4))]
    write_source(source, plain, name="bills-0")
    true_rename = os.rename

    def rename(name: Any, *places: Any, **folders: Any) -> None:
        if name == "orders-0":
            raise OSError(28, "No space left on device")
        true_rename(name, *places, **folders)

    with monkeypatch.context() as patch:
        patch.setattr(replica.os, "rename", rename)
        result = pylog(*words_of(source, [disk]), "--output", "json")
    assert result.exit_code == ExitCode.PARTLY_FAILED
    status = {row["topic"]: row["status"] for row in rows_of(result)}
    assert status == {"bills": "done", "orders": "failed"}
    (failure,) = [row["error"] for row in rows_of(result) if row["error"]]
    assert "No space left on device" in failure
    with monkeypatch.context() as patch:
        patch.setattr(replica.os, "rename", rename)
        text = pylog(*words_of(source, [disk])).stdout
    assert "start no broker of the target before" in " ".join(text.split())
    folders = {path.name for path in disk.iterdir() if path.is_dir()}
    assert folders == {"bills-0", CLUSTER_METADATA_DIRECTORY}
    assert rows_of(result, "group_offset") == []
    again = pylog(*words_of(source, [disk]), "--output", "json")
    assert {row["topic"]: row["status"] for row in rows_of(again)} == {
        "bills": "skipped",
        "orders": "done",
    }


@pytest.mark.thorough
def test_a_source_that_gets_records_meanwhile_fails_its_partition(
    pylog, source: Path, disks, monkeypatch
):
    true_room = driver.TargetRoom.take
    log = source / "orders-0" / log_file(END)

    def take(*words: Any) -> str:
        log.write_bytes(segment_bytes(some_batches(count=1, base_offset=END)))
        return true_room(*words)

    monkeypatch.setattr(driver.TargetRoom, "take", take)
    result = pylog(*words_of(source, disks), "--output", "json")
    assert result.exit_code == ExitCode.PARTLY_FAILED, result.stderr
    (row,) = rows_of(result)
    assert f"{source}/orders-0: changed since the plan was made" in row["error"]
    assert not any((disk / "orders-0").exists() for disk in disks)


@pytest.mark.thorough
def test_a_run_is_written_into_the_ledger(pylog, source: Path, disks, tmp_path: Path):
    ledger = tmp_path / "ledger"
    words = [*words_of(source, disks), "--ledger", str(ledger), "--output", "json"]
    planned = pylog(*words, "--dry-run")
    assert rows_of(planned, "run")[0]["dry_run"]
    assert not ledger.exists()
    done = pylog(*words)
    (run,) = rows_of(done, "run")
    (result,) = rows_of(done, "result")
    assert (result["action"], result["status"]) == ("transplant", "done")
    assert (run["done"], run["engine"]) == (1, "local")
    (past,) = list_past_runs(str(ledger), None, last=9)
    assert (past.run_id, past.exit_code, past.partitions_done) == (run["run_id"], 0, 1)
    inside = pylog(*words_of(source, disks), "--ledger", str(disks[0] / "ledger"))
    assert inside.exit_code == ExitCode.USAGE


@pytest.mark.thorough
def test_a_target_has_to_be_one_cluster_with_its_metadata(pylog, source: Path, disks, tmp_path):
    said = answer(pylog, ExitCode.USAGE, *words_of(source, disks[1:]))
    assert "give the directory with __cluster_metadata-0 as well" in said
    write_properties(disks[1], 2, SOURCE_CLUSTER)
    for order in (disks, disks[::-1]):
        said = answer(pylog, ExitCode.USAGE, *words_of(source, order))
        assert f"{disks[1]}" in said
        assert f"is of cluster {SOURCE_CLUSTER}, not of {CLUSTER}" in said
    (disks[1] / "meta.properties").unlink()
    said = answer(pylog, ExitCode.USAGE, *words_of(source, disks))
    assert "expected cluster and node in its meta.properties" in said
    absent = pylog(*words_of(source, [*disks, tmp_path / "absent"]))
    assert absent.exit_code == ExitCode.USAGE


@pytest.mark.thorough
def test_disks_of_several_clusters_are_no_replicas_of_each_other(
    pylog, source: Path, disks, tmp_path
):
    other = tmp_path / "other"
    write_source(other, [SegmentSpec(base_offset=0, batches=some_batches(count=1))])
    write_properties(other, 5, CLUSTER)
    said = answer(pylog, ExitCode.USAGE, *words_of(source, disks), str(other))
    assert f"{other}: is of cluster {CLUSTER}, not of {SOURCE_CLUSTER}" in said
    (other / "meta.properties").unlink()
    assert pylog(*words_of(source, disks), str(other)).exit_code == ExitCode.DONE


@pytest.mark.thorough
def test_records_that_do_not_go_are_said(pylog, source: Path, disks):
    whole = pylog(*words_of(source, disks), "--dry-run")
    assert "do not go" not in whole.stdout
    (source / CLEAN_SHUTDOWN_FILE).unlink()
    last = source / "orders-0" / log_file(END)
    last.write_bytes((source / "orders-0" / log_file(0)).read_bytes()[:70])
    said = answer(pylog, ExitCode.DONE, *words_of(source, disks), "--dry-run")
    assert "70 bytes at the end do not go" in said
    last.write_bytes(b"")
    log = source / "orders-0" / log_file(0)
    content = bytearray(log.read_bytes())
    content[-1] ^= 1
    log.write_bytes(content)
    said = answer(pylog, ExitCode.REFUSED, *words_of(source, disks))
    assert re.search(r"would cut \d+ readable records behind", said)
    assert not (disks[0] / "orders-0").exists()


def test_a_topic_that_is_on_the_disks_in_part_is_said(pylog, source: Path, tmp_path):
    values = [md.topic("orders"), *(md.partition(n) for n in range(3))]
    md.write_segment(source / CLUSTER_METADATA_DIRECTORY, [md.batch(*values, PRODUCER_IDS)])
    disk, _ = Target(folder=tmp_path / "three", values=values).as_brokers()
    result = pylog(*words_of(source, [disk]), "--dry-run")
    assert result.exit_code == ExitCode.DONE, result.stderr
    text = " ".join((result.stdout + result.stderr).split())
    assert "orders: 2 of 3 partitions are on none of the source's disks" in text


@pytest.mark.thorough
def test_a_damaged_checkpoint_of_the_target_is_said_before_anything_is_written(
    pylog, source: Path, disks
):
    checkpoint = disks[1] / "replication-offset-checkpoint"
    checkpoint.write_bytes(b"damaged")
    for words in (["--dry-run"], []):
        failed = pylog(*words_of(source, disks), *words)
        assert failed.exit_code == ExitCode.PARTLY_FAILED
        assert str(checkpoint) in failed.stderr
    assert not any((disk / "orders-0").exists() for disk in disks)


@pytest.mark.thorough
def test_a_disk_of_the_target_may_be_named_twice(pylog, source: Path, disks):
    result = pylog(*words_of(source, [*disks, disks[0]]))
    assert result.exit_code == ExitCode.DONE, result.stderr


@pytest.mark.thorough
def test_metadata_that_cannot_be_read_decides_nothing(pylog, source: Path, disks):
    log = disks[0] / CLUSTER_METADATA_DIRECTORY / log_file(0)
    log.rename(log.with_name(log_file(7)))
    said = answer(pylog, ExitCode.USAGE, *words_of(source, disks))
    assert "leave it out to do without it" in said


@pytest.mark.thorough
def test_only_strays_of_the_targets_own_disk_are_a_source(pylog, source: Path, disks):
    """The disk was put into the target, whose broker set its logs aside."""
    stray = disks[0] / f"orders-0.{'0' * 32}-stray"
    (source / "orders-0").rename(stray)
    (disks[0] / "served-0").mkdir()
    result = pylog(*words_of(disks[0], disks), "--output", "json")
    assert result.exit_code == ExitCode.DONE, result.stderr
    (row,) = rows_of(result)
    assert (row["source"], row["status"]) == (str(stray), "done")
    assert stray.is_dir()


@pytest.mark.thorough
def test_the_sources_own_metadata_say_how_many_partitions_a_topic_has(pylog, source: Path, disks):
    values = [md.topic("orders", md.ID_B), *(md.partition(n, md.ID_B) for n in range(3))]
    md.write_segment(source / CLUSTER_METADATA_DIRECTORY, [md.batch(*values, PRODUCER_IDS)])
    said = answer(pylog, ExitCode.REFUSED, *words_of(source, disks))
    assert "orders has 3 partitions, orders in the target has 1" in said


def test_topics_that_the_target_lacks_are_told_with_the_command_that_creates_them(
    pylog, source: Path, disks
):
    values = [
        *(md.topic("bills", md.ID_B), *(md.partition(n, md.ID_B) for n in range(3))),
        md.config("bills", "cleanup.policy", "compact,delete"),
    ]
    plain = [SegmentSpec(base_offset=0, batches=some_batches(count=1))]
    for name in ("bills-0", "bills-1", "more-0", "more-4"):
        write_source(source, plain, name=name)
    md.write_segment(source / CLUSTER_METADATA_DIRECTORY, [md.batch(*values, PRODUCER_IDS)])
    words = [*words_of(source, disks), "--dry-run"]
    missing = {
        row["topic"]: row for row in rows_of(pylog(*words, "--output", "json"), "missing_topic")
    }
    assert missing["bills"]["config"] == {"cleanup.policy": "compact,delete"}
    assert {topic: row["partitions"] for topic, row in missing.items()} == {"bills": 3, "more": 5}
    text = " ".join(pylog(*words).stdout.split())
    assert (
        "kafka-topics.sh --bootstrap-server HOST:PORT --create --topic bills --partitions 3 "
        "--replication-factor 1 --config cleanup.policy=compact,delete"
    ) in text


def test_records_that_the_target_would_delete_at_once_are_said(pylog, source: Path, tmp_path):
    values = [md.topic("orders"), md.partition(0)]
    disk, _ = Target(folder=tmp_path / "other", values=values).as_brokers()
    said = answer(pylog, ExitCode.DONE, *words_of(source, [disk]), "--dry-run")
    assert "set retention.ms=-1 there before" in said


@pytest.mark.parametrize(
    ("words", "why"),
    [
        *((["--map", text], "expected OLD=NEW, names of topics") for text in ("a", "a=", "a=b c")),
        (["--offsets-out", "{}/offsets.csv"], "lies inside the log directory"),
        (["--map", "absent=orders"], "is no topic of the source"),
        (["--exclude", "bills", "--map", "bills=x"], "is not among the topics that --topics"),
        (["--map", "__consumer_offsets=x"], "is not among the topics that --topics names"),
    ],
)
def test_words_that_do_not_fit_are_wrong_usage(
    pylog, source: Path, disks, words: list[str], why: str
):
    (source / "bills-0").mkdir()
    more = [word.format(disks[0]) for word in words]
    assert why in answer(pylog, ExitCode.USAGE, *words_of(source, disks), *more)


@pytest.mark.thorough
def test_the_commands_of_the_page_do_what_it_says(pylog, source: Path, disks, tmp_path: Path):
    write_states(source, ONGOING)
    page = Path("docs/transplant.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    assert [line.split()[1] for line in lines] == [*["transplant"] * 2, *["doctor"] * 2]
    places = {"/mnt/old": source, "/data/b1": disks[0], "/data/b2": disks[1], "/data": tmp_path}
    answers = []
    for line in lines:
        words = shlex.split(line)[1:]
        for place, here in places.items():
            words = [word.replace(place, str(here)) for word in words]
        answers.append(pylog(*words))
    planned, done, *_ = answers
    assert (planned.exit_code, done.exit_code) == (ExitCode.DONE, ExitCode.DONE), done.stderr
    assert (tmp_path / "offsets.csv").read_text() == "group,orders,0,9\n"
    assert all(answer.exit_code in {ExitCode.DONE, ExitCode.FINDINGS} for answer in answers)
    assert not [answer for answer in answers[2:] if "orders-0" in answer.stdout]
    refusals = set(re.findall(r"`([A-Z_]{6,})`", page))
    assert refusals <= set(TransplantReason)


@pytest.mark.parametrize(
    ("epoch", "nodes", "taken", "said"),
    [
        (0, (5, 6), 6, "the longest of the logs in sync, 1 of 2: "),
        (0, (5,), 5, "old5/orders-0 was not in sync: it may lack acknowledged records"),
        # The metadata, of epoch 0, are older than the logs.
        (1, (5, 6), 5, "the longest of 2 logs: "),
        (1, (5,), 5, ""),
    ],
)
def test_a_replica_that_was_not_in_sync_goes_only_where_no_other_is_given(
    pylog, tmp_path: Path, disks, epoch: int, nodes: tuple[int, ...], taken: int, said: str
):
    """A longer log is none of later records: those in sync have all that was acknowledged."""
    roots = {node: tmp_path / f"old{node}" for node in (5, 6)}
    for node, count in ((5, 6), (6, 3)):
        batches = some_batches(count=count, leader_epoch=epoch)
        write_source(roots[node], [SegmentSpec(base_offset=0, batches=batches)])
        write_properties(roots[node], node, SOURCE_CLUSTER)
    records = [
        *(md.topic("orders", md.ID_A), md.partition(0, md.ID_A, replicas=(5, 6))),
        md.partition_change(0, md.ID_A, {0: md.numbers(6)}),
    ]
    md.write_segment(roots[5] / CLUSTER_METADATA_DIRECTORY, [md.batch(*records)])
    words = words_of(roots[5], disks)
    words[2:2] = [str(roots[node]) for node in nodes[1:]]
    result = pylog(*words, "--dry-run", "--output", "json")
    assert result.exit_code == ExitCode.DONE, result.stdout
    [row] = rows_of(result)
    assert row["source"] == str(roots[taken] / "orders-0")
    assert said in (row["detail"] or "")
    assert ("was not in sync" in (row["detail"] or "")) == ("was not in sync" in said)
