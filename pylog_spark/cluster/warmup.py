"""Run the kernels of comparisons once, for ``pylog warmup``."""

from pathlib import Path

from storage_core.catalog.log_directories import DirectoryKind
from storage_core.cluster.alignment import RecordReader
from storage_core.cluster.log_batches import OffsetRanges, digest_log
from storage_core.cluster.places import ReplicaPlace
from storage_core.cluster.resting_log import observe_log


def digest(directory: Path) -> None:
    """Digest a log as replica and as copy, like a comparison."""
    log = observe_log(
        ReplicaPlace(
            broker=None,
            root=str(directory.parent),
            directory=str(directory),
            kind=DirectoryKind.PARTITION,
            is_clean=True,
        )
    )
    ranges = OffsetRanges.of(log.log_start_offset, log.log_end_offset, log.size_bytes)
    digest_log(log, ranges)
    RecordReader(log, ()).read()
