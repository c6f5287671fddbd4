"""``pylog partition recover`` and ``truncate``: Kafka's loader, and its truncation."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from pylog_spark.cli.partition import named_log_directory
from pylog_spark.exit_code import ExitCode
from pylog_spark.options.assignments import whole_config
from pylog_spark.options.declared import DRY_RUN
from pylog_spark.options.of_partitions import (
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    CLOCK,
    DIRECTORY,
    LOG_START_OR_ZERO,
    NO_TRUNCATE,
    RECOVERY_POINT,
    TRUNCATE_TO,
)
from pylog_spark.options.option import CommandLine
from pylog_spark.text import to_json
from storage_core.commit import Plan
from storage_core.errors import GuardRefusedError
from storage_core.json_values import to_plain
from storage_core.log.loaded_log import LoadedLog
from storage_core.maintenance.recovery.partition import (
    RecoverResult,
    commit_recovery,
    plan_recovery,
)
from storage_core.maintenance.recovery.salvage import count_lost_records
from storage_core.maintenance.truncation import plan_truncation, truncate_partition
from storage_core.store import LocalStore
from storage_core.threads import count_processors


def recover(line: CommandLine) -> int:
    """Recover a partition or plan it; print JSON; return the exit status.

    The JSON is one object.

    Raises:
        GuardRefusedError: Something would be cut, and nothing may be.
        PylogError: As ``plan_recovery`` and ``commit_recovery``.
    """
    directory = named_log_directory(line[DIRECTORY])
    config, cleaner = whole_config(line)
    log = plan_recovery(
        LocalStore(directory),
        config=config,
        cleaner=cleaner,
        now_ms=line[CLOCK],
        recovery_point=line[RECOVERY_POINT],
        log_start_offset=line[LOG_START_OR_ZERO],
        clean_shutdown=line[CLEAN_SHUTDOWN],
        threads=count_processors(),
    )
    if line[NO_TRUNCATE]:
        _refuse_cuts(directory, log)
    if line[DRY_RUN]:
        answer = {"dry_run": True} | asdict(RecoverResult.of(log)) | _describe(directory, log)
        typer.echo(to_json(answer))
    else:
        typer.echo(to_json(asdict(commit_recovery(directory, log))))
    return ExitCode.DONE


def _refuse_cuts(directory: Path, log: LoadedLog) -> None:
    """Refuse to cut records or a torn tail; zeros may go.

    Zeros at the end are neither.

    Raises:
        GuardRefusedError: Something would be cut.
    """
    first = next((cut for cut in log.repairs.cuts if cut.lost_bytes), None)
    if first is not None:
        raise GuardRefusedError(
            "CUTS_RECORDS",
            f"{directory}: {log.repairs.lost_bytes} bytes would be cut, first at byte "
            f"{first.position} of {first.file} (offset {first.first_offset}): {first.reason}. "
            "Expected nothing to be cut. Mend the log before what is derived from it: `pylog "
            "doctor` on its log directory says how",
        )


def truncate(line: CommandLine) -> int:
    """Truncate a partition or plan it; print JSON; return the exit status.

    The JSON is one object.

    Raises:
        PylogError: As ``truncate_partition``.
    """
    directory = named_log_directory(line[DIRECTORY])
    config, cleaner = whole_config(line)
    if not line[DRY_RUN]:
        result = truncate_partition(
            directory,
            config=config,
            cleaner=cleaner,
            now_ms=line[CLOCK],
            to=line[TRUNCATE_TO],
            log_start_offset=line[LOG_START_OR_ZERO],
            cleaner_checkpoint=line[CLEANER_CHECKPOINT],
        )
        typer.echo(to_json(to_plain(result)))
        return ExitCode.DONE
    truncated, log = plan_truncation(
        LocalStore(directory),
        config=config,
        cleaner=cleaner,
        now_ms=line[CLOCK],
        to=line[TRUNCATE_TO],
        log_start_offset=line[LOG_START_OR_ZERO],
    )
    answer = {"dry_run": True, "truncated": truncated, "log_end_offset": log.log_end_offset}
    typer.echo(to_json(answer | _describe(directory, log)))
    return ExitCode.DONE


def _describe(directory: Path, log: LoadedLog) -> dict[str, Any]:
    """Return the cuts with their readable records, and every step."""
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
