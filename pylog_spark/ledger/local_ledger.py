"""The ledger without Spark: written and read with ``deltalake``.

Tables, columns, properties and transaction ids are those of ``spark_ledger``; each goes on with
what the other has written.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from shlex import quote
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import (
    CommitProperties,
    DeltaTable,
    QueryBuilder,
    Transaction,
    write_deltalake,
)
from deltalake.exceptions import DeltaError
from pyarrow.dataset import dataset

from pylog_spark.engines.engine import Engine, RowsT
from pylog_spark.ledger.tables import (
    COLUMNS,
    SCHEMAS,
    Ledger,
    LedgerTable,
    last_enforced,
    local_folder,
    parquet_files,
    table_location,
    why_spark,
)
from pylog_spark.outcomes import Action
from pylog_spark.schemas import RUN
from storage_core.errors import ConfigError, StorageError

# How deltalake speaks of a table of which commits or data were removed.
_FILES_GONE: Final = re.compile(
    r"(?i)no table metadata or protocol|found gap|no files in log segment|no such file|not found"
)
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*m")
# How deltalake refuses a table for what its owner turned on: clustering, renamed columns and such.
_OF_ITS_OWNER: Final = re.compile(
    r"(?i)table features required|(reader|writer) features|column-mapped|not (yet )?supported"
)
# Equal to the tables that Spark creates.
_PROPERTIES: Final = {"delta.appendOnly": "true", "delta.checkpointInterval": "100"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLedger(Ledger):
    """The tables of one ledger, open for one run."""

    location: str
    run_id: str

    @classmethod
    def open(cls, location: str, *, run_id: str) -> "LocalLedger":
        """Create the tables that are not there yet and return the ledger."""
        _check(location)
        for table in LedgerTable:
            place = _place(location, table)
            with _delta_errors(place):
                if DeltaTable.is_deltatable(place):
                    # Before the work: a table that lost files takes no row after it either.
                    DeltaTable(place)
                    continue
                DeltaTable.create(place, SCHEMAS[table], mode="ignore", configuration=_PROPERTIES)
        return cls(location=location, run_id=run_id)

    def append(self, table: LedgerTable, rows: pa.Table, *, number: int) -> None:
        """Append rows to a table; a repeated number adds nothing."""
        place, application = _place(self.location, table), f"{self.run_id}/{table}"
        with _delta_errors(place):
            delta = DeltaTable(place)
            last = delta.transaction_version(application)
            if last is not None and last >= number:
                return
            # Add columns that are newer than the table. Where there are none it is not asked for:
            # deltalake merges no schema of a table whose owner renamed a column or dropped one.
            present = {column.name for column in delta.schema().fields}
            write_deltalake(
                delta,
                rows.cast(SCHEMAS[table]),
                mode="append",
                schema_mode=None if present.issuperset(SCHEMAS[table].names) else "merge",
                commit_properties=CommitProperties(
                    app_transactions=[Transaction(application, number)]
                ),
            )

    def append_rows(
        self, table: LedgerTable, engine: Engine[RowsT], rows: RowsT, *, number: int
    ) -> None:
        """Append rows of tasks once; the large ones lie in files."""
        self.append(
            table,
            engine.collect(rows, SCHEMAS[table], f"write {table}", is_look=True),
            number=number,
        )


def last_limits(
    location: str, topics: Collection[str], *, run_id: str, may_be_missing: bool
) -> list[dict[str, Any]]:
    """Return what retention topics had when it was last enforced; see ``ledger.last_limits``."""
    _check(location)
    place = _place(location, LedgerTable.RESULTS)
    with _delta_errors(place):
        if may_be_missing and not DeltaTable.is_deltatable(place):
            return []
        table = DeltaTable(place)
        if "retention_ms" not in _column_names(table):
            return []
        condition = (
            (pc.field("action") == Action.RETAIN.value)
            & pc.field("retention_ms").is_valid()
            & (pc.field("run_id") != run_id)
            & pc.field("topic").isin(sorted(topics))
        )
        # Thousands of partitions of a topic have equal rows.
        parts = [
            pa.Table.from_batches([each]).filter(condition).group_by(COLUMNS).aggregate([])
            for each in _read(table, [*COLUMNS, "action"])
        ]
    limits: list[dict[str, Any]] = (
        last_enforced(pa.concat_tables(parts)).to_pylist() if parts else []
    )
    return limits


def read_runs(location: str) -> list[dict[str, Any]]:
    """Return all rows of a ledger's runs; missing columns are None.

    Args:
        location: Path or URL of the ledger, in Delta or begun as Parquet.
    """
    folder = local_folder(location)
    place = _place(location, LedgerTable.RUNS)
    with _delta_errors(place):
        if DeltaTable.is_deltatable(place):
            table = DeltaTable(place)
            names = [name for name in RUN.names if name in _column_names(table)]
            rows = pa.Table.from_batches(_read(table, names), _fields(names)).to_pylist()
        elif folder is not None and (files := parquet_files(folder, LedgerTable.RUNS)):
            of_files = dataset(files, format="parquet")
            names = [name for name in RUN.names if name in of_files.schema.names]
            rows = of_files.to_table(columns=names).to_pylist()
        else:
            raise ConfigError("--ledger", location, "there is no ledger")
        nothing = dict.fromkeys(RUN.names)
        return [{**nothing, **row} for row in rows]


def _column_names(table: DeltaTable) -> list[str]:
    return [column.name for column in table.schema().fields]


def _read(table: DeltaTable, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield a table's columns, whatever features its owner turned on. ``to_pyarrow_dataset``
    refuses deletion vectors and v2 checkpoints; the query engine of the same package reads them."""
    columns = ", ".join(f'"{name}"' for name in names)
    query = QueryBuilder().register("ledger", table)
    for batch in pa.RecordBatchReader.from_stream(query.execute(f"SELECT {columns} FROM ledger")):  # noqa: S608  # names of ours
        yield batch.cast(_fields(names)) if batch.schema != _fields(names) else batch


def _fields(names: Sequence[str]) -> pa.Schema:
    """Return the schema of some columns of our own."""
    columns = {field.name: field for schema in SCHEMAS.values() for field in schema}
    return pa.schema([columns[name].remove_metadata() for name in names])


def _place(location: str, table: LedgerTable) -> str:
    """Return the URL of a table."""
    folder = local_folder(location)
    return table_location(location, table) if folder is None else (folder / table).as_uri()


def _check(location: str) -> None:
    """Refuse a ledger that Spark alone goes on with."""
    why = why_spark(location)
    if why is not None:
        raise ConfigError("--ledger", location, f"{why}: name another ledger, or --engine spark")


@contextmanager
def _delta_errors(place: str) -> Iterator[None]:
    """Raise what ``deltalake`` raises as an error of storage."""
    try:
        yield
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise StorageError(place, f"the ledger: {_reason(place, error)}") from error


def _reason(place: str, error: Exception) -> str:
    """Return an error of ``deltalake`` in one line, with its way out."""
    text = " ".join(_ESCAPES.sub("", str(error)).split())
    if _OF_ITS_OWNER.search(text):
        return (
            "its owner gave this table features of Delta that the package deltalake "
            f"{version('deltalake')} does not know: take Spark (--engine spark), or name another "
            f"ledger: {text}"
        )
    if not _FILES_GONE.search(text):
        return text
    folder = place.removeprefix("file://")
    return (
        "files of this table are gone, as where a lifecycle rule or a clean-up removes old ones: "
        f"mv {quote(folder)} {quote(f'{folder}.broken')}, or another --ledger, lets the next run "
        "begin a new one. The rows of former runs are lost, their work is not, and `pylog undo` "
        f"needs only the trash: {text}"
    )
