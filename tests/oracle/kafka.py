"""Apache Kafka's storage classes under one settable clock: the way in for every oracle test.

    kafka = Kafka(now_ms=1_700_000_000_000)
    with kafka.open_partition(tmp_path / "t-0", config={"cleanup.policy": "compact"}) as partition:
        partition.append_as_leader(NewBatch(records=(NewRecord(key=b"k", value=b"v", ...),)))
        partition.roll()
        partition.set_high_watermark()
        outcome = clean_range(kafka, partition, first_dirty_offset=0)

The JVM has to run (``jvm.start_jvm``; the ``kafka`` fixture does it). Nothing here starts a thread,
and delayed deletions happen at once.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jpype

from tests.oracle.jvm import java, java_file, java_map, kafka_failures, start_jvm
from tests.oracle.partition import LOG, OpenPartition
from tests.oracle.stand_ins import FixedTime, ImmediateScheduler

PRODUCER_ID_EXPIRATION_MS: Final = 86_400_000
PRODUCER_ID_CHECK_MS: Final = 600_000
MAX_TRANSACTION_TIMEOUT_MS: Final = 300_000
FAILURE_CHANNEL_CAPACITY: Final = 16


class Kafka:
    """What partitions of one broker share: the clock, the scheduler, metrics, settings."""

    def __init__(self, *, now_ms: int) -> None:
        start_jvm()
        self.time = FixedTime(now_ms)
        self.scheduler = ImmediateScheduler()
        with kafka_failures():
            self.failure_channel = java(LOG + "LogDirFailureChannel")(FAILURE_CHANNEL_CAPACITY)
            self.topic_stats = java("org.apache.kafka.storage.log.metrics.BrokerTopicStats")()
            self.producer_config = java(LOG + "ProducerStateManagerConfig")(
                PRODUCER_ID_EXPIRATION_MS, False
            )

    @property
    def now_ms(self) -> int:
        """The time that Kafka sees, epoch milliseconds."""
        return self.time.now_ms

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self.time.now_ms = now_ms

    def open_partition(
        self,
        directory: Path,
        *,
        config: Mapping[str, object],
        clean_shutdown: bool = True,
        log_start_offset: int = 0,
        recovery_point: int = 0,
    ) -> OpenPartition:
        """Open a partition's directory, or create it, as a starting broker does.

        Args:
            config: Topic settings by Kafka's names; small segments by ``internal.segment.bytes``.
            clean_shutdown: False makes Kafka recover everything above the recovery point.

        Returns:
            The partition; its high watermark is the log start offset until it is set.
        """
        with kafka_failures():
            return OpenPartition(
                java(LOG + "UnifiedLog").create(
                    java_file(directory),
                    log_config(config),
                    jpype.JLong(log_start_offset),
                    jpype.JLong(recovery_point),
                    self.scheduler,
                    self.topic_stats,
                    self.time,
                    MAX_TRANSACTION_TIMEOUT_MS,
                    self.producer_config,
                    PRODUCER_ID_CHECK_MS,
                    self.failure_channel,
                    clean_shutdown,
                    java("java.util.Optional").empty(),
                )
            )


def log_config(settings: Mapping[str, object]) -> Any:
    """Return Kafka's LogConfig: its defaults and these topic settings."""
    return java(LOG + "LogConfig")(
        java_map((key, _setting_text(value)) for key, value in settings.items())
    )


def _setting_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
