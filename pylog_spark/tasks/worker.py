"""What every Python task does beside its work."""

import gc
import struct
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple
from typing import Final

import pyarrow as pa

from storage_core.store.requests import REQUESTS, Requests

_frozen_modules = 0


def freeze_modules() -> None:
    """Keep the garbage collector out of all that is imported by now.

    After every task Spark's workers collect garbage, and to look through what NumPy, Numba and
    PyArrow have made at their import takes them 100 ms: longer than most tasks.
    """
    global _frozen_modules  # noqa: PLW0603 - of the process, as what it counts
    if len(sys.modules) != _frozen_modules:
        gc.collect()
        gc.freeze()
        _frozen_modules = len(sys.modules)


# What tasks ask of S3 comes back beside their rows, in a column of the engine's own: null but in
# the last row of a task. That has 48 bytes for each task that asked something and led to this one.
# Rows may be collected several times: what was counted of a task is known by its id.
ASKED: Final = pa.field("pylog_asked", pa.binary())
_OF_TASK: Final = struct.Struct(">16s4q")


def with_asked(
    work: Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]],
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Yield what work makes of rows, and in the column ``ASKED`` what was asked of S3 for them."""
    asked: list[bytes] = []
    before = REQUESTS.copy()
    last: pa.RecordBatch | None = None
    for batch in work(_without_asked(batches, asked)):
        if not batch.num_rows:
            continue
        if last is not None:
            yield last.append_column(ASKED, pa.nulls(last.num_rows, ASKED.type))
        last = batch
    if own := REQUESTS.since(before):
        asked.append(_OF_TASK.pack(uuid.uuid4().bytes, *astuple(own)))
    if last is not None:
        values = [*[None] * (last.num_rows - 1), b"".join(asked) or None]
        yield last.append_column(ASKED, pa.array(values, ASKED.type))


def _without_asked(
    batches: Iterable[pa.RecordBatch], asked: list[bytes]
) -> Iterator[pa.RecordBatch]:
    """Yield rows without the column ``ASKED``, whose values go to a list."""
    for batch in batches:
        if ASKED.name in batch.schema.names:
            asked += batch[ASKED.name].drop_null().to_pylist()
            yield batch.drop_columns([ASKED.name])
        else:
            yield batch


def read_asked(asked: bytes) -> Iterator[tuple[bytes, Requests]]:
    """Yield the id of each task of a value of ``ASKED``, and what that task has asked."""
    for task, *counts in _OF_TASK.iter_unpack(asked):
        yield task, Requests(*counts)
