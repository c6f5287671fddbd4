"""The process that a job's Python workers on this machine are forked from.

Spark's own daemon imports next to nothing before it forks: each worker imports PySpark, out of a
zip without bytecode, Arrow and our kernels for itself, a second and more of a processor. Here that
is done once, before the first fork. Spark starts it as ``python -m``; see
``spark.python.daemon.module``.
"""

import gc
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Final

from pylog_spark.tasks.worker import freeze_modules
from pylog_spark.without_pandas import hide_pandas

# What serves Spark's tasks, and what most of ours import: kernels, stores, messages.
_PRELOADED: Final = ("pyspark.worker", "pylog_spark.operations.compact.task")
_SPARK: Final = "pyspark"


def spare_zips(paths: Iterable[str]) -> list[str]:
    """Return an import path without Spark's own archives, if it has what they were made of.

    Args:
        paths: As ``sys.path``: Spark puts the archives of its installation first.
    """
    kept = list(paths)
    installed = [Path(path, _SPARK) for path in kept if Path(path, _SPARK, "__init__.py").is_file()]
    return [path for path in kept if not any(folder in Path(path).parents for folder in installed)]


def main() -> None:
    """Import, then fork a worker whenever Spark asks for one."""
    sys.path[:] = spare_zips(sys.path)
    hide_pandas()
    gc.disable()  # modules are no garbage
    for name in _PRELOADED:
        # Whoever needs it says what is missing.
        with suppress(ImportError):
            import_module(name)
    freeze_modules()
    gc.enable()
    from pyspark.daemon import manager  # noqa: PLC0415  # not out of a zip

    manager()


if __name__ == "__main__":
    main()
