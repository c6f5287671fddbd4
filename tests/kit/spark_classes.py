"""Spark's Java classes, read and checked once: JVMs that tests start begin with them in memory.

A JVM with Spark loads some twenty thousand classes before its first query has ended, for which it
needs ten seconds of a core; from an archive (class data sharing, of every HotSpot) it needs half.
The archive lies in the folder of the Python that has this pyspark. It is made by ``python -m
tests.kit.spark_classes``, else by the first session that wants it; a Java that makes none does
without.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

import pyspark

from pylog_spark.java import find_java
from pylog_spark.session import build_session, delta_jars

# The quick compiler: tests are short, most of their time went into optimising Spark's code.
_QUICK: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
# A JVM that cannot use an archive says so on its standard output.
_QUIET: Final = ("-Xshare:auto", "-Xlog:disable", "-Xlog:all=error:stderr")
_TIMEOUT_S: Final = 600
# For a session that has a few rows: to generate and compile code for them takes longer than to
# interpret the expressions. A nightly through spark-submit has them compiled.
INTERPRETED: Final = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
# And for one whose tasks are so short that to import in each worker takes longer. What goes through
# spark-submit, or runs in a hostile folder, has Spark's own daemon.
FEW_ROWS: Final = INTERPRETED | {"spark.python.daemon.module": "tests.kit.spark_workers"}
REPOSITORY: Final = Path(__file__).parents[2]


@cache
def spark_options(*, delta: bool = False) -> str:
    """Return the options of a JVM that runs Spark for a test.

    Args:
        delta: Whether Delta's jars come first on its class path. An archive fits one class path
            alone; with another one, a JVM takes none of it.
    """
    archive = _archive(delta=delta)
    shared = (f"-XX:SharedArchiveFile={archive}", *_QUIET) if archive else ()
    return " ".join((*_QUICK, *shared))


def _archive(*, delta: bool) -> Path | None:
    """Return the archive, made unless it is there; None if this Java or folder has none."""
    folder = Path(sys.prefix) / "java-classes"
    kind = "delta" if delta else "spark"
    path = folder / f"{kind}-{_digest(delta=delta)}.jsa"
    try:
        folder.mkdir(exist_ok=True)
        with (folder / f"{kind}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                for other in folder.glob(f"{kind}-*"):
                    other.unlink()
                _make(path, delta=delta)
    except OSError:
        return None
    # An empty one says that this Java makes none.
    return path if path.stat().st_size else None


def _digest(*, delta: bool) -> str:
    """Return a digest of what an archive has to fit: the Java, and the jars as they lie there."""
    jars = sorted(Path(pyspark.__path__[0], "jars").glob("*.jar"))
    digest = hashlib.sha256((find_java().home / "release").read_bytes())
    for jar in [*(delta_jars() if delta else ()), *jars]:
        facts = jar.stat()
        digest.update(f"{jar} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _make(path: Path, *, delta: bool) -> None:
    new = path.with_suffix(".new")
    subprocess.run(
        [sys.executable, "-m", "tests.kit.spark_classes", new, "delta" if delta else "spark"],
        cwd=REPOSITORY,
        env={k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "SPARK_"))},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if new.exists():
        new.rename(path)
    else:
        path.touch()


def _record(path: Path, *, delta: bool) -> None:
    """Run what most tests do, and have the JVM write its classes down when it ends."""
    options = f"{' '.join(_QUICK)} -XX:ArchiveClassesAtExit={path}"
    settings = {"spark.driver.extraJavaOptions": options, "spark.sql.shuffle.partitions": "2"}
    spark = build_session("local[2]", settings, delta=delta)
    gateway: Any = spark.sparkContext._gateway
    process = gateway.proc
    frame = spark.range(100).repartition(4).mapInArrow(lambda batches: batches, "id long")
    frame.groupBy("id").count().orderBy("id").toArrow()
    spark.sparkContext.broadcast([1]).destroy()
    format_of_tables = "delta" if delta else "parquet"
    with tempfile.TemporaryDirectory() as folder:
        frame.write.format(format_of_tables).save(f"{folder}/table")
        spark.read.format(format_of_tables).load(f"{folder}/table").filter("id > 5").collect()
    spark.stop()
    process.stdin.close()
    process.wait()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _record(Path(sys.argv[1]), delta=sys.argv[2] == "delta")
    else:
        for with_delta in (False, True):
            spark_options(delta=with_delta)
