"""Forecast a broker's start for partitions. Kafka's own loading is planned and not done."""

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from pylog_spark.operations.verify.task import NOT_VERIFIED, Target
from pylog_spark.rows import Number, Text, column, schema_of
from pylog_spark.schemas import Failure, PartitionName
from pylog_spark.tasks.message import attempt
from storage_core.catalog.topic_catalog import TopicCatalog
from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import ConfigError, InvalidNameError
from storage_core.filenames import LOG_SUFFIX, is_file_name, kind_of, log_file, offset_of
from storage_core.local_files import scan_folder
from storage_core.maintenance.recovery.partition import plan_recovery
from storage_core.maintenance.recovery.salvage import count_lost_records
from storage_core.maintenance.verification.collector import FindingCollector
from storage_core.maintenance.verification.files import check_names, sort_files
from storage_core.maintenance.verification.findings import Severity
from storage_core.maintenance.verification.observed_root import Start
from storage_core.maintenance.verification.verdict import PartitionForecast
from storage_core.store import LocalStore

_SHOWN_CUTS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRow:
    """A forecast of a broker's start for one partition; nothing is done."""

    name: PartitionName
    directory: Text = column("path of the partition directory")
    read_bytes: Number = column("bytes that are read to recover it")
    rebuilt_segments: Number = column("segments whose indexes are built anew")
    split_segments: Number = column("segments that are split")
    cut_bytes: Number = column("bytes of records that are cut")
    cut_records: Number = column("records in them that can still be read")
    deleted_segments: Number = column("segments that are removed whole")
    lost_below_high_watermark: Number = column("offsets below it that are gone afterwards")
    log_end_offset: Number = column("where the log ends afterwards")
    cuts: Text = column("the first cuts, file and position, as JSON")
    start: Text = column("opened, recovered, refused, strayed, emptied, deleted, created, unknown")
    gone_records: Number = column("readable records that are served no more, but for those cut")
    cut_from_start: Number = column("readable records that a recovery from the log's start cuts")
    duration_ms: int = column("time it took to find out")
    failure: Failure = Failure()


def forecast_partitions(
    targets: Sequence[Target],
    now_ms: int,
    catalogs: Mapping[str, TopicCatalog],
    damaged: Set[str] = frozenset(),
) -> Iterator[ForecastRow]:
    """Yield the forecast of each partition.

    Args:
        catalogs: Configs of topics, by root; none of a root whose catalog cannot be read.
        damaged: Directories of those that may have to be recovered from their start.
    """
    for each in targets:
        is_damaged = each.directory in damaged
        config = config_of(each.root, each.partition.topic, catalogs)
        yield forecast_partition(each, now_ms, config, is_damaged=is_damaged)


# The forecast of a log that a start opens and leaves as it is, but for its name and end.
_OPENED: Final = dict.fromkeys(schema_of(ForecastRow).names) | {
    "read_bytes": 0,
    "rebuilt_segments": 0,
    "split_segments": 0,
    "cut_bytes": 0,
    "cut_records": 0,
    "deleted_segments": 0,
    "lost_below_high_watermark": 0,
    "cuts": "[]",
    "start": Start.OPENED.value,
    "gone_records": 0,
    "duration_ms": 0,
}


def open_at_once(target: Target, log_end_offset: int) -> dict[str, Any]:
    """Return the forecast, as columns, of a log that a start opens and leaves as it is."""
    return _OPENED | {
        "root": target.root,
        "topic": target.partition.topic,
        "partition": target.partition.partition,
        "directory": target.directory,
        "log_end_offset": log_end_offset,
    }


def config_of(root: str, topic: str, catalogs: Mapping[str, TopicCatalog]) -> LogConfig:
    """Return the config with which a recovery would load a topic's logs.

    A broker, too, loads a log of a topic that no source knows with its own defaults.
    """
    catalog = catalogs.get(root)
    if catalog is None:
        return LogConfig()
    try:
        return catalog.config_or_defaults(topic)
    except ConfigError:
        return LogConfig()


def forecast_partition(
    target: Target, now_ms: int, config: LogConfig, *, is_damaged: bool = False
) -> ForecastRow:
    """Return the forecast of one partition, whatever is wrong with it.

    Args:
        config: Its topic's: by it a broker refuses an index of the active segment that is too
            large, and rebuilt indexes get their entries.
        is_damaged: Whether it may have to be recovered from its start.
    """
    head = ForecastRow(name=target.name, directory=target.directory)
    row = attempt(head, partial(_forecast, target, now_ms, config, is_damaged), target.name)
    if not row.failure:
        return row
    if _is_beyond_us(Path(target.directory)):
        # Kafka loads it; what it then has is not known here, and a finding says why.
        return replace(head, start=Start.UNKNOWN.value, duration_ms=row.duration_ms)
    return replace(row, start=Start.REFUSED.value)


def _is_beyond_us(directory: Path) -> bool:
    """Return whether a log has files accepted only by a broker. This program refuses them.

    It follows links of files, and takes the number of a segment whose name is not padded.
    """
    try:
        entries = scan_folder(directory)
    except OSError:
        return False
    for entry in entries:
        offset = offset_of(entry.name)
        is_log = offset is not None and kind_of(entry.name) == LOG_SUFFIX
        if (entry.is_link and is_file_name(entry.name)) or (
            is_log and entry.name != log_file(offset or 0)
        ):
            return True
    return False


def to_forecast(row: dict[str, Any]) -> PartitionForecast:
    """Return a forecast for the verdict, from its columns."""
    counted = (
        "read_bytes",
        "rebuilt_segments",
        "split_segments",
        "cut_bytes",
        "cut_records",
        "deleted_segments",
        "lost_below_high_watermark",
    )
    return PartitionForecast(
        root=row["root"],
        name=f"{row['topic']}-{row['partition']}",
        log_end_offset=row["log_end_offset"],
        error=row["error"] or "",
        start=Start(row["start"]),
        gone_records=row["gone_records"] or 0,
        **{name: row[name] or 0 for name in counted},
    )


def _forecast(
    target: Target,
    now_ms: int,
    config: LogConfig,
    is_damaged: bool,  # noqa: FBT001  # ``partial`` gives it
    head: ForecastRow,
) -> ForecastRow:
    store = LocalStore(Path(target.directory))
    if target.ordinal == NOT_VERIFIED:
        names = FindingCollector()
        check_names(sort_files(store.list_files()), names)
        for finding in names.findings():
            if finding.severity is Severity.FATAL:
                raise InvalidNameError(f"{target.directory}/{finding.file}", finding.message)
    checkpoints = target.checkpoints
    log = plan_recovery(
        store,
        config=config,
        cleaner=CleanerConfig(),
        now_ms=now_ms,
        recovery_point=checkpoints.recovery_point or 0,
        log_start_offset=checkpoints.log_start_offset or 0,
        clean_shutdown=target.context.is_clean,
    )
    cut_from_start = None
    if is_damaged:
        from_start = plan_recovery(
            store,
            config=config,
            cleaner=CleanerConfig(),
            now_ms=now_ms,
            log_start_offset=checkpoints.log_start_offset or 0,
        )
        cut_from_start = sum(count_lost_records(store, cut) for cut in from_start.repairs.cuts)
    repairs = log.repairs
    watermark = checkpoints.high_watermark or 0
    # A log that ended below its high watermark before is a finding, and not the start's doing.
    had_end = max((cut.first_offset for cut in repairs.cuts), default=None)
    is_cut = had_end is not None and log.log_end_offset < watermark
    start = Start.OPENED
    if repairs.scanned_bytes or repairs.rebuilt or repairs.cuts:
        start = Start.RECOVERED
    if repairs.deleted_segments and log.log_end_offset <= log.log_start_offset:
        start = Start.EMPTIED
    return replace(
        head,
        start=start.value,
        gone_records=0,
        read_bytes=repairs.scanned_bytes,
        rebuilt_segments=len(repairs.rebuilt),
        split_segments=len(repairs.split),
        cut_bytes=repairs.lost_bytes,
        cut_records=sum(count_lost_records(store, cut) for cut in repairs.cuts),
        deleted_segments=repairs.deleted_segments,
        lost_below_high_watermark=watermark - log.log_end_offset if is_cut else 0,
        log_end_offset=log.log_end_offset,
        cut_from_start=cut_from_start,
        cuts=json.dumps([asdict(cut) for cut in repairs.cuts[:_SHOWN_CUTS]]),
    )
