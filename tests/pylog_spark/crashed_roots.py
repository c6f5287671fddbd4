"""Log directories of brokers that were killed, and what in-process recovery makes of them."""

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pylog_spark.options import JobOptions
from storage_core.catalog.roles import Role
from storage_core.checkpoint.checkpoints import RECOVERY_FILES, encode_offset_checkpoint
from storage_core.config import CleanerConfig, LogConfig
from storage_core.filenames import (
    CLEAN_SHUTDOWN_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    TopicPartition,
    parse_partition_directory,
)
from storage_core.maintenance.recovery.partition import RecoverResult
from storage_core.roots.open_root import root_checkpoints
from tests.kit.compare import read_tree
from tests.kit.golden_data import Golden
from tests.kit.one_partition import recover_partition
from tests.pylog_spark.broker_roots import BrokerDirectory, broker_directory

UNCLEAN = Golden("broker-dir-unclean")
NOW_MS: int = UNCLEAN.case["clock_ms"]
METADATA = "__cluster_metadata-0"
MARKER_OF_OURS = b'{"version":0,"brokerEpoch":-1}'
# Logs of every kind: compressed, with transactions, legacy, of many segments, with gaps.
MANY_KINDS = [
    "clean-epochs-mixed-s151",
    "clean-everything-mixed-s151-3",
    "clean-group-all-s211",
    "clean-idempotent-mixed-s151-2",
    "clean-legacy0-gzip-s301",
    "clean-sparse-none-s221",
    "clean-txn-none-s101-3",
    "clean-txn-open-mixed-s151",
    "clean-txn-zstd-s141-3",
    "clean-upgrade-s321",
]


@dataclass(frozen=True, slots=True)
class CrashedRoot:
    """A log directory without the marker of a clean shutdown.

    Attributes:
        path: The directory.
        configs: Settings by partition directory, as in-process recovery is told them.
        options: Of a run that may write there.
    """

    path: Path
    configs: Mapping[str, Mapping[str, str]]
    options: JobOptions
    facts: BrokerDirectory | None = field(default=None, repr=False)

    def with_options(self, **changes: Any) -> JobOptions:
        """Return the options, some of them changed."""
        return replace(self.options, **changes)

    def copy(self, to: Path) -> "CrashedRoot":
        """Return a copy of the directory, file times included."""
        shutil.copytree(self.path, to)
        return replace(self, path=to)

    def partitions(self) -> list[Path]:
        """Return the partition directories that a recovery is about."""
        return sorted(self.path / name for name in self.configs if (self.path / name).is_dir())

    def recover_one_by_one(self) -> dict[str, RecoverResult]:
        """Recover every partition as ``pylog partition recover`` does, by the checkpoints."""
        checkpoints = root_checkpoints(str(self.path), RECOVERY_FILES, strict=False)
        is_clean = (self.path / CLEAN_SHUTDOWN_FILE).exists()
        return {
            directory.name: recover_partition(
                directory,
                config=LogConfig.from_topic_overrides(dict(self.configs[directory.name])),
                cleaner=CleanerConfig(),
                now_ms=self.options.now_ms,
                recovery_point=checkpoints.of(partition_of(directory)).recovery_point or 0,
                log_start_offset=checkpoints.of(partition_of(directory)).log_start_offset or 0,
                clean_shutdown=is_clean,
            )
            for directory in self.partitions()
        }

    def trees(self) -> dict[str, dict[str, bytes]]:
        """Return the content of every partition directory."""
        return {directory.name: read_tree(directory) for directory in self.partitions()}


def partition_of(directory: Path) -> TopicPartition:
    """Return whose directory it is."""
    return parse_partition_directory(directory.name)


def killed_broker(folder: Path) -> CrashedRoot:
    """Return what a broker left that was killed with data unflushed and a transaction open."""
    path = UNCLEAN.unpack(folder)
    configs = {
        name: said["config"] for name, said in UNCLEAN.case["expected"].items() if name != METADATA
    }
    return CrashedRoot(path, configs, JobOptions(now_ms=NOW_MS, now_is_said=True, role=Role.BROKER))


def crashed_directory(
    path: Path, names: Iterable[str], *, recovery_points: Mapping[str, int] | None = None
) -> CrashedRoot:
    """Return a directory of golden partitions of which nothing is known to be on disk.

    Args:
        path: The directory to make.
        names: Golden cases; each is partition 0 of the topic of its name.
        recovery_points: Entries of the recovery-point checkpoint, by case; without: none.
    """
    root = broker_directory(path, names)
    (path / CLEAN_SHUTDOWN_FILE).unlink()
    points = {TopicPartition(name, 0): at for name, at in (recovery_points or {}).items()}
    (path / RECOVERY_POINT_FILE).write_bytes(encode_offset_checkpoint(points))
    configs = {f"{topic}-0": config for topic, config in root.configs.items()}
    return CrashedRoot(path, configs, root.options(NOW_MS), root)


def forget_high_watermarks(path: Path) -> None:
    """Leave an empty replication checkpoint: nothing says what was acknowledged."""
    (path / REPLICATION_FILE).write_bytes(encode_offset_checkpoint({}))


def logs_of(directory: Path) -> list[Path]:
    """Return the segments of a partition, the active one last."""
    return sorted(directory.glob("*.log"))


def tear(directory: Path, *, size_bytes: int = 5, segment: int | None = None) -> Path:
    """Take the last bytes of a segment away: by default of the last one that has any."""
    logs = logs_of(directory)
    chosen = [log for log in logs if log.stat().st_size > size_bytes]
    log = chosen[-1] if segment is None else logs[segment]
    with log.open("rb+") as file:
        file.truncate(log.stat().st_size - size_bytes)
    return log
