"""Directories that are cleaned in crash tests, and rounds over them."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage_core.commit import commit
from storage_core.filenames import TEMPORARY_SUFFIX, segment_file
from storage_core.formats.control import ControlType
from storage_core.log.loaded_log import LoadedLog
from storage_core.store.local import LocalStore
from tests.crash.interruptions import ALL, KILLS, Interruption
from tests.kit.builders import end_txn_marker
from tests.kit.compare import read_tree
from tests.kit.directories import AbortedTxnSpec, ProducerSpec
from tests.kit.faulty_store import Moment
from tests.kit.golden_cleaning import Cleaning, cleaning_of
from tests.kit.golden_data import Golden, goldens
from tests.storage_core.maintenance.compaction.hand_made import (
    NOW,
    P,
    Q,
    batch,
    cleaning,
    produced,
    record,
    write_log,
)

Tree = dict[str, tuple[bytes, int]]


@dataclass(frozen=True, slots=True)
class Case:
    """A directory and a round over it; golden None for the one made by hand."""

    golden: Golden | None

    @property
    def name(self) -> str:
        return self.golden.name if self.golden else "three-groups-by-hand"

    @property
    def is_bounded(self) -> bool:
        """Whether a round that is made again may reach further: the map holds other keys then."""
        return self.golden is not None and "map.bytes" in self.golden.case["params"]

    @property
    def has_tiny_indexes(self) -> bool:
        """Whether an index of this log may be full before its segment is."""
        return "segment.index.bytes" in self.overrides

    @property
    def overrides(self) -> dict[str, Any]:
        """The topic's settings."""
        if self.golden is None:
            return {"cleanup.policy": "compact", "internal.segment.bytes": 520}
        settings = dict(self.golden.case["config"])
        if "segment.bytes" in settings:  # smaller than a topic may say
            settings["internal.segment.bytes"] = settings.pop("segment.bytes")
        return settings

    def make(self, into: Path) -> tuple[Path, Cleaning]:
        if self.golden:
            return self.golden.unpack(into), cleaning_of(self.golden)
        return three_groups(into / "t-0"), cleaning(overrides=self.overrides)


def three_groups(directory: Path) -> Path:
    """Segments of 230 to 260 bytes, two a group; and something to do for the loader.

    Among them are a value whose tombstone is past its horizon, transactions that end in another
    group than they began in, an aborted one, a batch that stays empty for its producer, and one
    group of which nothing is left.
    """

    def in_txn(base_offset: int, *records: Any, **fields: Any) -> Any:
        return produced(base_offset, *records, is_transactional=True, **fields)

    def marker(base_offset: int, producer_id: int, kind: ControlType) -> Any:
        return end_txn_marker(
            base_offset=base_offset, producer_id=producer_id, producer_epoch=0, control_type=kind
        )

    pad = b"x" * 60
    expired = {"delete_horizon_ms": NOW}
    write_log(
        directory,
        [batch(0, record(b"gone", pad), record(b"a", pad)), in_txn(2, record(b"b"))],
        [in_txn(3, record(b"c", pad), producer_id=Q), marker(4, P, ControlType.COMMIT)],
        [batch(5, record(b"gone", b"later"), record(b"e", pad)), batch(7, record(b"e", pad))],
        [batch(8, record(b"gone", None), **expired), batch(9, record(b"e", pad), record(None))],
        [marker(11, Q, ControlType.ABORT), produced(12, record(b"a", pad), record(b"e"))],
        [batch(14, record(b"a"), record(b"d")), batch(16, record(b"t", None), record(b"z", pad))],
        aborted={
            4: [
                AbortedTxnSpec(producer_id=Q, first_offset=3, last_offset=11, last_stable_offset=12)
            ]
        },
        producers=[ProducerSpec(producer_id=P, last_offset=13, last_timestamp=NOW)],
    )
    snapshot = (directory / segment_file(18, ".snapshot")).read_bytes()
    for offset in (8, 14):
        (directory / segment_file(offset, ".snapshot")).write_bytes(snapshot)
    # What the loader settles: a stray snapshot, a deletion that waits, an orphan, a missing and a
    # ragged index, an epoch beyond the end.
    (directory / segment_file(6, ".snapshot")).write_bytes(snapshot)
    (directory / segment_file(0, ".log.deleted")).write_bytes(b"old")
    (directory / segment_file(7, ".timeindex")).write_bytes(b"")
    (directory / segment_file(5, ".timeindex")).unlink()
    (directory / segment_file(18, ".index")).write_bytes(b"\0\0\0")
    (directory / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n3 40\n")
    # Left by somebody else's cleaner: as long as it is there, no swap at or above it counts.
    for name in (segment_file(0, ".txnindex.cleaned"), segment_file(3, ".log.cleaned")):
        (directory / name).write_bytes(b"foreign")
    return directory


def one_group(directory: Path) -> Path:
    """A value and its tombstone, past its horizon, in two segments that go together."""
    pad = b"x" * 10
    write_log(
        directory,
        [batch(0, record(b"a", pad))],
        [batch(2, record(b"gone"))],
        [batch(4, record(b"gone", None), delete_horizon_ms=NOW)],
        [batch(6, record(b"b", pad))],
    )
    return directory


SOME = ["clean-everything-none-s101-3", "clean-vanish-s231-3", "clean-txn-gzip-s111-3"]
# The round takes what lies below its first dirty offset to be cleaned, and none ever did that: the
# tombstone of a value goes that stays.
NEVER_CLEANED = "clean-legacy1-snappy-s312-horizon"
CASES = [
    Case(None),
    *(
        Case(golden)
        for golden in goldens("clean-*")
        if (ALL or golden.name in SOME)
        and golden.name != NEVER_CLEANED
        and not golden.case["expected"].get("nothing_to_clean")
        and golden.case["expected"].get("messages_read") != 0  # a map of no slot
    ),
]


def kills_of(case: Case) -> list[Interruption]:
    """Return how a process dies in the commit of a round.

    The few golden rounds of the default only rename and delete: no kill leaves a change by half.
    """
    return [way for way in KILLS if ALL or not case.golden or way.way is not Moment.TORN]


def keep(directory: Path) -> Tree:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in directory.iterdir()}


def restore(directory: Path, tree: Tree) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for name, (content, modified_ns) in tree.items():
        (directory / name).write_bytes(content)
        os.utime(directory / name, ns=(modified_ns, modified_ns))


def settle(directory: Path, round_: Cleaning, store: Any = None) -> LoadedLog:
    """Load the log and make the changes that loading asks for."""
    log = round_.load(LocalStore(directory))
    operations = log.plan
    commit(operations, store or LocalStore(directory))
    return log


def without_temporary(directory: Path) -> dict[str, bytes]:
    """Return all files but what the next write of a name replaces."""
    files = read_tree(directory)
    return {name: data for name, data in files.items() if not name.endswith(TEMPORARY_SUFFIX)}
