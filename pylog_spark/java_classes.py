"""An archive of Spark's Java classes, for a fast JVM start. Classes are read and checked once; the
JVM of a job maps them into memory.

A JVM with Spark loads some twenty thousand classes before its first query has ended, for which it
needs ten seconds of a core; from an archive (class data sharing, of every HotSpot) it needs half.
``pylog warmup`` makes the archive. It fits one Java and one class path alone: a JVM that begins
with others takes none of it, and says nothing.
"""

import hashlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pylog_spark.java import Java
from pylog_spark.user_cache import cache_folder

ARCHIVE_SUFFIX: Final = ".jsa"
# A JVM that cannot use an archive, or leaves a class out of one, says so on its standard output.
_QUIET: Final = ("-Xlog:disable", "-Xlog:all=error:stderr")


def class_archive(java: Java, jars: Sequence[Path]) -> Path:
    """Return where the archive lies, or would lie, in the user's cache.

    Args:
        jars: Of the class path, before Spark's own.
    """
    return cache_folder("java-classes") / f"{classes_digest(java, jars)}{ARCHIVE_SUFFIX}"


def classes_digest(java: Java, jars: Sequence[Path]) -> str:
    """Return a digest of an archive's Java and jars, which must match."""
    digest = hashlib.sha256((java.home / "release").read_bytes())
    for jar in [*jars, *_spark_jars()]:
        facts = jar.stat()
        digest.update(f"{jar} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def options_to_use(archive: Path) -> tuple[str, ...]:
    """Return the JVM options to start from an archive."""
    return (f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", *_QUIET)


def options_to_make(archive: Path) -> tuple[str, ...]:
    """Return the JVM options to write an archive at its end."""
    return (f"-XX:ArchiveClassesAtExit={archive}", *_QUIET)


def _spark_jars() -> list[Path]:
    spark = find_spec("pyspark")
    folders = (spark.submodule_search_locations if spark else None) or []
    return sorted(jar for folder in folders for jar in Path(folder, "jars").glob("*.jar"))
