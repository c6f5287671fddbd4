"""Make ``kafka-log`` known to a Spark session, and the function ``kafka_log``."""

from typing import Final

from pyspark.sql import SparkSession

from pylog_spark.engines.session_facts import setting
from pylog_spark.source.data_source import KafkaLogDataSource
from pylog_spark.source.options import parse_spark_bytes
from pylog_spark.source.table_function import register_function

_MAX_PARTITION_BYTES: Final = "spark.sql.files.maxPartitionBytes"


def register(spark: SparkSession) -> None:
    """Let a session read ``spark.read.format("kafka-log")``; a second time changes nothing. SQL
    gets the table function ``kafka_log`` beside it.

    How much a task reads is what the session says of files then: Spark does not tell a source
    in Python of its settings later.

    Args:
        spark: The session, classic or Connect.

    Raises:
        ConfigError: The session's ``spark.sql.files.maxPartitionBytes`` is no amount of bytes.
    """
    task_bytes = KafkaLogDataSource.max_partition_bytes
    # A serverless session does not tell.
    if (limit := setting(spark, _MAX_PARTITION_BYTES)) is not None:
        task_bytes = parse_spark_bytes(_MAX_PARTITION_BYTES, limit)

    class SessionDataSource(KafkaLogDataSource):
        """The format with the session's settings. Spark pickles a local class with its values."""

        max_partition_bytes = task_bytes

    spark.dataSource.register(SessionDataSource)
    register_function(spark)
