"""The commit of a round in a job: the next run finishes it with the same bytes.

Unlike a partition that is worked on alone, a job writes its commit down before it begins with it;
so the run that follows a killed one finishes it, whatever was done of it. But somebody else may
work on the partition before the next run does. A broker that loads the logs and is killed at once
leaves no sign of it in the log directory, nor does a person who recovers a partition by hand. The
claim of the commit says what every file was: what does not fit is left to whoever loads the log.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from storage_core.commit.claim import (
    CommitLostError,
    create_claim,
    hold_claim,
    resume_claim,
)
from storage_core.filenames import segment_file
from storage_core.store.base import LogStore
from storage_core.store.local import LocalStore
from tests.crash.cells import Cell, WorkOnDirectory
from tests.crash.interruptions import ALL, KILLS, Interruption
from tests.crash.rounds import CASES, Case, keep, kills_of, restore, settle
from tests.kit.builders import encode_batch
from tests.kit.compare import read_tree
from tests.kit.faulty_store import FaultyStore, Moment, SimulatedCrash
from tests.kit.golden_cleaning import Cleaning, prepare
from tests.kit.partition_views import committed_values
from tests.storage_core.maintenance.compaction.hand_made import batch, record

RESULT = {"next_offset": 7}
# A broker's own is 10 MiB.
INDEX_BYTES = 64 << 10
NEWEST = record(b"a", b"the newest of all")


class ClaimedCommit(WorkOnDirectory):
    """A commit that its claim describes."""

    def __init__(self, case: Case, folder: Path, way: Interruption) -> None:
        self.directory, self._round = case.make(folder / "log")
        self._steps = prepare(self.directory, self._round).commit_of()
        self._claim_file = folder / "claim"
        self._start = keep(self.directory)
        self.reset()
        self.run()
        self._expected = read_tree(self.directory)
        self._tried = 0

    def reset(self) -> None:
        restore(self.directory, self._start)
        self._claim_file.unlink(missing_ok=True)
        create_claim(self._claim_file)
        with hold_claim(self._claim_file) as claim:
            claim.begin(self._steps, RESULT)

    def do(self, store: LogStore) -> None:
        with hold_claim(self._claim_file) as claim:
            claim.finish(store)

    def check(self, where: str) -> None:
        if self._tried % 2:
            # Killed once more, while it finishes.
            store = LocalStore(self.directory)
            number = self._tried // 2
            with suppress(SimulatedCrash):
                self.do(FaultyStore(store, stop_at=number, moment=Moment.AFTER))
        ended = resume_claim(self._claim_file, log_directory=self.directory.parent)
        assert ended == (str(self.directory), RESULT)
        assert read_tree(self.directory) == self._expected, where
        self._tried += 1


def recover_by_hand(directory: Path, round_: Cleaning) -> None:
    """Do what ``pylog partition recover`` does."""
    settle(directory, round_)


def open_its_index(directory: Path) -> None:
    """Make the active segment's index as long as a broker does that loads the log."""
    base = max(directory.glob("*.log")).stem
    index = directory / segment_file(int(base), ".index")
    with index.open("ab") as file:
        file.truncate(INDEX_BYTES)


def load_and_die(directory: Path, round_: Cleaning) -> None:
    """Load the log as a broker does that is killed before its first checkpoint."""
    settle(directory, round_)
    open_its_index(directory)


def take_a_record_and_die(directory: Path, round_: Cleaning) -> None:
    """Load the log and acknowledge a record; the checkpoints know nothing of it."""
    end = settle(directory, round_).log_end_offset
    with max(directory.glob("*.log")).open("ab") as file:
        file.write(encode_batch(batch(end, NEWEST)))
    open_its_index(directory)


VISITORS = {
    "recovered by hand": recover_by_hand,
    "loaded": load_and_die,
    "appended to": take_a_record_and_die,
}


class VisitedCommit(ClaimedCommit):
    """A commit that is not finished over what somebody else has made of the partition."""

    def __init__(
        self,
        case: Case,
        visit: Callable[[Path, Cleaning], None],
        folder: Path,
        way: Interruption,
    ) -> None:
        super().__init__(case, folder, way)
        self._visit = visit
        self._lost = 0

    def check(self, where: str) -> None:
        left = read_tree(self.directory)
        self._visit(self.directory, self._round)
        visited = read_tree(self.directory)
        values = committed_values(self.directory, 2**62)
        try:
            resume_claim(self._claim_file, log_directory=self.directory.parent)
        except CommitLostError:
            assert visited != left, where
            assert read_tree(self.directory) == visited, where
            self._lost += 1
        else:
            # Its visitor found nothing to do, and changed nothing.
            assert self._visit is recover_by_hand, where
            assert read_tree(self.directory) == self._expected, where
        settle(self.directory, self._round)
        assert committed_values(self.directory, 2**62) == values, where
        self._tried += 1

    def check_all(self) -> None:
        assert self._tried == len(list(self._steps.describe()))  # a row a change
        assert 2 * self._lost >= self._tried


CELLS = [
    *(
        Cell(
            operation="claimed commit",
            case=case.name,
            make=partial(ClaimedCommit, case),
            ways=kills_of(case),
        )
        for case in CASES
    ),
    *(
        Cell(
            operation=f"claimed commit, {visited}",
            case=case.name,
            make=partial(VisitedCommit, case, visit),
            ways=[way for way in KILLS if way.way is Moment.AFTER or (ALL and way is KILLS[0])],
        )
        for case in (CASES if ALL else CASES[:1])
        for visited, visit in VISITORS.items()
    ),
]
