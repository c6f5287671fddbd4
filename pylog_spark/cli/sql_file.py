"""The file of ``pylog sql --out``: the rows of a query as Parquet, CSV or JSON lines.

DuckDB writes them, beside the file; one rename then makes the file visible.
"""

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from pylog_spark.cli.sql_tables import quoted
from pylog_spark.operations.export_out import check_new, scratch_beside
from pylog_spark.options.choices import AnswerFormat
from pylog_spark.options.declared import EXPORT_FORMAT, MAX_RECORDS, OUT, ROOTS
from pylog_spark.options.option import CommandLine
from pylog_spark.run.guards import check_outside
from storage_core import interruption
from storage_core.catalog.roles import guess_role
from storage_core.errors import ConfigError, StorageError
from storage_core.roots.open_root import LogRoot
from storage_core.store.local import storage_errors, sync_folder
from storage_core.store.open_objects import is_url

_ENDINGS: Final = {
    ".parquet": AnswerFormat.PARQUET,
    ".csv": AnswerFormat.CSV,
    ".jsonl": AnswerFormat.JSONL,
    ".ndjson": AnswerFormat.JSONL,
}
_COPY: Final = {
    AnswerFormat.PARQUET: "FORMAT parquet, COMPRESSION zstd",
    AnswerFormat.CSV: "FORMAT csv, HEADER, TIMESTAMPFORMAT '%Y-%m-%dT%H:%M:%S.%fZ'",
    AnswerFormat.JSONL: "FORMAT json, TIMESTAMPFORMAT '%Y-%m-%dT%H:%M:%S.%fZ'",
}
_VIEW: Final = "pylog_answer"
_NESTED: Final = frozenset({"list", "array", "struct", "map", "union"})


def check_file(line: CommandLine) -> AnswerFormat:
    """Return the format of the file; refuse a file that is not to be written."""
    if is_url(line[OUT]):
        raise ConfigError(OUT.label, line[OUT], "expected a file of this machine, or one it mounts")
    out = Path(line[OUT])
    to = line.written(EXPORT_FORMAT) or _ENDINGS.get(out.suffix.lower())
    if to is None:
        reason = f"expected a name that ends with {', '.join(_ENDINGS)}, or {EXPORT_FORMAT.label}"
        raise ConfigError(OUT.label, out, reason)
    check_new(out)
    roots = [LogRoot(location=root, role=guess_role(root), is_said=False) for root in line[ROOTS]]
    check_outside(OUT.label, out, roots)
    return to


def write_file(connection: Any, query: str, line: CommandLine, to: AnswerFormat) -> int:
    """Write the rows of a query to a new file; return their number."""
    import duckdb  # noqa: PLC0415  # an extra

    out = Path(line[OUT])
    relation = connection.sql(query)
    # Files, and DuckDB's tables, have no two columns of one name.
    names = [quoted(name) for name in unlike(relation.columns, like=str.lower)]
    connection.execute(f"CREATE OR REPLACE TEMP VIEW {_VIEW} ({', '.join(names)}) AS {query}")
    columns = ", ".join(
        f"{_written(name, kind, to)} AS {name}"
        for name, kind in zip(names, relation.types, strict=True)
    )
    limit = "" if line[MAX_RECORDS] is None else f"LIMIT {line[MAX_RECORDS]}"
    with (
        storage_errors(out),
        scratch_beside(out) as folder,
        interruption.removed_at_end(str(folder)),
    ):
        scratch = folder / out.name
        place = str(scratch).replace("'", "''")
        try:
            ((count,),) = connection.execute(
                f"COPY (SELECT {columns} FROM {_VIEW} {limit}) TO '{place}' ({_COPY[to]})"  # noqa: S608  # quoted
            ).fetchall()
            with scratch.open("rb") as written:
                os.fsync(written.fileno())
            check_new(out)  # nothing that came meanwhile is replaced
            scratch.rename(out)
            sync_folder(out.absolute().parent)
        except duckdb.IOException as error:
            number = re.search(r'"errno":"(\d+)"', str(error))
            if number is None or folder.name not in str(error):  # a file that the query reads
                raise
            raise StorageError(str(out), os.strerror(int(number[1]))) from error
    return int(count)


def unlike(
    names: Iterable[str], *, taken: Iterable[str] = (), like: Callable[[str], str] = str
) -> list[str]:
    """Return names of columns, of which no two are alike.

    Args:
        taken: Names that none of them has.
        like: What is equal of names that are alike.
    """
    seen = set(map(like, taken))
    chosen = []
    for name in names:
        number, other = 1, name
        while like(other) in seen:
            number += 1
            other = f"{name}_{number}"
        seen.add(like(other))
        chosen.append(other)
    return chosen


def _written(value: str, kind: Any, to: AnswerFormat) -> str:
    """Return the expression of what is written of a column."""
    if to is AnswerFormat.PARQUET:
        return value
    plain = _plain(value, kind)
    return f"to_json({plain})" if to is AnswerFormat.CSV and kind.id in _NESTED else plain


def _plain(value: str, kind: Any) -> str:
    """Return the expression of a value as JSON has it: bytes in Base64, no NaN."""
    match kind.id:
        case "blob":
            return f"to_base64({value})"
        case "float" | "double":
            return f"CASE WHEN isfinite({value}) THEN {value} END"
        case "list":
            ((_, inner),) = kind.children
            return f"list_transform({value}, lambda x: {_plain('x', inner)})"
        case "struct":
            fields = (
                f"{quoted(name)} := {_plain(f'{value}.{quoted(name)}', inner)}"
                for name, inner in kind.children
            )
            return f"CASE WHEN {value} IS NOT NULL THEN struct_pack({', '.join(fields)}) END"
        case _:
            return value
