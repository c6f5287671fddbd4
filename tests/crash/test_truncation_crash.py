"""A truncation stopped at every single change, or by a loss of power, loaded, and made again.

Up to where it is cut the log is there in every state between, for us and for Kafka; a second
truncation ends as one that was not stopped. Where that one ends in the middle of a batch, the log
ends earlier once it is opened again, as in Kafka; so an end that was reached, and looked at once
more, counts too. ``PYLOG_CRASH_ALL=1`` (``make crash``) takes every golden truncation.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from storage_core.commit import Plan, commit
from storage_core.config import CleanerConfig, LogConfig
from storage_core.filenames import SEGMENT_SUFFIXES, TEMPORARY_SUFFIX
from storage_core.maintenance.recovery.partition import recover_partition
from storage_core.maintenance.truncation import plan_truncation, truncate_partition
from storage_core.store.local import LocalStore
from tests.crash.interruptions import KILLS, POWER, Interruption, unsynced
from tests.kit.compare import read_tree
from tests.kit.faulty_store import FaultyStore
from tests.kit.golden_data import Golden, goldens
from tests.kit.golden_loading import settings_of
from tests.kit.power_loss import Disk, Loss
from tests.oracle.kafka import Kafka
from tests.storage_core.maintenance.compaction.hand_made import NOW, batch, record, write_log

ALL = os.environ.get("PYLOG_CRASH_ALL", "0") == "1"
pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

UNORDERED_SEEDS = 40 if ALL else 6
NAMES = (
    "truncate-*" if ALL else "truncate-[ms]*-s531",
    "truncate-below-logstart-s531",
    "truncate-legacy1-mixed-s315",
)
CASES = [
    golden
    for golden in goldens("truncate-*")
    if golden.case["expected"].get("truncated") and any(map(Path(golden.name).match, NAMES))
]


def truncate(golden: Golden, store: Any) -> None:
    params = golden.case["params"]
    _, log = plan_truncation(
        store,
        **settings_of(golden),
        to=params["to"],
        log_start_offset=params.get("log.start", 0),
    )
    commit(Plan(location=store.location, operations=log.operations), store)


def files_of(directory: Path) -> dict[str, bytes]:
    """Return all files but what the next write of a name replaces."""
    files = read_tree(directory)
    return {name: data for name, data in files.items() if not name.endswith(TEMPORARY_SUFFIX)}


def log_bytes(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


@pytest.mark.parametrize("way", [*KILLS, *POWER], ids=lambda way: way.name)
@pytest.mark.parametrize("golden", CASES, ids=lambda golden: golden.name)
def test_a_truncation_may_stop_anywhere(golden: Golden, way: Interruption, tmp_path: Path):
    before = golden.unpack(tmp_path / "before")
    directory, twin = tmp_path / "work" / before.name, tmp_path / "twin" / before.name
    params = golden.case["params"]
    shutil.copytree(before, directory)
    undisturbed = FaultyStore(LocalStore(directory))
    truncate(golden, undisturbed)
    points = [change for change in undisturbed.changes if way.can_strike(change)]
    kept = log_bytes(directory)
    ends = [files_of(directory)]
    truncate(golden, LocalStore(directory))
    ends.append(files_of(directory))

    def copy(source: Path, target: Path) -> None:
        shutil.rmtree(target.parent, ignore_errors=True)
        shutil.copytree(source, target)

    strikes = way.strikes(
        lambda store: truncate(golden, store),
        directory,
        reset=lambda: copy(before, directory),
        stride=1 if ALL or not way.is_of_power else 4,
    )
    tried = 0
    for where in strikes:
        copy(directory, twin)
        start = params.get("log.start", 0)
        with unsynced():
            recover_partition(twin, **settings_of(golden), log_start_offset=start)
            truncate(golden, LocalStore(directory))
        assert log_bytes(twin).startswith(kept) or params["to"] < start, where
        assert files_of(directory) in ends, where
        tried += 1
    assert tried > 2 if way.is_of_power else tried == len(points) > 0


@pytest.mark.item("FLT-08")
@pytest.mark.parametrize("to", [5, 103] if ALL else [5])
def test_a_truncation_whose_names_are_kept_in_no_order_is_made_again(to: int, tmp_path: Path):
    """On a filesystem that keeps of some files the newest names, and of others the former ones."""
    directory = tmp_path / "work" / "t-0"

    def reset() -> None:
        shutil.rmtree(directory, ignore_errors=True)
        write_log(
            directory,
            [batch(100, record(b"a")), batch(103, record(b"b"))],
        )

    def work() -> None:
        truncate_partition(
            directory, config=LogConfig(), cleaner=CleanerConfig(), now_ms=NOW, to=to
        )

    reset()
    work()
    ends = [files_of(directory)]
    work()
    ends.append(files_of(directory))
    number, is_over = 0, False
    while not is_over:
        reset()
        disk = Disk(directory)
        is_over = not disk.run(work, stop_at=number)
        for seed in range(UNORDERED_SEEDS):
            disk.leave(Loss.SOME_NAMES, seed=seed + UNORDERED_SEEDS * number)
            with unsynced():
                work()
            assert files_of(directory) in ends, f"before change {number}, seed {seed}"
        number += 1


@pytest.mark.oracle
@pytest.mark.usefixtures("kafka_jvm")
@pytest.mark.parametrize("golden", [g for g in CASES if ALL or "mid-batch" in g.name])
def test_kafka_opens_what_a_stopped_truncation_left(golden: Golden, tmp_path: Path):
    before = golden.unpack(tmp_path / "before")
    directory = tmp_path / "work" / before.name
    params, settings = golden.case["params"], settings_of(golden)
    shutil.copytree(before, directory)
    truncate(golden, LocalStore(directory))
    kept = log_bytes(directory)

    def reset() -> None:
        shutil.rmtree(directory)
        shutil.copytree(before, directory)

    kafka = Kafka(now_ms=settings["now_ms"])
    config = golden.case["config"] | {
        f"internal.{key}": value
        for key, value in golden.case["config"].items()
        if key == "segment.bytes"
    }
    config.pop("segment.bytes", None)
    tried = 0
    for where in KILLS[0].strikes(lambda store: truncate(golden, store), directory, reset=reset):
        for clean_shutdown in (True, False):
            twin = tmp_path / f"twin-{clean_shutdown}" / before.name
            shutil.rmtree(twin.parent, ignore_errors=True)
            shutil.copytree(directory, twin)
            with kafka.open_partition(
                twin,
                config=config,
                clean_shutdown=clean_shutdown,
                log_start_offset=params.get("log.start", 0),
            ):
                pass
            if params["to"] >= params.get("log.start", 0):
                assert log_bytes(twin).startswith(kept), where
            assert {path.suffix for path in twin.iterdir()} <= {*SEGMENT_SUFFIXES, ".snapshot", ""}
        tried += 1
    assert tried > 2
