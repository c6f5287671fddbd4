"""Export records to a folder, all visible after one rename. Tasks write the parts.

Parts are written into a folder beside the new one. It is renamed when all of them are there, with
Delta's own log in it where it is a table. So nobody ever sees a half of an export, and whatever is
killed leaves a folder that the next export to the same place removes.
"""

import fcntl
import glob
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa

from pylog_spark.engines.choice import Place, open_engine
from pylog_spark.engines.engine import AnyEngine
from pylog_spark.operations.export_task import ExportPart, ExportRequest, export_parts, write_empty
from pylog_spark.options.choices import ExportFormat
from pylog_spark.run.progress import OnProgress, ProgressMeter
from pylog_spark.schemas import Failure
from storage_core import interruption
from storage_core.clock import SystemClock
from storage_core.errors import ConfigError
from storage_core.kafka_log import Records
from storage_core.reading.request import DEFAULT_RANGE_BYTES
from storage_core.store.local import storage_errors, sync_folder

_MARK: Final = ".pylog-export-"
# Beyond so many rounds of parts as large as can be it is no matter that the last one is not full.
_MOST_EVEN_ROUNDS: Final = 4
_LEAST_RANGE_BYTES: Final = 8 << 20
# What threads of this process read and write about as soon as others have started, which take a
# second of the processor each.
_MOST_WRITTEN_HERE: Final = 1 << 30
_OPEN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was exported."""

    out: str
    records: int = 0
    files: int = 0
    size_bytes: int = 0
    failures: tuple[Failure, ...] = ()  # what went wrong with parts: then nothing was written


def check_out(out: Path) -> None:
    """Refuse a folder that could not be made."""
    if out.exists():
        raise ConfigError("--out", out, "is there already; expected the name of a new folder")
    if not out.absolute().parent.is_dir():
        raise ConfigError("--out", out, f"there is no folder {out.absolute().parent}")
    if not os.access(out.absolute().parent, os.W_OK):
        raise ConfigError("--out", out, f"this process may not write into {out.absolute().parent}")


class ReadRecords(Protocol):
    """A reader of logs; returns the records in the request's columns. The records also have the
    columns of ``NAMES``."""

    def __call__(self, *, range_bytes: int = ...) -> Records:
        """Return the records, read in ranges of so many file bytes."""


def export(
    place: Place,
    read: ReadRecords,
    out: Path,
    request: ExportRequest,
    *,
    on_progress: OnProgress | None = None,
) -> Exported:
    """Write records to a new folder.

    Args:
        place: Where the tasks run: this machine (``Local``), or a Spark session whose executors see
            the folder under the same path.
        out: The folder; it is not there yet.
        request: How; its ``folder`` is chosen here.
        on_progress: Told how far the tasks have come.
    """
    check_out(out)
    records = read()
    _remove_remains(out)
    with interruption.ending_in_order(), _new_folder(out) as folder:
        request = replace(request, folder=str(folder))
        with open_engine(place, tag=f"pylog-export-{secrets.token_hex(4)}") as engine:
            range_bytes = choose_range_bytes(records.size_bytes, engine.slots)
            if range_bytes < DEFAULT_RANGE_BYTES:
                records = read(range_bytes=range_bytes)
            meter = ProgressMeter(engine, total_bytes=records.size_bytes, report=on_progress)
            title = f"export to {out}"
            parts = _write_parts(engine, records.parts(range_bytes), request, title, meter)
        failures = tuple(part.failure for part in parts if part.failure)
        if failures:
            return Exported(out=str(out), failures=failures)
        parts = [part for part in parts if part.file is not None]
        if not parts:
            parts = [write_empty(request, records.schema)]
        with storage_errors(folder):
            named = {part.file for part in parts}
            for path in folder.iterdir():  # of tasks that ran twice
                if path.name not in named:
                    path.unlink()
        if request.to is ExportFormat.DELTA:
            _create_table(folder, request.schema(records.schema), parts)
        with storage_errors(out):
            sync_folder(folder)
            folder.rename(out)
            sync_folder(out.absolute().parent)
    return Exported(
        out=str(out),
        records=sum(part.records or 0 for part in parts),
        files=len(parts),
        size_bytes=sum(part.size_bytes or 0 for part in parts),
    )


def choose_range_bytes(size_bytes: int, slots: int) -> int:
    """Return the size of an export's parts for an even load. All slots then have about as much to
    do.

    Args:
        slots: Tasks that run at the same time.
    """
    rounds = -(-size_bytes // (DEFAULT_RANGE_BYTES * slots))
    if rounds > _MOST_EVEN_ROUNDS:
        return DEFAULT_RANGE_BYTES  # the last round is a small part of all
    share = -(-size_bytes // (max(rounds, 1) * slots))
    # What ranges say of their sizes is rounded downwards.
    return max(share + share // 100, _LEAST_RANGE_BYTES)


def _write_parts(
    engine: AnyEngine,
    parts: Sequence[Records],
    request: ExportRequest,
    title: str,
    meter: ProgressMeter,
) -> list[ExportPart]:
    """Write all parts; return them in the order of the records."""
    units = [[(number, part)] for number, part in enumerate(parts)]
    if not units:
        return []
    write = partial(export_parts, request=request)
    is_quick = request.is_compiled and sum(part.size_bytes for part in parts) <= _MOST_WRITTEN_HERE
    with meter.stage([(part.size_bytes, 0) for part in parts]):
        # No lock of this process is in danger: an export takes none of files.
        written = engine.ask(units, write, ExportPart, title, is_look=is_quick)
    return sorted(written, key=lambda part: part.ordinal)


def _create_table(folder: Path, schema: pa.Schema, parts: list[ExportPart]) -> None:
    """Write Delta's log of a folder of Parquet files."""
    from deltalake import Schema  # noqa: PLC0415  # heavy, and of one format only
    from deltalake.transaction import AddAction, create_table_with_add_actions  # noqa: PLC0415

    now_ms = SystemClock().now_ms()
    actions = [
        AddAction(
            path=part.file or "",
            size=part.size_bytes or 0,
            partition_values={},
            modification_time=now_ms,
            data_change=True,
            stats=f'{{"numRecords":{part.records or 0}}}',
        )
        for part in parts
    ]
    create_table_with_add_actions(str(folder), Schema.from_arrow(schema), actions)


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """Make and lock a scratch folder beside the wanted one. What is left of it at the end is
    removed."""
    folder = out.absolute().parent / f".{out.name}{_MARK}{secrets.token_hex(8)}"
    with storage_errors(folder):
        folder.mkdir()
        descriptor = os.open(folder, _OPEN_FOLDER)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _remove_remains(out: Path) -> None:
    """Remove what exports to the same place have left that were killed."""
    for folder in out.absolute().parent.glob(f".{glob.escape(out.name)}{_MARK}*"):
        try:
            descriptor = os.open(folder, _OPEN_FOLDER | os.O_NOFOLLOW)
        except OSError:
            continue  # another export has just removed it, or it is none of ours
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue  # it is being written
        else:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)
