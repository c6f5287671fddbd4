"""A real broker serves what ``df.write`` wrote, and a consumer gets every record of it once."""

import shutil
from collections import Counter

import pytest
from pyspark.sql import functions as sf

from pylog_spark.source import register
from storage_core.checkpoint.checkpoints import parse_partition_metadata
from tests.oracle.broker import complaints_in, new_broker
from tests.oracle.broker_clients import Message, Producer, Topic, consume_topics, create_topics

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.spark,
    pytest.mark.usefixtures("kafka_jvm"),
    pytest.mark.timeout(600, method="thread"),
]

PARTITIONS = 3
RECORDS = 3_000
SMALL = {"internal.segment.bytes": "4500", "index.interval.bytes": "500"}


@pytest.mark.thorough
def test_a_broker_serves_what_was_written_and_goes_on_behind_it(spark, tmp_path):
    register(spark)
    written = tmp_path / "written"
    with new_broker(tmp_path) as broker:
        create_topics(broker.bootstrap_servers, {"t": Topic(partitions=PARTITIONS, config=SMALL)})
        broker.stop()
        metadata = (broker.log_directory / "t-0" / "partition.metadata").read_bytes()
        topic_id = parse_partition_metadata(metadata, file="partition.metadata").topic_id

        frame = (
            spark.range(0, RECORDS, numPartitions=4)
            .withColumn("key", sf.when(sf.col("id") % 50 > 0, sf.concat(sf.lit("k"), "id")))
            .withColumn("value", sf.concat(sf.lit("value-"), "id"))
        )
        for part in ("id < 2000", "id >= 2000"):
            (
                frame.where(part)
                .drop("id")
                .write.format("kafka-log")
                .mode("append")
                .option("topic", "t")
                .option("partitions", PARTITIONS)
                .option("topicIds", f'{{"t":"{topic_id}"}}')
                .option("kafka.compression.type", "lz4")
                .option("kafka.batch.size", "4000")
                .options(**SMALL)
                .save(str(written))
            )
        for number in range(PARTITIONS):
            place = broker.log_directory / f"t-{number}"
            shutil.rmtree(place)
            shutil.copytree(written / f"t-{number}", place)
        assert len(list((broker.log_directory / "t-1").glob("*.log"))) > 2

        said = len(broker.log_lines())
        broker.start()
        served = consume_topics(broker.bootstrap_servers, {"t": PARTITIONS})
        # Kafka's own producer sends each key where ours are.
        with Producer(broker.bootstrap_servers, {"batch.size": "2000"}) as producer:
            for number in range(RECORDS):
                producer.send(Message(topic="t", key=f"k{number}".encode(), value=b"again"))
            producer.flush()
        both = consume_topics(broker.bootstrap_servers, {"t": PARTITIONS})
        news = broker.log_lines()[said:]
        broker.stop()
    assert complaints_in(news) == []
    values = Counter(record.value for records in served.values() for record in records)
    assert values == Counter(b"value-%d" % number for number in range(RECORDS))
    for place, records in served.items():
        assert [record.offset for record in records] == list(range(len(records)))
        assert both[place][: len(records)] == records
        ours = {record.key for record in records if record.key is not None}
        kafkas = {record.key for record in both[place][len(records) :]}
        assert ours <= kafkas
