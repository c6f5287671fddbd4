"""The commit of a round in a job: the next run finishes it with the same bytes.

Unlike a partition that is worked on alone, a job writes its commit down before it begins with it;
so the run that follows a killed one finishes it, whatever was done of it.
"""

from contextlib import suppress
from functools import partial
from pathlib import Path

from storage_core.commit.claim import create_claim, hold_claim, resume_claim
from storage_core.store.base import LogStore
from storage_core.store.local import LocalStore
from tests.crash.cells import Cell, StoppedWork
from tests.crash.interruptions import Interruption
from tests.crash.rounds import CASES, Case, keep, kills_of, restore
from tests.kit.compare import read_tree
from tests.kit.faulty_store import FaultyStore, Moment, SimulatedCrash
from tests.kit.golden_cleaning import prepare

RESULT = {"next_offset": 7}


class ClaimedCommit(StoppedWork):
    """A commit that its claim describes."""

    def __init__(self, case: Case, folder: Path, way: Interruption) -> None:
        self.directory, round_ = case.make(folder / "log")
        self._steps = prepare(self.directory, round_).commit_of()
        self._claim_file = folder / "claim"
        self._start = keep(self.directory)
        self.reset()
        self.run(LocalStore(self.directory))
        self._expected = read_tree(self.directory)
        self._tried = 0

    def reset(self) -> None:
        restore(self.directory, self._start)
        self._claim_file.unlink(missing_ok=True)
        create_claim(self._claim_file)
        with hold_claim(self._claim_file) as claim:
            claim.begin(self._steps, RESULT)

    def run(self, store: LogStore) -> None:
        with hold_claim(self._claim_file) as claim:
            claim.finish(store)

    def check(self, where: str) -> None:
        if self._tried % 2:
            # Killed once more, while it finishes.
            store = LocalStore(self.directory)
            number = self._tried // 2
            with suppress(SimulatedCrash):
                self.run(FaultyStore(store, stop_at=number, moment=Moment.AFTER))
        ended = resume_claim(self._claim_file, log_directory=self.directory.parent)
        assert ended == (str(self.directory), RESULT)
        assert read_tree(self.directory) == self._expected, where
        self._tried += 1


CELLS = [
    Cell(
        operation="claimed commit",
        case=case.name,
        make=partial(ClaimedCommit, case),
        ways=kills_of(case),
    )
    for case in CASES
]
