"""The stages of a run, one after the other in this process: what Spark would spread over tasks."""

import json
import os
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from pylog_spark.engines.engine import Inline
from pylog_spark.operations.compact.pass_task import (
    ExchangeMessage,
    PartitionKeyIndex,
    PassWork,
    RewrittenGroup,
    Route,
    SegmentKeyIndex,
    answer_keys,
    index_segments,
    merge_partitions,
    rewrite_exchanged,
    rewrite_groups,
    send_keys,
)
from pylog_spark.operations.compact.task import (
    CompactionCommit,
    CompactionWork,
    clean_partitions,
    commit_partitions,
)
from pylog_spark.options import JobOptions
from pylog_spark.rows import batches_of, row_reader, row_writer, schema_of, table_of
from pylog_spark.tasks.listing import list_partitions
from pylog_spark.tasks.message import PART, cut_batches, join_messages, with_part
from pylog_spark.tasks.observe import observe_partition
from pylog_spark.tasks.run_context import WriteContext
from storage_core import lock_holder
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.checkpoint import lock
from storage_core.checkpoint.lock import LockProof, LockShare, read_boot_id
from storage_core.commit.claim import create_claim
from storage_core.commit.scratch import claim_path, create_scratch
from storage_core.config import CleanerConfig
from storage_core.json_values import from_json
from storage_core.maintenance.compaction.index import IndexStats
from storage_core.maintenance.compaction.partition import CleanedPartition
from storage_core.maintenance.compaction.rewrite import CleanedGroup
from storage_core.roots.broker import BrokerAccess
from storage_core.roots.open_root import root_checkpoints
from tests.pylog_spark.broker_roots import BrokerDirectory
from tests.pylog_spark.cell_sizes import largest_cell
from tests.pylog_spark.tasks.observed import run_context

NO_LIMIT = 1 << 40

T = TypeVar("T")


class Pipeline:
    """The stages over every due partition of a log directory."""

    def __init__(
        self,
        root: BrokerDirectory,
        now_ms: int,
        *,
        cleaner: CleanerConfig | None = None,
        has_shared_scratch: bool = True,
        held: LockProof | None = None,
    ) -> None:
        self.root = root
        location = str(root.path)
        run = run_context(
            location, root.configs, JobOptions(now_ms=now_ms, cleaner=cleaner or CleanerConfig())
        )
        scratch = create_scratch(root.path, "run") if has_shared_scratch else None
        self.shared = None if scratch is None else str(scratch)
        access = BrokerAccess(run_id="run", lock=held or proof_of(root.path), shared=self.shared)
        self.context = WriteContext(run=run, roots={location: access})
        self.plans: list[dict[str, Any]] = []
        for listed in list_partitions(location, "broker", TopicFilter()):
            row = {"error_class": None, "error": None} | listed
            seen = observe_partition(row, run, root_checkpoints)
            if seen["status"] == "planned":
                self.plans.append(seen)
        # Bytes of the largest cells of the last exchange, batch by batch.
        self.cells: list[int] = []
        self.encoded = {number: plan["plan"] for number, plan in enumerate(self.plans)}
        self.passes = PassWork(plans=Inline(self.encoded), context=self.context)

    def work(self, ordinal: int) -> CompactionWork:
        return row_reader(CompactionWork)(self.plans[ordinal] | {"ordinal": ordinal})

    def allow_commits(self) -> None:
        for plan in self.plans:
            create_claim(self.claim(plan))

    def claim(self, plan: dict[str, Any]) -> Path:
        return claim_path(self.shared, Path(plan["directory"]), "run")

    def index(self, *, tasks: int = 1) -> dict[int, dict[str, Any]]:
        """Pass one, its items dealt out to some tasks, and the merge."""
        items = [
            (ordinal, number)
            for ordinal, plan in enumerate(self.plans)
            for number in range(len(plan["segment_bytes"]))
        ]
        units = deal(items, tasks)
        merged_by = dict.fromkeys(self.encoded, 0)
        partials = pieces_of(
            SegmentKeyIndex, (index_segments(self.passes, merged_by, unit) for unit in units)
        )
        limits = dict.fromkeys(self.encoded, NO_LIMIT)
        ordered = sort(partials, "ordinal", "segment")
        merged = merge_partitions(self.passes, limits, join_messages(SegmentKeyIndex, ordered))
        rows = map(row_writer(PartitionKeyIndex), merged)
        return {row["ordinal"]: row for row in rows}

    def rewrite(self, merged: dict[int, dict[str, Any]], *, tasks: int = 1) -> list[dict[str, Any]]:
        """Pass two, its items dealt out to some tasks."""
        items = [
            (ordinal, number)
            for ordinal, row in merged.items()
            if row["error_class"] is None
            for number in range(len(row["group_bytes"]))
        ]
        groups = (
            group
            for unit in deal(items, tasks)
            for group in rewrite_groups(self.passes, published(merged), unit)
        )
        return table_of(RewrittenGroup, groups).sort_by("group").to_pylist()

    def pairs(
        self, merged: dict[int, dict[str, Any]], rows: list[dict[str, Any]]
    ) -> list[tuple[CompactionWork, CleanedPartition]]:
        """What the commits are told."""
        pairs = []
        for ordinal, between in merged.items():
            own = [row for row in rows if row["ordinal"] == ordinal]
            if between["error_class"] or any(row["error_class"] for row in own):
                continue
            cleaned = CleanedPartition(
                end_offset=between["end_offset"],
                groups=tuple(from_json(CleanedGroup, row["manifest"]) for row in own),
                index=IndexStats(**json.loads(between["numbers"])),
                spent_secs=0.0,
            )
            pairs.append((self.work(ordinal), cleaned))
        return pairs

    def prepared(self) -> list[tuple[CompactionWork, CleanedPartition]]:
        """Do both passes, and return what the commits are told."""
        self.allow_commits()
        merged = self.index()
        return self.pairs(merged, self.rewrite(merged))

    def commit(self, pairs: Sequence[tuple[CompactionWork, CleanedPartition]]) -> list[dict]:
        return list(map(row_writer(CompactionCommit), commit_partitions(pairs, self.context)))

    def clean_whole(self) -> list[dict[str, Any]]:
        commits = clean_partitions(map(self.work, self.encoded), self.context)
        return list(map(row_writer(CompactionCommit), commits))

    def exchange(self, *, buckets: int = 3) -> list[dict[str, Any]]:
        """Both passes with keys dealt out by hash; a task a segment, a bucket and a group."""
        routes, first, unit = {}, 0, 0
        for ordinal, plan in enumerate(self.plans):
            groups = range(unit, unit + plan["groups"])
            routes[ordinal] = Route(first_unit=first, buckets=buckets, group_units=tuple(groups))
            first, unit = first + buckets + 1, groups.stop
        sent = pieces_of(
            ExchangeMessage,
            (
                send_keys(self.passes, Inline(routes), [(ordinal, number)])
                for ordinal, plan in enumerate(self.plans)
                for number in range(len(plan["segment_bytes"]))
            ),
        )
        heard = sort(sent, "unit", "kind", "segment")
        messages = join_messages(ExchangeMessage, heard)
        answers = answer_keys(self.passes, Inline(routes), messages)
        answered = pieces_of(ExchangeMessage, [answers])
        told = sort(answered, "ordinal", "group", "kind", "segment")
        groups = rewrite_exchanged(self.passes, join_messages(ExchangeMessage, told))
        self.cells = [*map(largest_cell, heard), *map(largest_cell, told)]
        return table_of(RewrittenGroup, groups).sort_by("group").to_pylist()

    def run(self, *, tasks: int = 1) -> list[dict[str, Any]]:
        """All stages."""
        self.allow_commits()
        merged = self.index(tasks=tasks)
        return self.commit(self.pairs(merged, self.rewrite(merged, tasks=tasks)))


def published(merged: dict[int, dict[str, Any]]) -> dict[int, Inline[bytes]]:
    """Return the merged indexes of rows, as tasks find them."""
    return {ordinal: Inline(row["index"]) for ordinal, row in merged.items()}


def proof_of(directory: Path) -> LockProof:
    """Return what the holder of the directory's lock would hand to tasks of this process."""
    address = f"held-here-{directory}"
    proof = LockProof(
        log_directory=str(directory),
        holder_pid=os.getpid(),
        host_name=socket.gethostname(),
        boot_id=read_boot_id(),
        address=address,
    )
    # A share that nobody gave out: to start the holder would take longer than most of the tests.
    while address in _HERE or len(_HERE) >= MOST_HERE:
        _HERE.pop(address if address in _HERE else next(iter(_HERE))).close()
    share = LockShare(proof, socket.socket(), lock_holder.acquire(directory / ".lock"))
    share.users = 1
    lock._shares[address] = _HERE[address] = share
    return proof


_HERE: dict[str, LockShare] = {}
MOST_HERE = 50


def deal(items: Sequence[Any], tasks: int) -> list[list[Any]]:
    return [list(items[number::tasks]) for number in range(tasks)]


def pieces_of(kind: type[T], tasks: Iterable[Iterable[T]]) -> pa.Table:
    """Return the messages of some tasks in pieces."""
    batches = (batch for task in tasks for batch in cut_batches(batches_of(kind, task)))
    return pa.Table.from_batches(batches, schema=with_part(schema_of(kind)))


def sort(rows: pa.Table, *names: str) -> list[pa.RecordBatch]:
    """Return rows in the order that a stage asks for; pieces of a row in theirs."""
    # A shuffle brings them in any order, and a sort leaves equal ones in that.
    shuffled = rows.take(list(reversed(range(rows.num_rows))))
    ordered = shuffled.sort_by([(name, "ascending") for name in (*names, PART)])
    return ordered.to_batches(max_chunksize=7)
