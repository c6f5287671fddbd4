"""Tell OpenLineage of a run's begin, end, inputs and outputs. Inputs and outputs are its roots. The
client of OpenLineage is configured as everywhere, by its own environment and files."""

import os
import uuid
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import (
    Dataset,
    InputDataset,
    Job,
    OutputDataset,
    Run,
    RunEvent,
)
from openlineage.client.event_v2 import (
    RunState as EventType,
)
from openlineage.client.facet_v2 import (
    OutputDatasetFacet,
    error_message_run,
    job_type_job,
    output_statistics_output_dataset,
    processing_engine_run,
    tags_run,
)
from openlineage.client.naming.dataset import GCS, S3, LocalFileSystem

from pylog_spark.run.run_report import RunState
from pylog_spark.text import valid_text
from storage_core import __version__
from storage_core.catalog.roles import local_path
from storage_core.interruption import TerminatedError
from storage_core.redaction import without_secrets

_NAMESPACE_VARIABLE: Final = "OPENLINEAGE_NAMESPACE"
_NAMESPACE: Final = "pylog"
# It is on no index: a name, not a place.
_PRODUCER: Final = f"urn:pylog-spark:{__version__}"
_NAME: Final = "pylog-spark"
_S3_SCHEMES: Final = frozenset({"s3", "s3a", "s3n"})


class Lineage:
    """An OpenLineage emitter of a run's begin and end events."""

    failure = "OpenLineage was not told"

    def tell(self, state: RunState) -> None:
        """Emit START, or COMPLETE, FAIL or ABORT."""
        client = OpenLineageClient()
        try:
            client.emit(event_of(state))
        finally:
            client.close(timeout=5.0)


def lineage_id(run_id: str) -> str:
    """Return a run's UUID for OpenLineage: version 5 of its URN."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"urn:pylog:run:{run_id}"))


def event_of(state: RunState) -> RunEvent:
    """Return what OpenLineage is told of a run."""
    run_id, action = str(state.row["run_id"]), str(state.row["action"])
    facets = {
        "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
            version=__version__, name=_NAME
        ),
        "tags": tags_run.TagsRunFacet(
            tags=[tags_run.TagsRunFacetFields(key="run_id", value=run_id, source=_NAME)]
        ),
    }
    kind = _event_type(state)
    if kind in {EventType.FAIL, EventType.ABORT}:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
            message=_message(state), programmingLanguage="Python"
        )
    return RunEvent(
        eventType=kind,
        eventTime=state.row["at"].isoformat(),
        run=Run(runId=lineage_id(run_id), facets=facets),
        job=Job(
            namespace=os.environ.get(_NAMESPACE_VARIABLE) or _NAMESPACE,
            name=f"pylog.{action}",
            facets={
                "jobType": job_type_job.JobTypeJobFacet(
                    processingType="BATCH", integration="PYLOG", jobType="JOB"
                )
            },
        ),
        producer=_PRODUCER,
        inputs=[_input(root) for root in _inputs(state)],
        outputs=[_output(state, root) for root in state.outputs],
    )


def _event_type(state: RunState) -> EventType:
    if state.is_start:
        return EventType.START
    if isinstance(state.error, KeyboardInterrupt | TerminatedError):
        return EventType.ABORT
    return EventType.COMPLETE if state.is_good else EventType.FAIL


def _message(state: RunState) -> str:
    if state.report is None:
        text = f"{state.row['error_class']}: {state.row['error']}"
    else:
        summary = state.report.summary
        text = (
            f"exit status {state.exit_code}: {summary.failed} partitions failed, "
            f"{summary.skipped} were left alone"
        )
    return without_secrets(valid_text(text))


def _inputs(state: RunState) -> Iterable[str]:
    """Return the places read: all roots if these are also written."""
    roots = list(state.row["roots"])
    return [root for root in roots if root not in state.outputs] or roots


def _input(root: str) -> InputDataset:
    named = _dataset(root)
    return InputDataset(namespace=named.namespace, name=named.name)


def _output(state: RunState, root: str) -> OutputDataset:
    named = _dataset(root)
    facets: dict[str, OutputDatasetFacet] = {}
    if state.report is not None and root in state.roots:
        summary = state.summarise(state.results_of(root), duration_ms=0)
        facets["outputStatistics"] = (
            output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                size=summary.bytes_after
            )
        )
    return OutputDataset(namespace=named.namespace, name=named.name, outputFacets=facets)


def _dataset(root: str) -> Dataset:
    """Return a place in OpenLineage's naming: ``file`` and path, or bucket, key."""
    path = local_path(root)
    if path is not None:
        place: LocalFileSystem | S3 | GCS = LocalFileSystem(valid_text(str(path)))
        return Dataset(namespace=place.get_namespace(), name=place.get_name())
    parts = urlsplit(without_secrets(root))
    key = parts.path.strip("/") or "/"
    if parts.scheme in _S3_SCHEMES:
        place = S3(parts.netloc, key)
    elif parts.scheme == "gs":
        place = GCS(parts.netloc, key)
    else:
        return Dataset(namespace=f"{parts.scheme}://{parts.netloc}", name=parts.path or "/")
    return Dataset(namespace=place.get_namespace(), name=place.get_name())
