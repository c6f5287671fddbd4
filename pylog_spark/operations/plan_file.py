"""A plan as a file: written by ``--plan-out``, read by ``pylog apply``.

JSON, one object with a partition a line, or Parquet with a row a partition and the rest in the
table's metadata under ``pylog-plan``. It holds what decided: the clock, the roots, the options, the
topics' configs, and of each planned partition its plan and its files. It does not hold the key of
the offset maps: that is drawn anew for each run, and no byte of a result depends on it.

Which partitions a plan is for is decided here, what it does is decided again: planning is a pure
function of files, configs and clock, so that a partition whose files and plan are the same gets
exactly the plan that was saved.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pylog_spark.config import JobOptions, Order, RunLimits, Tuning
from pylog_spark.config.options import HighWatermarkSource
from pylog_spark.discovery import LogRoot
from pylog_spark.tasks.fingerprints import FileFacts, digest_operations
from storage_core import __version__
from storage_core.catalog.roles import Role
from storage_core.catalog.topic_catalog import TopicCatalog, TopicConfigSource, TopicEntry
from storage_core.config import CleanerConfig, OffsetMapHash
from storage_core.errors import ConfigError
from storage_core.store.generations import GENERATION_MARK
from storage_core.store.local import write_record

FORMAT: Final = "pylog-plan"
VERSION: Final = 1
_PARQUET_SUFFIX: Final = ".parquet"
_METADATA_KEY: Final = b"pylog-plan"
# Not part of a plan: where a run is recorded, by whom it is run, and what may hold a password.
_LEFT_OUT: Final = frozenset({"spark_conf", "master", "plan_out", "plan_in", "dry_run", "exact"})
_TUPLES: Final = ("include", "exclude", "assume_defaults")

_ROWS: Final = pa.schema(
    [
        pa.field("action", pa.string()),
        pa.field("root", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("directory", pa.string()),
        pa.field("status", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("figures", pa.string()),
        pa.field("plan", pa.string()),
        pa.field("files", pa.string()),
    ]
)

PartitionKey = tuple[str, str, str | None, int | None, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPartition:
    """One partition directory in a plan.

    Attributes:
        action: What is done to it: compact, retain, recover.
        root: Its root, as the run was given it.
        topic: Its topic, None where the name gives none.
        partition: Its number, None as the topic is.
        directory: Its own directory, or location.
        status: planned, skipped or failed.
        reason: Why it is left alone, or None.
        figures: Upper bounds: bytes read, written, afterwards, on disk meanwhile; requests.
        plan: What was decided; empty unless planned.
        files: What its files looked like; none unless planned.
    """

    action: str
    root: str
    topic: str | None
    partition: int | None
    directory: str
    status: str
    reason: str | None
    figures: Mapping[str, Any]
    plan: Mapping[str, Any]
    files: tuple[FileFacts, ...]

    @property
    def key(self) -> PartitionKey:
        """What tells it from the others."""
        # Not the generation of a managed one: that it is another one is to be said.
        directory = self.directory.partition(GENERATION_MARK)[0]
        return self.action, self.root, self.topic, self.partition, directory


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPlan:
    """A plan that was saved.

    Attributes:
        run_id: The run that made it.
        action: The command that asked for it.
        now_ms: Its clock, epoch milliseconds.
        roots: Its roots.
        options: Its options, as plain values.
        catalogs: What was known of the topics that are planned, by root.
        partitions: What is to be done, and what is not.
        program: Version of the program that made it.
    """

    run_id: str
    action: str
    now_ms: int
    roots: tuple[LogRoot, ...]
    options: Mapping[str, Any]
    catalogs: Mapping[str, TopicCatalog]
    partitions: tuple[PlannedPartition, ...]
    program: str = field(default=__version__)

    def job_options(self) -> JobOptions:
        """Return the options that the plan was made with; its clock is said."""
        return decode_options(self.options)


def encode_options(options: JobOptions) -> dict[str, Any]:
    """Return options as plain values, without those that are no part of a plan."""
    values = {name: value for name, value in asdict(options).items() if name not in _LEFT_OUT}
    return dict(json.loads(json.dumps(values, default=_plain)))


def decode_options(values: Mapping[str, Any]) -> JobOptions:
    """Return the options that ``encode_options`` made plain."""
    known = dict(values)
    limits, cleaner = dict(known.pop("limits")), dict(known.pop("cleaner"))
    limits |= {"order": Order(limits["order"]), "overrides": frozenset(limits["overrides"])}
    cleaner["offset_map_hash"] = OffsetMapHash(cleaner["offset_map_hash"])
    known |= {name: tuple(known[name]) for name in _TUPLES}
    known |= {
        "role": None if known["role"] is None else Role(known["role"]),
        "high_watermark": HighWatermarkSource(known["high_watermark"]),
        "now_is_said": True,
        "limits": RunLimits(**limits),
        "cleaner": CleanerConfig(**cleaner),
        "tuning": Tuning(**known["tuning"]),
    }
    return JobOptions(**known)


def _plain(value: object) -> object:
    if isinstance(value, frozenset | set | tuple):
        return sorted(value)
    return dict(value) if isinstance(value, Mapping) else str(value)


def write_plan_file(path: Path, plan: SavedPlan) -> None:
    """Write a plan: Parquet if the file is named so, else JSON.

    Raises:
        StorageError: The disk failed.
    """
    if path.suffix == _PARQUET_SUFFIX:
        write_record(path, _to_parquet(plan))
        return
    lines = [json.dumps(_row(partition), sort_keys=True) for partition in plan.partitions]
    header = json.dumps(_header(plan), sort_keys=True)
    body = ",\n".join(lines)
    write_record(path, f'{header[:-1]}, "partitions": [\n{body}\n]}}\n'.encode())


def read_plan_file(path: str | Path) -> SavedPlan:
    """Read a plan that was saved.

    Raises:
        ConfigError: The file cannot be read, or is no plan of this version.
    """
    try:
        if Path(path).suffix == _PARQUET_SUFFIX:
            table = pq.read_table(path)
            header = json.loads((table.schema.metadata or {})[_METADATA_KEY])
            rows = [
                {**row, **{name: json.loads(row[name]) for name in ("figures", "plan", "files")}}
                for row in table.to_pylist()
            ]
        else:
            header = json.loads(Path(path).read_bytes())
            rows = header.pop("partitions")
        found = (header["format"], header["version"])
        if found != (FORMAT, VERSION):
            raise ConfigError("PLAN", path, f"expected {FORMAT} {VERSION}, found {found}")
        return _decode(header, rows)
    except OSError as error:
        raise ConfigError("PLAN", path, error.strerror or str(error)) from error
    except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise ConfigError("PLAN", path, f"is no saved plan: {error!r}") from error


@lru_cache(maxsize=1)
def saved_plan(path: str) -> SavedPlan:
    """Return the plan of a file; read once for all steps of a run."""
    return read_plan_file(path)


def expected_operations(saved: SavedPlan, action: str) -> dict[str, str]:
    """Return digests of the operations that a saved plan has, by directory."""
    return {
        partition.directory: digest_operations(json.dumps(partition.plan["operations"]))
        for partition in saved.partitions
        if partition.action == action and "operations" in partition.plan
    }


def planned_topics(partitions: Iterable[PlannedPartition], root: str) -> set[str]:
    """Return the topics of a root that a plan works on."""
    return {p.topic for p in partitions if p.topic is not None and p.plan and p.root == root}


def restrict_catalog(catalog: TopicCatalog, topics: set[str]) -> TopicCatalog:
    """Return what a catalogue knows of some topics."""
    return TopicCatalog(
        topics={name: entry for name, entry in catalog.topics.items() if name in topics},
        explicit=catalog.explicit,
        assume_defaults=catalog.assume_defaults,
        broker=catalog.broker,
        settings=catalog.settings,
    )


def _header(plan: SavedPlan) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "program": plan.program,
        "run_id": plan.run_id,
        "action": plan.action,
        "now_ms": plan.now_ms,
        "roots": [
            {"location": root.location, "role": root.role.value, "is_said": root.is_said}
            for root in plan.roots
        ],
        "options": dict(plan.options),
        "configs": {place: asdict(catalog) for place, catalog in plan.catalogs.items()},
    }


def _row(partition: PlannedPartition) -> dict[str, Any]:
    names = ("action", "root", "topic", "partition", "directory", "status", "reason")
    row: dict[str, Any] = {name: getattr(partition, name) for name in names}
    row |= {"figures": dict(partition.figures), "plan": dict(partition.plan)}
    return row | {"files": [list(file) for file in partition.files]}


def _to_parquet(plan: SavedPlan) -> bytes:
    rows = []
    for partition in plan.partitions:
        row = _row(partition)
        texts = {name: json.dumps(row[name]) for name in ("figures", "plan", "files")}
        rows.append(row | texts)
    metadata = {_METADATA_KEY: json.dumps(_header(plan)).encode()}
    table = pa.Table.from_pylist(rows, schema=_ROWS).replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue())


def _decode(header: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> SavedPlan:
    return SavedPlan(
        run_id=header["run_id"],
        action=header["action"],
        now_ms=header["now_ms"],
        roots=tuple(
            LogRoot(location=root["location"], role=Role(root["role"]), is_said=root["is_said"])
            for root in header["roots"]
        ),
        options=header["options"],
        catalogs={place: _catalog(fields) for place, fields in header["configs"].items()},
        partitions=tuple(
            PlannedPartition(
                **{
                    **row,
                    "files": tuple((name, size, time) for name, size, time in row["files"]),
                }
            )
            for row in rows
        ),
        program=header["program"],
    )


def _catalog(fields: Mapping[str, Any]) -> TopicCatalog:
    topics = {
        name: TopicEntry(
            **{
                **entry,
                "source": TopicConfigSource(entry["source"]),
                "ignored_keys": tuple(entry["ignored_keys"]),
            }
        )
        for name, entry in fields["topics"].items()
    }
    return TopicCatalog(
        topics=topics,
        explicit=fields["explicit"],
        assume_defaults=tuple(fields["assume_defaults"]),
        broker=fields["broker"],
        settings=fields["settings"],
    )
