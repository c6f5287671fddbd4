"""What a consumer of a real broker reads from an offset, and which offset it finds for a time."""

from typing import Any, Final, Self

import jpype

from tests.oracle.broker_clients import (
    LONGEST_WAIT_MS,
    POLL_MS,
    Partition,
    new_consumer,
    poll_records,
)
from tests.oracle.jvm import KafkaFailure, java, java_map, kafka_failures
from tests.oracle.records import ReadRecord

_POLLS: Final = LONGEST_WAIT_MS // POLL_MS


class PartitionConsumer:
    """A consumer of one partition; a context manager."""

    def __init__(
        self, bootstrap_servers: str, partition: Partition, *, read_committed: bool
    ) -> None:
        isolation = "read_committed" if read_committed else "read_uncommitted"
        with kafka_failures():
            self._consumer: Any = new_consumer(
                bootstrap_servers,
                {
                    "isolation.level": isolation,
                    "max.poll.records": "50",
                    # A fetch at the end that is under way when the next read begins is waited for.
                    "fetch.max.wait.ms": "10",
                },
            )
            self._partition: Any = java("org.apache.kafka.common.TopicPartition")(*partition)
            self._all: Any = java("java.util.ArrayList")([self._partition])
            self._consumer.assign(self._all)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with kafka_failures():
            self._consumer.close()

    def end_offset(self) -> int:
        """Return where reads of its isolation end."""
        with kafka_failures():
            return int(self._consumer.endOffsets(self._all).get(self._partition))

    def read_from(self, offset: int) -> list[ReadRecord]:
        """Return every record from an offset to the end; records have no sequence here."""
        end, found = self.end_offset(), []
        with kafka_failures():
            self._consumer.seek(self._partition, jpype.JLong(offset))
        for _ in range(_POLLS):
            with kafka_failures():
                if int(self._consumer.position(self._partition)) >= end:
                    return found
            found += poll_records(self._consumer)
        raise KafkaFailure("KafkaConsumer.poll", f"did not reach offset {end}", "")

    def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Return (timestamp, offset) of the first record at or after a time, None for none."""
        wanted = java_map([(self._partition, java("java.lang.Long").valueOf(timestamp_ms))])
        with kafka_failures():
            found = self._consumer.offsetsForTimes(wanted).get(self._partition)
            return None if found is None else (int(found.timestamp()), int(found.offset()))
