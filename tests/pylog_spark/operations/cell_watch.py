"""The largest cell of every plan: what each stage of ours gets and hands on, and what is put in."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame
from pyspark.sql.pandas.group_ops import PandasGroupedOpsMixin

from tests.pylog_spark.cell_sizes import largest_cell


def watch_cells(monkeypatch: Any, folder: Path) -> None:
    """Let all stages of what follows write down their largest cells, as files in a folder."""
    folder.mkdir()
    notes = str(folder)

    def note(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        largest = 0
        for batch in batches:
            largest = max(largest, largest_cell(batch))
            yield batch
        Path(notes, f"{largest}-{uuid.uuid4().hex}").touch()

    def noting(work: Callable[..., Any]) -> Callable[..., Any]:
        return lambda batches: note(work(note(batches)))

    original = DataFrame.mapInArrow

    def wrapped(self: Any, work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return original(self, noting(work), *arguments, **named)

    monkeypatch.setattr(DataFrame, "mapInArrow", wrapped)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a whole group of rows is one batch: nothing bounds it")

    monkeypatch.setattr(PandasGroupedOpsMixin, "applyInArrow", refuse)
    create = SparkSession.createDataFrame

    def created(self: Any, data: Any, *arguments: Any, **named: Any) -> Any:
        if isinstance(data, pa.Table):
            Path(notes, f"{data.nbytes}-{uuid.uuid4().hex}").touch()
        return create(self, data, *arguments, **named)

    monkeypatch.setattr(SparkSession, "createDataFrame", created)


def largest_of(folder: Path) -> int:
    """Return the bytes of the largest cell that was seen."""
    return max(int(path.name.partition("-")[0]) for path in folder.iterdir())
