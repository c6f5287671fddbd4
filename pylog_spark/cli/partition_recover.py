"""What ``pylog partition recover`` and ``truncate`` do once their arguments are read."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pylog_spark.config.assignments import whole_config
from pylog_spark.text import to_json
from storage_core.commit import Plan
from storage_core.errors import GuardRefusedError
from storage_core.log.loaded_log import LoadedLog
from storage_core.maintenance.recovery.lost_records import count_lost_records
from storage_core.maintenance.recovery.partition import (
    RecoverResult,
    commit_recovery,
    plan_recovery,
)
from storage_core.maintenance.truncation.partition import plan_truncation, truncate_partition
from storage_core.store import LocalStore


def run_recover(  # noqa: PLR0913  # the options of the command
    directory: Path,
    *,
    now_ms: int,
    settings: Sequence[str],
    recovery_point: int,
    log_start_offset: int,
    clean_shutdown: bool,
    no_truncate: bool = False,
    dry_run: bool,
) -> str:
    """Recover the partition, or say what would be done; return the answer as one JSON object.

    Raises:
        GuardRefusedError: Something would be cut, and nothing may be.
        PylogError: As ``plan_recovery`` and ``commit_recovery``.
    """
    config, cleaner = whole_config(settings)
    log = plan_recovery(
        LocalStore(directory),
        config=config,
        cleaner=cleaner,
        now_ms=now_ms,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        clean_shutdown=clean_shutdown,
    )
    if no_truncate:
        _refuse_cuts(directory, log)
    if not dry_run:
        return commit_recovery(directory, log).to_json()
    return to_json({"dry_run": True} | asdict(RecoverResult.of(log)) | _describe(directory, log))


def _refuse_cuts(directory: Path, log: LoadedLog) -> None:
    """Refuse to cut records, or a torn tail.

    Raises:
        GuardRefusedError: Something would be cut.
    """
    first = next((cut for cut in log.repairs.cuts if cut.size_bytes), None)
    if first is not None:
        raise GuardRefusedError(
            "CUTS_RECORDS",
            f"{directory}: {log.repairs.truncated_bytes} bytes would be cut, first at byte "
            f"{first.position} of {first.file} (offset {first.first_offset}): {first.reason}. "
            "Expected nothing to be cut. Mend the log before what is derived from it: `pylog "
            "doctor` on its log directory says how",
        )


def run_truncate(  # noqa: PLR0913  # one argument an option
    directory: Path,
    *,
    now_ms: int,
    settings: Sequence[str],
    to: int,
    log_start_offset: int,
    cleaner_checkpoint: int | None = None,
    dry_run: bool,
) -> str:
    """Truncate the partition, or say what would be done; return the answer as one JSON object.

    Raises:
        PylogError: As ``truncate_partition``.
    """
    config, cleaner = whole_config(settings)
    if not dry_run:
        return truncate_partition(
            directory,
            config=config,
            cleaner=cleaner,
            now_ms=now_ms,
            to=to,
            log_start_offset=log_start_offset,
            cleaner_checkpoint=cleaner_checkpoint,
        ).to_json()
    truncated, log = plan_truncation(
        LocalStore(directory),
        config=config,
        cleaner=cleaner,
        now_ms=now_ms,
        to=to,
        log_start_offset=log_start_offset,
    )
    answer = {"dry_run": True, "truncated": truncated, "log_end_offset": log.log_end_offset}
    return to_json(answer | _describe(directory, log))


def _describe(directory: Path, log: LoadedLog) -> dict[str, Any]:
    """Return what would be cut, with what can still be read of it, and every step."""
    store = LocalStore(directory)
    plan = Plan(location=log.location, operations=log.operations)
    return {
        "cuts": [
            asdict(cut) | {"readable_records": count_lost_records(store, cut)}
            for cut in log.repairs.cuts
            if cut.size_bytes
        ],
        "peak_extra_bytes": plan.peak_extra_bytes,
        "operations": list(plan.describe()),
    }
