"""A partition's compaction request, and its state by a manifest. A survey of a partition makes
the same request."""

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.maintenance.compaction.candidates import CleanRequest
from storage_core.maintenance.partition_state import PartitionState
from storage_core.roots.partition_facts import manifest_timestamps
from storage_core.store import LogStore


def clean_request(
    checkpoints: PartitionCheckpoints, *, now_ms: int, high_watermark: int | None
) -> CleanRequest:
    """Return what is asked of compaction.

    Args:
        high_watermark: That which counts; None for the log's end.
    """
    return CleanRequest(
        now_ms=now_ms,
        high_watermark=high_watermark,
        log_start_offset=checkpoints.log_start_offset,
        cleaner_checkpoint=checkpoints.cleaner_offset,
    )


def manifest_state(store: LogStore, request: CleanRequest) -> PartitionState | None:
    """Return a partition's state by its manifest; None without a manifest.

    Args:
        request: What its checkpoints say.
    """
    timestamps = manifest_timestamps(store)
    if timestamps is None:
        return None
    return PartitionState.of_listing(
        store.location,
        store.list_files(),
        log_start_checkpoint=request.log_start_offset,
        high_watermark=request.high_watermark,
        max_timestamps=timestamps,
    )
