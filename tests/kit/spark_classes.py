"""Archives of Spark's Java classes for the JVMs that tests start, with and without Delta.

They are those of jobs (``pylog_spark.java``), but they lie in the folder of the Python that
has this pyspark. They are made by ``python -m tests.kit.spark_classes``, else by the first session
that wants one; a Java that makes none does without.
"""

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from pylog_spark.cli.warmup import record_classes
from pylog_spark.java import ARCHIVE_SUFFIX, classes_digest, find_java, options_to_use
from pylog_spark.session import delta_jars
from tests.kit.environment import settled_environment

# The quick compiler: tests are short, most of their time went into optimising Spark's code.
QUICK: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
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
    return " ".join((*QUICK, *(options_to_use(archive) if archive else ())))


def _archive(*, delta: bool) -> Path | None:
    """Return the archive, made unless it is there; None if this Java or folder has none."""
    kind = "delta" if delta else "spark"

    def record(new: Path) -> None:
        try:
            subprocess.run(
                [sys.executable, "-m", "tests.kit.spark_classes", new, kind],
                cwd=REPOSITORY,
                env=settled_environment(os.environ),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            sys.stderr.write(
                f"Java took more than {_TIMEOUT_S} s for an archive of Spark's classes; "
                "the tests go on without one, and each session starts some seconds later\n"
            )
            new.unlink(missing_ok=True)

    return kept_archive(kind, delta_jars() if delta else (), record)


def kept_archive(kind: str, jars: Sequence[Path], record: Callable[[Path], None]) -> Path | None:
    """Return an archive of Java classes, made unless it is there; None where that cannot be.

    Args:
        kind: What it is for, the beginning of its name.
        record: Makes the file, if this Java does.
    """
    folder = Path(sys.prefix) / "java-classes"
    path = folder / f"{kind}-{classes_digest(find_java(), jars)}{ARCHIVE_SUFFIX}"
    try:
        folder.mkdir(exist_ok=True)
        with (folder / f"{kind}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                for other in folder.glob(f"{kind}-*"):
                    other.unlink()
                _make(path, record)
    except OSError:
        return None
    # An empty one says that this Java makes none.
    return path if path.stat().st_size else None


def _make(path: Path, record: Callable[[Path], None]) -> None:
    new = path.with_suffix(".new")
    record(new)
    if new.exists():
        new.rename(path)
    else:
        path.touch()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        record_classes(Path(sys.argv[1]), delta=sys.argv[2] == "delta")
    else:
        for with_delta in (False, True):
            spark_options(delta=with_delta)
