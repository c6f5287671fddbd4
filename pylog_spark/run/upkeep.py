"""Run changes to logs under all roots' locks, with undo and plan."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import pyarrow as pa

from pylog_spark.discovery import count_directories
from pylog_spark.engines.choice import Place
from pylog_spark.outcomes import Status
from pylog_spark.report import size_text
from pylog_spark.run.catalogs import dump_notes
from pylog_spark.run.job import Job, run_trash
from pylog_spark.run.run import Run
from pylog_spark.run.saved_plans import write_planned
from storage_core.catalog.roles import local_path
from storage_core.checkpoint.broker_files import read_clean_shutdown
from storage_core.checkpoint.checkpoints import CHECKPOINT_FILES, read_checkpoints
from storage_core.commit.trash import RUN_FILE, TrashedRoot, TrashedRun, hold_run
from storage_core.commit.undo import is_same_filesystem
from storage_core.errors import StorageError
from storage_core.roots.broker import BrokerRoot
from storage_core.roots.open_root import LogRoot
from storage_core.store.bucket_settings import RemarkCode, inspect_bucket
from storage_core.store.local import write_record
from storage_core.store.object_files import BLOCK_BYTES
from storage_core.wording import count_text

# Tell the cost of work on managed roots before anything is written. The roots are on object
# stores.
#
# Requests are what such a store charges for, beside bytes. They follow from the plan: how many
# segments are read, how many groups become new ones. A retry, a second attempt of a task or a
# manifest that several tasks of one process share make small differences.


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCost:
    """What the compaction of some partitions asks of a store."""

    partitions: int = 0
    gets: int = 0
    puts: int = 0  # PUT requests, parts of uploads among them
    heads: int = 0
    read_bytes: int = 0
    written_bytes: int = 0  # upper bound of the bytes that are written

    def __add__(self, other: "StoreCost") -> "StoreCost":
        return StoreCost(
            partitions=self.partitions + other.partitions,
            gets=self.gets + other.gets,
            puts=self.puts + other.puts,
            heads=self.heads + other.heads,
            read_bytes=self.read_bytes + other.read_bytes,
            written_bytes=self.written_bytes + other.written_bytes,
        )


def bucket_notes(roots: Sequence[LogRoot]) -> tuple[str, ...]:
    """Return notes on costs and write rules of managed roots' buckets.

    Uploads that stay are left out: `pylog ingest`, which fills a managed root, says it of each.
    """
    return tuple(
        f"{root.location}: {remark.code}: {remark.message}"
        for root in roots
        if root.role.facts.has_manifests
        for remark in inspect_bucket(root.location)
        if remark.code is not RemarkCode.PARTS_STAY
    )


def compaction_notes(roots: Sequence[LogRoot], plans: pa.Table) -> tuple[str, ...]:
    """Return a line for each managed root in which something is due.

    Args:
        plans: Rows of ``schemas.PLAN``.
    """
    names = ["root", "status", "cleanable_bytes", "segments", "groups", "segment_bytes"]
    rows = [row for row in plans.select(names).to_pylist() if row["status"] == Status.PLANNED]
    notes = []
    for root in roots:
        if not root.role.facts.has_manifests:
            continue
        costs = [
            cost_of_round(row["segment_bytes"], row["cleanable_bytes"], row["groups"])
            for row in rows
            if row["root"] == root.location
        ]
        if costs:
            notes.append(f"{root.location}: {describe_cost(sum(costs, StoreCost()))}")
    return tuple(notes)


def cost_of_round(segment_bytes: Sequence[int], dirty_bytes: int, groups: int) -> StoreCost:
    """Return about what the compaction of one partition costs.

    Args:
        segment_bytes: Sizes of the segments that are read in pass two.
    """
    segments, source_bytes = len(segment_bytes), sum(segment_bytes)
    reads = _blocks(dirty_bytes) + sum(_blocks(size) for size in segment_bytes)
    # Once for the plan and once for the commit: of each segment its first batch, and what the
    # partition as a whole has. Only a minimum lag asks for time indexes, too.
    small = 2 * (segments + 2)
    # Each task opens the generation and asks for the lease, and so does the commit. What is small
    # is the work of one.
    tasks = segments + groups if source_bytes > BLOCK_BYTES else 1
    opened = tasks + 2
    leases = tasks + 1
    parts = _blocks(source_bytes) + 2 * groups if source_bytes > BLOCK_BYTES else groups
    return StoreCost(
        partitions=1,
        gets=reads + small + opened + leases,
        puts=parts + groups + 2,
        heads=2 * groups,
        read_bytes=source_bytes + dirty_bytes,
        written_bytes=source_bytes,
    )


def describe_cost(cost: StoreCost) -> str:
    """Return a cost as a line of a report."""
    return (
        f"compacting {count_text(cost.partitions, 'partition')} takes about {cost.gets:,} GET, "
        f"{cost.puts:,} PUT and {cost.heads:,} HEAD requests, {size_text(cost.read_bytes)} to read "
        f"and at most about {size_text(cost.written_bytes)} to write"
    )


def _blocks(size_bytes: int) -> int:
    return -(-size_bytes // BLOCK_BYTES)


@contextmanager
def open_upkeep(place: Place, job: Job) -> Iterator[Run]:
    """Open a run to change its roots' logs, or to plan that.

    It holds all roots; what it found there is in its trash before the first file is touched, so
    that it can be undone; the plan that was asked for is saved when its last step has ended.
    """
    with Run(place, job) as run:
        run.prepare(count_directories(job.roots))  # beside locks and looks
        run.note([*dump_notes(job.options, job.roots), *bucket_notes(job.roots)])
        run.hold_roots(trash=run_trash(job))
        changed = [root for root in job.roots if not root.role.facts.keeps_generations]
        begin_trash(job, [root.location for root in changed], run.held)
        run.note(trash_notes(job))
        yield run
        try:
            write_planned(run)
        except StorageError as error:
            # The answer of the dry run is known, and is shown.
            run.fail(f"{job.options.plan_out}: the plan was not saved: {error}")
    run.note(
        f"{location}: the disk failed, and the run did no more there: the directory has no "
        f"marker of a clean shutdown, the next run finishes what had begun: {failure}"
        for location, failure in run.failures.items()
    )


def begin_trash(job: Job, locations: Sequence[str], held: ExitStack) -> None:
    """Write down the roots' state for an undo; nothing without a trash. It is called under the
    locks of its log directories, before any file changes.

    Args:
        held: Keeps the run's trash from a purge and from an undo until it is closed.
    """
    folder = run_trash(job)
    if folder is None or not locations or job.options.dry_run:
        return
    run = TrashedRun(
        run_id=job.run_id,
        action=job.action,
        started_ms=job.clock.now_ms(),
        roots=tuple(map(observe_root, locations)),
    )
    write_record(folder / RUN_FILE, run.encode())
    held.enter_context(hold_run(folder))


def trash_notes(job: Job) -> Iterator[str]:
    """Yield notes on what the trash copies and fills, for report readers."""
    folder, trash = run_trash(job), job.options.trash
    roots = [root for root in job.roots if not root.role.facts.keeps_generations]
    if folder is None or trash is None or not roots:
        return
    beside = roots_beside_trash(roots, folder)
    names = [root.location for root in roots if root.location in beside]
    if names:
        disk = "the same disk" if len(names) == len(roots) else f"the disk of {', '.join(names)}"
        yield (
            f"the trash {trash} is on {disk}: space is freed only by `pylog purge --trash "
            f"{quote(trash)} --older-than 0s`; after that, undo is impossible"
        )
    for root in roots:
        if root.location not in beside:
            yield (
                f"{root.location}: the trash {trash} is on another filesystem, so what the run "
                "replaces or removes is copied there, not renamed"
            )


def roots_beside_trash(roots: Iterable[LogRoot], trash: Path) -> frozenset[str]:
    """Return the local roots on the same filesystem as a trash. The files in the trash occupy
    their space."""
    return frozenset(
        root.location
        for root in roots
        if (path := local_path(root.location)) is not None and is_same_filesystem(path, trash)
    )


def observe_root(location: str) -> TrashedRoot:
    """Return a log directory's marker and checkpoint entries as of now."""
    root = BrokerRoot(Path(location))
    read = read_checkpoints(root, strict=False)
    return TrashedRoot(
        location=location,
        was_clean=read_clean_shutdown(root) is not None,
        checkpoints={
            name: {
                str(partition): offset for partition, offset in read.entries.get(name, {}).items()
            }
            for name in CHECKPOINT_FILES
            if name not in read.problems
        },
    )
