"""What the crash matrix stops: a module an operation, with the logs that it is done on."""

from tests.crash.work import (
    claimed_commit,
    compaction,
    recovery,
    retention,
    trashed_round,
    truncation,
    undone_deletion,
)

CELLS = [
    *compaction.CELLS,
    *claimed_commit.CELLS,
    *trashed_round.CELLS,
    *recovery.CELLS,
    *retention.CELLS,
    *undone_deletion.CELLS,
    *truncation.CELLS,
]
