"""Which exit status the rows of a run give it."""

from collections.abc import Collection, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.exit_code import ExitCode
from pylog_spark.house import addition_for
from pylog_spark.schemas import Action, Reason, Status
from storage_core.maintenance.verification.findings import Severity

# Refusals by a guard: nothing is wrong with what was done, but something was not allowed.
_GUARDS: Final = frozenset(
    {
        Reason.CONFIG_UNKNOWN,
        Reason.METADATA_UNKNOWN,
        Reason.NO_HIGH_WATERMARK,
        Reason.UNCLEAN_SHUTDOWN,
        Reason.RECOVERY_REQUIRED,
        Reason.NO_SPACE,
        Reason.DELETES_TOO_MUCH,
        Reason.CLOCK_PAST_RETENTION,
        Reason.REMOTE_STORAGE,
        Reason.TIERED,
        Reason.INCONSISTENT_TOPIC_ID,
        Reason.INCONSISTENT_CLUSTER_ID,
        Reason.INCONSISTENT_EPOCHS,
        Reason.SWITCHED_OFF,
        Reason.NEGATIVE_TIMESTAMP,
        Reason.AGE_CONTRADICTED,
        Reason.RECORDS_WITHOUT_KEY,
    }
)
# What no run ever works on; neither done nor refused.
_NOT_ASKED_FOR: Final = frozenset(
    {
        Reason.INTERNAL_METADATA,
        Reason.FUTURE_DIRECTORY,
        Reason.DELETE_DIRECTORY,
        Reason.STRAY_DIRECTORY,
        Reason.INVALID_DIRECTORY_NAME,
        Reason.LINKED_DIRECTORY,
    }
)
_CUTS: Final = frozenset(
    {
        Reason.CUTS_BELOW_HIGH_WATERMARK,
        Reason.CUTS_COMMITTED_RECORDS,
        Reason.CUTS_READABLE_RECORDS,
        Reason.CUTS_TOO_MUCH,
        Reason.CUTS_WHOLE_LOG,
        Reason.BEGINS_ANEW,
    }
)
_TRANSFERS: Final = frozenset(
    {
        Reason.OVERLAPPING_SEGMENTS,
        Reason.MIXED_REPLICAS,
        Reason.MISSING_SEGMENTS,
        Reason.UNFINISHED_SWAP,
        Reason.INCONSISTENT_TOPIC_ID,
        Reason.TARGET_NOT_EMPTY,
        Reason.TARGET_IS_OLDER,
    }
)
# By action: reasons of which a single row is enough for 3. What was asked for was begun, and a
# person has to decide about the rest.
_FOR_A_PERSON: Final[Mapping[str, Collection[str]]] = {
    Action.RECOVER: _CUTS,
    Action.RUN: _CUTS,
    Action.TRUNCATE: _CUTS,
    Action.INGEST: _TRANSFERS,
    Action.MATERIALIZE: _TRANSFERS,
    Action.UNDO: frozenset({Reason.CHANGED_SINCE_RUN, Reason.RUN_NOT_ENDED, Reason.PURGED}),
}


def exit_code_of(
    results: pa.Table,
    *,
    action: str,
    failures: Collection[str] = (),
    has_findings: bool = False,
) -> ExitCode:
    """Return the exit status for a run's rows.

    4 if a partition failed, or the disk of a log directory. 3 if a guard refused every partition of
    a root that was asked for: a scheduler must not take a root that nobody was allowed to touch for
    one that is done. Single refusals among partitions that are in order are rows of the result, and
    0, but for those that a person has to decide about. 1 if nothing worse is said, and something
    was found that the caller asked to be told of.

    Args:
        results: Rows of ``schemas.RESULT``.
        has_findings: Whether there are such findings.
    """
    failed = pc.equal(results["status"], Status.FAILED.value)
    if failures or pc.any(failed).as_py():
        return ExitCode.PARTLY_FAILED
    reasons = _FOR_A_PERSON.get(action) or addition_for("for_a_person", action) or ()
    if _is_refused(results, {Reason.INPUTS_CHANGED, *reasons}):
        return ExitCode.REFUSED
    return ExitCode.FINDINGS if has_findings else ExitCode.DONE


def _is_refused(results: pa.Table, for_a_person: Collection[str]) -> bool:
    refused: set[str] = set()
    accepted: set[str] = set()
    kinds = results.select(["root", "reason"]).group_by(["root", "reason"]).aggregate([])
    for row in kinds.to_pylist():
        if row["reason"] in for_a_person:
            return True
        if row["reason"] in _GUARDS:
            refused.add(row["root"])
        elif row["reason"] not in _NOT_ASKED_FOR:
            accepted.add(row["root"])
    return bool(refused - accepted)


def is_as_bad(worst: Severity | None, fail_on: Severity | None) -> bool:
    """Return whether the worst finding is as bad as ``--fail-on``. The option's value None means
    that no finding is bad."""
    return worst is not None and fail_on is not None and worst.rank >= fail_on.rank
