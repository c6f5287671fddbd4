"""The options and columns of ``df.write.format("kafka-log")``."""

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pylog_spark.source.data_source import parse_sink_options, record_columns
from storage_core.config import BrokerCompressionType, MessageTimestampType
from storage_core.errors import ConfigError, InvalidColumnError
from storage_core.formats.batch_v2 import Codec
from storage_core.writing.staging import WriteRequest, WriteTransaction

KEY, VALUE = StructField("key", BinaryType()), StructField("value", StringType())
TOPIC = StructField("topic", StringType())
HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


def parse(**options: str) -> WriteRequest:
    return parse_sink_options({"path": "/logs", **options}, is_overwrite=False).request


def test_nothing_said_means_kafkas_defaults():
    request = parse()
    assert (request.directory, request.topic, request.partitions) == ("/logs", None, None)
    assert (request.codec, request.batch_bytes, request.transaction) == (Codec.NONE, None, None)
    assert request.by_key
    assert request.config.segment_bytes == 1 << 30
    assert parse_sink_options({"path": "/logs"}, is_overwrite=True).request.is_overwrite


def test_names_are_taken_in_any_case_topic_settings_by_kafkas_own():
    request = parse(
        **{
            "PARTITIONS": "12",
            "Topic": "orders",
            "partitioner": "RoundRobin",
            "compression.type": "zstd",
            "message.timestamp.type": "LogAppendTime",
            "segment.bytes": "1048576",
            "kafka.compression.type": "lz4",
            "kafka.batch.size": "16384",
            "txnappid": "backfill",
            "txnversion": "7",
            "topicids": '{"orders":"z7Bq0v9lTLWsqe1eqY2Bhg"}',
        }
    )
    assert (request.partitions, request.topic, request.by_key) == (12, "orders", False)
    assert request.config.compression_type is BrokerCompressionType.ZSTD
    assert request.config.message_timestamp_type is MessageTimestampType.LOG_APPEND_TIME
    assert request.config.segment_bytes == 1 << 20
    assert (request.codec, request.batch_bytes) == (Codec.LZ4, 16384)
    assert request.transaction == WriteTransaction(app_id="backfill", version=7)
    assert request.topic_ids == {"orders": "z7Bq0v9lTLWsqe1eqY2Bhg"}


def test_settings_of_a_client_may_stay_and_are_named():
    options = {"path": "/logs", "kafka.bootstrap.servers": "a:9092", "kafka.acks": "all"}
    parsed = parse_sink_options(options, is_overwrite=False)
    assert parsed.without_meaning == ("kafka.acks", "kafka.bootstrap.servers")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"path": ""}, "say where to write"),
        ({"path": "s3://bucket/logs"}, "pylog ingest"),
        ({"path": "managed+/logs"}, "pylog ingest"),
        ({"partition": "3"}, "did you mean partitions"),
        ({"subscribe": "orders"}, "unknown"),
        ({"partitions": "0"}, "from 1"),
        ({"partitions": "many"}, "from 1"),
        ({"partitioner": "sticky"}, "murmur2, roundrobin"),
        ({"topic": "a/b"}, "letters, digits"),
        ({"kafka.compression.type": "brotli"}, "none, gzip, snappy, lz4, zstd"),
        ({"kafka.batch.size": "-1"}, "from 0"),
        ({"compression.type": "brotli"}, "compression.type"),
        ({"segment.bytes": "12"}, "segment.bytes"),
        ({"txnAppId": "a"}, "go together"),
        ({"txnVersion": "1"}, "go together"),
        ({"txnVersion": "x", "txnAppId": "a"}, "txnVersion"),
        ({"topicIds": "[]"}, "JSON like"),
        ({"topicIds": "{"}, "JSON like"),
        ({"topicIds": '{"t":"short"}'}, "22 characters"),
    ],
    ids=str,
)
def test_what_is_malformed_is_refused_by_name(options, words):
    with pytest.raises(ConfigError, match=words) as caught:
        parse(**options)
    assert next(iter(options)).lower() in str(caught.value).lower()


def test_a_path_of_this_machine_may_be_a_url():
    assert parse(path="file:/logs/kafka").directory == "/logs/kafka"
    assert parse(path="file:///logs/../other").directory == "/other"


def test_columns_are_those_of_sparks_sink_and_what_the_reader_adds_is_left_out():
    everything = StructType(
        [
            *(KEY, VALUE, TOPIC, StructField("partition", IntegerType())),
            StructField("offset", LongType()),
            StructField("timestamp", TimestampType()),
            StructField("timestampType", IntegerType()),
            StructField("headers", ArrayType(HEADER)),
        ]
    )
    written = ("key", "value", "topic", "partition", "timestamp", "headers")
    assert record_columns(everything, has_topic=False) == written
    assert "topic" not in record_columns(everything, has_topic=True)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([KEY, TOPIC], "value.*no such column"),
        ([KEY, VALUE], "topic.*no option topic"),
        ([VALUE, TOPIC, StructField("Key", BinaryType())], "Key.*is no column of a record"),
        ([StructField("value", IntegerType()), TOPIC], "expected binary or string, found int"),
        ([VALUE, TOPIC, StructField("partition", StringType())], "partition.*found string"),
        ([VALUE, TOPIC, StructField("timestamp", StringType())], "timestamp.*found string"),
        (
            [VALUE, TOPIC, StructField("headers", ArrayType(StringType()))],
            "array<struct<key:string",
        ),
    ],
    ids=["no value", "no topic", "another name", "number", "text", "date", "headers"],
)
def test_a_frame_that_holds_no_records_is_refused_before_a_task_begins(fields, words):
    with pytest.raises(InvalidColumnError, match=words):
        record_columns(StructType(fields), has_topic=False)
