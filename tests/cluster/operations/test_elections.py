"""Elections as the controllers of real clusters held them when their brokers came back."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from pylog_spark.cluster.audit.driver import Audit, audit, find_cluster_facts
from pylog_spark.cluster.audit.elections import controller_of, find_starting
from pylog_spark.engines.choice import Local
from pylog_spark.options import JobOptions
from storage_core.catalog.cluster_metadata import CLUSTER_METADATA_DIRECTORY
from storage_core.catalog.roles import Role
from storage_core.checkpoint.broker_files import UNKNOWN_BROKER_EPOCH, CleanShutdown
from storage_core.cluster.elections import Election, Prediction, predict_election
from storage_core.errors import ConfigError
from storage_core.filenames import META_PROPERTIES_FILE
from storage_core.maintenance.verification.log_directories import verify_log_directories
from tests.kit.cluster_truth import CLUSTERS, Cluster

_UNCLEAN = "unclean.leader.election.enable"

Change = tuple[int, int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def truth_of(row: dict) -> list[Change]:
    """Return the controller's changes of a partition, without the order inside of sets."""
    return [
        (
            each["leader"],
            each["leader_epoch"],
            *(tuple(sorted(each[name])) for name in ("isr", "elr", "last_known_elr")),
        )
        for each in row["elections"]
    ]


def changes_of(election: Election) -> list[Change]:
    """Return our changes of a partition, without the order inside of sets."""
    states = [step.state for step in election.steps]
    return [
        (
            state.leader,
            state.leader_epoch,
            *(tuple(sorted(each)) for each in (state.isr, state.elr, state.last_known_elr)),
        )
        for state in states
    ]


@pytest.mark.sampled(3)
@pytest.mark.item("REP-13", "REP-15", "CFG-22", "CFG-23")
@pytest.mark.parametrize("name", CLUSTERS)
def test_elections_are_those_of_kafkas_controller(name: str, tmp_path: Path):
    cluster = Cluster(name, tmp_path)
    observed, _ = verify_log_directories([(str(root), Role.BROKER) for root in cluster.roots])
    brokers = {root.meta_properties.node_id for root in observed if root.meta_properties}
    compared = 0
    for outcome in cluster.truth["outcomes"]:
        first = set(outcome["led_alone"].values())
        assert len(first) <= 1
        up = brokers - {int(broker) for broker in outcome["ended_at_start"]}
        # All started at once, in an order that nobody knows; or one alone with unclean elections.
        orders = [order for order in permutations(sorted(up)) if not first or {order[0]} == first]
        states = [
            {**row, "config": {**row["config"], _UNCLEAN: "true" if first else "false"}}
            for row in cluster.states
        ]
        state_file = tmp_path / "state.json"
        state_file.write_text(json.dumps({"partitions": states}))
        known = find_cluster_facts(
            observed, state_file, JobOptions(now_ms=0), {}, holds_roots=False
        )
        controller = controller_of(known.metadata, known.states, is_by_file=True)
        by_key = {each.key: each for each in known.states}
        for row in outcome["partitions"]:
            state = by_key[row["topic"], row["partition"], row["topic_id"]]
            truth = truth_of(row)
            elections = []
            for order in orders:
                starting, _ = find_starting(order, observed, known.metadata)
                elections.append(predict_election(state, controller, starting))
                if not first:
                    # All may have registered before the first of them was unfenced.
                    together = Prediction(state, controller)
                    for each in starting:
                        together.register(each)
                        together.assign(each)
                    for each in starting:
                        together.unfence(each)
                    elections.append(together.result())
            same = [each for each in elections if truth[: len(each.steps)] == changes_of(each)]
            story = (outcome["outcome"], state, truth, [changes_of(each) for each in elections])
            assert same, story
            assert {each.leader for each in same} == {row["leader"]}, story
            compared += 1
    assert compared


@pytest.mark.item("DIR-04")
@pytest.mark.parametrize(
    ("difference", "is_clean"),
    [(0, True), (1, False), (None, False)],
    ids=["same", "other", "none"],
)
def test_a_broker_stopped_cleanly_if_all_its_directories_name_its_last_epoch(
    difference: int | None, is_clean: bool, tmp_path: Path
):
    cluster = Cluster("clean", tmp_path)
    observed, _ = verify_log_directories([(str(root), Role.BROKER) for root in cluster.roots])
    metadata = find_cluster_facts(
        observed, None, JobOptions(now_ms=0), {}, holds_roots=False
    ).metadata
    assert metadata is not None
    first = next(root for root in observed if root.meta_properties and root.marker)
    assert first.meta_properties is not None
    broker = first.meta_properties.node_id
    assert broker is not None
    epoch = metadata.brokers[broker].broker_epoch
    markers = [
        CleanShutdown(broker_epoch=epoch),
        None if difference is None else CleanShutdown(broker_epoch=epoch + difference),
    ]
    roots = [replace(first, marker=marker) for marker in markers]
    ((starting,), _) = find_starting([broker], roots, metadata)
    assert starting.is_clean is is_clean
    # Rebuilt metadata expect no marker of a broker that had none.
    rebuilt = replace(metadata.brokers[broker], broker_epoch=UNKNOWN_BROKER_EPOCH)
    metadata = replace(metadata, brokers={**metadata.brokers, broker: rebuilt})
    ((starting,), _) = find_starting([broker], roots, metadata)
    assert starting.is_clean is (not is_clean)


def audit_of(
    cluster: Cluster,
    folder: Path,
    up: Sequence[int],
    *,
    unclean: bool = False,
    out: Path | None = None,
) -> Audit:
    states = [
        {**row, "config": {**row["config"], _UNCLEAN: str(unclean).lower()}}
        for row in cluster.states
    ]
    state = folder / "state.json"
    state.write_text(json.dumps({"partitions": states}))
    options = JobOptions(now_ms=1_800_000_000_000)
    return audit(
        Local.of_master(None), cluster.roots, options, state=state, up=up, election_out=out
    )


@pytest.mark.thorough
def test_an_election_that_nobody_calls_unclean_loses_what_a_wiped_disk_had(tmp_path: Path):
    report = audit_of(Cluster("wiped-disk", tmp_path), tmp_path, [3, 2, 1])
    rows = {(row["topic"], row["partition"]): row["elections"] for row in report.answers()}
    for number, records in enumerate((189, 133, 212)):
        election = rows["ledger", number]
        assert (election["leader"], election["by"]) == (3, "last_known_leader")
        assert election["lost"] == {"records": records, "committed": records, "unknown": 0}
        assert (rows["stock_levels", number]["leader"], rows["stock_levels", number]["by"]) == (
            2,
            "elr",
        )
    assert report.starts is not None
    assert report.starts.asked.loss == (534, 534, 0, 0)
    assert "broker 3 counts as killed" in report.starts.notes[0]


@pytest.mark.thorough
def test_an_unclean_election_that_loses_nothing_is_known_as_that(tmp_path: Path):
    report = audit_of(Cluster("killed", tmp_path), tmp_path, [2], unclean=True)
    elections = [row["elections"] for row in report.answers() if row["topic"] == "stock_levels"]
    assert [(each["leader"], each["by"]) for each in elections] == [(2, "unclean")] * 3
    assert [each["lost"]["records"] for each in elections] == [0, 0, 0]


@pytest.mark.thorough
def test_the_order_that_loses_least_is_told_from_the_one_asked_about(tmp_path: Path):
    report = audit_of(Cluster("diverged", tmp_path), tmp_path, [1, 3], unclean=True)
    assert report.starts is not None
    asked, least = report.starts.asked, report.starts.least
    assert (asked.brokers, least.brokers) == ((1, 3), (3, 1))
    assert least.loss < asked.loss
    for row in report.answers():
        assert row["elections"]["up"] == [1, 3]
        assert row["elections"]["least"]["up"] == [3, 1]


@pytest.mark.thorough
def test_elections_by_hand_lose_less_where_a_wiped_disk_would_lead(tmp_path: Path):
    out = tmp_path / "out"
    report = audit_of(Cluster("wiped-disk", tmp_path), tmp_path, [3, 2, 1], out=out)
    assert report.starts is not None
    manual = report.starts.manual
    assert manual is not None
    assert (set(manual.start.brokers), manual.later, manual.partitions) == ({1, 2}, (3,), 3)
    assert manual.start.loss == (58, 58, 0, 0)
    leaders = {
        f"{topic}-{partition}": leader for (topic, partition, _), leader in report.leaders.items()
    }
    assert leaders == {"ledger-0": 1, "ledger-1": 1, "ledger-2": 2}
    alike = audit_of(Cluster("wiped-disk", tmp_path / "2"), tmp_path, [], out=tmp_path / "out2")
    assert alike.leaders == report.leaders
    # Whom the controller elects cleanly as it is, it elects without a file.
    elected = json.loads((out / "election.json").read_text())["partitions"]
    assert [f"{each['topic']}-{each['partition']}" for each in elected] == sorted(leaders)


@pytest.mark.thorough
def test_what_only_a_log_that_is_gone_had_is_told_as_not_counted(tmp_path: Path):
    report = audit_of(Cluster("wiped-disk", tmp_path), tmp_path, [])
    (note,) = [note for note in report.notes if "not counted" in note]
    assert note.startswith("only broker 3 was in sync of 3 partitions, and has no log here")
    report = audit_of(Cluster("clean", tmp_path / "clean"), tmp_path, [])
    assert not any("not counted" in note for note in report.notes)


@pytest.mark.thorough
def test_partitions_that_wait_can_be_led_at_a_price(tmp_path: Path):
    report = audit_of(Cluster("leader-killed", tmp_path), tmp_path, [2, 3])
    assert report.starts is not None
    assert report.starts.least.loss == (0, 0, 0, 5)
    manual = report.starts.manual
    assert manual is not None
    assert (manual.start.brokers, manual.later, manual.partitions) == ((2, 3), (), 5)
    assert (manual.start.lost_records, manual.start.offline) == (59, 0)


@pytest.mark.thorough
def test_elections_by_hand_are_not_told_where_they_help_nothing(tmp_path: Path):
    report = audit_of(Cluster("clean", tmp_path), tmp_path, [1, 2, 3])
    assert report.starts is not None
    assert report.starts.manual is None


@pytest.mark.thorough
def test_a_setting_that_is_said_comes_before_the_topics(tmp_path: Path):
    cluster = Cluster("wiped-disk", tmp_path)
    options = JobOptions(now_ms=1_800_000_000_000, topic_settings={_UNCLEAN: "true"})
    for up, leader in (([1], 1), ([2], 2)):
        report = audit(Local.of_master(None), cluster.roots, options, up=up)
        elections = [row["elections"] for row in report.answers() if row["topic"] == "ledger"]
        assert [(each["leader"], each["by"]) for each in elections] == [(leader, "unclean")] * 3


@pytest.mark.thorough
def test_a_broker_that_the_cluster_does_not_have_is_refused(tmp_path: Path):
    cluster = Cluster("clean", tmp_path)
    with pytest.raises(ConfigError, match="--up=9: is no broker of the cluster"):
        audit(Local.of_master(None), cluster.roots, JobOptions(now_ms=0), up=[1, 9])


def test_a_directory_that_gets_a_new_id_is_one_that_was_never_registered(tmp_path: Path):
    """As after ``metadata promote``, on a disk that is new."""
    cluster = Cluster("clean", tmp_path)
    observed, _ = verify_log_directories([(str(root), Role.BROKER) for root in cluster.roots])
    metadata = find_cluster_facts(
        observed, None, JobOptions(now_ms=0), {}, holds_roots=False
    ).metadata
    first = observed[0]
    assert first.meta_properties is not None
    assert metadata is not None
    broker = first.meta_properties.node_id
    assert broker is not None
    text = f"broker {broker} never registered {first.location}: formatted anew"
    for directory_id, is_new in ((first.directory_id, False), (None, True)):
        properties = replace(first.meta_properties, directory_id=directory_id)
        root = replace(first, meta_properties=properties)
        _, notes = find_starting([broker], [root], metadata)
        assert any(note.startswith(text) for note in notes) is is_new


@pytest.mark.thorough
def test_a_broker_on_a_new_directory_may_be_unfenced_before_it_names_it(pylog, tmp_path: Path):
    """With or without an id for it: Kafka elects the broker then, or nobody."""
    cluster = Cluster("wiped-disk", tmp_path)
    properties = cluster.roots[2] / META_PROPERTIES_FILE
    for is_promoted in (False, True):
        if is_promoted:
            lines = properties.read_text().splitlines(keepends=True)
            properties.write_text("".join(each for each in lines if "directory.id" not in each))
        report = audit(Local.of_master(None), cluster.roots, JobOptions(now_ms=0), up=[1, 2, 3])
        assert report.starts is not None
        assert report.starts.asked.unsure == 3
        elections = {each["topic"]: each["elections"] for each in report.answers()}
        assert {name: each["leader"] for name, each in elections.items()} == {
            "ledger": 3,
            "stock_levels": 2,
        }
        assert elections["stock_levels"]["late"] is None
        late = elections["ledger"]["late"]
        assert (late["leader"], late["by"], late["waits_for"]) == (None, "none", [3])
    shown = pylog("audit", *cluster.roots, "--up", "1,2,3", "--engine", "local").stdout
    assert "or nobody leads, if Kafka hears of a new log directory too late" in " ".join(
        shown.split()
    )


@pytest.mark.thorough
def test_a_controllers_directory_is_no_broker_to_ask_about(tmp_path: Path):
    """It is given for its metadata; nobody elects it."""
    cluster = Cluster("clean", tmp_path)
    controller = tmp_path / "controller"
    source = cluster.roots[0]
    shutil.copytree(source / CLUSTER_METADATA_DIRECTORY, controller / CLUSTER_METADATA_DIRECTORY)
    properties = (source / META_PROPERTIES_FILE).read_text()
    lines = [each for each in properties.splitlines() if not each.startswith(("node", "directory"))]
    (controller / META_PROPERTIES_FILE).write_text("\n".join([*lines, "node.id=3000"]) + "\n")
    roots = [*cluster.roots, controller]
    report = audit(Local.of_master(None), roots, JobOptions(now_ms=0))
    assert report.brokers == [1, 2, 3]
    files = tmp_path / "files"
    report = audit(Local.of_master(None), roots, JobOptions(now_ms=0), election_out=files)
    assert report.starts is not None
    assert report.starts.asked.brokers == (1, 2, 3)


@pytest.mark.thorough
def test_a_partition_without_a_leader_names_whom_it_waits_for(tmp_path: Path):
    report = audit_of(Cluster("diverged", tmp_path), tmp_path, [1])
    for row in report.answers():
        election = row["elections"]
        assert (election["leader"], election["by"], election["lost"]) == (None, "none", None)
        assert election["waits_for"] == ([2] if row["topic"] == "ledger" else [2, 3])


@pytest.mark.thorough
def test_a_broker_that_cannot_open_its_logs_does_not_start(tmp_path: Path):
    report = audit_of(Cluster("epoch-file-corrupt", tmp_path), tmp_path, [1, 2, 3])
    assert report.starts is not None
    assert report.starts.asked.brokers == (2, 3)
    assert "broker 1 cannot open its logs: it ends" in report.starts.notes


@pytest.mark.thorough
def test_without_a_start_there_are_no_elections(tmp_path: Path):
    report = audit_of(Cluster("clean", tmp_path), tmp_path, [])
    assert report.starts is None
    assert {row["elections"] for row in report.answers()} == {None}


@pytest.mark.thorough
def test_files_for_kafkas_commands_choose_the_best_candidate(tmp_path: Path):
    cluster = Cluster("diverged", tmp_path)
    out = tmp_path / "out"
    report = audit_of(cluster, tmp_path, [1, 3], out=out)
    rows = {
        (row["topic"], row["partition"]): row
        for row in report.answers()
        if row["elections"]["leader"] is None
    }
    names = {"reassignment.json", "restore.json", "election.json"}
    assert set(report.election_files) == names == {path.name for path in out.iterdir()}
    reassigned, restored, elected = (
        {
            (each["topic"], each["partition"]): each
            for each in json.loads((out / name).read_text())["partitions"]
        }
        for name in ("reassignment.json", "restore.json", "election.json")
    )
    leaders = {key[:2]: leader for key, leader in report.leaders.items()}
    assert leaders.keys() == elected.keys() == rows.keys()
    replicas = {(row["topic"], row["partition"]): row["replicas"] for row in cluster.states}
    for key, leader in leaders.items():
        losses = {
            each["broker"]: (not each["safe"], each["lost"]["committed"], each["lost"]["records"])
            for each in rows[key]["candidates"]
            if each["broker"] != 2
        }
        assert losses[leader] == min(losses.values())
        # Kafka takes the first live one; its command refuses the broker that is away.
        order = reassigned[key]["replicas"] if key in reassigned else replicas[key]
        assert next(broker for broker in order if broker != 2) == leader
        if key in reassigned:
            assert sorted(order) == [1, 3]
            assert reassigned[key]["log_dirs"] == ["any"] * 2
            assert restored[key]["replicas"] == [*order, 2]
    assert restored.keys() == reassigned.keys()
    assert reassigned


@pytest.mark.thorough
def test_a_leader_that_is_elected_at_the_start_is_not_to_be_chosen(tmp_path: Path):
    report = audit_of(
        Cluster("diverged", tmp_path), tmp_path, [1, 3], unclean=True, out=tmp_path / "out"
    )
    assert {row["elections"]["leader"] for row in report.answers()} == {1}
    assert report.leaders == {}
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_there_is_not_written_to(tmp_path: Path):
    cluster = Cluster("diverged", tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(ConfigError, match="election-out"):
        audit_of(cluster, tmp_path, [1, 3], out=out)
    with pytest.raises(ConfigError, match="election-out"):
        audit_of(cluster, tmp_path, [1, 3], out=cluster.roots[0] / "out")
    assert list(out.iterdir()) == []


@pytest.mark.thorough
def test_no_folder_is_made_where_nobody_is_better(tmp_path: Path):
    report = audit_of(Cluster("clean", tmp_path), tmp_path, [3], out=tmp_path / "out")
    assert report.leaders == {}
    assert not (tmp_path / "out").exists()
