"""Export records to a folder or a bucket: all of them, or none. Tasks write the parts.

Several topics have a folder each below the new one, with Delta's own log in it where it is a table.
Where parts are written, and how they become visible, is ``export_out``'s.
"""

import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

import pyarrow as pa

from pylog_spark.engines.choice import Place, open_engine
from pylog_spark.engines.engine import AnyEngine
from pylog_spark.operations.export_out import check_out, new_out
from pylog_spark.operations.export_task import ExportPart, ExportRequest, export_parts, write_empty
from pylog_spark.options.choices import ExportFormat
from pylog_spark.run.progress import OnProgress, ProgressMeter
from pylog_spark.schemas import Failure
from storage_core import interruption
from storage_core.clock import SystemClock
from storage_core.filenames import validate_topic
from storage_core.kafka_log import Records
from storage_core.reading.request import DEFAULT_RANGE_BYTES
from storage_core.values.registry_columns import Misfits, RegistryColumns

# Beyond so many rounds of parts as large as can be it is no matter that the last one is not full.
_MOST_EVEN_ROUNDS: Final = 4
_LEAST_RANGE_BYTES: Final = 8 << 20
# What threads of this process read and write about as soon as others have started, which take a
# second of the processor each.
_MOST_WRITTEN_HERE: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedTopic:
    """What was exported of one topic."""

    topic: str
    out: str  # its folder
    records: int
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was exported."""

    out: str
    topics: tuple[ExportedTopic, ...] = ()  # where each has a folder of its own
    records: int = 0
    files: int = 0
    size_bytes: int = 0
    failures: tuple[Failure, ...] = ()  # what went wrong with parts: then nothing was written
    misfits: Misfits = field(default_factory=Misfits)  # values that are null instead


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTopic:
    """What an export would read and write of one topic; as ``ExportPlan``."""

    topic: str
    out: str  # its folder
    most_records: int
    files: int
    read_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPlan:
    """What an export would read and write."""

    out: str
    topics: tuple[PlannedTopic, ...]  # where each has a folder of its own
    most_records: int  # how many offsets there are; a compacted log has fewer records
    files: int  # one fewer for each part that has no record
    read_bytes: int  # about how much of the files is read


class ReadRecords(Protocol):
    """A reader of logs; returns the records in the columns that the request's are made of. The
    records also have the columns of ``NAMES``."""

    def __call__(self, *, range_bytes: int = ...) -> Records:
        """Return the records, read in ranges of so many file bytes."""


def export(
    place: Place,
    read: ReadRecords,
    out: str | Path,
    request: ExportRequest,
    *,
    topics: Collection[str] = (),
    typed: Mapping[str, RegistryColumns] = MappingProxyType({}),
    on_progress: OnProgress | None = None,
) -> Exported:
    """Write records to a new place.

    Args:
        place: Where the tasks run: this machine (``Local``), or a Spark session whose executors see
            the folder under the same path.
        out: The folder, which is not there yet; or the URL of a bucket's prefix without objects.
        request: How; its ``folder`` is chosen here.
        topics: The topics of the records, for a folder each; empty for one folder of all records.
        typed: What makes columns of keys and values, by folder: a topic's name, or empty for the
            only one. Empty where they stay bytes.
        on_progress: Told how far the tasks have come.
    """
    out = str(out)
    check_out(out, request.to)
    with _opened(place, read) as (engine, records, range_bytes):
        folders = _by_folder(records, topics)
        if typed:
            folders = {folder: some.decoded(typed[folder]) for folder, some in folders.items()}
        cut = {folder: some.parts(range_bytes) for folder, some in folders.items()}
        with interruption.ending_in_order(), new_out(out) as new:
            new.make_folders([folder for folder in cut if folder])
            request = replace(request, folder=new.folder, lease=new.lease)
            meter = ProgressMeter(engine, total_bytes=records.size_bytes, report=on_progress)
            parts = _write_parts(engine, cut, request, f"export to {out}", meter)
            failures = tuple(part.failure for part in parts if part.failure)
            if failures:
                return Exported(out=out, failures=failures)
            misfits = Misfits()
            for part in parts:
                misfits.add(part.misfits or 0, part.first_misfits or ())
            by_folder = {
                folder: [part for part in parts if part.file and part.folder == folder]
                or [write_empty(request, some.schema, folder)]
                for folder, some in folders.items()
            }
            new.keep_only({part.path for some in by_folder.values() for part in some})
            if request.to is ExportFormat.DELTA:
                for folder, some in by_folder.items():
                    schema = request.schema(folders[folder].schema)
                    _create_table(Path(new.folder, folder), schema, some)
            new.publish()
    told = tuple(
        ExportedTopic(
            topic=folder,
            out=f"{out}/{folder}",
            records=sum(part.records or 0 for part in some),
            files=len(some),
            size_bytes=sum(part.size_bytes or 0 for part in some),
        )
        for folder, some in by_folder.items()
    )
    return Exported(
        out=out,
        topics=told if topics else (),
        records=sum(each.records for each in told),
        files=sum(each.files for each in told),
        size_bytes=sum(each.size_bytes for each in told),
        misfits=misfits,
    )


def plan_export(
    place: Place,
    read: ReadRecords,
    out: str | Path,
    request: ExportRequest,
    *,
    topics: Collection[str] = (),
) -> ExportPlan:
    """Return what an export would do, as ``export`` would; write nothing.

    Args:
        read: The ends of its records are known.
    """
    out = str(out)
    check_out(out, request.to)
    with _opened(place, read) as (_, records, range_bytes):
        cut = {
            folder: some.parts(range_bytes) for folder, some in _by_folder(records, topics).items()
        }
    told = tuple(
        PlannedTopic(
            topic=folder,
            out=f"{out}/{folder}",
            most_records=sum(part.most_records or 0 for part in parts),
            files=max(len(parts), 1),
            read_bytes=sum(part.size_bytes for part in parts),
        )
        for folder, parts in cut.items()
    )
    return ExportPlan(
        out=out,
        topics=told if topics else (),
        most_records=sum(each.most_records for each in told),
        files=sum(each.files for each in told),
        read_bytes=records.size_bytes,
    )


@contextmanager
def _opened(place: Place, read: ReadRecords) -> Iterator[tuple[AnyEngine, Records, int]]:
    """Yield the engine, the records, and the size of parts that all of its slots can share."""
    records = read()
    with open_engine(place, tag=f"pylog-export-{secrets.token_hex(4)}") as engine:
        range_bytes = choose_range_bytes(records.size_bytes, engine.slots)
        if range_bytes < DEFAULT_RANGE_BYTES:
            records = read(range_bytes=range_bytes)
        yield engine, records, range_bytes


def _by_folder(records: Records, topics: Collection[str]) -> dict[str, Records]:
    """Return the records of each folder, which is a topic's name, or empty for the only one."""
    if not topics:
        return {"": records}
    by_topic, none = records.by_topic(), Records((), records.schema)
    return {validate_topic(topic): by_topic.get(topic, none) for topic in topics}


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
    cut: Mapping[str, Sequence[Records]],
    request: ExportRequest,
    title: str,
    meter: ProgressMeter,
) -> list[ExportPart]:
    """Write all parts; return them in the order of the records."""
    pieces = [(folder, part) for folder, parts in cut.items() for part in parts]
    units = [[(number, *piece)] for number, piece in enumerate(pieces)]
    if not units:
        return []
    write = partial(export_parts, request=request)
    is_quick = (
        request.is_compiled and sum(part.size_bytes for _, part in pieces) <= _MOST_WRITTEN_HERE
    )
    with meter.stage([(part.size_bytes, 0) for _, part in pieces]):
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
