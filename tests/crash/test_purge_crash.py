"""A purge stopped at every single change or by a loss of power, and made again: the same end."""

import shutil
from pathlib import Path

import pytest

from storage_core.commit import commit
from storage_core.commit.purge import plan_purge_directory, plan_purge_partition
from storage_core.store.base import LogStore
from storage_core.store.local import LocalStore
from tests.crash.interruptions import ALL, KILLS, POWER, is_end
from tests.crash.rounds import settle, three_groups
from tests.kit.compare import read_tree
from tests.kit.faulty_store import Moment
from tests.oracle.kafka import Kafka
from tests.storage_core.maintenance.compaction.hand_made import cleaning

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]
KAFKA_POWER_STRIDE = 1 if ALL else 5
UNIQUE = "0123456789abcdef0123456789abcdef"
FOREVER = 2**60
SETTINGS = {"cleanup.policy": "compact", "internal.segment.bytes": 520}
# A purge writes nothing: there is nothing that a kill could leave by half.
WAYS = [*(way for way in KILLS if way.way is not Moment.TORN), *POWER]


def with_deleted_files(directory: Path) -> Path:
    three_groups(directory)
    round_ = cleaning(overrides=SETTINGS)
    settle(directory, round_)
    for log in list(directory.glob("*.log"))[:2]:
        for suffix in (".log", ".index", ".timeindex"):
            source = log.with_suffix(suffix)
            name = f"{int(log.stem) + 100:020d}{suffix}.deleted"
            if source.exists():
                shutil.copy2(source, directory / name)
    return directory


def purge(directory: Path, store: LogStore):
    is_deleted = directory.name.endswith("-delete")
    plan_purge = plan_purge_directory if is_deleted else plan_purge_partition
    for plan in plan_purge(directory, now_ms=FOREVER, delay_ms=0).plans:
        commit(plan, store)


def state_of(directory: Path):
    return read_tree(directory) if directory.exists() else None


@pytest.mark.item("FLT-08")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
@pytest.mark.parametrize("name", ["t-0", f"t-0.{UNIQUE}-delete"])
def test_a_purge_may_stop_anywhere(name, way, tmp_path):
    disk = tmp_path / "disk"
    directory = with_deleted_files(disk / name)
    saved = shutil.copytree(directory, tmp_path / "saved")
    purge(directory, LocalStore(directory))
    expected = state_of(directory)

    def reset():
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(saved, directory)

    tried = 0
    for where in way.strikes(
        lambda store: purge(directory, store), directory, reset=reset, root=disk
    ):
        if directory.exists() and not is_end(where):
            purge(directory, LocalStore(directory))
        assert state_of(directory) == expected, where
        tried += 1
    assert tried > 4


@pytest.mark.oracle
@pytest.mark.usefixtures("kafka_jvm")
@pytest.mark.parametrize("way", [KILLS[0], *POWER], ids=lambda way: way.name)
def test_kafka_opens_what_a_stopped_purge_left(way, tmp_path):
    whole = with_deleted_files(tmp_path / "whole" / "t-0")
    directory = tmp_path / "disk" / "t-0"
    round_ = cleaning(overrides=SETTINGS)
    end = round_.load(LocalStore(whole)).log_end_offset
    expected = None
    tried = 0

    def reset():
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(whole, directory)

    for where in way.strikes(
        lambda store: purge(directory, store),
        directory,
        reset=reset,
        stride=KAFKA_POWER_STRIDE if way.is_of_power else 1,
    ):
        kafka = Kafka(now_ms=round_.request.now_ms)
        with kafka.open_partition(directory, config=SETTINGS) as partition:
            assert partition.log_end_offset == end, where
        expected = expected or read_tree(directory)
        assert read_tree(directory) == expected, where
        tried += 1
    assert tried > (1 if way.is_of_power else 4)
