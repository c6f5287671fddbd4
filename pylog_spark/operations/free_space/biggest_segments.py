"""List the segments of the biggest partitions, for a picture. It is a bounded look, in this
process. Read only: no Spark session is started, no lock is taken, no record is read."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pylog_spark.options import JobOptions
from pylog_spark.run.catalogs import build_catalogs
from storage_core.catalog.log_directories import DirectoryKind
from storage_core.config import LogConfig
from storage_core.errors import PylogError
from storage_core.maintenance.survey import observe_segments
from storage_core.reading.inspection import RootView, inspect_root
from storage_core.roots.open_root import LogRoot
from storage_core.store.generations import unpinned
from storage_core.store.open_objects import name_root
from storage_core.store.open_store import split_location

Row = dict[str, Any]


def segments_after_run(
    roots: Sequence[LogRoot], options: JobOptions, results: Iterable[Row], *, most: int
) -> list[Row]:
    """Return the present segments of a run's biggest partitions.

    Args:
        results: Rows of ``schemas.RESULT``; the last one of a partition counts.
    """
    sizes: dict[tuple[str, str], int] = {}
    for row in results:
        size = row["bytes_before"] if row["bytes_after"] is None else row["bytes_after"]
        if row["directory"] is not None and size is not None:
            name = split_location(unpinned(row["directory"]))[1]
            sizes[row["root"], name] = size
    names_of: dict[str, list[str]] = defaultdict(list)
    for location, name in sorted(sizes, key=lambda key: (-sizes[key], key))[:most]:
        names_of[location].append(name)
    # Of all roots: one of a broker's has its cluster's metadata, the others' too.
    catalogs = build_catalogs(roots, options)
    rows = []
    for root in roots:
        if root.location not in names_of:
            continue
        view = inspect_root(name_root(root.location, has_manifests=root.role.facts.has_manifests))
        config_of = catalogs[root.location].config_for
        names = names_of[root.location]
        rows += segments_of(view, names, config_of, now_ms=options.now_ms)
    return rows


def segments_of(
    view: RootView,
    names: Iterable[str],
    config_of: Callable[[str], LogConfig | None],
    *,
    now_ms: int,
) -> list[Row]:
    """Return the segments of some partitions, each with its state. A partition that cannot be read
    has none: its own row says why.

    Args:
        names: Of the partitions' directories, in the order in which they are wanted.
        config_of: Returns the config of a topic, None where nobody says it.
    """
    entries = {
        entry.name: (entry, entry.topic_partition)
        for entry in view.entries
        if entry.kind is DirectoryKind.PARTITION and entry.topic_partition is not None
    }
    rows: list[Row] = []
    for name in names:
        entry, partition = entries.get(name, (None, None))
        if entry is None or partition is None:
            continue
        config = config_of(partition.topic)
        try:
            rows += observe_segments(view, entry, partition, config=config, now_ms=now_ms)
        except PylogError:
            continue
    return rows
