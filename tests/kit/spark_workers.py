"""What Spark forks the Python workers of tests from: it has imported what their tasks need.

pyspark's own daemon imports nothing, and leaves it to every worker, for which each needs more than
a second of a core; most tasks of a test need a few milliseconds. A worker ends with a task that
failed, with an executor that is killed, and after a minute without a task.

``spark.python.daemon.module`` of a session names this module.
"""

import importlib
import pkgutil

import pyspark.worker  # noqa: F401 - what a worker runs
from pyspark.daemon import manager

from pylog_spark import operations, tasks


def import_tasks() -> None:
    """Import what tasks share, and the task modules of all operations."""
    for module in pkgutil.iter_modules(tasks.__path__, f"{tasks.__name__}."):
        importlib.import_module(module.name)
    for module in pkgutil.walk_packages(operations.__path__, f"{operations.__name__}."):
        if module.name.endswith("task"):
            importlib.import_module(module.name)


def fork_workers() -> None:
    """Import what tasks need, then fork workers as Spark asks for them."""
    import_tasks()
    manager()


if __name__ == "__main__":
    fork_workers()
