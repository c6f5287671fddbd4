"""A broker's settings for a batch job: directories, threads, limits, intervals.

Keys that only schedule or tune a running broker are known and checked, and have no effect here:
a scheduler decides when a job runs. They are accepted so that a broker's file can be given as is.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from storage_core.config.values import (
    CORDONED_KEY,
    NEWEST_RELEASE,
    ConfigKey,
    Scope,
    ValueType,
    int32,
    int64,
    keys_of,
    keys_of_release,
    parse_settings,
    setting,
    string_list,
)
from storage_core.errors import ConfigError

ALL_DIRECTORIES: Final = "*"


def _broker(name: str, value_type: ValueType, doc: str, *, default: object, unit: str = "") -> Any:
    return setting(name, value_type, default, doc=doc, scope=Scope.BROKER, unit=unit)


def _live(name: str, value_type: ValueType, doc: str, *, default: object, unit: str = "ms") -> Any:
    return _broker(name, value_type, f"{doc}; no effect here", default=default, unit=unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Broker-wide keys that are not the default of a topic key. ``log_dirs`` and ``log_dir`` are
    empty where they are not set: a job is told its roots."""

    node_id: int | None = _broker(
        "node.id", int32(at_least=0), "the broker's number in its cluster", default=None
    )
    broker_id: int | None = _broker(
        "broker.id", int32(), "old name of node.id; the two must agree", default=None
    )
    log_dirs: tuple[str, ...] = _broker(
        "log.dirs", string_list(may_be_empty=False), "log directories", default=()
    )
    log_dir: tuple[str, ...] = _broker(
        "log.dir",
        string_list(may_be_empty=False),
        "log directories where log.dirs is not set",
        default=(),
    )
    process_roles: tuple[str, ...] = _broker(
        "process.roles",
        string_list(),
        "what the node is; only a broker gets lost cluster metadata back from its controllers",
        default=(),
    )
    cordoned_log_dirs: tuple[str, ...] = _broker(
        CORDONED_KEY,
        string_list(),
        "directories that take no new partitions, or * for all",
        default=(),
    )
    num_recovery_threads_per_data_dir: int = _broker(
        "num.recovery.threads.per.data.dir",
        int32(at_least=1),
        "threads a broker recovers a directory with; used to forecast its start",
        default=2,
        unit="threads",
    )
    transaction_max_timeout_ms: int = _broker(
        "transaction.max.timeout.ms",
        int32(at_least=1),
        "longest transaction; an older open one is late",
        default=900_000,
        unit="ms",
    )
    offsets_topic_num_partitions: int = _live(
        "offsets.topic.num.partitions",
        int32(at_least=1),
        "partitions of __consumer_offsets",
        default=50,
        unit="partitions",
    )
    offsets_retention_minutes: int = _live(
        "offsets.retention.minutes",
        int32(at_least=1),
        "committed offsets of a dead group live so long",
        default=10_080,
        unit="minutes",
    )
    offset_metadata_max_bytes: int = _live(
        "offset.metadata.max.bytes",
        int32(),
        "largest metadata text of a committed offset",
        default=4_096,
        unit="bytes",
    )
    transaction_state_log_num_partitions: int = _live(
        "transaction.state.log.num.partitions",
        int32(at_least=1),
        "partitions of __transaction_state",
        default=50,
        unit="partitions",
    )
    replica_high_watermark_checkpoint_interval_ms: int = _broker(
        "replica.high.watermark.checkpoint.interval.ms",
        int64(),
        "how stale a checkpointed high watermark may be",
        default=5_000,
        unit="ms",
    )
    log_retention_check_interval_ms: int = _live(
        "log.retention.check.interval.ms",
        int64(at_least=1),
        "between retention rounds",
        default=300_000,
    )
    log_cleaner_backoff_ms: int = _live(
        "log.cleaner.backoff.ms", int64(at_least=0), "pause of an idle cleaner", default=15_000
    )
    log_flush_offset_checkpoint_interval_ms: int = _live(
        "log.flush.offset.checkpoint.interval.ms",
        int32(at_least=0),
        "between recovery point checkpoints",
        default=60_000,
    )
    log_flush_start_offset_checkpoint_interval_ms: int = _live(
        "log.flush.start.offset.checkpoint.interval.ms",
        int32(at_least=0),
        "between log start checkpoints",
        default=60_000,
    )
    log_initial_task_delay_ms: int = _live(
        "log.initial.task.delay.ms",
        int64(at_least=0),
        "before the first round of anything",
        default=30_000,
    )
    replica_lag_time_max_ms: int = _live(
        "replica.lag.time.max.ms",
        int64(),
        "a slower replica leaves the in-sync set",
        default=30_000,
    )
    replica_fetch_max_bytes: int = _live(
        "replica.fetch.max.bytes",
        int32(at_least=0),
        "bytes of a partition in one fetch",
        default=1_048_576,
        unit="bytes",
    )
    replica_fetch_wait_max_ms: int = _live(
        "replica.fetch.wait.max.ms", int32(), "longest wait of a fetch", default=500
    )
    replica_fetch_min_bytes: int = _live(
        "replica.fetch.min.bytes", int32(), "fewest bytes of a fetch", default=1, unit="bytes"
    )
    replica_fetch_response_max_bytes: int = _live(
        "replica.fetch.response.max.bytes",
        int32(at_least=0),
        "most bytes of a fetch",
        default=10_485_760,
        unit="bytes",
    )
    replica_fetch_backoff_ms: int = _live(
        "replica.fetch.backoff.ms", int32(at_least=0), "pause after a failed fetch", default=1_000
    )

    @property
    def directories(self) -> tuple[str, ...]:
        """The log directories: log.dirs, else log.dir, else none."""
        return self.log_dirs or self.log_dir

    @classmethod
    def from_settings(cls, settings: Mapping[str, str], *, release: str = NEWEST_RELEASE) -> Self:
        """Build the config from texts by key, with a release's own limits."""
        values: dict[str, Any] = parse_settings(settings, keys_of_release(BROKER_KEYS, release))
        config = cls(**values)
        has_both = config.node_id is not None and config.broker_id is not None
        if has_both and config.node_id != config.broker_id:
            raise ConfigError("broker.id", config.broker_id, f"node.id says {config.node_id}")
        config.validate_cordoned()
        return config

    def validate_cordoned(self) -> None:
        """Check that each cordoned directory is one of the broker's."""
        key = CORDONED_KEY
        listed = self.cordoned_log_dirs
        if ALL_DIRECTORIES in listed:
            if len(listed) > 1:
                raise ConfigError(key, ",".join(listed), "* stands alone")
            return
        unknown = [directory for directory in listed if directory not in self.directories]
        if unknown:
            raise ConfigError(key, ",".join(listed), f"not in log.dirs: {', '.join(unknown)}")


def spell_directories(locations: Iterable[str]) -> list[str]:
    """Return the paths by which a broker's settings may name log directories."""
    spellings: dict[str, None] = {}
    for location in locations:
        path = location.rstrip("/") or location
        for spelling in (location, path, str(Path(path).absolute()), os.path.realpath(path)):
            spellings[spelling] = None
    return list(spellings)


BROKER_KEYS: Final[Mapping[str, ConfigKey]] = keys_of(BrokerConfig)
