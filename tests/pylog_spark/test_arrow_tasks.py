"""What a Python task does beside its work."""

import gc
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest

from pylog_spark.arrow_tasks import map_in_arrow
from pylog_spark.tasks import worker
from pylog_spark.tasks.worker import freeze_modules


@pytest.fixture
def thawed(monkeypatch):
    """A process as a worker begins."""
    monkeypatch.setattr(worker, "_frozen_modules", 0)
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("thawed")
def test_what_is_imported_is_kept_from_the_collector_once():
    freeze_modules()
    frozen = gc.get_freeze_count()
    kept = [[] for _ in range(1000)]
    freeze_modules()
    assert gc.get_freeze_count() == frozen > 10_000
    assert kept


@pytest.mark.usefixtures("thawed")
def test_what_a_later_task_imports_is_kept_from_it_too(monkeypatch):
    freeze_modules()
    frozen = gc.get_freeze_count()
    later = [[] for _ in range(1000)]
    monkeypatch.setitem(sys.modules, "imported_later", later)
    freeze_modules()
    assert gc.get_freeze_count() >= frozen + 1000


@pytest.mark.spark
def test_every_task_does_it(spark):
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pylist([{"frozen": gc.get_freeze_count()}])

    frame = map_in_arrow(spark.range(0, 2, 1, 2), work, pa.schema([("frozen", pa.int64())]))
    assert all(row.frozen > 10_000 for row in frame.collect())
