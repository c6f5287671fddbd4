"""A session of Spark Connect whose server runs on this machine."""

import os
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pylog_spark.java import find_java
from pylog_spark.session import session_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def connect_session(settings: Mapping[str, str], *, delta: bool = True) -> "SparkSession":
    """Start a server with two slots and return a session; a process has sessions of one kind.

    Args:
        settings: Of the server and the session; they win.
        delta: Whether it reads and writes Delta tables.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - most tests start without

    os.environ["JAVA_HOME"] = str(find_java().home)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    master = "local[2]"
    builder = SparkSession.Builder().remote(master)
    for key, value in session_conf(master, settings, delta=delta).items():
        builder = builder.config(key, value)
    with warnings.catch_warnings():
        # The server has taken what is its own; said once more to the session it is refused.
        warnings.filterwarnings("ignore", message="Failed to set", category=UserWarning)
        return builder.getOrCreate()
