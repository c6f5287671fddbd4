"""``pylog partition recover`` and ``truncate``: Kafka's loader, and its truncation."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from pylog_spark.cli.partition import commit_or_describe, named_log_directory
from pylog_spark.options.load import whole_config
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
from pylog_spark.outcomes import Reason
from storage_core.errors import GuardRefusedError, PylogError
from storage_core.filenames import log_file, parse_partition_directory, parse_renamed_directory
from storage_core.log.loaded_log import LoadedLog
from storage_core.log.log_loader import find_former_end
from storage_core.maintenance.recovery.partition import (
    RecoverResult,
    plan_recovery,
    plan_truncation,
)
from storage_core.maintenance.recovery.salvage import count_lost_records
from storage_core.roots.broker import BrokerRoot
from storage_core.roots.own_catalog import read_own_catalog
from storage_core.store import LocalStore
from storage_core.threads import count_processors


def recover(line: CommandLine) -> int:
    """Recover a partition or plan it; print JSON; return the exit status. The JSON is one
    object."""
    directory = named_log_directory(line[DIRECTORY])
    _refuse_tiered(directory)
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
        _refuse_beginning(directory, log)
        _refuse_cuts(directory, log)
    return commit_or_describe(line, log, RecoverResult.of(log), partial(_describe, log))


def _refuse_beginning(directory: Path, log: LoadedLog) -> None:
    """Refuse to begin a log anew below where its snapshots end it."""
    end = find_former_end(file.name for file in LocalStore(directory).list_files())
    if end is not None and end > log.log_end_offset:
        raise GuardRefusedError(
            "BEGINS_ANEW",
            f"{directory}: expected a .log file, found none: the log would begin anew at offset "
            f"{log.log_end_offset}, though its snapshots end it at {end}. Bring its .log files "
            f"back; if it was empty, make {log_file(end)} of 0 bytes, as the broker's user",
        )


def _refuse_tiered(directory: Path) -> None:
    """Refuse a log that goes on in remote storage.

    Its local end alone does not have the epochs of what lies there, and a broker deletes by them.
    """
    parsed = parse_renamed_directory(directory.name)
    partition = parse_partition_directory(directory.name) if parsed is None else parsed[0]
    try:
        config = read_own_catalog(BrokerRoot(directory.absolute().parent)).config_for(
            partition.topic
        )
    except PylogError:
        return  # without the metadata a person knows what the topic is
    if config is not None and config.remote_storage_enable:
        raise GuardRefusedError(
            Reason.TIERED,
            f"{directory}: the topic has segments in remote storage, and files built anew from the "
            "local log lack their epochs: a broker would delete them. Epochs come from another "
            "replica or from remote storage",
        )


def _refuse_cuts(directory: Path, log: LoadedLog) -> None:
    """Refuse to cut records or a torn tail; zeros may go. Zeros at the end are neither."""
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
    """Truncate a partition or plan it; print JSON; return the exit status. The JSON is one
    object."""
    config, cleaner = whole_config(line)
    result, log = plan_truncation(
        LocalStore(named_log_directory(line[DIRECTORY])),
        config=config,
        cleaner=cleaner,
        now_ms=line[CLOCK],
        to=line[TRUNCATE_TO],
        log_start_offset=line[LOG_START_OR_ZERO],
        cleaner_offset=line[CLEANER_CHECKPOINT],
    )
    return commit_or_describe(line, log, result, partial(_describe, log))


def _describe(log: LoadedLog) -> dict[str, Any]:
    """Return the cuts with their readable records, and every step."""
    store = LocalStore(Path(log.location))
    return {
        "cuts": [
            asdict(cut) | {"readable_records": count_lost_records(store, cut)}
            for cut in log.repairs.cuts
            if cut.size_bytes
        ],
        "peak_extra_bytes": log.plan.peak_extra_bytes,
        "operations": list(log.plan.describe()),
    }
