"""Read an inventory in place of listing a bucket. The files of roots are found in tables of a whole
bucket.

The keys are those of the bucket, or full URLs; a table may be about much more than the roots of a
run. Column by column with Arrow, batch by batch: an inventory of a hundred thousand partitions has
tens of millions of rows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.schemas import LISTED_DIRECTORY, PARTITION
from pylog_spark.tasks.listing import LISTING_COLUMNS, directory_row
from storage_core.catalog.log_directories import DirectoryKind, classify_directory
from storage_core.catalog.roles import local_path
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.errors import ConfigError, MissingDriverError, StorageError
from storage_core.json_values import parse_json, require_shallow
from storage_core.store.listing import is_plain_name

if TYPE_CHECKING:
    from pyarrow import parquet

# Find the files of an inventory; read objects as uniform tables. Parquet, CSV with a header, JSON
# lines, or an inventory of Amazon S3 by its ``manifest.json``.

OPTION: Final = "--file-list"
_BLOCK_BYTES: Final = 8 << 20
# A line has a key, which S3 cuts at 1,024 bytes, and a few numbers.
_MOST_LINE_BLOCKS: Final = 4
_MANIFEST_BYTES: Final = 64 << 20
_SUFFIXES: Final = (".parquet", ".csv", ".csv.gz", ".json", ".jsonl", ".json.gz", ".jsonl.gz")
# What a column may be called; the first of each is ours, the others are those of S3 Inventory.
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "key": ("key",),
    "size": ("size",),
    "mtime": ("mtime", "lastmodifieddate", "lastmodified", "modifiedms"),
    "etag": ("etag",),
    "bucket": ("bucket",),
    "is_latest": ("islatest",),
    "is_delete_marker": ("isdeletemarker",),
}
_REQUIRED: Final = ("key", "size", "mtime")


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryPart:
    """What one task reads of an inventory."""

    location: str
    # Of a Parquet file: which of its row groups; None for all of another file.
    row_groups: tuple[int, ...] | None = None
    columns: tuple[str, ...] | None = None  # of a CSV file without a header, its columns' names
    is_escaped: bool = False  # whether keys are percent-encoded, as S3's own CSV files have them


def find_parts(location: str) -> list[InventoryPart]:
    """Return the parts of an inventory, on the driver. It reads only what names them.

    Args:
        location: Path or URL of a file, of a folder of such files, or of S3's ``manifest.json``.
    """
    with _reading(location):
        system, path = _file_system(location)
        if path.endswith("manifest.json"):
            return _manifest_parts(location, system, path)
        names = [path]
        if system.isdir(path):
            names = sorted(name for name in system.ls(path, detail=False) if _is_table(name))
        parts = [
            part for name in names for part in _file_parts(system.unstrip_protocol(name), system)
        ]
    if not parts:
        raise ConfigError(OPTION, location, f"has no file that ends with {', '.join(_SUFFIXES)}")
    for part in parts[:1]:
        _check_columns(part)
    return parts


def read_tables(part: InventoryPart) -> Iterator[pa.Table]:
    """Yield a part's current object versions, some rows at a time.

    Yields:
        Columns key, size (bytes, from 0 on), mtime (epoch milliseconds), etag (empty where there
        is none) and bucket (null where keys do not say it).
    """
    with _reading(part.location):
        for table in _tables(part):
            yield _standard_columns(part, table)


def _standard_columns(part: InventoryPart, table: pa.Table) -> pa.Table:
    """Return key, size, mtime, etag and bucket in our own types. They are those of the current
    versions."""
    column_names = _find_columns(part, table.column_names)
    columns = {name: table[column] for name, column in column_names.items()}
    none = pa.nulls(table.num_rows, pa.string())
    try:
        key = columns["key"].cast(pa.string())
        tag = columns.get("etag", none).cast(pa.string())
        result = pa.table(
            {
                "key": _unescaped(key) if part.is_escaped else key,
                "size": columns["size"].cast(pa.int64()),
                "mtime": _milliseconds(columns["mtime"]),
                "etag": pc.fill_null(pc.utf8_trim(tag, '"'), fill_value=""),
                "bucket": columns.get("bucket", none).cast(pa.string()),
            }
        )
        is_current = pc.is_valid(result["size"])
        if "is_latest" in columns:
            is_current = pc.and_(is_current, _truth(columns["is_latest"], missing=True))
        if "is_delete_marker" in columns:
            is_marker = _truth(columns["is_delete_marker"], missing=False)
            is_current = pc.and_(is_current, pc.invert(is_marker))
    except pa.ArrowException as error:
        raise ConfigError(OPTION, part.location, f"a column is not of its kind: {error}") from error
    result = result.filter(is_current)
    for name in ("size", "mtime"):
        least = pc.min(result[name]).as_py()
        if least is not None and least < 0:
            raise ConfigError(OPTION, part.location, f"expected a {name} from 0 on, found {least}")
    return result


def _find_columns(part: InventoryPart, names: Sequence[str]) -> dict[str, str]:
    plain = {name.lower().replace("_", "").replace("-", "").strip(): name for name in names}
    column_names = {
        ours: plain[name] for ours, accepted in _NAMES.items() for name in accepted if name in plain
    }
    missing = [name for name in _REQUIRED if name not in column_names]
    if missing:
        raise ConfigError(
            OPTION,
            part.location,
            f"expected the columns key, size, mtime and maybe etag; has {', '.join(names)}",
        )
    return column_names


def _check_columns(part: InventoryPart) -> None:
    if part.row_groups is not None or part.columns is not None:
        with _reading(part.location):
            names = part.columns or _parquet(part.location).schema_arrow.names
        _find_columns(part, names)
        return
    with _reading(part.location):
        for table in _tables(part):
            _standard_columns(part, table)
            break


def _milliseconds(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert points in time to epoch milliseconds. Numbers are that already, text is ISO 8601."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        digits = pc.match_substring_regex(column, r"^[0-9]+$")
        if pc.all(digits).as_py():
            return column.cast(pa.int64())
        column = column.cast(pa.timestamp("ms", tz="UTC"))
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    return column.cast(pa.int64())


def _truth(column: pa.ChunkedArray, *, missing: bool) -> pa.ChunkedArray:
    text = pc.utf8_lower(column.cast(pa.string()))
    return pc.fill_null(pc.equal(text, "true"), fill_value=missing)


def _unescaped(keys: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pc.any(pc.match_substring(keys, "%")).as_py():
        return keys
    return pa.chunked_array([pa.array([unquote(key) for key in keys.to_pylist()], pa.string())])


def _tables(part: InventoryPart) -> Iterator[pa.Table]:
    if part.row_groups is not None:
        file = _parquet(part.location)
        wanted = _find_columns(part, file.schema_arrow.names)
        for group in part.row_groups:
            yield file.read_row_group(group, columns=list(wanted.values()))
        return
    system, path = _file_system(part.location)
    with system.open(path, "rb", compression="infer") as stream:
        if _kind(part.location) == ".csv":
            yield from _csv_tables(part, stream)
        else:
            yield from _json_tables(stream, part.location)


def _csv_tables(part: InventoryPart, stream: IO[bytes]) -> Iterator[pa.Table]:
    from pyarrow import csv  # noqa: PLC0415  # few have an inventory

    names = None if part.columns is None else list(part.columns)
    # With the usual spellings no value of a column is guessed at.
    usual = ("key", "Key", "size", "Size", "mtime", "LastModifiedDate", "etag", "ETag", "bucket")
    reader = csv.open_csv(
        pa.PythonFile(stream, mode="r"),
        read_options=csv.ReadOptions(block_size=_BLOCK_BYTES, column_names=names),
        convert_options=csv.ConvertOptions(
            column_types={name: pa.string() for name in names or usual},
            strings_can_be_null=True,
        ),
    )
    for batch in reader:
        yield pa.Table.from_batches([batch])


def _json_tables(stream: IO[bytes], location: str) -> Iterator[pa.Table]:
    rest = b""
    while block := stream.read(_BLOCK_BYTES):
        whole, newline, rest = (rest + block).rpartition(b"\n")
        if newline:
            yield _json_table(whole + newline, location)
        elif len(rest) > _MOST_LINE_BLOCKS * _BLOCK_BYTES:
            raise ConfigError(OPTION, location, f"has a line of more than {len(rest)} bytes")
    if rest.strip():
        yield _json_table(rest, location)


def _json_table(lines: bytes, location: str) -> pa.Table:
    try:
        for line in lines.split(b"\n"):
            require_shallow(line)
    except ValueError as error:
        raise ConfigError(OPTION, location, f"has a line that {error}") from error
    from pyarrow import json as arrow_json  # noqa: PLC0415  # as above

    return arrow_json.read_json(pa.BufferReader(lines))


def _manifest_parts(location: str, system: Any, path: str) -> list[InventoryPart]:
    """Return the files that the manifest of an S3 Inventory names."""
    content = system.cat_file(path, end=_MANIFEST_BYTES + 1)
    if len(content) > _MANIFEST_BYTES:
        raise ConfigError(OPTION, location, f"has more than {_MANIFEST_BYTES} bytes")
    try:
        manifest = parse_json(content, limit_bytes=_MANIFEST_BYTES)
        schema, keys = manifest["fileSchema"], [file["key"] for file in manifest["files"]]
        kind = manifest["fileFormat"]
        names = tuple(name.strip() for name in schema.split(","))
        places = [system.unstrip_protocol(_place_of(key, location, path)) for key in keys]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(
            OPTION, location, f"is no manifest of an S3 Inventory: {error}"
        ) from error
    if kind == "CSV":
        return [InventoryPart(location=place, columns=names, is_escaped=True) for place in places]
    if kind != "Parquet":
        raise ConfigError(OPTION, location, f"expected CSV or Parquet files, found {kind}")
    return [part for place in places for part in _file_parts(place, system)]


def _place_of(key: str, location: str, path: str) -> str:
    """Return the path of a file named by an S3 Inventory. Its key is of the manifest's own bucket.
    Of a downloaded copy only the layout is left: ``data/`` beside the folder of the manifest."""
    if local_path(location) is not None:
        return f"{path.rpartition('/')[0]}/../data/{key.rpartition('/')[2]}"
    return f"{path.lstrip('/').partition('/')[0]}/{key}"


def _file_parts(location: str, system: Any) -> list[InventoryPart]:
    kind = _kind(location)
    if kind is None:
        raise ConfigError(
            OPTION, location, f"expected a name that ends with {', '.join(_SUFFIXES)}"
        )
    if kind != ".parquet":
        if not system.exists(location):
            raise ConfigError(OPTION, location, "is not there")
        return [InventoryPart(location=location)]
    groups = _parquet(location).num_row_groups
    return [InventoryPart(location=location, row_groups=(number,)) for number in range(groups)]


def _kind(location: str) -> str | None:
    suffix = next((suffix for suffix in _SUFFIXES if location.endswith(suffix)), None)
    return None if suffix is None else suffix.removesuffix(".gz")


def _is_table(name: str) -> bool:
    return _kind(name) is not None and not name.rpartition("/")[2].startswith(("_", "."))


def _parquet(location: str) -> "parquet.ParquetFile":
    from pyarrow import parquet  # noqa: PLC0415  # as above

    system, path = _file_system(location)
    return parquet.ParquetFile(system.open(path, "rb"))


def _file_system(location: str) -> tuple[Any, str]:
    try:
        import fsspec  # noqa: PLC0415  # a laptop with local disks does without
    except ImportError as error:
        raise MissingDriverError(location, "fsspec", "s3") from error
    system, path = fsspec.core.url_to_fs(location)
    return system, str(path)


@contextmanager
def _reading(location: str) -> Iterator[None]:
    """Turn the block's errors into a StorageError about the inventory."""
    try:
        yield
    except (ConfigError, MissingDriverError, StorageError):
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise StorageError(location, f"the inventory cannot be read: {reason}") from error


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
    ``stretches`` is a list of structs with the columns of listed files, which are lists."""
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
