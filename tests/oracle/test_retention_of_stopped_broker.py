"""A real broker: produce, stop, retain, start, consume. It sees a log that begins later."""

import json

import pytest

from storage_core.clock import SystemClock
from storage_core.filenames import CLEAN_SHUTDOWN_FILE
from tests.oracle.broker import complaints_in, new_broker
from tests.oracle.broker_clients import Message, Producer, Topic, consume_topics, create_topics

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.spark,
    pytest.mark.usefixtures("kafka_jvm"),
    pytest.mark.timeout(600, method="thread"),
]

DAY_MS = 86_400_000
PARTITIONS = 2
SMALL = {"internal.segment.bytes": "20000", "index.interval.bytes": "500"}
LIMITS = {
    "clicks": {"cleanup.policy": "delete", "retention.ms": str(DAY_MS)},
    "metrics": {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "20000"},
    "kept": {"cleanup.policy": "delete", "retention.ms": "-1"},
}
RECORDS = 1_200
OLD_RECORDS = 800
# A batch a time: segments roll between batches.
BATCH = 40


def produce(bootstrap_servers: str, now_ms: int) -> None:
    """Write records, the first of them two days old."""
    with Producer(bootstrap_servers) as producer:
        for number in range(RECORDS):
            age_ms = 2 * DAY_MS if number < OLD_RECORDS else 60_000
            for topic in LIMITS:
                producer.send(
                    Message(
                        topic=topic,
                        key=f"{number}".encode(),
                        value=bytes(100),
                        timestamp_ms=now_ms - age_ms,
                    )
                )
            if number % BATCH == BATCH - 1:
                producer.flush()


@pytest.mark.thorough
@pytest.mark.item("RET-06", "RET-10", "RET-11", "DIR-14")
def test_after_our_retention_the_broker_serves_what_is_left_from_the_new_log_start(
    spark, pylog, tmp_path
):
    with new_broker(tmp_path) as broker:
        topics = {
            name: Topic(partitions=PARTITIONS, config=SMALL | LIMITS[name]) for name in LIMITS
        }
        create_topics(broker.bootstrap_servers, topics)
        now_ms = SystemClock().now_ms()
        produce(broker.bootstrap_servers, now_ms)
        counts = dict.fromkeys(LIMITS, PARTITIONS)
        before = consume_topics(broker.bootstrap_servers, counts)
        broker.stop()
        marker = (broker.log_directory / CLEAN_SHUTDOWN_FILE).read_bytes()

        # Most of a topic goes, as the cluster itself says: nobody has to allow it.
        arguments = ("retain", broker.log_directory, "--role", "broker")
        first, second = (pylog(*arguments, "--output", "json") for _ in range(2))
        assert (first.exit_code, second.exit_code) == (0, 0), first.stderr
        lines, again = (
            [json.loads(line) for line in ended.stdout.splitlines()] for ended in (first, second)
        )
        found = {
            (line["topic"], line["partition"]): line
            for line in lines
            if line["type"] == "retention"
        }
        # Nothing above the high watermark went: the broker's own epoch stays in the marker.
        assert (broker.log_directory / CLEAN_SHUTDOWN_FILE).read_bytes() == marker
        assert {line["status"] for line in again if line["type"] == "retention"} == {"skipped"}

        said = len(broker.log_lines())
        broker.start()
        after = consume_topics(broker.bootstrap_servers, counts)
        news = broker.log_lines()[said:]
        broker.stop()
    assert complaints_in(news) == []
    for place, records in before.items():
        row = found[place]
        start = row["log_start_offset"]
        assert after[place] == [record for record in records if record.offset >= start], place
        assert after[place][0].offset == start
        if place[0] == "kept":
            assert row["deleted_segments"] == 0
        else:
            assert row["status"] == "done"
            assert row["deleted_segments"] > 0
    for number in range(PARTITIONS):
        kept = after["clicks", number]
        assert max(record.timestamp for record in kept) > now_ms - DAY_MS
        sized = found["metrics", number]
        assert sized["percent"] >= 100
        assert sized["deleted_bytes"] > sized["bytes"] / 2
