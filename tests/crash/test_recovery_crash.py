"""A recovery stopped at every single change that it makes, or by a loss of power, and made again.

The broker's log directory is unclean until a recovery has ended, so the second one begins from the
same checkpoints. Where the marker was there (a load), the job removed it first; a load that finds
it again must come to the same end too, for the signs that a segment is still to be recovered go
last. ``PYLOG_CRASH_ALL=1`` (``make crash``) takes every golden directory.
"""

import shutil
from pathlib import Path

import pytest

from storage_core.checkpoint.checkpoint_files import encode_leader_epochs, parse_leader_epochs
from storage_core.commit import Plan, commit
from storage_core.filenames import LEADER_EPOCH_FILE, TEMPORARY_SUFFIX
from storage_core.maintenance.recovery.salvage import salvage_cuts
from storage_core.store.base import LogStore
from storage_core.store.local import LocalStore
from tests.crash.interruptions import (
    ALL,
    KILLS,
    POWER,
    Interruption,
    each_way,
    is_end,
    power_losses,
)
from tests.kit.compare import read_tree
from tests.kit.faulty_store import FaultyStore, Moment
from tests.kit.golden_data import Golden, goldens
from tests.kit.golden_loading import plan_golden, settings_of
from tests.oracle.kafka import Kafka

POWER_STRIDE = 1 if ALL else 7
KAFKA_STRIDE = 4 if ALL else 13
pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

PATTERNS = (
    ("recover-*", "load-*", "leftover-*", "overflow-*-[lr]*")
    if ALL
    else (
        "recover-earlier-above-*-none*",
        "recover-torn061-none*",
        "recover-logstart-past*",
        "load-all-missing-*",
        "load-index-missing-*",
        "overflow-two-*",
        "leftover-swap-part-*",
    )
)
CASES = [
    golden
    for pattern in PATTERNS
    for golden in goldens(pattern)
    if "error" not in golden.case["expected"]
]


# An epoch that begins at the log's end is dropped by the next start, and found again by the one
# after it. One that only a batch has that is cut, at an offset below its segment, is found by a
# start whose epochs do not have it. So a second attempt, Kafka's too, leaves these logs others.
OTHER_EPOCHS = (
    "load-logstart-end-s451",
    "recover-logstart-end-s451",
    "recover-offset-below-base-none-s400",
)
# Of these everything is done by renaming and deleting: a kill leaves no change by half.
UNWRITTEN = ("leftover-swap-part-deleted-load-s471", "leftover-swap-part-deleted-recover-s471")
PAIRS = [
    pytest.param(golden, way, id=f"{golden.name}-{way.name}")
    for golden in CASES
    for way in [*KILLS, *POWER]
    if way.way is not Moment.TORN or golden.name not in UNWRITTEN
]


def files_of(golden: Golden, directory: Path) -> dict[str, bytes]:
    """Return what of a directory a recovery that was killed, and made again, leaves the same."""
    tree = read_tree(directory)
    tree = {name: data for name, data in tree.items() if not name.endswith(TEMPORARY_SUFFIX)}
    if golden.case["operation"] == "load":
        # A load that finds no snapshot takes the producers to be gone, one that finds any replays.
        tree = {name: data for name, data in tree.items() if not name.endswith(".snapshot")}
    return tree


def comparable(golden: Golden, tree: dict[str, bytes]) -> dict[str, bytes]:
    """Return of these files what is the same where a later change is there without an earlier one.

    Then any log may have other epochs at its end, as those of ``OTHER_EPOCHS`` have after a kill.
    """
    tree = dict(tree)
    entries = parse_leader_epochs(tree.pop(LEADER_EPOCH_FILE), file=LEADER_EPOCH_FILE)
    end = golden.case["expected"]["leo"]
    if "offset-below-base" not in golden.name:
        tree["epochs"] = encode_leader_epochs([one for one in entries if one.start_offset < end])
    return tree


def work_on(golden: Golden, store: LogStore) -> None:
    """Recover or load a log as Kafka did."""
    log = plan_golden(golden, store)
    commit(Plan(location=store.location, operations=log.operations), store)


@pytest.mark.item("REC-06", "REC-25", "FLT-08")
@pytest.mark.parametrize(("golden", "way"), PAIRS)
def test_a_recovery_that_is_stopped_anywhere_and_made_again_ends_the_same(
    golden: Golden, way: Interruption, tmp_path
):
    before = golden.unpack(tmp_path / "before")
    directory = tmp_path / "log" / before.name

    def reset():
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(before, directory)

    reset()
    undisturbed = FaultyStore(LocalStore(directory))
    work_on(golden, undisturbed)
    points = [change for change in undisturbed.changes if way.can_strike(change)]
    if not points:
        assert ALL
        pytest.skip("many loads have nothing to change, many recoveries nothing to write")
    expected = files_of(golden, directory)
    stride = POWER_STRIDE if way.is_of_power else 1
    tried = 0
    for where in way.strikes(
        lambda store: work_on(golden, store), directory, reset=reset, stride=stride
    ):
        if not is_end(where):
            work_on(golden, LocalStore(directory))
        found = files_of(golden, directory)
        if way.is_of_power or golden.name in OTHER_EPOCHS:
            assert comparable(golden, found) == comparable(golden, expected), where
        else:
            assert found == expected, where
        tried += 1
    assert tried > len(points) // stride if way.is_of_power else tried == len(points)


@pytest.mark.item("FLT-02", "FLT-08")
@pytest.mark.parametrize("way", POWER, ids=lambda way: way.name)
@pytest.mark.parametrize(
    "name", ["recover-torn061-none-s400", "recover-earlier-above-payload-none-s400"]
)
def test_what_is_cut_was_salvaged_before_and_survives_a_loss_of_power(name, way, tmp_path):
    golden = Golden(name)
    before = golden.unpack(tmp_path / "before")
    disk = tmp_path / "disk"
    directory, salvage = disk / "log" / before.name, disk / "aside" / "run" / before.name
    config = settings_of(golden)["config"]

    def reset():
        shutil.rmtree(disk, ignore_errors=True)
        shutil.copytree(before, directory)

    def work():
        store = LocalStore(directory)
        log = plan_golden(golden, store)
        salvage_cuts(
            store,
            log.repairs.cuts,
            salvage,
            index_interval_bytes=config.index_interval_bytes,
            max_index_bytes=config.segment_index_bytes,
        )
        commit(Plan(location=store.location, operations=log.operations), store)

    cuts = plan_golden(golden, LocalStore(before)).repairs.cuts
    assert sum(cut.size_bytes for cut in cuts) > 0
    for where in power_losses(work, disk, way.way, reset=reset, stride=POWER_STRIDE):
        for cut in cuts:
            content = (before / cut.file).read_bytes()
            path = directory / cut.file
            if not path.exists() or path.read_bytes() != content:
                raw = salvage / f"cut-{cut.base_offset:020d}-{cut.position}.raw"
                lost = content[cut.position : cut.position + cut.size_bytes]
                assert raw.read_bytes() == lost, where


def logs_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*.log")}


RECOVERIES = [golden for golden in CASES if golden.case["operation"] == "recover"]


@pytest.mark.oracle
@pytest.mark.usefixtures("kafka_jvm")
@pytest.mark.item("FLT-08")
@pytest.mark.parametrize(("golden", "way"), each_way(RECOVERIES, KILLS[:1] if ALL else []))
def test_kafka_recovers_the_same_from_what_a_stopped_recovery_left(
    golden: Golden, way: Interruption, tmp_path
):
    before = golden.unpack(tmp_path / "before")
    directory, kafkas = tmp_path / "log" / before.name, tmp_path / "kafkas" / before.name
    params = golden.case["params"]
    config = {key: str(value) for key, value in golden.case["config"].items()}
    if "segment.bytes" in config:  # smaller than a topic may say
        config["internal.segment.bytes"] = config.pop("segment.bytes")

    def reset():
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(before, directory)

    reset()
    work_on(golden, LocalStore(directory))
    expected = logs_of(directory)
    kafka = Kafka(now_ms=golden.case["clock_ms"])
    tried = 0
    for where in way.strikes(
        lambda store: work_on(golden, store), directory, reset=reset, stride=KAFKA_STRIDE
    ):
        shutil.rmtree(kafkas.parent, ignore_errors=True)
        shutil.copytree(directory, kafkas)
        with kafka.open_partition(
            kafkas,
            config=config,
            clean_shutdown=False,
            log_start_offset=params.get("log.start", 0),
            recovery_point=params.get("recovery.point", 0),
        ) as partition:
            assert partition.log_end_offset == golden.case["expected"]["leo"], where
        assert logs_of(kafkas) == expected, where
        work_on(golden, LocalStore(directory))
        epochs = [path.joinpath(LEADER_EPOCH_FILE).read_bytes() for path in (directory, kafkas)]
        assert epochs[0] == epochs[1], where
        tried += 1
    assert tried
