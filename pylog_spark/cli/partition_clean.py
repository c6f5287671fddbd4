"""``pylog partition clean``: one round of Kafka's cleaner."""

import dataclasses
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import typer

from pylog_spark.cli.partition import named_partition_directory
from pylog_spark.exit_code import ExitCode
from pylog_spark.options.declared import DRY_RUN
from pylog_spark.options.load import whole_config
from pylog_spark.options.of_partitions import (
    CLEANER_CHECKPOINT,
    CLOCK,
    CONSENT,
    DIRECTORY,
    FIRST_DIRTY,
    FIRST_UNCLEANABLE,
    HIGH_WATERMARK,
    IO_BUFFER_BYTES,
    LOAD_FACTOR,
    LOG_START,
    MAX_IO_BUFFER_BYTES,
    OFFSET_MAP_BYTES,
    THEN_RETAIN,
)
from pylog_spark.options.option import CommandLine
from pylog_spark.text import to_json
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.commit import commit
from storage_core.config import (
    KAFKA_DEDUPE_BUFFER_BYTES,
    CleanerConfig,
    LogConfig,
)
from storage_core.errors import (
    ConfigError,
    ContradictedAgeError,
    GuardRefusedError,
    KeylessRecordsError,
    located,
)
from storage_core.maintenance.compaction.partition import (
    clean_and_load,
    load_for_round,
    refuse_before_lag,
)
from storage_core.maintenance.compaction.plan import (
    CleanRequest,
    choose_range,
    group_segments,
    plan_compaction,
)
from storage_core.maintenance.partition_state import PartitionState
from storage_core.maintenance.retention.partition import RetainResult, plan_retain_loaded
from storage_core.store import LocalStore

# A dry run groups segments and reads no record, so no key is ever hashed with this.
_UNUSED_HASH_KEY = bytes(16)
_KEYLESS: Final = "RECORDS_WITHOUT_KEY"


def clean(line: CommandLine) -> int:
    """Clean a partition or plan it; print JSON; return the exit status. The JSON is one object."""
    try:
        return _clean(line)
    except KeylessRecordsError as error:
        consent = f"{CONSENT.label} {_KEYLESS}"
        raise GuardRefusedError(_KEYLESS, str(error), consent) from error
    except ContradictedAgeError as error:
        raise GuardRefusedError("AGE_CONTRADICTED", str(error)) from error


def _clean(line: CommandLine) -> int:
    _check_range(line)
    directory = named_partition_directory(line[DIRECTORY])
    config, cleaner = whole_config(line)
    if cleaner.key_sidecars:
        from pylog_spark.run.guards import check_key_sidecars  # noqa: PLC0415  # wanted by few

        # Be there a meta.properties or not: what a partition lies in is a log directory.
        check_key_sidecars(cleaner.key_sidecars, log_directories=[directory, directory.parent])
    sizes = _cleaner_sizes(line)
    if cleaner.dedupe_buffer_bytes is None:
        # As Kafka: the map has a size here, unlike in the jobs.
        sizes.setdefault("dedupe_buffer_bytes", KAFKA_DEDUPE_BUFFER_BYTES)
    cleaner = dataclasses.replace(cleaner, **sizes)
    request = CleanRequest(
        now_ms=line[CLOCK],
        checkpoints=PartitionCheckpoints(
            high_watermark=line[HIGH_WATERMARK],
            log_start_offset=line[LOG_START],
            cleaner_offset=line[CLEANER_CHECKPOINT],
        ),
        first_dirty_offset=line[FIRST_DIRTY],
        first_uncleanable_offset=line[FIRST_UNCLEANABLE],
    )
    if line[DRY_RUN]:
        typer.echo(to_json(_describe(directory, config, cleaner, request)))
        return ExitCode.DONE
    result, log = clean_and_load(
        directory,
        config=config,
        cleaner=cleaner,
        request=request,
        drops_keyless=_KEYLESS in line[CONSENT],
    )
    if line[THEN_RETAIN]:
        store = LocalStore(directory)
        decision, swept = plan_retain_loaded(
            store, log, config=config, cleaner=cleaner, now_ms=request.now_ms
        )
        located(commit)(swept.plan, store)
        typer.echo(to_json(asdict(result) | asdict(RetainResult.of(decision, swept))))
    else:
        typer.echo(to_json(asdict(result)))
    return ExitCode.DONE


def _check_range(line: CommandLine) -> None:
    if FIRST_UNCLEANABLE in line and FIRST_DIRTY not in line:
        raise ConfigError(
            FIRST_UNCLEANABLE.label,
            line[FIRST_UNCLEANABLE],
            "needs --first-dirty-offset; without it the range is Kafka's own choice",
        )
    if FIRST_DIRTY in line and CLEANER_CHECKPOINT in line:
        raise ConfigError(
            CLEANER_CHECKPOINT.label,
            line[CLEANER_CHECKPOINT],
            "says where Kafka's choice begins, --first-dirty-offset leaves no choice",
        )


def _cleaner_sizes(line: CommandLine) -> dict[str, Any]:
    """Return the fields of CleanerConfig that options say by themselves."""
    options = {
        "dedupe_buffer_bytes": OFFSET_MAP_BYTES,
        "load_factor": LOAD_FACTOR,
        "io_buffer_bytes": IO_BUFFER_BYTES,
        "max_io_buffer_bytes": MAX_IO_BUFFER_BYTES,
    }
    return {field: line[option] for field, option in options.items() if option in line}


def _describe(
    directory: Path, config: LogConfig, cleaner: CleanerConfig, request: CleanRequest
) -> dict[str, Any]:
    """Return a round's plan as far as known without reading records."""
    store = LocalStore(directory)
    log = load_for_round(store, config, cleaner, request)
    state = PartitionState.of_log(log)
    cleanable = choose_range(state, config, request)
    answer = {
        "dry_run": True,
        "nothing_to_clean": not cleanable.is_due,
        "reason": cleanable.not_due,
        "first_dirty_offset": cleanable.first_dirty_offset,
        "first_uncleanable_offset": cleanable.first_uncleanable_offset,
        "clean_bytes": cleanable.clean_bytes,
        "cleanable_bytes": cleanable.cleanable_bytes,
        "cleanable_ratio": cleanable.cleanable_ratio,
        "segments": len(log.segments),
        "size": log.size_bytes,
    }
    groups = []
    if cleanable.is_due:
        refuse_before_lag(store, state, cleanable, config, now_ms=request.now_ms)
        plan = plan_compaction(
            log, config, cleaner, cleanable, now_ms=request.now_ms, hash_key=_UNUSED_HASH_KEY
        )
        groups = group_segments(plan, plan.first_uncleanable_offset)
    return answer | {
        "groups": [[segment.base_offset for segment in group] for group in groups],
        "peak_extra_bytes": sum(segment.size_bytes for group in groups for segment in group),
        "load_operations": list(log.plan.describe()),
    }
