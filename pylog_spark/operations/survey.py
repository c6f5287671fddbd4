"""Foretell retention and compaction of many partitions from listings.

The catalogue of files stays where tasks are; the driver gets one row of numbers a partition, and
keeps it as columns. Nothing is locked or written. Only those logs of a broker are opened from which
something would go.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pyarrow as pa

from pylog_spark.discovery import count_directories, discover_partitions, resolve_roots
from pylog_spark.engines.choice import Place
from pylog_spark.operations.survey_task import CheckpointReader, survey_partitions
from pylog_spark.operations.transfer import TransferReport, sort_details, transfer_results
from pylog_spark.options import JobOptions
from pylog_spark.outcomes import Action
from pylog_spark.run.catalogs import dump_notes, problem_notes
from pylog_spark.run.job import new_job, run_context, unclean_roots
from pylog_spark.run.planning import are_looked_at_here
from pylog_spark.run.run import Run
from pylog_spark.schemas import SURVEY
from pylog_spark.tasks.listing import ListingOpener
from storage_core.roots.open_root import root_checkpoints
from storage_core.store.listing import open_listing


def survey(
    place: Place,
    roots: Sequence[str | Path],
    options: JobOptions,
    *,
    opener: ListingOpener = open_listing,
    read_checkpoints: CheckpointReader = root_checkpoints,
) -> TransferReport:
    """Survey every partition of some roots.

    Args:
        place: Where it runs: a Spark session, or this machine (``Local``).
        options: Which topics, what is known of them, an inventory.
        opener: Returns the listing of a URL; a value that pickles.
        read_checkpoints: Returns the checkpoint files of a root; likewise.
    """
    log_roots = resolve_roots(roots, role=options.role)
    job = new_job(Action.SURVEY.value, log_roots, replace(options, dry_run=True))
    context = run_context(job, unclean_roots(log_roots))

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return survey_partitions(batches, context, read_checkpoints)

    with Run(place, job) as run:
        # The tasks that list survey, too: the files of a partition never travel.
        count = count_directories(log_roots)
        partitions = discover_partitions(
            run.engine, log_roots, job.topics, file_list=options.file_list, opener=opener
        )
        if count is not None and options.file_list is None:
            partitions = run.disks.deal_out(run.engine, partitions, count=count)
        table = run.engine.collect(
            partitions.map(work, SURVEY),
            SURVEY,
            f"{job.title}: look at {job.places}",
            is_look=are_looked_at_here(count),
        )
    details = sort_details(table, "due_bytes")
    results = transfer_results(
        job,
        details.rename_columns(_RESULT_NAMES),
        bytes_after=details["bytes_after"],
        segments_after=details["segments_after"],
    )
    return run.report(
        TransferReport,
        results,
        notes=(*dump_notes(options), *problem_notes(context.catalogs)),
        details=details,
    )


_RESULT_NAMES: Final = [
    {"bytes": "bytes_before", "segments": "segments_before"}.get(name, name)
    for name in SURVEY.names
]
