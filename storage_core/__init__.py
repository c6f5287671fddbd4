"""Kafka's storage engine and its maintenance, without Spark.

It works on one partition, and knows nothing of Spark.
"""

__version__ = "0.1.0"
