"""Digests of a replica in MB/s of processor time, beside verification and MD5, in turns.

Two replicas of a gigabyte differ in one flipped byte, one batch that is missing, and one epoch. All
three have to be named, whatever their segments are.
"""

import hashlib
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pylog_spark.cluster.differences import DifferenceReport, list_differences
from pylog_spark.engines.choice import Local
from pylog_spark.options import JobOptions
from pylog_spark.options.choices import Level
from storage_core.catalog.log_directories import DirectoryKind
from storage_core.cluster.log_batches import OffsetRanges, digest_log
from storage_core.cluster.places import ReplicaPlace
from storage_core.cluster.resting_log import observe_log
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY
from storage_core.maintenance.verification.files import sort_files
from storage_core.store import LocalStore
from tests.bench.bench_verify import look
from tests.bench.figures import Figure
from tests.bench.generated_partition import NOW_MS
from tests.bench.shared import Way, processor_rates
from tests.kit.builders import BatchSpec, RecordSpec, encode_batch

MD5: Final = "MD5"
VERIFY: Final = "pylog verify"
RECORDS: Final = 16
# Where the replicas differ: batches by kind of difference.
DIFFERENCES: Final = {"bytes": 12_345, "missing": 23_456, "epoch": 34_567}
_INDEX_EVERY: Final = 4


def _batches(count: int) -> NDArray[np.uint8]:
    """Return uint8[count, size], batches that differ in their base offsets."""
    values = np.random.default_rng(7).bytes(RECORDS * 1000)
    records = tuple(
        RecordSpec(key=b"%016d" % at, value=values[at * 1000 : at * 1000 + 1000], offset_delta=at)
        for at in range(RECORDS)
    )
    batch = np.frombuffer(encode_batch(BatchSpec(records=records)), np.uint8)
    batches = np.tile(batch, (count, 1))
    offsets = (np.arange(count, dtype=np.int64) * RECORDS).astype(">i8")
    batches[:, :8] = offsets.view(np.uint8).reshape(count, 8)
    return batches


def write_replicas(
    folder: Path, size_bytes: int, places: Mapping[str, int] = DIFFERENCES
) -> list[Path]:
    """Write two log directories with a partition each that differ in three places."""
    one = _batches(1)
    count = size_bytes // one.size
    roots = []
    for broker, segments in ((1, 4), (2, 5)):
        root = folder / f"b{broker}"
        directory = root / "t-0"
        directory.mkdir(parents=True)
        batches = _batches(count)
        if broker == 2:  # the one that differs
            batches[places["bytes"], 5000] ^= 1
            batches[places["epoch"], 12:16] = (0, 0, 0, 1)
            batches = np.delete(batches, places["missing"], axis=0)
        bounds = np.linspace(0, len(batches), segments + 1).astype(int)
        for start, end in pairwise(bounds):
            base = int.from_bytes(batches[start, :8].tobytes(), "big")
            batches[start:end].tofile(directory / f"{base:020}.log")
            rows = np.arange(_INDEX_EVERY, end - start, _INDEX_EVERY)
            entries = np.zeros(len(rows), OFFSET_INDEX_ENTRY)
            offsets = batches[start:end, :8].copy().view(">i8").ravel()[rows]
            entries["relative_offset"] = offsets + RECORDS - 1 - base
            entries["position"] = rows * one.size
            entries.tofile(directory / f"{base:020}.index")
        (directory / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
        (root / "meta.properties").write_text(
            f"version=1\nnode.id={broker}\ncluster.id=QUFBQUFBQUFBQUFBQUFBQQ\n"
        )
        roots.append(root)
    return roots


def compare(roots: list[Path]) -> DifferenceReport:
    """Return the differences, found by digests."""
    options = JobOptions(now_ms=NOW_MS)
    options = replace(options, tuning=replace(options.tuning, unit_max_bytes=1 << 29))
    return list_differences(Local(2), roots, options, level=Level.BYTES)


def beside_verify(directory: Path, *, rounds: int) -> Figure:
    """Return how fast a core digests a replica, beside verification and MD5, in turns."""
    place = ReplicaPlace(
        broker=1,
        root=str(directory.parent),
        directory=str(directory),
        kind=DirectoryKind.PARTITION,
        is_clean=True,
    )
    log = observe_log(place)
    ranges = OffsetRanges.of(log.log_start_offset, log.log_end_offset, log.size_bytes)
    store = LocalStore(directory)
    megabytes = log.size_bytes / 1e6
    ways: dict[str, Way] = {
        "ours": (megabytes, lambda: digest_log(log, ranges)),
        VERIFY: (megabytes, lambda: look(directory, log.base_offsets, is_deep=False)),
        MD5: (megabytes, lambda: _md5(store)),
    }
    warm = processor_rates(ways, rounds=rounds)
    return Figure(
        work="audit: digests of a replica, a core",
        unit="MB/s",
        ours=warm.pop("ours"),
        theirs=warm,
        targets={MD5: 3, VERIFY: 0.7},
    )


def _md5(store: LocalStore) -> None:
    piece = np.empty(1 << 20, np.uint8)
    for segment in sort_files(store.list_files()).segments:
        digest = hashlib.md5(usedforsecurity=False)
        with closing(store.open_file(segment.log.name)) as reader:
            for position in range(0, reader.size_bytes, piece.size):
                digest.update(piece[: reader.read_into(position, piece)].data)
