"""Facts of a Spark session: concurrent tasks, heap, abilities.

Sessions differ in what they tell. One of Spark Connect has no ``sparkContext``, a serverless one
refuses to be asked for settings that it does not know, and another answers ``auto`` where a number
is expected. Whatever is asked here has an answer in all of them.
"""

from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DELTA_EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
# Spark's own default for drivers and executors.
_DEFAULT_HEAP_BYTES: Final = 1 << 30
# With dynamic allocation and no limit of executors: as many as a stage asks for, and this many are
# worth cutting the work for.
_SLOTS_WITHOUT_LIMIT: Final = 64
_PROBE_ROWS: Final = 1 << 16


def is_connect(spark: "SparkSession") -> bool:
    """Whether a session is one of Spark Connect, without JVM and broadcasts."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def setting(spark: "SparkSession", key: str) -> str | None:
    """Return a session's setting; None if unset or not to be read."""
    try:
        return spark.conf.get(key, None)
    except PySparkException:  # serverless sessions answer for a few keys alone
        return None


def count_slots(spark: "SparkSession") -> int:
    """Return how many tasks may run at the same time.

    That is what the executors have that are there, or with dynamic allocation what those have that
    may come. It is no matter of ``spark.sql.shuffle.partitions``.
    """
    here = _slots_here(spark)
    if (setting(spark, "spark.dynamicAllocation.enabled") or "").lower() != "true":
        return here
    executors = _number(setting(spark, "spark.dynamicAllocation.maxExecutors"))
    if executors is None or executors >= 2**31 - 1:
        return max(here, _SLOTS_WITHOUT_LIMIT)
    cores = _number(setting(spark, "spark.executor.cores")) or 1
    return max(here, executors * max(1, cores // cpus_of_task(spark)))


def cpus_of_task(spark: "SparkSession") -> int:
    """Return how many processors a session gives to each task."""
    return max(1, _number(setting(spark, "spark.task.cpus")) or 1)


def is_local(spark: "SparkSession") -> bool:
    """Whether a session's tasks run in the process of its driver."""
    return not is_connect(spark) and str(spark.sparkContext.master).startswith("local[")


def heap_bytes(spark: "SparkSession") -> int:
    """Return the smaller heap of a session's driver and executors. A driver in another process
    (Spark Connect) does not tell: Spark's default counts."""
    if is_connect(spark):
        return _DEFAULT_HEAP_BYTES
    context = spark.sparkContext
    try:
        driver = int(context._jvm.java.lang.Runtime.getRuntime().maxMemory())  # type: ignore[union-attr]  # noqa: SLF001
        executor = int(context._jsc.sc().executorMemory()) << 20  # noqa: SLF001
    except Exception:  # noqa: BLE001  # shared clusters do not let everybody ask the JVM
        return _DEFAULT_HEAP_BYTES
    # Tasks of a local session run in the driver.
    return driver if str(context.master).startswith("local[") else min(driver, executor)


def has_files_of_driver(spark: "SparkSession") -> bool:
    """Whether a session takes a path without scheme as a local one. Python then takes the path as
    one of this machine.

    To a session of Spark Connect it is one of the server's; to one that is told so it is one of
    HDFS or of an object store. A session that does not say counts as one of these.
    """
    if is_connect(spark):
        return False
    try:
        files = spark.sparkContext._jsc.hadoopConfiguration().get("fs.defaultFS")  # noqa: SLF001
    except Exception:  # noqa: BLE001  # shared clusters do not let everybody ask the JVM
        return False
    return str(files).startswith("file:")


def has_delta(spark: "SparkSession") -> bool:
    """Whether a session reads and writes Delta tables. If its settings do not tell, it is asked
    to read one."""
    if _DELTA_EXTENSION in (setting(spark, "spark.sql.extensions") or ""):
        return True
    if not is_connect(spark):
        return False
    try:
        # Nothing lies there; what counts is who says so.
        spark.read.format("delta").load("/nonexistent/pylog").schema  # noqa: B018
    except PySparkException as error:
        return error.getCondition() not in _NO_SUCH_FORMAT
    return True


_NO_SUCH_FORMAT: Final = frozenset(
    {"DATA_SOURCE_NOT_FOUND", "UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY"}
)


def _slots_here(spark: "SparkSession") -> int:
    if not is_connect(spark):
        return int(spark.sparkContext.defaultParallelism)
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  # its usual name

    # Spark cuts a range for the slots that it has; its last partition has the largest number.
    parts = spark.range(_PROBE_ROWS).select(F.spark_partition_id().alias("part"))
    last = parts.agg(F.max("part").alias("last")).collect()[0]["last"]
    return int(last) + 1


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
