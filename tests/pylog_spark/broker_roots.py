"""Log directories of a stopped broker, put together from golden partitions.

Each golden case becomes a partition of a topic of its own, so that one run over the directory does
what Apache Kafka did to each of them, and Kafka's own result says whether it is right.
"""

import base64
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pylog_spark.options import JobOptions
from storage_core.catalog.cluster_metadata import CLUSTER_METADATA_DIRECTORY
from storage_core.catalog.roles import Role
from storage_core.checkpoint.checkpoints import (
    PartitionCheckpoints,
    encode_offset_checkpoint,
    parse_offset_checkpoint,
)
from storage_core.config import CleanerConfig, LogConfig
from storage_core.filenames import (
    CLEANER_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    TopicPartition,
)
from storage_core.maintenance.compaction.plan import CleanRequest
from tests.kit.compare import Exactness, compare_partitions, read_tree
from tests.kit.golden_data import Golden, Side
from tests.storage_core.catalog import metadata_bytes as md

FIRST_ROUNDS_MS = 1_700_000_000_000
# Of one clock, from all kinds of logs; the range is the one that Kafka's manager chooses.
FIRST_ROUNDS = [
    "clean-active-none-s161",
    "clean-checkpoint-below-s201",
    "clean-checkpoint-beyond-s201",
    "clean-emptysegments-s231",
    "clean-epochs-mixed-s151",
    "clean-everything-none-s101-1",
    "clean-group-all-s211",
    "clean-group-tinyindex-s211",
    "clean-headers-none-s101",
    "clean-hw-none-s161",
    "clean-lag-none-s161",
    "clean-nullkeys-none-s101",
    "clean-oddkeys-none-s195",
    "clean-seqwrap-none-s195",
    "clean-sparse-none-s221",
    "clean-txn-open-mixed-s151",
]
# Without the log whose start lies above its first segments: the job removes those after cleaning.
CLEANED_ALONE = [name for name in FIRST_ROUNDS if name != "clean-checkpoint-below-s201"]
LATER_ROUNDS_MS = 1_700_190_080_000
LATER_ROUNDS = [
    "clean-txn-gzip-s111-3",
    "clean-txn-lz4-s131-3",
    "clean-txn-none-s101-3",
    "clean-txn-snappy-s121-3",
    "clean-txn-zstd-s141-3",
]


@dataclass(slots=True)
class BrokerDirectory:
    """A log directory and what a run has to be told of it.

    Attributes:
        path: The directory.
        configs: Settings of each topic.
        high_watermarks: Entries of the replication checkpoint.
        log_starts: Entries of the log-start checkpoint.
        cleaner_points: Entries of the cleaner checkpoint.
    """

    path: Path
    configs: dict[str, dict[str, str]] = field(default_factory=dict)
    high_watermarks: dict[TopicPartition, int] = field(default_factory=dict)
    log_starts: dict[TopicPartition, int] = field(default_factory=dict)
    cleaner_points: dict[TopicPartition, int] = field(default_factory=dict)

    def add(self, golden: Golden, topic: str | None = None) -> Path:
        """Put the partition of a golden case into the directory, as it was before the round."""
        case = golden.case
        topic = topic or golden.name
        directory = golden.unpack(self.path / "unpacked").rename(self.path / f"{topic}-0")
        (self.path / "unpacked").rmdir()
        partition, params = TopicPartition(topic, 0), case["params"]
        config = {key: str(value) for key, value in case["config"].items()}
        config["internal.segment.bytes"] = config.pop("segment.bytes")
        self.configs[topic] = config
        self.high_watermarks[partition] = params.get("hw", case["expected"]["leo"])
        if "log.start" in params:
            self.log_starts[partition] = params["log.start"]
        if "checkpoint" in params:
            self.cleaner_points[partition] = params["checkpoint"]
        return directory

    def write_files(self) -> None:
        """Write the files that a broker leaves beside its partitions at a clean shutdown."""
        for name, offsets in {
            RECOVERY_POINT_FILE: self.high_watermarks,
            REPLICATION_FILE: self.high_watermarks,
            LOG_START_FILE: self.log_starts,
            CLEANER_FILE: self.cleaner_points,
        }.items():
            (self.path / name).write_bytes(encode_offset_checkpoint(offsets))
        (self.path / "meta.properties").write_text(
            "version=1\nnode.id=1\ncluster.id=V3CHegy_ZdcmiWckVUA0FQ\n"
        )
        (self.path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":11}')

    def write_metadata(self) -> None:
        """Write the cluster's own metadata, which says the configs of the topics."""
        directory = self.path / CLUSTER_METADATA_DIRECTORY
        shutil.rmtree(directory, ignore_errors=True)
        values = []
        for number, (topic, settings) in enumerate(sorted(self.configs.items()), 1):
            topic_id = base64.urlsafe_b64encode(number.to_bytes(16)).decode().rstrip("=")
            values += [md.topic(topic, topic_id), md.partition(0, topic_id)]
            values += [md.config(topic, key, text) for key, text in settings.items()]
        md.write_segment(directory, [md.batch(*values)])

    def options(self, now_ms: int, **changes: Any) -> JobOptions:
        """Return options of a run that may write here."""
        options = JobOptions(
            now_ms=now_ms, now_is_said=True, role=Role.BROKER, topic_configs=self.configs
        )
        return replace(options, **changes)

    def request(self, topic: str, now_ms: int) -> CleanRequest:
        """Return what an in-process round of one partition has to be told."""
        partition = TopicPartition(topic, 0)
        return CleanRequest(
            now_ms=now_ms,
            checkpoints=PartitionCheckpoints(
                high_watermark=self.high_watermarks[partition],
                log_start_offset=self.log_starts.get(partition),
                cleaner_offset=self.cleaner_points.get(partition),
            ),
        )

    def config(self, topic: str) -> LogConfig:
        """Return a topic's config."""
        return LogConfig.from_topic_overrides(self.configs[topic])

    def copy(self, to: Path) -> "BrokerDirectory":
        """Return a copy of the directory, file times included."""
        shutil.copytree(self.path, to)
        return replace(self, path=to)


def broker_directory(path: Path, names: Iterable[str]) -> BrokerDirectory:
    """Return a log directory with the partitions of these golden cases."""
    path.mkdir()
    root = BrokerDirectory(path)
    for name in names:
        root.add(Golden(name))
    root.write_files()
    return root


def read_points(path: Path, name: str = CLEANER_FILE) -> dict[TopicPartition, int]:
    """Return the entries of a checkpoint file of a log directory."""
    return parse_offset_checkpoint((path / name).read_bytes(), file=name)


def rows_of(report: Any) -> dict[str, dict[str, Any]]:
    """Return the rows of a run's report by their topics."""
    return {row["topic"]: row for row in report.results.to_pylist()}


def state_of(path: Path) -> list[tuple[str, int, int]]:
    """Return all of a tree that a write would change, file times included."""
    return sorted((str(p), p.lstat().st_mtime_ns, p.lstat().st_size) for p in path.rglob("*"))


def differences_from_kafka(path: Path, names: Sequence[str], tmp_path: Path) -> list[str]:
    """Compare the partitions of a log directory with what Apache Kafka made of them."""
    found = []
    for name in names:
        golden = Golden(name)
        expected = read_tree(golden.unpack(tmp_path / f"expected-{name}", Side.AFTER))
        exactness = Exactness(golden.case["compare"])
        actual = read_tree(path / f"{name}-0")
        found += [f"{name}: {d}" for d in compare_partitions(expected, actual, exactness)]
    return found


def expected_points(names: Iterable[str]) -> Mapping[TopicPartition, int]:
    """Return the cleaner checkpoint that Apache Kafka ended with."""
    points = {}
    for name in names:
        point = Golden(name).case["expected"].get("checkpoints", {}).get("t-0")
        if point is not None:
            points[TopicPartition(name, 0)] = point
    return points


def cleaner() -> CleanerConfig:
    """Return the settings of compaction that the runs of these tests have."""
    return CleanerConfig()
