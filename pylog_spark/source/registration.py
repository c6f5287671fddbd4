"""Make ``kafka-log`` known to a Spark session."""

from pyspark.sql import SparkSession

from pylog_spark.source.data_source import KafkaLogDataSource


def register(spark: SparkSession) -> None:
    """Let a session read ``spark.read.format("kafka-log")``; a second time changes nothing.

    Args:
        spark: The session, classic or Connect.
    """
    spark.dataSource.register(KafkaLogDataSource)
