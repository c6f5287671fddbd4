"""A run that changes logs: under the locks of all its roots, with a way back, and by a plan."""

from collections.abc import Iterator
from contextlib import contextmanager

from pylog_spark.engines.choice import Place
from pylog_spark.run.catalogs import dump_notes
from pylog_spark.run.job import Job, run_trash
from pylog_spark.run.run import Run
from pylog_spark.run.saved_plans import write_planned
from pylog_spark.run.store_costs import bucket_notes
from pylog_spark.run.trash import begin_trash


@contextmanager
def open_upkeep(place: Place, job: Job) -> Iterator[Run]:
    """Open a run that changes the logs of its roots, or only plans that.

    It holds all roots; what it found there is in its trash before the first file is touched, so
    that it can be undone; the plan that was asked for is saved when its last step has ended.

    Raises:
        GuardRefusedError: Another run, or a broker, has one of the roots.
        PylogError: As what is done within it.
    """
    with Run(place, job) as run:
        run.notes += (*dump_notes(job.options), *bucket_notes(job.roots))
        run.hold_roots(trash=run_trash(job))
        run.notes += begin_trash(job, run.held)
        yield run
        write_planned(run)
    run.notes += tuple(
        f"{location}: the disk failed, and the run did no more there: the directory has no "
        f"marker of a clean shutdown, the next run finishes what had begun: {failure}"
        for location, failure in run.failures.items()
    )
