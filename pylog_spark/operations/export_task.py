"""Write a part of an export: Parquet, CSV or JSON lines. Each task has a file of its own."""

import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pyarrow as pa
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq

from pylog_spark.operations.export_out import require_claim
from pylog_spark.options.choices import BytesFormat, ExportFormat
from pylog_spark.record_columns import (
    batch_not_in_format,
    header_pairs,
    headers_beside,
    json_lines,
    text_column,
)
from pylog_spark.record_text import NotInFormatError, ValueFormat, format_of_headers
from pylog_spark.rows import Number, Text, Texts, column
from pylog_spark.tasks.message import TaskMessage, attempt
from storage_core.kafka_log import Records
from storage_core.store import open_object_store
from storage_core.store.lease import LeaseProof
from storage_core.store.local import storage_errors
from storage_core.values.registry_columns import Misfits

_SUFFIXES: Final = {
    ExportFormat.PARQUET: ".parquet",
    ExportFormat.DELTA: ".parquet",
    ExportFormat.CSV: ".csv",
    ExportFormat.JSONL: ".jsonl",
}
# Records are gathered to this much before a row group is written.
_GROUP_BYTES: Final = 64 << 20

_Write = Callable[[pa.RecordBatch], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """How records are exported; a value that pickles."""

    folder: str  # a path, or the URL of a bucket's prefix
    to: ExportFormat
    columns: tuple[str, ...]  # in their order
    keys: ValueFormat  # how keys are written; raw keeps them binary
    values: ValueFormat  # how values are written, and headers in texts; likewise
    lease: LeaseProof | None = None  # what lets a task write to a bucket; None for a folder

    @property
    def is_compiled(self) -> bool:
        """Whether no record becomes a Python object. Then threads do not wait for others."""
        is_raw = self.keys is self.values is BytesFormat.RAW
        return is_raw and self.to in {ExportFormat.PARQUET, ExportFormat.DELTA}

    def schema(self, records: pa.Schema) -> pa.Schema:
        """Return the schema of what is written, from that of the records."""
        fields = [records.field(name) for name in self.columns]
        how = {"key": self.keys, "value": self.values}
        text = {name for name, each in how.items() if each is not BytesFormat.RAW}
        text |= {"headers"} if self.to is ExportFormat.CSV else set()
        return pa.schema([f.with_type(pa.string()) if f.name in text else f for f in fields])


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPart(TaskMessage):
    """One task's part of an export; the ordinal is its number."""

    folder: Text = column("name of the folder in the export; empty for none")
    file: Text = column("name of its file; null where it had no record")
    records: Number = column("how many records it has")
    size_bytes: Number = column("length of its file")
    misfits: Number = column("how many values did not fit their schemas, and are null")
    first_misfits: Texts = column("the first of them, for a person")

    @property
    def path(self) -> str:
        """Where its file is in the export."""
        return f"{self.folder}/{self.file}" if self.folder else str(self.file)


def export_parts(
    items: Iterable[tuple[int, str, Records]], request: ExportRequest
) -> Iterator[ExportPart]:
    """Write parts, one after the other: each with its number and the name of its folder."""
    for ordinal, folder, records in items:
        head = ExportPart(ordinal=ordinal, folder=folder)
        yield attempt(head, partial(_export, records, request))


def write_empty(request: ExportRequest, records: pa.Schema, folder: str) -> ExportPart:
    """Write a part without records. The part tells the schema."""
    head = ExportPart(ordinal=0, folder=folder)
    return _export(Records((), records), request, head, is_kept_empty=True)


def _export(
    records: Records, request: ExportRequest, head: ExportPart, *, is_kept_empty: bool = False
) -> ExportPart:
    # A task may run twice, at the same time; the driver takes the file of one of them.
    name = f"part-{head.ordinal:05d}-{secrets.token_hex(8)}{_SUFFIXES[request.to]}"
    part = replace(head, file=name)
    if request.lease is None:
        return _write(Path(request.folder, part.path), records, request, part, is_kept_empty)
    with TemporaryDirectory(prefix="pylog-export-") as folder:
        path = Path(folder, name)
        written = _write(path, records, request, part, is_kept_empty)
        if written.file is not None:
            require_claim(request.folder, request.lease)
            open_object_store(request.folder).put_file(part.path, str(path))
    return written


def _write(
    path: Path,
    records: Records,
    request: ExportRequest,
    part: ExportPart,
    is_kept_empty: bool,  # noqa: FBT001  # private, and named where it is said
) -> ExportPart:
    """Write a part's file, unless it has no record."""
    count, misfits = 0, Misfits()
    with storage_errors(path):
        with _WRITERS[request.to](path, request, records.schema) as write:
            for batch in records.batches(misfits):
                try:
                    write(batch)
                except NotInFormatError as error:
                    raise batch_not_in_format(batch, error) from error
                count += batch.num_rows
        if not count and not is_kept_empty:
            path.unlink()
            return replace(part, file=None, records=0, size_bytes=0)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return replace(
            part,
            records=count,
            size_bytes=path.stat().st_size,
            misfits=misfits.count,
            first_misfits=tuple(misfits.first),
        )


@contextmanager
def _parquet(path: Path, request: ExportRequest, records: pa.Schema) -> Iterator[_Write]:
    schema = request.schema(records)
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0

    # No offset comes twice in a file.
    repeated = [name for name in schema.names if name != "offset"]
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=repeated) as writer:

        def flush() -> None:
            nonlocal waiting_bytes
            if waiting:
                writer.write_table(pa.Table.from_batches(waiting, schema))
                waiting.clear()
                waiting_bytes = 0

        def write(batch: pa.RecordBatch) -> None:
            nonlocal waiting_bytes
            waiting.append(_columns(batch, request, schema))
            waiting_bytes += waiting[-1].nbytes
            if waiting_bytes >= _GROUP_BYTES:
                flush()

        yield write
        flush()


@contextmanager
def _csv(path: Path, request: ExportRequest, records: pa.Schema) -> Iterator[_Write]:
    schema = request.schema(records)
    with pc_csv.CSVWriter(path, schema) as writer:
        yield lambda batch: writer.write_batch(_columns(batch, request, schema))


@contextmanager
def _jsonl(path: Path, request: ExportRequest, _records: pa.Schema) -> Iterator[_Write]:
    with path.open("w", encoding="utf-8") as opened:
        yield lambda batch: opened.writelines(json_lines(batch, request.keys, request.values))


def _columns(batch: pa.RecordBatch, request: ExportRequest, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns that are written of some records."""
    arrays = []
    for field in schema:
        column = batch.column(field.name)
        if field.name in {"key", "value"} and field.type == pa.string():
            how = request.keys if field.name == "key" else request.values
            column = text_column(column, how, headers_beside(batch, how)).cast(pa.string())
        elif field.name == "headers" and field.type == pa.string():
            column = _header_column(column, format_of_headers(request.values))
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _header_column(headers: pa.Array, how: BytesFormat) -> pa.Array:
    """Return headers as JSON texts, null without any. It costs a Python object for each header."""
    texts = [None if one is None else header_pairs(one, how) for one in headers.to_pylist()]
    return pa.array(texts, pa.string())


_Writer = Callable[[Path, ExportRequest, pa.Schema], AbstractContextManager[_Write]]
_WRITERS: Final[dict[ExportFormat, _Writer]] = {
    ExportFormat.PARQUET: _parquet,
    ExportFormat.DELTA: _parquet,
    ExportFormat.CSV: _csv,
    ExportFormat.JSONL: _jsonl,
}
