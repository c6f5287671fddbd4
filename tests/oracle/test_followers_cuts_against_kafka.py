"""Followers that are cut offline, beside Kafka's own truncation of the same directories."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jpype
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.catalog.roles import Role
from storage_core.cluster.audit import FollowerCut, audit_partition
from storage_core.cluster.places import (
    ANY_INDEX_BYTES,
    find_places,
    parse_states,
)
from storage_core.cluster.replica import open_replica
from storage_core.commit import commit
from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import PylogError
from storage_core.filenames import TEMPORARY_SUFFIX
from storage_core.maintenance.recovery.partition import plan_recovery
from storage_core.maintenance.verification.log_directories import verify_log_directories
from storage_core.store.local import LocalStore
from tests.kit.cluster_truth import CLUSTERS, Cluster
from tests.kit.compare import Exactness, compare_partitions, read_tree
from tests.kit.file_damage import damage
from tests.oracle.jvm import KafkaFailure, java, kafka_failures
from tests.oracle.kafka import PRODUCER_ID_EXPIRATION_MS, Kafka
from tests.oracle.loading import SIDE_FILE_ACCIDENTS, LoadTask, load_task, write_log
from tests.oracle.random_loads import LoadPlan, load_plans
from tests.oracle.random_logs import EXAMPLES, against_kafka, scratch_folder
from tests.oracle.rounds import DIRECTORY

NOW_MS = 1_800_000_000_000
CLEANER = CleanerConfig(producer_id_expiration_ms=PRODUCER_ID_EXPIRATION_MS)

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]


def cut_by_kafka(directory: Path, task: LoadTask, offsets: Sequence[int]) -> tuple[int, int]:
    """Open a log as a broker, cut it as a follower's fetcher does; return its start and end."""
    partition = Kafka(now_ms=task.now_ms).open_partition(
        directory,
        config=task.config,
        clean_shutdown=task.clean_shutdown,
        log_start_offset=task.log_start_offset,
        recovery_point=task.recovery_point,
    )
    with partition, kafka_failures():
        log = partition.log
        for offset in offsets:
            if offset > partition.log_end_offset:
                log.truncateFullyAndStartAt(jpype.JLong(offset), java("java.util.Optional").empty())
            else:
                log.truncateTo(jpype.JLong(offset))
        return int(log.logStartOffset()), int(log.logEndOffset())


def cut_by_us(directory: Path, task: LoadTask, offsets: Sequence[int]) -> tuple[int, int]:
    store = LocalStore(directory, is_ours=True)
    log = plan_recovery(
        store,
        config=LogConfig.from_topic_overrides({k: str(v) for k, v in task.config.items()}),
        cleaner=CLEANER,
        now_ms=task.now_ms,
        recovery_point=task.recovery_point,
        log_start_offset=task.log_start_offset,
        clean_shutdown=task.clean_shutdown,
        truncations=offsets,
    )
    commit(log.plan, store)
    return log.log_start_offset, log.log_end_offset


def compare_cuts(before: Path, folder: Path, task: LoadTask, offsets: Sequence[int]) -> bool:
    """Cut two copies of a directory; return whether Kafka could."""
    theirs, ours = (folder / side / before.name for side in ("theirs", "ours"))
    for copy in (theirs, ours):
        shutil.copytree(before, copy)
    story = f"{before}\n{task}\n{offsets}"
    try:
        answer = cut_by_kafka(theirs, task, offsets)
    except KafkaFailure:
        with pytest.raises(PylogError):
            cut_by_us(ours, task, offsets)
        return False
    assert cut_by_us(ours, task, offsets) == answer, story
    found = compare_partitions(lasting(theirs), lasting(ours), Exactness.BYTES)
    assert [str(each) for each in found] == [], story
    return True


def lasting(directory: Path) -> Mapping[str, bytes]:
    files = read_tree(directory)
    return {name: data for name, data in files.items() if not name.endswith(TEMPORARY_SUFFIX)}


def cuts_of(cluster: Cluster) -> Iterator[tuple[FollowerCut, Mapping[str, object]]]:
    """Yield each cut of each follower, whoever leads, and its topic's settings."""
    observed, _ = verify_log_directories([(str(root), Role.BROKER) for root in cluster.roots])
    configs = {row["topic"]: row["config"] for row in cluster.states}
    states = parse_states(json.dumps({"partitions": cluster.states}).encode(), "states")
    for places in find_places(observed, states):
        replicas = [open_replica(place, NOW_MS, ANY_INDEX_BYTES) for place in places.replicas]
        for candidate in audit_partition(replicas, places.state).candidates:
            for cut in candidate.cuts:
                if cut.rounds:
                    yield cut, configs.get(places.topic, {})


@pytest.mark.thorough
@pytest.mark.item("REP-11")
def test_followers_of_real_clusters_are_cut_byte_for_byte_as_kafka_cuts_them():
    with scratch_folder() as scratch:
        done = list(cut_clusters(scratch))
    assert {cut.is_restart for cut in done} == {True, False}
    assert {cut.replica.place.is_clean for cut in done} == {True, False}


def cut_clusters(folder: Path) -> Iterator[FollowerCut]:
    """Compare all cuts in all clusters; yield each."""
    for name in CLUSTERS:
        for number, (cut, config) in enumerate(cuts_of(Cluster(name, folder / name))):
            place = cut.replica.place
            if place.is_missing:
                continue
            task = LoadTask(
                config=config,
                now_ms=NOW_MS,
                recovery_point=place.checkpoints.recovery_point or 0,
                log_start_offset=place.checkpoints.log_start_offset or 0,
                clean_shutdown=place.is_clean,
            )
            copies = folder / name / f"cut-{number}"
            assert compare_cuts(Path(place.directory), copies, task, cut.rounds)
            yield cut


@pytest.mark.thorough
@pytest.mark.item("REP-11", "PRD-16")
@settings(against_kafka, max_examples=EXAMPLES // 3)
@given(
    plan=load_plans(),
    shares=st.lists(st.floats(0, 1), min_size=1, max_size=3),
    start_above=st.one_of(st.none(), st.integers(1, 1000)),
)
def test_any_log_is_cut_round_by_round_as_kafka_does(
    plan: LoadPlan, shares: list[float], start_above: int | None
):
    with scratch_folder() as scratch:
        log = write_log(plan, scratch / "written" / DIRECTORY)
        for number, case in enumerate(plan.cases):
            before = scratch / f"case-{number}" / DIRECTORY
            shutil.copytree(log.directory, before)
            for accident in case.damages:
                if accident.accident in SIDE_FILE_ACCIDENTS:
                    damage(before, accident)
            offsets = [int(share * log.log_end_offset) for share in sorted(shares, reverse=True)]
            if start_above is not None:
                offsets.append(log.log_end_offset + start_above)
            task = load_task(plan, case, log)
            compare_cuts(before, scratch / f"case-{number}", task, offsets)
