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
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import pyarrow as pa

from pylog_spark.options import JobOptions, Strategy
from pylog_spark.options.values import TUNING_KEYS
from pylog_spark.tasks.message import FileFacts, digest_operations
from storage_core import __version__
from storage_core.catalog.topic_catalog import TopicCatalog
from storage_core.config.settings import CLEANER_KEYS
from storage_core.config.values import render
from storage_core.errors import ConfigError, GuardRefusedError
from storage_core.json_values import parse_json, read_value
from storage_core.local_files import require_own_file
from storage_core.roots.open_root import LogRoot
from storage_core.store.generations import GENERATION_MARK
from storage_core.store.local import write_record

T = TypeVar("T")

FORMAT: Final = "pylog-plan"
VERSION: Final = 1
_PARQUET_SUFFIX: Final = ".parquet"
_METADATA_KEY: Final = b"pylog-plan"
# Not part of a plan: where a run is recorded, by whom it is run, and what may hold a password.
# The configs of what is planned stand in the plan by themselves.
_LEFT_OUT: Final = frozenset(
    {"spark_conf", "engine", "master", "plan_out", "plan_in", "dry_run", "exact", "topic_dump"}
    | {"metrics_file", "metrics_push"}
)
# The files of a hundred thousand partitions.
_MOST_BYTES: Final = 4 << 30

PartitionKey = tuple[str, str, str | None, int | None, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPartition:
    """One partition directory in a plan."""

    action: str  # what is done to it: compact, retain, recover
    root: str
    topic: str | None  # its topic, None where the name gives none
    partition: int | None  # its number, None as the topic is
    directory: str  # its own directory, or location
    status: str
    reason: str | None  # why it is left alone, or None
    # Upper bounds: bytes read, written, afterwards, on disk meanwhile; requests.
    figures: Mapping[str, Any]
    plan: Mapping[str, Any]  # what was decided; empty unless planned
    files: tuple[FileFacts, ...]  # what its files looked like; none unless planned

    @property
    def key(self) -> PartitionKey:
        """What tells it from the others."""
        # Not the generation of a managed one: that it is another one is to be said.
        directory = self.directory.partition(GENERATION_MARK)[0]
        return self.action, self.root, self.topic, self.partition, directory


class PlanBook:
    """What a run has planned, for ``--plan-out``, and which plans it found outdated."""

    def __init__(self) -> None:
        self.partitions: tuple[PlannedPartition, ...] = ()
        self.catalogs: Mapping[str, TopicCatalog] = {}  # by which they were planned, by root
        # Directories that are not any more what a saved plan was made for.
        self.outdated: frozenset[str] = frozenset()

    def note(
        self, partitions: Iterable[PlannedPartition], catalogs: Mapping[str, TopicCatalog]
    ) -> None:
        """Note the plans of a step."""
        self.partitions += tuple(partitions)
        self.catalogs = self.catalogs or catalogs

    def refuse(self, directories: Iterable[str]) -> None:
        """Note directories whose saved plans are outdated."""
        self.outdated |= frozenset(directories)

    def revise(
        self,
        action: str,
        values: Mapping[str, T],
        change: Callable[[PlannedPartition, T], PlannedPartition],
    ) -> None:
        """Change an action's plans by what became known later.

        Args:
            values: By directory; the plans of others stay.
        """
        self.partitions = tuple(
            change(noted, values[noted.directory])
            if noted.action == action and noted.plan and noted.directory in values
            else noted
            for noted in self.partitions
        )


_NAMES: Final = tuple(each.name for each in fields(PlannedPartition))
# In a table these are texts, as JSON.
_NESTED: Final = ("figures", "plan", "files")
_ROWS: Final = pa.schema(
    [(name, pa.int32() if name == "partition" else pa.string()) for name in _NAMES]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPlan:
    """A plan that was saved."""

    run_id: str
    action: str
    now_ms: int
    roots: tuple[LogRoot, ...]
    options: JobOptions  # its options; what is no part of a plan is not in its file
    catalogs: Mapping[str, TopicCatalog]  # what was known of the topics that are planned, by root
    partitions: tuple[PlannedPartition, ...]
    program: str = field(default=__version__)


def encode_options(options: JobOptions) -> dict[str, Any]:
    """Return the options that belong to a plan, as plain values."""
    # A guard is switched off on the command line alone, each time anew.
    options = replace(options, limits=replace(options.limits, overrides=frozenset()))
    values = {name: value for name, value in asdict(options).items() if name not in _LEFT_OUT}
    return dict(json.loads(json.dumps(values, default=_plain)))


def decode_options(values: Mapping[str, Any]) -> JobOptions:
    """Return the options that ``encode_options`` made plain; their clock is said."""
    # What settings of a session may run is not for a plan to say.
    strange = _LEFT_OUT.intersection(values)
    if strange:
        raise ValueError(f"options.{min(strange)}: is no part of a plan")
    options: JobOptions = read_value(JobOptions, dict(values), "options")
    if options.limits.overrides:
        codes = ", ".join(sorted(options.limits.overrides))
        raise ValueError(
            f"options.limits.overrides: a file switches no guard off ({codes}); say it with "
            "--override to pylog apply"
        )
    for keys, config in ((TUNING_KEYS, options.tuning), (CLEANER_KEYS, options.cleaner)):
        for key in keys.values():
            setting = getattr(config, key.attribute)
            if setting is not None:
                key.type.parse(key.name, render(setting))
    limits = options.limits
    amounts = (
        options.now_ms,
        options.max_truncate_bytes,
        options.purge_after_ms,
        limits.max_bytes or 0,
        limits.max_duration_ms or 0,
        limits.min_free_bytes,
        (1 if limits.per_disk is None else limits.per_disk) - 1,
    )
    if min(amounts) < 0 or not 0 <= limits.max_delete_ratio <= 1:
        raise ValueError("options: an amount is out of its range")
    Strategy(options.strategy)
    return replace(options, now_is_said=True)


def _plain(value: object) -> object:
    if isinstance(value, frozenset | set | tuple):
        return sorted(value)
    return dict(value) if isinstance(value, Mapping) else str(value)


def write_plan_file(path: Path, plan: SavedPlan) -> None:
    """Write a plan: Parquet if the file is named so, else JSON."""
    if path.suffix == _PARQUET_SUFFIX:
        write_record(path, _to_parquet(plan))
        return
    lines = [json.dumps(_row(partition), sort_keys=True) for partition in plan.partitions]
    header = json.dumps(_header(plan), sort_keys=True)
    body = ",\n".join(lines)
    write_record(path, f'{header[:-1]}, "partitions": [\n{body}\n]}}\n'.encode())


def read_plan_file(path: str | Path) -> SavedPlan:
    """Read a plan that was saved."""
    try:
        read = _read_parquet if Path(path).suffix == _PARQUET_SUFFIX else _read_json
        return _decode(*read(path))
    except OSError as error:
        raise ConfigError("PLAN", path, error.strerror or str(error)) from error
    except KeyError as error:
        raise ConfigError("PLAN", path, f"is no saved plan: it has no {error}") from error
    except (ValueError, TypeError, pa.ArrowException) as error:
        raise ConfigError("PLAN", path, f"is no saved plan: {error}") from error


def _read_json(path: str | Path) -> tuple[dict[str, Any], list[Any]]:
    with _open_own(path) as file:
        content = file.read(_MOST_BYTES + 1)
    _check_size(len(content))
    header = _parse_header(content)
    return header, header.pop("partitions")


def _read_parquet(path: str | Path) -> tuple[dict[str, Any], list[Any]]:
    import pyarrow.parquet as pq  # noqa: PLC0415  # for a saved plan alone

    with _open_own(path) as opened, pq.ParquetFile(opened) as file:
        groups = range(file.metadata.num_row_groups)
        _check_size(sum(file.metadata.row_group(number).total_byte_size for number in groups))
        table = file.read().select(_ROWS.names)
    header = _parse_header((table.schema.metadata or {}).get(_METADATA_KEY, b"{}"))
    rows = [row | {name: _parse(row[name]) for name in _NESTED} for row in table.to_pylist()]
    return header, rows


@contextmanager
def _open_own(path: str | Path) -> Iterator[BinaryIO]:
    """Open a plan that nobody else can have written."""
    with Path(path).open("rb") as file:
        try:
            require_own_file(Path(path), os.fstat(file.fileno()))
        except OSError as error:
            raise GuardRefusedError("PLAN_OF_ANOTHER_USER", f"{path}: {error.strerror}") from error
        yield file


def _parse_header(content: bytes) -> dict[str, Any]:
    header = _parse(content)
    if not isinstance(header, dict):
        raise TypeError(f"expected an object, found {type(header).__name__}")
    actual = (header.get("format"), header.get("version"))
    if actual != (FORMAT, VERSION):
        raise ValueError(f"expected {FORMAT} {VERSION}, found {actual[0]} {actual[1]}")
    return header


def _parse(text: bytes | str) -> Any:
    return parse_json(text, limit_bytes=_MOST_BYTES)


def _check_size(size_bytes: int) -> None:
    if size_bytes > _MOST_BYTES:
        raise ValueError(f"has more than the {_MOST_BYTES} bytes that a plan may have")


def saved_plan(options: JobOptions) -> SavedPlan | None:
    """Read the whole plan to apply, named by options; None for none."""
    return None if options.plan_in is None else read_plan_file(options.plan_in)


def expected_operations(saved: SavedPlan, actions: Collection[str]) -> dict[str, str]:
    """Return digests of a saved plan's operations, by directory, for some actions."""
    return {
        partition.directory: digest_operations(json.dumps(partition.plan["operations"]))
        for partition in saved.partitions
        if partition.action in actions and "operations" in partition.plan
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
        release=catalog.release,
    )


def _header(plan: SavedPlan) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "program": plan.program,
        "run_id": plan.run_id,
        "action": plan.action,
        "now_ms": plan.now_ms,
        "roots": [asdict(root) for root in plan.roots],
        "options": encode_options(plan.options),
        "configs": {place: asdict(catalog) for place, catalog in plan.catalogs.items()},
    }


def _row(partition: PlannedPartition) -> dict[str, Any]:
    # Not by ``asdict``, which copies each of the files, and a plan has so many of them.
    return {name: getattr(partition, name) for name in _NAMES}


def _to_parquet(plan: SavedPlan) -> bytes:
    import pyarrow.parquet as pq  # noqa: PLC0415  # as above

    rows = []
    for partition in plan.partitions:
        row = _row(partition)
        rows.append(row | {name: json.dumps(row[name]) for name in _NESTED})
    metadata = {_METADATA_KEY: json.dumps(_header(plan)).encode()}
    table = pa.Table.from_pylist(rows, schema=_ROWS).replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue())


def _decode(header: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> SavedPlan:
    """Return the plan, each value of it checked."""
    return SavedPlan(
        run_id=read_value(str, header["run_id"], "run_id"),
        action=read_value(str, header["action"], "action"),
        now_ms=read_value(int, header["now_ms"], "now_ms"),
        roots=read_value(tuple[LogRoot, ...], header["roots"], "roots"),
        options=decode_options(header["options"]),
        catalogs=read_value(dict[str, TopicCatalog], header["configs"], "configs"),
        partitions=tuple(_partition(row, number) for number, row in enumerate(rows)),
        program=read_value(str, header["program"], "program"),
    )


def _partition(row: Mapping[str, Any], number: int) -> PlannedPartition:
    where = f"partitions[{number}]"
    files = tuple(map(_file, row["files"]))
    partition: PlannedPartition = read_value(PlannedPartition, {**row, "files": []}, where)
    return replace(partition, files=files)


def _file(facts: Sequence[Any]) -> FileFacts:
    """Check a file's facts: name, size and time. A plan has very many files: so these are read
    apart."""
    name, size, time = facts
    if type(name) is not str or type(size) is not int or type(time) is not int:
        raise ValueError(f"expected name, size and time of a file, found {facts!r:.80}")
    return name, size, time
