"""The process that a job's Python workers on this machine are forked from.

Spark's own daemon imports next to nothing before it forks: each worker imports PySpark, out of a
zip without bytecode, Arrow and our kernels for itself, a second and more of a processor. Here that
is done once, before the first fork. Spark starts it as ``python -m``; see
``spark.python.daemon.module``.
"""

import gc
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Final

from pylog_spark.late_methods import make_methods_late
from pylog_spark.without_pandas import hide_pandas

# What serves Spark's tasks, and what most of ours import: kernels, stores, messages.
_PRELOADED: Final = ("pyspark.worker", "pylog_spark.operations.compact.task")
_SPARK: Final = "pyspark"


def leave_zips() -> None:
    """Import nothing from Spark's own archives, if what they were made of is installed.

    Spark puts them first, and has each that something was looked for in read again before a task.
    """
    installed = [Path(path, _SPARK) for path in sys.path]
    folders = {folder for folder in installed if (folder / "__init__.py").is_file()}
    for path in [path for path in sys.path if not folders.isdisjoint(Path(path).parents)]:
        sys.path.remove(path)
        sys.path_importer_cache.pop(path, None)


def main() -> None:
    """Import, then fork a worker whenever Spark asks for one."""
    leave_zips()
    hide_pandas()
    make_methods_late()
    gc.disable()  # modules are no garbage
    from pylog_spark.tasks.worker import freeze_modules  # noqa: PLC0415  # and Arrow

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
