"""``pylog metadata rebuild``: what it makes of brokers' logs, what it lists, what it refuses."""

import json
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.cluster import metadata_rebuild as driver
from pylog_spark.exit_code import ExitCode
from storage_core.catalog.bootstrap_snapshot import BOOTSTRAP_SNAPSHOT
from storage_core.catalog.cluster_metadata import (
    CLUSTER_METADATA_DIRECTORY,
    ClusterMetadata,
    MetadataFile,
    read_cluster_metadata,
    read_quorum,
)
from storage_core.catalog.metadata_image import (
    MetadataRecord,
    RegisterBrokerRecord,
    TopicRecord,
    decode_metadata_record,
    encode_record,
)
from storage_core.checkpoint.lock import LogDirectoryLock
from storage_core.cluster import metadata_rebuild
from storage_core.cluster.metadata_rebuild import register_brokers
from storage_core.filenames import BOOTSTRAP_SNAPSHOT_FILE, LOCK_FILE, META_PROPERTIES_FILE
from storage_core.maintenance.verification.observed_root import ObservedRoot
from storage_core.messages.internal_records import encode_metadata_record
from tests.kit.cluster_truth import Cluster
from tests.storage_core.catalog import metadata_bytes as md

VOTER = "3Db5QLSqSZieL3rJBUUegA"


class Lost:
    """A cluster's log directories; what its brokers had of the metadata is one older copy."""

    def __init__(self, pylog: Callable[..., Any], folder: Path, name: str) -> None:
        self._pylog = pylog
        self.roots = Cluster(name, folder / "cluster").roots
        self.older, self.target = folder / "older", folder / "controller"
        for root in self.roots:
            shutil.rmtree(self.older, ignore_errors=True)
            (root / CLUSTER_METADATA_DIRECTORY).rename(self.older)
        self.target.mkdir()
        self.metadata = read_cluster_metadata(self.older, is_recovered=True)

    def rebuild(self, *words: object, config: Iterable[object] | None = None) -> Any:
        """Rebuild into the target; configs are those of the older copy."""
        return self._pylog(
            *("metadata", "rebuild", *self.roots, "--into", f"9={self.target}"),
            *("--release-version", "4.4", "--engine", "local", "--now-ms", 1_800_000_000_000),
            *(("--older-copy", self.older) if config is None else config),
            *words,
        )

    def rows(self, kind: str, *words: object, **named: Any) -> list[dict[str, Any]]:
        """Return the rows of one kind."""
        result = self.rebuild(*words, "--output", "json", **named)
        assert result.exit_code == ExitCode.DONE, result.stderr
        lines = map(json.loads, result.stdout.splitlines())
        return [row for row in lines if row["type"] == kind]

    def partition(self, name: str, *words: object) -> dict[str, Any]:
        """Return the row of one partition."""
        rows = self.rows("metadata_partition", *words)
        return next(row for row in rows if f"{row['topic']}-{row['partition']}" == name)

    def facts(self, part: str, *words: object, **named: Any) -> dict[str | None, str]:
        """Return what is not known of a part, by subject."""
        rows = self.rows("unknown_fact", *words, **named)
        return {row["subject"]: row["detail"] for row in rows if row["part"] == part}

    def written(self) -> ClusterMetadata:
        """Return what the target has."""
        return read_cluster_metadata(self.target / CLUSTER_METADATA_DIRECTORY)

    def directories(self, name: str) -> list[Path]:
        """Return the directories of a partition."""
        return [root / name for root in self.roots if (root / name).is_dir()]

    def refusal(self, *words: object, **named: Any) -> str:
        """Return what it says to wrong usage; nothing is written."""
        result = self.rebuild(*words, **named)
        assert result.exit_code == ExitCode.USAGE, (result.stdout, result.stderr)
        assert list(self.target.iterdir()) == []
        return " ".join(result.stderr.split())


@pytest.fixture
def lost(pylog, tmp_path: Path) -> Callable[[str], Lost]:
    return lambda name: Lost(pylog, tmp_path, name)


def test_topics_replicas_directories_and_configs_are_as_they_lie(lost, pylog):
    cluster = lost("clean")
    planned = cluster.rebuild("--dry-run")
    assert (planned.exit_code, list(cluster.target.iterdir())) == (ExitCode.DONE, [])
    assert "planned" in planned.stdout
    (done,) = cluster.rows("metadata_rebuild")
    assert (done["status"], done["topics"], done["partitions"]) == ("done", 2, 5)
    assert (done["brokers"], done["release_version"]) == ([1, 2, 3], "4.4-IV2")
    written, before = cluster.written(), cluster.metadata
    assert written.feature_levels == done["feature_levels"]
    assert written.topics.keys() == before.topics.keys()
    assert written.topic_configs == before.topic_configs
    for topic_id, topic in written.topics.items():
        for number, partition in topic.partitions.items():
            was = before.topics[topic_id].partitions[number]
            assert (partition.replicas, partition.directories) == (was.replicas, was.directories)
            assert (partition.leader, partition.leader_epoch) == (-1, was.leader_epoch + 100)
            assert set(partition.isr) == {1, 2, 3}
    assert {broker.fenced for broker in written.brokers.values()} == {True}
    properties = (cluster.target / "meta.properties").read_text().splitlines()
    assert properties[0] == "version=1"
    assert properties[2] == "node.id=9"
    shown = pylog("metadata", "show", cluster.target)
    assert (shown.exit_code, "nothing here names the voters" in shown.stdout) == (0, True)


VOTERS = ("--initial-controllers", f"9@host:9093:{VOTER}")


def records_of(snapshot: Path) -> list[MetadataRecord]:
    """Return the records of a snapshot, without those of control."""
    return [
        decode_metadata_record(value, file=str(snapshot), offset=offset)
        for batch in MetadataFile(snapshot, may_be_torn=False).batches()
        for offset, value in batch.values
    ]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("release", "voters", "has_log", "has_records"),
    [
        ("4.4", (), True, True),
        ("4.3", (), True, True),
        ("4.3", VOTERS, True, True),
        ("4.2", (), False, False),
        ("4.2", VOTERS, True, False),
    ],
)
def test_controllers_of_each_release_find_the_records_and_the_voters(
    lost, release, voters, has_log, has_records
):
    """Before 4.4 the records are not read from the log; before 4.3 they may stop a start."""
    cluster = lost("clean")
    words = ("--release-version", release, *voters)
    (done,) = cluster.rows("metadata_rebuild", *words)
    log = cluster.target / CLUSTER_METADATA_DIRECTORY
    names = [BOOTSTRAP_SNAPSHOT_FILE, *([CLUSTER_METADATA_DIRECTORY] if has_log else [])]
    assert done["bootstrap_entries"] == names
    written = {path.name for path in cluster.target.iterdir()} - {LOCK_FILE}
    assert written == {*names, META_PROPERTIES_FILE}
    records = records_of(cluster.target / BOOTSTRAP_SNAPSHOT_FILE)
    assert sum(isinstance(record, TopicRecord) for record in records) == 2
    if has_log:
        assert records_of(log / BOOTSTRAP_SNAPSHOT) == (records if has_records else [])
        _, quorum = read_quorum(log)
        assert len(quorum.voters) == (1 if voters else 0)
    # What a later call finds, replaces and takes back.
    (again,) = cluster.rows("metadata_rebuild", *words)
    assert again["replaced_topics"] == 2
    said = cluster.rebuild(*words).stdout
    assert f"have to be of Kafka {release} or later" in " ".join(said.split())
    (line,) = (line for line in said.splitlines() if line.startswith("rm -r "))
    assert line.split()[2:] == [
        str(cluster.target / name) for name in (META_PROPERTIES_FILE, *names)
    ]


@pytest.mark.thorough
def test_a_rebuild_for_an_earlier_release_leaves_no_log_of_a_later_one(lost):
    """A controller of 4.4 would begin with the records in the log."""
    cluster = lost("clean")
    cluster.rebuild()
    assert (cluster.target / CLUSTER_METADATA_DIRECTORY).exists()
    (row,) = cluster.rows("metadata_rebuild", "--release-version", "4.1")
    assert (row["replaced_topics"], row["bootstrap_entries"]) == (2, [BOOTSTRAP_SNAPSHOT_FILE])
    assert not (cluster.target / CLUSTER_METADATA_DIRECTORY).exists()


@pytest.mark.thorough
@pytest.mark.parametrize("release", ["4.4", "4.1"])
def test_a_second_run_says_what_it_replaces(lost, release):
    """A bootstrap snapshot is no metadata log yet: a run with other inputs may follow."""
    cluster = lost("clean")
    release = ("--release-version", release)
    assert "earlier snapshot" not in cluster.rebuild(*release).stdout
    text = "an earlier snapshot of 2 topics, which no controller has begun with"
    for words, verb in ((("--dry-run",), "would replace"), ((), "replaced")):
        again = cluster.rebuild(*release, *words)
        assert again.exit_code == ExitCode.DONE
        assert f"{cluster.target}: {verb} {text}" in " ".join(again.stdout.split())
    (row,) = cluster.rows("metadata_rebuild", *release, "--dry-run")
    assert row["replaced_topics"] == 2


@pytest.mark.thorough
def test_a_killed_run_leaves_no_controller_that_begins_an_empty_cluster(lost, monkeypatch):
    """Without meta.properties it does not start; with it and no snapshot it would."""
    cluster = lost("clean")

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(metadata_rebuild, "write_identity", die)
        assert cluster.rebuild().exit_code == ExitCode.INTERRUPTED
    names = {path.name for path in cluster.target.iterdir()} - {".lock"}
    assert names == {BOOTSTRAP_SNAPSHOT_FILE, CLUSTER_METADATA_DIRECTORY}
    assert cluster.rebuild().exit_code == ExitCode.DONE
    assert (cluster.target / "meta.properties").exists()


def test_a_snapshot_that_cannot_be_read_is_not_replaced(lost):
    cluster = lost("clean")
    log = cluster.target / CLUSTER_METADATA_DIRECTORY
    log.mkdir()
    (log / BOOTSTRAP_SNAPSHOT).write_bytes(b"x" * 99)
    refused = cluster.rebuild()
    assert refused.exit_code == ExitCode.USAGE
    assert "its snapshot cannot be read" in " ".join(refused.stderr.split())
    shutil.rmtree(log)
    (cluster.target / BOOTSTRAP_SNAPSHOT_FILE).write_bytes(b"x" * 99)
    refused = cluster.rebuild()
    assert refused.exit_code == ExitCode.USAGE
    said = " ".join(refused.stderr.split())
    assert "its snapshot cannot be read" in said
    assert f"move {BOOTSTRAP_SNAPSHOT_FILE} away" in said


@pytest.mark.thorough
def test_a_controllers_directory_may_be_a_link(lost, tmp_path: Path):
    cluster = lost("clean")
    true = cluster.target.rename(tmp_path / "true")
    cluster.target.symlink_to(true)
    assert cluster.rebuild().exit_code == ExitCode.DONE
    assert (true / CLUSTER_METADATA_DIRECTORY / BOOTSTRAP_SNAPSHOT).exists()


@pytest.mark.thorough
def test_what_nobody_knows_is_listed(lost):
    cluster = lost("clean")
    text = " ".join(cluster.rebuild("--dry-run").stdout.split())
    assert "access control entries: none is written" in text
    assert "no node with an older copy may start" in text
    md.write_snapshot(
        cluster.older,
        [
            *(md.topic("gone"), md.partition(0), md.frame(18, b"")),
            # The topic of this name that is here has another id.
            *(md.topic("ledger", md.ID_B), md.config("ledger", "retention.ms", "7")),
            md.config("7", "log.retention.ms", "7", resource_type=4),
            md.config("billing", "share.auto.offset.reset", "earliest", resource_type=32),
            md.config("billing", "consumer.session.timeout.ms", "9", resource_type=32),
            md.config("billing", "consumer.session.timeout.ms", None, resource_type=32),
            md.config("all", "interval.ms", "1000", resource_type=16),
        ],
        end_offset=9_999,
        epoch=99,
    )
    config = ("--older-copy", cluster.older, "--assume-defaults", "*")
    assert cluster.facts("TOPIC", config=config).keys() == {None, "gone-0"}
    (acl,) = cluster.facts("ACCESS_CONTROL", config=config).values()
    assert acl.endswith("the older copy has 1 record of ACCESS_CONTROL_ENTRY_RECORD")
    assert cluster.facts("TOPIC_CONFIG", config=config).keys() == {"ledger", "stock_levels"}
    assert cluster.facts("REPLICA_ORDER", config=config) == {}
    assert cluster.facts("REPLICA_ORDER", config=config[2:]).keys() == {None}
    cluster.rebuild(config=config)
    written = cluster.written()
    assert written.broker_configs == {"7": {"log.retention.ms": "7"}}
    assert written.group_configs == {"billing": {"share.auto.offset.reset": "earliest"}}
    assert written.client_metrics_configs == {"all": {"interval.ms": "1000"}}
    for part in ("GROUP_CONFIG", "CLIENT_METRICS"):
        (detail,) = cluster.facts(part, config=config).values()
        assert detail.endswith("those of the older copy")
        (detail,) = cluster.facts(part, config=config[2:]).values()
        assert detail.endswith("none is written")


@pytest.mark.thorough
def test_what_the_older_copy_alone_knows_counts(lost):
    cluster = lost("clean")
    gone = {1: md.ID_B, 5: md.ID_A}
    brokers = [
        RegisterBrokerRecord(broker_id=node, broker_epoch=1, fenced=True, log_directories=(own,))
        for node, own in gone.items()
    ]
    ids = {"broker_id": 1, "broker_epoch": 1, "next_producer_id": 7_000_000}
    md.write_snapshot(
        cluster.older,
        [*(encode_record(each, 4) for each in brokers), encode_metadata_record(15, 0, ids)],
        end_offset=9_999,
        epoch=99,
    )
    config = ("--older-copy", cluster.older, "--assume-defaults", "*", "--dry-run")
    facts = cluster.facts("REPLICA", config=config)
    assert facts.keys() == {None, "broker 1", "broker 5"}
    assert f"the older copy has its log directories {gone[1]}" in facts["broker 1"]
    (row,) = cluster.rows("metadata_rebuild", config=config)
    assert row["next_producer_id"] == 8_000_000


@pytest.mark.thorough
def test_a_replica_of_a_lost_directory_is_named_and_left_out(lost):
    cluster = lost("clean")
    shutil.rmtree(cluster.roots.pop())
    row = cluster.partition("ledger-0")
    assert (set(row["replicas"]), set(row["isr"])) == ({1, 2}, {1, 2})
    assert "broker 3" in cluster.facts("REPLICA")["ledger-0"]


@pytest.mark.thorough
def test_replicas_take_turns_as_preferred_leader(lost):
    cluster = lost("clean")
    rows = cluster.rows("metadata_partition", config=("--assume-defaults", "*"))
    assert [row["replicas"] for row in rows if row["topic"] == "stock_levels"] == [
        *([1, 2, 3], [2, 3, 1], [3, 1, 2])
    ]


@pytest.mark.thorough
def test_in_sync_are_those_that_lose_no_record(lost):
    cluster = lost("behind")
    assert set(cluster.partition("page-views-0")["isr"]) == {1, 2}
    assert set(cluster.partition("stock_levels-2")["isr"]) == {1, 2, 3}
    assert cluster.facts("ISR") == {}


@pytest.mark.thorough
def test_replicas_that_were_compacted_at_other_times_are_in_sync(lost):
    cluster = lost("compacted")
    assert set(cluster.partition("orders-0")["isr"]) == {1, 2, 3}


@pytest.mark.thorough
def test_a_partition_whose_replicas_all_lose_something_has_nobody_in_sync(lost):
    cluster = lost("diverged")
    facts = cluster.facts("ISR")
    assert facts.keys() == {"ledger-0", "ledger-1", "ledger-2"}
    assert "an unclean election" in facts["ledger-0"]
    assert cluster.partition("ledger-0")["isr"] == []


@pytest.mark.thorough
def test_a_replica_that_cannot_be_opened_is_named(lost):
    cluster = lost("clean")
    (directory, *_) = cluster.directories("ledger-0")
    (directory / "x.log.swap").write_bytes(b"")
    assert "broker 1: " in cluster.facts("ISR")["ledger-0"]


@pytest.mark.thorough
def test_epochs_and_producer_ids_go_on_above_those_of_transactions(lost):
    cluster = lost("open-transaction")
    row = cluster.partition("__transaction_state-0")
    assert row["config"]["cleanup.policy"] == "compact"
    (done,) = cluster.rows("metadata_rebuild")
    assert done["next_producer_id"] % 1_000 == 0
    assert done["next_producer_id"] > 0


@pytest.mark.thorough
@pytest.mark.parametrize("marker", ['{"version":0,"brokerEpoch":77}', None], ids=["clean", "not"])
def test_a_broker_is_registered_with_the_epoch_that_it_will_name(lost, marker: str | None):
    cluster = lost("clean")
    for root in cluster.roots:
        file = root / ".kafka_cleanshutdown"
        file.unlink(missing_ok=True)
        if marker is not None:
            file.write_text(marker)
    assert cluster.rebuild().exit_code == ExitCode.DONE
    brokers = cluster.written().brokers
    assert {each.broker_epoch for each in brokers.values()} == {-1 if marker is None else 77}
    assert all(len(each.log_directories) == 1 for each in brokers.values())


@pytest.mark.thorough
@pytest.mark.parametrize("marker", ['{"version":0,"brokerEpoch":77}', None], ids=["clean", "not"])
def test_before_a_controller_has_started_audit_and_doctor_know_it(lost, pylog, marker: str | None):
    cluster = lost("clean")
    for root in cluster.roots:
        (root / ".kafka_cleanshutdown").unlink(missing_ok=True)
        if marker is not None:
            (root / ".kafka_cleanshutdown").write_text(marker)
    assert cluster.rebuild().exit_code == ExitCode.DONE
    alone = pylog("doctor", cluster.target, "--output", "json").stdout
    assert "NO_SEGMENT" not in alone
    result = pylog("doctor", *cluster.roots, cluster.target, "--output", "json")
    rows = map(json.loads, result.stdout.splitlines())
    (verdict,) = [row for row in rows if row["type"] == "cluster"]
    belief = f"ISR, epochs and assignment by {cluster.target / CLUSTER_METADATA_DIRECTORY}"
    assert any(belief in reason for reason in verdict["reasons"])
    # As it names the epochs that the brokers will, all of them stay in sync.
    assert "counts as killed" not in result.stdout
    assert "without a leader" not in verdict["headline"]


@pytest.mark.thorough
def test_a_controller_that_runs_keeps_the_others_from_a_beginning(lost, tmp_path: Path):
    cluster = lost("clean")
    other = tmp_path / "second"
    other.mkdir()
    with LogDirectoryLock(other):
        refused = cluster.rebuild("--into", f"10={other}")
    assert refused.exit_code == ExitCode.REFUSED
    assert not (cluster.target / CLUSTER_METADATA_DIRECTORY).exists()


@pytest.mark.thorough
def test_voters_of_a_dynamic_quorum_stand_in_the_snapshot(lost):
    cluster = lost("clean")
    words = ("--initial-controllers", f"8@other:9093:{VOTER[::-1]},9@[::1]:9094:{VOTER}")
    assert "is none of --initial-controllers: 8" in cluster.refusal(
        "--initial-controllers", f"8@other:9093:{VOTER}"
    )
    assert "8 has none: a voter that is only formatted may lead" in cluster.refusal(*words)
    other = cluster.target.with_name("other")
    other.mkdir()
    words = (*words, "--into", f"8={other}", "--controller-listener", "QUORUM")
    assert cluster.rebuild(*words).exit_code == ExitCode.DONE
    _, quorum = read_quorum(cluster.target / CLUSTER_METADATA_DIRECTORY)
    assert quorum.kraft_version == 1
    assert [(each.node_id, each.endpoints) for each in quorum.voters] == [
        (8, ("QUORUM://other:9093",)),
        (9, ("QUORUM://::1:9094",)),
    ]
    assert f"directory.id={VOTER}" in (cluster.target / "meta.properties").read_text()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("9@host", "expected NODE@HOST:PORT:DIRECTORY_ID"),
        (f"9@host:99999:{VOTER}", "expected NODE@HOST:PORT:DIRECTORY_ID"),
        (f"9@host:9093:{'A' * 22}", "its directory id is reserved"),
        (f"9@host:9093:{VOTER},9@host:9094:{VOTER[::-1]}", "each node and each directory id once"),
        (f"9@host:9093:{VOTER},8@host:9094:{VOTER}", "each node and each directory id once"),
    ],
)
def test_controllers_that_are_none_are_wrong_usage(lost, text: str, match: str):
    assert match in lost("clean").refusal("--initial-controllers", text)


@pytest.mark.thorough
def test_voters_of_a_format_are_not_lost(lost):
    cluster = lost("clean")
    words = ("--initial-controllers", f"9@host:9093:{VOTER}")
    cluster.rebuild(*words)
    refused = cluster.rebuild()
    assert refused.exit_code == ExitCode.USAGE
    assert "its snapshot has the voters of a dynamic quorum (9)" in " ".join(refused.stderr.split())
    assert cluster.rebuild(*words).exit_code == ExitCode.DONE


@pytest.mark.thorough
def test_a_release_that_kafka_does_not_begin_with_is_wrong_usage(lost):
    text = lost("clean").refusal("--release-version", "2.8")
    assert "--release-version=2.8: expected a release from 3.3-IV3 to 4.4-IV2" in text


@pytest.mark.thorough
def test_a_topic_without_a_config_is_refused_with_its_ways_out(lost, tmp_path: Path):
    cluster = lost("clean")
    text = cluster.refusal(config=())
    assert "ROOT=ledger, stock_levels: nothing says the config of these topics" in text
    assert "--assume-defaults GLOB" in text
    dump = tmp_path / "configs.txt"
    dump.write_text("Dynamic configs for topic ledger are:\n")
    topics = tmp_path / "topics.yaml"
    topics.write_text('topics: {stock_levels: {retention.ms: "7"}}')
    rows = cluster.rows(
        "metadata_partition", config=("--topic-dump", dump, "--config", topics, "--dry-run")
    )
    assert {row["topic"]: row["config"] for row in rows} == {
        "ledger": {},
        "stock_levels": {"retention.ms": "7"},
    }


@pytest.mark.thorough
def test_a_copy_in_a_directory_is_better(lost):
    cluster = lost("clean")
    copy = cluster.roots[1] / CLUSTER_METADATA_DIRECTORY
    shutil.copytree(cluster.older, copy)
    refused = cluster.rebuild()
    assert refused.exit_code == ExitCode.REFUSED
    assert "METADATA_COPY_PRESENT" in refused.stderr
    assert "`pylog metadata promote` gives it to a voter" in " ".join(refused.stderr.split())
    shutil.rmtree(copy)
    copy.mkdir()
    refused = cluster.rebuild()
    assert "its copy of the metadata cannot be read" in " ".join(refused.stderr.split())
    (copy / BOOTSTRAP_SNAPSHOT).write_bytes(b"")  # as a format leaves it
    assert cluster.rebuild("--dry-run").exit_code == ExitCode.DONE


@pytest.mark.thorough
def test_a_broker_that_runs_is_refused(lost):
    cluster = lost("clean")
    with LogDirectoryLock(cluster.roots[0]):
        refused = cluster.rebuild("--dry-run")
    assert refused.exit_code == ExitCode.REFUSED
    assert "its broker runs; stop it first" in " ".join(refused.stderr.split())


@pytest.mark.thorough
def test_a_broker_that_starts_while_its_logs_are_read_is_refused(lost, monkeypatch):
    cluster = lost("clean")
    with ExitStack() as broker:

        def start(roots: Sequence[ObservedRoot]) -> list[RegisterBrokerRecord]:
            broker.enter_context(LogDirectoryLock(cluster.roots[0]))
            return register_brokers(roots)

        monkeypatch.setattr(driver, "register_brokers", start)
        refused = cluster.rebuild()
    assert refused.exit_code == ExitCode.REFUSED
    assert list(cluster.target.iterdir()) == []


@pytest.mark.thorough
def test_a_directory_id_of_two_brokers_is_refused(lost):
    """The controller registers no second broker with it."""
    cluster = lost("clean")
    one, two, _ = (root / "meta.properties" for root in cluster.roots)
    (line,) = (line for line in one.read_text().splitlines() if line.startswith("directory.id"))
    two.write_text(re.sub("directory.id=.*", line, two.read_text()))
    assert f"{line.partition('=')[2]} is that of {one.parent} too" in cluster.refusal()


@pytest.mark.thorough
def test_a_linked_partition_is_refused(lost, tmp_path: Path):
    cluster = lost("clean")
    (directory, *_) = cluster.directories("ledger-0")
    directory.rename(tmp_path / "elsewhere")
    directory.symlink_to(tmp_path / "elsewhere")
    assert f"ROOT={directory}: is a link, and no link is followed" in cluster.refusal()


@pytest.mark.thorough
def test_a_topic_whose_ids_cannot_be_read_is_not_taken_for_an_empty_one(lost):
    cluster = lost("clean")
    for number in (0, 1):
        for directory in cluster.directories(f"ledger-{number}"):
            (directory / "partition.metadata").write_text("version: 0\n")
    text = cluster.refusal()
    assert "ROOT=ledger-0: broker 1: " in text
    assert "no partition.metadata of its topic says its id" in text


@pytest.mark.thorough
def test_a_replica_whose_id_cannot_be_read_is_not_said_to_have_none(lost):
    cluster = lost("clean")
    (directory, *_) = cluster.directories("ledger-0")
    (directory / "partition.metadata").write_text("version: 0\n")
    assert cluster.facts("TOPIC_ID") == {}
    assert "partition.metadata: line 2" in cluster.facts("ISR")["ledger-0"]


@pytest.mark.thorough
def test_a_move_without_its_log_is_named(lost):
    cluster = lost("clean")
    (directory, *_) = cluster.directories("stock_levels-2")
    move = directory.rename(directory.with_name(f"stock_levels-2.{'0' * 32}-future"))
    assert "a move between log directories was making it" in cluster.facts("REPLICA")[str(move)]
    directory.mkdir()
    assert str(move) not in cluster.facts("REPLICA")


@pytest.mark.thorough
def test_directories_that_contradict_each_other_are_refused(lost):
    text = lost("recreated").refusal()
    assert "ROOT=stock_levels: the topic has 2 ids" in text
    assert "move the directories of those that were deleted away" in text


@pytest.mark.thorough
def test_a_partition_in_the_middle_without_a_replica_is_refused(lost):
    cluster = lost("clean")
    for directory in cluster.directories("stock_levels-1"):
        shutil.rmtree(directory)
    text = cluster.refusal()
    assert "ROOT=stock_levels-1: no replica is here, though the topic has partition 2" in text
    (cluster.roots[1] / "stock_levels-1").mkdir()
    row = cluster.partition("stock_levels-1")
    assert (row["replicas"], row["isr"]) == ([2], [2])


@pytest.mark.thorough
def test_a_partition_of_one_broker_in_two_directories_is_refused(lost, tmp_path: Path):
    cluster = lost("clean")
    other = tmp_path / "b1-too"
    other.mkdir()
    properties = (cluster.roots[0] / "meta.properties").read_text()
    (other / "meta.properties").write_text(re.sub("directory.id=.*", "", properties))
    shutil.copytree(cluster.roots[0] / "ledger-0", other / "ledger-0")
    cluster.roots.append(other)
    text = cluster.refusal()
    assert f"ROOT={other}: broker 1 has ledger-0 in {cluster.roots[0]} as well" in text


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("content", "match"),
    [
        (None, "expected cluster.id and node.id in meta.properties"),
        ("version=1\ncluster.id=other\nnode.id=3\n", "other"),
        (
            "version=0\ncluster.id=c\nbroker.id=3\n",
            "expected version=1, cluster.id=c and node.id=3",
        ),
        ("version=99\n", "`pylog doctor` says how to write it again"),
        ("version=1\ncluster.id=c\nnode.id=-1\n", "no node has the id -1"),
    ],
    ids=["none", "of another cluster", "with ZooKeeper", "malformed", "of no node"],
)
def test_a_directory_of_nobody_or_another_cluster_is_refused(lost, content: str | None, match: str):
    cluster = lost("clean")
    properties = cluster.roots[2] / "meta.properties"
    properties.unlink()
    if content is not None:
        properties.write_text(content)
    assert match in cluster.refusal()


@pytest.mark.thorough
def test_a_log_without_a_topic_id_is_not_in_sync_and_what_its_broker_does_is_said(lost):
    cluster = lost("clean")
    (unnamed, *_) = cluster.directories("ledger-0")
    (unnamed / "partition.metadata").unlink()
    assert set(cluster.partition("ledger-0")["isr"]) == {2, 3}
    fact = cluster.facts("TOPIC_ID")[str(unnamed)]
    (topic_id,) = {t.topic_id for t in cluster.metadata.topics.values() if t.name == "ledger"}
    assert f"`topic_id: {topic_id}`" in fact


@pytest.mark.thorough
def test_a_topic_without_an_id_is_refused_with_records_and_left_out_without(lost):
    cluster = lost("clean")
    for number in (0, 1):
        for directory in cluster.directories(f"ledger-{number}"):
            (directory / "partition.metadata").unlink()
    text = cluster.refusal()
    assert "ROOT=ledger-0: it has records; no partition.metadata of its topic" in text
    for number in (0, 1):
        for directory in cluster.directories(f"ledger-{number}"):
            shutil.rmtree(directory)
            directory.mkdir()
    assert cluster.facts("TOPIC_ID").keys() == {"ledger"}
    assert {topic.name for topic in cluster.written().topics.values()} == {"stock_levels"}


@pytest.mark.thorough
def test_stray_directories_are_named_and_left_out(lost):
    cluster = lost("clean")
    (directory, *_) = cluster.directories("ledger-0")
    stray = directory.rename(directory.with_name(f"ledger-0.{'0' * 32}-stray"))
    assert cluster.facts("STRAY").keys() == {str(stray)}
    assert set(cluster.partition("ledger-0")["replicas"]) == {2, 3}


@pytest.mark.thorough
def test_an_older_copy_that_is_none_or_of_another_cluster_is_refused(lost, tmp_path: Path):
    cluster = lost("clean")
    config = ("--older-copy", tmp_path / "missing")
    assert f"--older-copy={tmp_path / 'missing'}" in cluster.refusal(config=config)
    root = tmp_path / "log"
    root.mkdir()
    cluster.older.rename(root / CLUSTER_METADATA_DIRECTORY)
    (root / "meta.properties").write_text("version=1\ncluster.id=other\nnode.id=3\n")
    text = cluster.refusal(config=("--older-copy", root))
    assert "is of cluster other" in text


@pytest.mark.thorough
def test_a_target_that_is_not_the_controllers_is_refused(lost, tmp_path: Path):
    cluster = lost("clean")
    text = cluster.refusal("--into", f"8={cluster.target}")
    assert "expected another directory for each controller" in text
    assert "no such directory" in cluster.refusal("--into", f"8={tmp_path / 'missing'}")
    (cluster.target / "meta.properties").write_text("version=1\ncluster.id=x\nnode.id=9\n")
    refused = cluster.rebuild()
    assert refused.exit_code == ExitCode.USAGE
    assert "expected cluster_id" in refused.stderr
    (cluster.target / "meta.properties").unlink()
    md.write_segment(cluster.target / CLUSTER_METADATA_DIRECTORY, [md.batch(md.topic("a"))])
    for words in ((), ("--dry-run",)):
        refused = cluster.rebuild(*words)
        assert refused.exit_code == ExitCode.REFUSED
        assert "nothing is replaced" in refused.stderr


@pytest.mark.thorough
def test_before_the_quorum_begins_its_snapshot_counts(lost, pylog):
    """As with what Kafka's own format writes, its controller makes the log."""
    cluster = lost("diverged")
    cluster.rebuild()
    audit = pylog("audit", *cluster.roots, cluster.target, "--engine", "local")
    said = " ".join(audit.stdout.split())
    log = cluster.target / CLUSTER_METADATA_DIRECTORY
    assert f"ISR, epochs and assignment by {log}, offset 0" in said
    assert "6 without a leader" in said
    doctor = pylog("doctor", cluster.target, "--engine", "local")
    assert (doctor.exit_code, "NO_SEGMENT" in doctor.stdout) == (ExitCode.DONE, False)
    (log / "quorum-state").write_text("{}")  # it had begun: the log is lost
    assert "NO_SEGMENT" in pylog("doctor", cluster.target, "--engine", "local").stdout
