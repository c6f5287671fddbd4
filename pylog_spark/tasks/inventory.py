"""Read an inventory in place of listing a bucket. The files of roots are found in tables of a whole
bucket.

The keys are those of the bucket, or full URLs; a table may be about much more than the roots of a
run. Column by column with Arrow, batch by batch: an inventory of a hundred thousand partitions has
tens of millions of rows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.schemas import LISTED_DIRECTORY, PARTITION
from pylog_spark.tasks.inventory_files import InventoryPart, read_tables
from pylog_spark.tasks.listing import LISTING_COLUMNS, directory_row
from storage_core.catalog.log_directories import DirectoryKind, classify_directory
from storage_core.catalog.roles import local_path
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.store.listing import is_plain_name

_PLACE: Final = r"^(?P<directory>[^/]+)/(?P<name>[^/]+)$"


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryRoot:
    """A root whose files are looked for in an inventory."""

    location: str
    role: str

    @property
    def bucket(self) -> str | None:
        """The bucket, None for a path."""
        return None if local_path(self.location) is not None else urlsplit(self.location).netloc

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The beginnings of its files' keys: in the bucket, or a URL."""
        whole = self.location.rstrip("/") + "/"
        if self.bucket is None:
            return (whole,)
        inside = urlsplit(self.location).path.strip("/")
        return (f"{inside}/" if inside else "", whole)


def read_part(
    part: InventoryPart, roots: Sequence[InventoryRoot], topics: TopicFilter
) -> Iterator[pa.RecordBatch]:
    """Yield the files of the roots' directories in an inventory part. The rows are of
    ``schemas.LISTED_DIRECTORY``.

    A directory has a row for each stretch of the part that knows some of its files: inventories
    are sorted or nearly so, and a row a file would be a hundred times as many.
    """
    is_asked = _directory_filter(topics)
    for table in read_tables(part):
        for root in roots:
            batch = _files_of(root, table, is_asked)
            if batch.num_rows:
                yield batch


def partition_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn rows (root, role, directory, stretches) into rows of ``schemas.PARTITION``.

    ``stretches`` is a list of structs with the columns of listed files, which are lists.
    """
    for batch in batches:
        places = batch.select(["root", "role", "directory"]).to_pylist()
        rows = [
            directory_row(place["root"], place["role"], place["directory"]) or {}
            for place in places
        ]
        table = pa.RecordBatch.from_pylist(rows, schema=PARTITION)
        for name, values in _joined(batch.column("stretches")).items():
            place = PARTITION.get_field_index(name)
            table = table.set_column(place, PARTITION.field(place), values)
        yield table


def _joined(stretches: pa.ListArray) -> dict[str, pa.ListArray]:
    """Return each row's files, stretches joined, in name order."""
    parts = stretches.flatten()
    columns = {name: parts.field(name) for name in LISTING_COLUMNS}
    counts = columns[LISTING_COLUMNS[0]].value_lengths().to_numpy(zero_copy_only=False)
    rows = np.repeat(np.arange(len(stretches)), stretches.value_lengths().to_numpy())
    row = np.repeat(rows, counts)
    files = pa.table({"row": row} | {name: lists.flatten() for name, lists in columns.items()})
    files = files.sort_by([("row", "ascending"), (LISTING_COLUMNS[0], "ascending")])
    ends = np.cumsum(np.bincount(row, minlength=len(stretches)))
    offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
    return {
        name: pa.ListArray.from_arrays(offsets, files[name].combine_chunks())
        for name in LISTING_COLUMNS
    }


def _directory_filter(topics: TopicFilter) -> Callable[[str], bool]:
    def is_asked(directory: str) -> bool:
        if not is_plain_name(directory):
            return False
        kind, partition = classify_directory(directory)
        if kind is DirectoryKind.CACHE:
            return False
        return topics.admits(None if partition is None else partition.topic)

    return is_asked


def _files_of(
    root: InventoryRoot, table: pa.Table, is_asked: Callable[[str], bool]
) -> pa.RecordBatch:
    key = table["key"]
    inside = pa.nulls(table.num_rows, pa.string())
    for prefix in root.prefixes:
        begins = pc.starts_with(key, prefix)
        inside = pc.if_else(begins, pc.utf8_slice_codeunits(key, len(prefix)), inside)
    if root.bucket is not None:
        is_here = pc.fill_null(pc.equal(table["bucket"], root.bucket), fill_value=True)
        inside = pc.if_else(is_here, inside, None)
    place = pc.extract_regex(inside, _PLACE)
    directory = pc.struct_field(place, "directory").combine_chunks().dictionary_encode()
    wanted = pa.array([is_asked(name) for name in directory.dictionary.to_pylist()], pa.bool_())
    rows = pa.table(
        {
            "directory": directory.cast(pa.string()),
            "file_names": pc.struct_field(place, "name"),
            "file_bytes": table["size"],
            "file_times_ms": table["mtime"],
            "file_etags": table["etag"],
        }
    ).filter(pc.fill_null(wanted.take(directory.indices), fill_value=False))
    # Kafka's names have none of these; a name that would lead elsewhere is nobody's file.
    is_odd = pc.match_substring_regex(rows["file_names"], r"[\\\x00-\x1f\x7f]|^\.{1,2}$")
    rows = rows.filter(pc.invert(is_odd))
    groups = rows.group_by("directory").aggregate([(name, "list") for name in LISTING_COLUMNS])
    columns = {name: groups[f"{name}_list"] for name in LISTING_COLUMNS}
    columns |= {
        "root": pa.repeat(root.location, groups.num_rows),
        "role": pa.repeat(root.role, groups.num_rows),
        "directory": groups["directory"],
    }
    listed = pa.table([columns[name] for name in LISTED_DIRECTORY.names], LISTED_DIRECTORY.names)
    (batch,) = listed.cast(LISTED_DIRECTORY).combine_chunks().to_batches() or (
        pa.RecordBatch.from_pylist([], LISTED_DIRECTORY),
    )
    return batch
