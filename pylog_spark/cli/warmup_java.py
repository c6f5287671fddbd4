"""Archive Spark's Java classes for jobs' JVMs, in ``pylog warmup``."""

import time
from pathlib import Path
from typing import Any, Final

from pylog_spark.java import MissingSoftwareError, find_java
from pylog_spark.java_classes import ARCHIVE_SUFFIX, class_archive, options_to_make
from pylog_spark.session import (
    JAVA_OPTIONS,
    build_session,
    delta_jars,
    has_session,
    is_delta_installed,
    is_spark_installed,
)
from storage_core.temporary_folder import temporary_folder

_MEGA: Final = 1e6


def keep_java_classes() -> str | None:
    """Make the missing archive of classes; return a line about it. None where there is no Spark
    here, or its JVM is somebody else's."""
    if not is_spark_installed() or has_session():
        return None
    started = time.perf_counter()
    try:
        has_delta = is_delta_installed()
        archive = class_archive(find_java(), delta_jars() if has_delta else [])
        if not archive.exists():
            _make(archive, delta=has_delta)
    except (MissingSoftwareError, OSError) as error:
        return f"Spark's Java classes are not kept: {error}"
    if not archive.exists():
        return "Spark's Java classes are not kept: this Java makes no archive of them"
    seconds, size = time.perf_counter() - started, archive.stat().st_size / _MEGA
    return f"Spark's Java classes are ready after {seconds:.1f} s; {size:.0f} MB in {archive}"


def _make(archive: Path, *, delta: bool) -> None:
    with temporary_folder(".new-", archive.parent) as scratch:
        new = scratch / archive.name
        record_classes(new, delta=delta)
        if new.exists():
            # Those of another Java or Spark: they are large, and can be made again.
            for other in archive.parent.glob(f"*{ARCHIVE_SUFFIX}"):
                other.unlink(missing_ok=True)
            new.rename(archive)


def record_classes(archive: Path, *, delta: bool) -> None:
    """Run typical job work; let the JVM record its classes. It writes them down when it ends.

    The JVM is this process's only one: it can start no other.

    Args:
        archive: The file; where this Java makes none, it is not there afterwards.
        delta: Whether Delta's jars come first on the class path.
    """
    settings = {
        JAVA_OPTIONS: " ".join(options_to_make(archive)),
        "spark.sql.shuffle.partitions": "2",
    }
    spark = build_session(
        "local[2]", settings, app_name="pylog warmup", delta=delta, is_of_job=True
    )
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001  # its JVM has to end, here
    process = gateway.proc
    frame = spark.range(100).repartition(4).mapInArrow(lambda batches: batches, "id long")
    frame.groupBy("id").count().orderBy("id").toArrow()
    spark.sparkContext.broadcast([1]).destroy()
    format_of_tables = "delta" if delta else "parquet"
    with temporary_folder("pylog-warmup-") as folder:
        frame.write.format(format_of_tables).save(f"{folder}/table")
        spark.read.format(format_of_tables).load(f"{folder}/table").filter("id > 5").collect()
    spark.stop()
    process.stdin.close()
    process.wait()
