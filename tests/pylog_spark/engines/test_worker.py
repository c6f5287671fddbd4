"""What a Python task does beside its work."""

import gc
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest

from pylog_spark.engines.spark_engine import map_in_arrow
from pylog_spark.tasks import worker
from pylog_spark.tasks.worker import freeze_modules


@pytest.fixture
def thawed(monkeypatch):
    """A process as a worker begins."""
    monkeypatch.setattr(worker, "_frozen_modules", 0)
    gc.unfreeze()


def collected(things: list[list[str]]) -> bool:
    """Whether the collector looks through a list, as through all that is not kept from it."""
    return any(found is things for found in gc.get_objects())


@pytest.mark.thorough
@pytest.mark.usefixtures("thawed")
def test_what_is_imported_is_kept_from_the_collector_once():
    before: list[list[str]] = [[]]
    freeze_modules()
    assert gc.get_freeze_count() > 10_000
    after: list[list[str]] = [[]]
    freeze_modules()
    assert not collected(before)
    assert collected(after)


@pytest.mark.thorough
@pytest.mark.usefixtures("thawed")
def test_what_a_later_task_imports_is_kept_from_it_too(monkeypatch):
    freeze_modules()
    later: list[list[str]] = [[]]
    monkeypatch.setitem(sys.modules, "imported_later", later)
    freeze_modules()
    assert not collected(later)


@pytest.mark.thorough
@pytest.mark.spark
def test_every_task_does_it(spark):
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pylist([{"frozen": gc.get_freeze_count()}])

    frame = map_in_arrow(spark.range(0, 2, 1, 2), work, pa.schema([("frozen", pa.int64())]))
    assert all(row.frozen > 10_000 for row in frame.collect())
