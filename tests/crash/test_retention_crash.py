"""A deletion pass stopped at every single change that it makes, by a kill or a loss of power.

What a stopped sweep leaves is loaded, by this project and by Kafka: nothing above the log start is
missing. Made again it ends as the one that was not interrupted did. ``PYLOG_CRASH_ALL=1``
(``make crash``) takes every golden pass that removes something, and every change for Kafka too.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from storage_core.commit import Plan, commit
from storage_core.filenames import TEMPORARY_SUFFIX
from storage_core.log.log_loader import LogLoader
from storage_core.maintenance.retention.partition import Sweep, plan_retain
from storage_core.store.base import LogStore
from storage_core.store.local import LocalStore
from tests.crash.interruptions import ALL, KILLS, POWER, each_way, is_end
from tests.kit.compare import read_tree
from tests.kit.faulty_store import FaultyStore, Moment, SimulatedCrash
from tests.kit.golden_data import Golden, goldens
from tests.kit.golden_loading import settings_of
from tests.kit.golden_retention import offsets_of, sweep_golden
from tests.kit.partition_views import data_records
from tests.oracle.kafka import Kafka

KAFKA_STRIDE = 1 if ALL else 6
POWER_STRIDE = 1 if ALL else 7
KAFKA_POWER_STRIDE = 1 if ALL else 17
SOME = ["retain-both-s501", "retain-time-all-s501", "retain-size-zero-s501"]
CASES = [
    golden
    for golden in goldens("retain-*")
    if golden.case["expected"]["deleted"]
    and not golden.case["params"].get("keep")
    and (ALL or golden.name in SOME)
]
pytestmark = [pytest.mark.crash, pytest.mark.timeout(1800 if ALL else 300)]


@dataclass(frozen=True, slots=True)
class Place:
    """One golden log, and its entry in the log-start checkpoint."""

    golden: Golden
    directory: Path
    before: Path

    def restore(self) -> None:
        """Put the log back as it was."""
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.copytree(self.before, self.directory)

    def sweep(self, store: LogStore, checkpoint: int | None = None) -> Sweep:
        """Plan the pass, by an entry of the checkpoint; by the one that it has at first if None."""
        entry = offsets_of(self.golden)["log_start_offset"] or 0
        return sweep_golden(
            self.golden, store, log_start_checkpoint=entry if checkpoint is None else checkpoint
        )


def place_of(golden: Golden, tmp_path: Path) -> Place:
    before = golden.unpack(tmp_path / "before")
    place = Place(golden, tmp_path / "now" / before.name, before)
    place.restore()
    return place


def tree_of(directory: Path) -> dict[str, bytes]:
    found = read_tree(directory)
    return {name: data for name, data in found.items() if not name.endswith(TEMPORARY_SUFFIX)}


def logs_of(directory: Path) -> set[str]:
    return {path.name for path in directory.glob("*.log")}


def commit_sweep(place: Place, store: LogStore) -> None:
    """Sweep; the log start has risen before."""
    commit(place.sweep(store).steps, store)


@pytest.mark.item("FLT-08", "RET-10", "RET-11", "SEG-08", "SEG-09")
@pytest.mark.parametrize("way", [*KILLS, *POWER], ids=lambda way: way.name)
@pytest.mark.parametrize("golden", CASES, ids=lambda golden: golden.name)
def test_a_sweep_that_is_stopped_anywhere_and_made_again_ends_the_same(golden, way, tmp_path):
    place = place_of(golden, tmp_path)
    whole = place.sweep(LocalStore(place.directory))
    start = whole.decision.log_start_offset
    survivors = [r for r in data_records(place.directory) if r.offset >= start]
    commit(whole.steps, LocalStore(place.directory))
    expected = tree_of(place.directory)
    place.restore()
    tried = 0
    for where in way.strikes(
        lambda store: commit_sweep(place, store),
        place.directory,
        reset=place.restore,
        stride=POWER_STRIDE if way.is_of_power else 1,
    ):
        check_loads(place, start, survivors, where)
        if is_end(where):
            assert logs_of(place.directory) == {name for name in expected if name.endswith(".log")}
        # By the checkpoint that was written first, and, as if that were lost, by the old one.
        crashed = place.directory.with_name("crashed")
        shutil.copytree(place.directory, crashed, dirs_exist_ok=True)
        for checkpoint in (start, None):
            shutil.rmtree(place.directory)
            shutil.copytree(crashed, place.directory)
            store = LocalStore(place.directory)
            commit(place.sweep(store, checkpoint).steps, store)
            assert tree_of(place.directory) == expected, where
            assert place.sweep(store, start).steps.is_empty, where
        shutil.rmtree(crashed)
        tried += 1
    assert tried > len(whole.decision.removals) or way not in KILLS[:1]


def check_loads(place: Place, start: int, survivors: list[Any], where: str) -> None:
    """Load what a crash left: every record that may be read is there, and none below."""
    loaded = place.directory.with_name("loaded-0")
    shutil.copytree(place.directory, loaded, dirs_exist_ok=True)
    for clean_shutdown in (True, False):
        store = LocalStore(loaded)
        loader = LogLoader(
            store,
            **settings_of(place.golden),
            log_start_checkpoint=start,
            clean_shutdown=clean_shutdown,
        )
        log = loader.load().close()
        assert log.log_start_offset == start, where
        assert log.log_end_offset == place.golden.case["expected"]["leo"], where
    commit(Plan(location=store.location, operations=log.operations), store)
    assert [r for r in data_records(loaded) if r.offset >= start] == survivors, where
    shutil.rmtree(loaded)


@pytest.mark.item("FLT-08")
@pytest.mark.parametrize("golden", CASES, ids=lambda golden: golden.name)
def test_a_pass_over_an_open_log_ends_the_same_too(golden, tmp_path):
    """What ``pylog partition retain`` does: no checkpoint is there, the log is closed."""
    place = place_of(golden, tmp_path)

    def retain(store: LogStore) -> None:
        _, log = plan_retain(store, **settings_of(golden), **offsets_of(golden))
        commit(Plan(location=store.location, operations=log.operations), store)

    counter = FaultyStore(LocalStore(place.directory))
    retain(counter)
    once = tree_of(place.directory)
    # Opening a log drops, in Kafka too, the snapshot at its start and an epoch at its end.
    retain(LocalStore(place.directory))
    twice = tree_of(place.directory)
    for number, method in enumerate(counter.changes):
        for moment in (Moment.BEFORE, Moment.TORN) if method == "write_file" else (Moment.BEFORE,):
            place.restore()
            with pytest.raises(SimulatedCrash):
                retain(FaultyStore(LocalStore(place.directory), stop_at=number, moment=moment))
            retain(LocalStore(place.directory))
            found = tree_of(place.directory)
            missing = {name: once[name] for name in once if name not in found}
            assert not missing or missing.keys() == once.keys() - twice.keys(), number
            for name, data in found.items():
                assert data in (once[name], twice.get(name)), f"{moment.value} {number}: {method}"


@pytest.mark.oracle
@pytest.mark.usefixtures("kafka_jvm")
@pytest.mark.item("FLT-08", "RET-11")
@pytest.mark.parametrize(("golden", "way"), each_way(CASES, KILLS[:1]))
def test_kafka_opens_what_a_crash_left_at_the_same_offsets(golden, way, tmp_path):
    place = place_of(golden, tmp_path)
    start = place.sweep(LocalStore(place.directory)).decision.log_start_offset
    kafka = Kafka(now_ms=golden.case["clock_ms"])
    overrides = {key: str(value) for key, value in golden.case["config"].items()}
    overrides["internal.segment.bytes"] = overrides.pop("segment.bytes")
    tried = 0
    for where in way.strikes(
        lambda store: commit_sweep(place, store),
        place.directory,
        reset=place.restore,
        stride=KAFKA_POWER_STRIDE if way.is_of_power else KAFKA_STRIDE,
    ):
        for clean_shutdown in (False, True):
            theirs = tmp_path / "kafkas" / place.directory.name
            shutil.rmtree(theirs, ignore_errors=True)
            shutil.copytree(place.directory, theirs)
            with kafka.open_partition(
                theirs, config=overrides, log_start_offset=start, clean_shutdown=clean_shutdown
            ) as partition:
                answer = partition.answer()
            assert answer.log_start_offset == start, where
            assert answer.log_end_offset == golden.case["expected"]["leo"], where
            if clean_shutdown:
                ours = LogLoader(
                    LocalStore(place.directory),
                    **settings_of(golden),
                    log_start_checkpoint=start,
                    clean_shutdown=True,
                )
                log = ours.load().close()
                store = LocalStore(place.directory)
                commit(Plan(location=log.location, operations=log.operations), store)
                assert read_tree(theirs) == read_tree(place.directory), where
        tried += 1
    assert tried
