"""A recovery or a load: it is made again, and ends the same.

The broker's log directory is unclean until a recovery has ended, so the second one begins from the
same checkpoints. Where the marker was there (a load), the job removed it first; a load that finds
it again must come to the same end too, for the signs that a segment is still to be recovered go
last.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from storage_core.checkpoint.checkpoints import encode_leader_epochs, parse_leader_epochs
from storage_core.commit import commit
from storage_core.filenames import LEADER_EPOCH_FILE, TEMPORARY_SUFFIX
from storage_core.store.base import LogStore
from storage_core.store.local import LocalStore
from tests.crash.cells import Cell, WorkOfKafka, power_of
from tests.crash.interruptions import ALL, KILLS, KILLS_OF_CHANGES, POWER, Interruption, is_end
from tests.crash.work.retention import overrides_of
from tests.kit.compare import read_tree
from tests.kit.faulty_store import Moment
from tests.kit.golden_data import Golden, goldens
from tests.kit.golden_loading import plan_golden

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
RECOVERIES = [golden for golden in CASES if golden.case["operation"] == "recover"]

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


def recover_golden(golden: Golden, store: LogStore) -> None:
    """Recover or load a log as Kafka did."""
    log = plan_golden(golden, store)
    commit(log.plan, store)


class Recovery(WorkOfKafka):
    """What ``plan_golden`` plans, and its commit."""

    shutdowns: ClassVar[Sequence[bool]] = (False,)

    def __init__(self, golden: Golden, folder: Path, way: Interruption) -> None:
        self._golden, self._way = golden, way
        self.original = golden.unpack(folder / "before")
        self.directory = folder / "log" / self.original.name
        self.reset()
        recover_golden(golden, LocalStore(self.directory))
        self._expected = self._files()
        params = golden.case["params"]
        self.now_ms = golden.case["clock_ms"]
        self.checkpoints = {
            "log_start_offset": params.get("log.start", 0),
            "recovery_point": params.get("recovery.point", 0),
        }
        self.overrides: Mapping[str, Any] = overrides_of(golden)

    def do(self, store: LogStore) -> None:
        recover_golden(self._golden, store)

    def check(self, where: str) -> None:
        if not is_end(where):
            self.run()
        there = self._files()
        if self._way.is_of_power or self._golden.name in OTHER_EPOCHS:
            assert self._comparable(there) == self._comparable(self._expected), where
        else:
            assert there == self._expected, where

    def _files(self) -> dict[str, bytes]:
        """Return what a recovery that was killed, and made again, leaves the same."""
        tree = read_tree(self.directory)
        # A load that finds no snapshot takes the producers to be gone, one that finds any replays.
        is_load = self._golden.case["operation"] == "load"
        left_out = (TEMPORARY_SUFFIX, ".snapshot") if is_load else (TEMPORARY_SUFFIX,)
        return {name: data for name, data in tree.items() if not name.endswith(left_out)}

    def _comparable(self, tree: dict[str, bytes]) -> dict[str, bytes]:
        """Return of these what is the same where a later change is there without an earlier one.

        Then any log may have other epochs at its end, as those of ``OTHER_EPOCHS`` after a kill.
        """
        tree = dict(tree)
        entries = parse_leader_epochs(tree.pop(LEADER_EPOCH_FILE), file=LEADER_EPOCH_FILE)
        end = self._golden.case["expected"]["leo"]
        if "offset-below-base" not in self._golden.name:
            kept = [entry for entry in entries if entry.start_offset < end]
            tree["epochs"] = encode_leader_epochs(kept)
        return tree

    def check_kafkas(self, theirs: Path, answer: Any, where: str, *, clean_shutdown: bool) -> None:
        assert answer.log_end_offset == self._golden.case["expected"]["leo"], where
        logs = {name: data for name, data in self._expected.items() if name.endswith(".log")}
        assert {path.name: path.read_bytes() for path in theirs.glob("*.log")} == logs, where

    def check_beside(self, theirs: Path, where: str) -> None:
        self.run()
        ours, kafkas = (
            path.joinpath(LEADER_EPOCH_FILE).read_bytes() for path in (self.directory, theirs)
        )
        assert ours == kafkas, where


def kafka_ways_of(golden: Golden) -> list[Interruption]:
    if golden not in RECOVERIES:
        return []
    return [*(KILLS[:1] if ALL else []), *power_of(RECOVERIES.index(golden))]


CELLS = [
    Cell(
        operation=golden.case["operation"],
        case=golden.name,
        make=partial(Recovery, golden),
        ways=[
            way
            for way in (*KILLS_OF_CHANGES, *POWER)
            if way.way is not Moment.TORN or golden.name not in UNWRITTEN
        ],
        kafka_ways=kafka_ways_of(golden),
        power_stride=1 if ALL else 7,
        kafka_stride=4 if ALL else 13,
        kafka_power_stride=4 if ALL else 13,
    )
    for golden in CASES
]
