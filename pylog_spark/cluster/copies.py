"""List the differences between topics and their copies in another cluster. Nothing is written.

A partition and its copy are compared by one task, which holds a window of each; small ones share a
task.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.cluster.audit.driver import measure, open_places
from pylog_spark.cluster.copies_task import CopyTarget, compare_copies
from pylog_spark.cluster.differences import ComparisonReport, split_compared
from pylog_spark.cluster.differences_task import DifferenceRow
from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.choice import Place
from pylog_spark.options import JobOptions
from pylog_spark.rows import schema_of
from pylog_spark.run.planning import WorkItem, are_read_here
from pylog_spark.run.run import Run
from storage_core.catalog.log_directories import DirectoryKind
from storage_core.cluster.differences import DifferenceKind
from storage_core.cluster.offset_map import (
    MAX_MAP_BYTES,
    OffsetMap,
    parse_offset_map,
    read_offset_syncs,
)
from storage_core.cluster.places import PartitionPlaces, ReplicaPlace
from storage_core.cluster.resting_log import observe_log
from storage_core.errors import ConfigError
from storage_core.filenames import TopicPartition

# What each cluster has of its own: MirrorMaker leaves out all but the last, which it writes itself.
_OWN_TOPICS: Final = re.compile(r"__.*|.*[-.]internal|heartbeats")
# Names of topics in an error.
_SHOWN: Final = 5
_NO_MAP: Final = "no offset map: the offsets of the copies should be those of the originals"

# Names of the originals.
_Places = Mapping[TopicPartition, PartitionPlaces]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport(ComparisonReport):
    """The differences between partitions and their copies."""

    offset_map: str

    def of_kind(self, kind: DifferenceKind) -> pa.Table:
        """Return the rows of one kind."""
        return self.rows.filter(pc.equal(self.rows["kind"], kind.value))


def list_copy_differences(
    place: Place,
    roots: Sequence[str | Path],
    copies: Sequence[str | Path],
    options: JobOptions,
    *,
    prefix: str = "",
    offset_map: Path | None = None,
    state: Path | None = None,
) -> CopyReport:
    """List the differences between topics and their copies. Further errors are those of ``audit``.

    Args:
        roots: Log directories of the originals: of the brokers of one cluster.
        options: Which topics of the originals, which role.
        offset_map: CSV, or the directory of a partition with MirrorMaker's offset syncs; None where
            all offsets should be equal.
        state: A file that says leaders and cleanup policies of the originals.
    """
    # No directory is in both.
    resolve_roots([*roots, *copies], role=options.role, must_open=False)
    job, all_originals, _, cluster = open_places(roots, options, state)
    free = replace(options, include=(), exclude=())
    _, all_copies, _, copy_cluster = open_places(copies, free, None)
    originals = _by_name(all_originals, "")
    targets = [
        target
        for target in _match(originals, _by_name(all_copies, prefix))
        # What seems not to be there may be where nobody could look.
        if (target.original or not cluster.unread) and (target.copy or not copy_cluster.unread)
    ]
    belief = _NO_MAP
    if offset_map is not None:
        syncs = _read_map(offset_map)
        belief = f"offsets by {offset_map}, {sum(map(len, syncs.values())):,} pairs"
        targets = _with_syncs(targets, syncs, offset_map)
    with Run(place, job) as run:
        table = _compare(run, targets) if targets else schema_of(DifferenceRow).empty_table()
        engine = run.engine.name
    order = ("topic", "partition", "topic_id", "first_offset", "copy_first_offset")
    table = table.sort_by([(name, "ascending") for name in order])
    rows, compared = split_compared(table)
    return CopyReport(
        rows=rows,
        compared=compared,
        offset_map=belief,
        notes=list(dict.fromkeys([*cluster.notes, *copy_cluster.notes])),
        unread={**cluster.unread, **copy_cluster.unread},
        engine=engine,
    )


def _by_name(places: Sequence[PartitionPlaces], prefix: str) -> _Places:
    """Return partitions by the name that the original has."""
    places_by_name: dict[TopicPartition, PartitionPlaces] = {}
    for each in places:
        if not each.replicas or not each.topic.startswith(prefix):
            continue
        name = TopicPartition(each.topic.removeprefix(prefix), each.partition)
        if _OWN_TOPICS.fullmatch(name.topic):
            continue
        other = places_by_name.setdefault(name, each)
        if other is not each:
            ids = f"{other.topic_id} and {each.topic_id}"
            reason = f"{each.topic} is two topics, {ids}: leave one out by --exclude, or its root"
            raise ConfigError("ROOT", each.replicas[0].directory, reason)
    return places_by_name


def _match(originals: _Places, copies: _Places) -> list[CopyTarget]:
    """Return the partitions of all topics that the original has."""
    topics = {name.topic for name in originals}
    names = originals.keys() | {name for name in copies if name.topic in topics}
    return [
        CopyTarget(
            topic=name.topic, original=originals.get(name), copy=copies.get(name), syncs=None
        )
        for name in sorted(names)
    ]


def _with_syncs(targets: Sequence[CopyTarget], syncs: OffsetMap, file: Path) -> list[CopyTarget]:
    """Return the same with what a map says of each."""
    mapped = []
    for target in targets:
        name = TopicPartition(target.topic, target.name.partition)
        mapped.append(replace(target, syncs=syncs.get(name, np.empty((0, 2), np.int64))))
    if targets and not any(len(each.syncs) for each in mapped if each.syncs is not None):
        topics = ", ".join(sorted({name.topic for name in syncs})[:_SHOWN]) or "none"
        expected = ", ".join(sorted({each.topic for each in targets})[:_SHOWN])
        reason = f"expected lines of topics that are compared ({expected}), found {topics}"
        raise ConfigError("--offset-map", str(file), reason)
    return mapped


def _read_map(path: Path) -> OffsetMap:
    """Read an offset map: a file, or a partition's directory."""
    if path.is_dir():
        place = ReplicaPlace(
            broker=None,
            root=str(path.parent),
            directory=str(path),
            kind=DirectoryKind.PARTITION,
            is_clean=True,
        )
        return read_offset_syncs(observe_log(place))
    try:
        with path.open("rb") as reader:
            content = reader.read(MAX_MAP_BYTES + 1)
    except OSError as error:
        raise ConfigError("--offset-map", str(path), error.strerror or str(error)) from error
    return parse_offset_map(content, str(path))


def _compare(run: Run, targets: Sequence[CopyTarget]) -> pa.Table:
    sides = [side for each in targets for side in (each.original, each.copy) if side is not None]
    sizes = {
        id(side): size.most_bytes for side, size in zip(sides, measure(run, sides), strict=True)
    }
    items = [
        WorkItem(
            value=each, size_bytes=sizes.get(id(each.original), 0) + sizes.get(id(each.copy), 0)
        )
        for each in targets
    ]
    units = [unit.values for unit in run.pack(items)]
    return run.engine.collect(
        run.engine.spread(units, compare_copies, DifferenceRow),
        schema_of(DifferenceRow),
        f"pylog copies: {len(targets):,} partitions",
        is_look=are_read_here(items),
    )
