"""The local engine's processes: one with all imports, and its working forks.

The first one has no threads, so that it may fork; the driver has some. It ends when the driver
does, however that ends, and takes its forks with it. Should it be killed itself, the kernel kills
its forks.
"""

import ctypes
import gc
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO, Final, Never

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.engines.engine import UNIT, ArrowWork
from pylog_spark.structured_logs import TaskLogs
from pylog_spark.without_pandas import hide_pandas
from storage_core.checkpoint.lock import kept_shares
from storage_core.store.requests import REQUESTS

# A task of the local engine: rows in, its work, rows out.
#
# Between two stages rows lie in files of the run's scratch folder, or travel with the answer of
# their task where they are few. A batch that a task reads from a file is a view of that file.

# So many bytes of a task's rows travel with its answer; the others go through a file.
_MOST_CARRIED_BYTES: Final = 256 * 1024

# What a process has loaded, by file: values that are published, stages. Threads of a look share it.
_loaded: dict[str, Any] = {}
_loading: Final = threading.Lock()


def load(file: str) -> Any:
    """Return a file's value; keep it while the file exists."""
    with _loading:
        for gone in [each for each in _loaded if not Path(each).exists()]:
            del _loaded[gone]
        if file not in _loaded:
            _loaded[file] = cloudpickle.loads(Path(file).read_bytes())
        return _loaded[file]


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows that a task made, for one task of the next stage."""

    target: int
    # A batch, or its bytes; None where they are in a file.
    rows: pa.RecordBatch | bytes | None = field(default=None, repr=False)
    file: str | None = None
    offset: int = 0
    size: int = 0

    def read(self, schema: pa.Schema) -> pa.RecordBatch:
        """Return the rows."""
        if isinstance(self.rows, pa.RecordBatch):
            return self.rows
        if self.file is None:
            return pa.ipc.read_record_batch(pa.py_buffer(self.rows), schema)
        with pa.memory_map(self.file) as source:
            source.seek(self.offset)
            return pa.ipc.read_record_batch(source.read_buffer(self.size), schema)


# Says which tasks of the next stage get which rows of a batch that the task of a number has made.
Sink = Callable[[pa.RecordBatch, int], Iterator[tuple[int, pa.RecordBatch]]]


def to_driver(batch: pa.RecordBatch, _task: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows for the driver."""
    yield 0, batch


def evenly(tasks: int) -> Sink:
    """Return a sink to deal rows out to some tasks in turn."""
    return partial(_evenly, tasks=tasks)


def _evenly(
    batch: pa.RecordBatch, task: int, *, tasks: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    # Tasks that have a row each give it to different ones.
    return _dealt(batch, (np.arange(batch.num_rows) + task) % tasks)


def by_unit(batch: pa.RecordBatch, _task: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows by their column ``UNIT``."""
    return _dealt(batch, batch.column(UNIT).to_numpy())


def by_keys(keys: Sequence[str], tasks: int, lanes: dict[str, range]) -> Sink:
    """Return a sink that deals rows out by keys; see ``Rows.deal_by``."""
    return partial(_by_keys, keys=tuple(keys), tasks=tasks, lanes=lanes)


def _by_keys(
    batch: pa.RecordBatch, _task: int, *, keys: tuple[str, ...], tasks: int, lanes: dict[str, range]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    others = range(max((lane.stop for lane in lanes.values()), default=0), tasks)
    columns = [batch.column(key).to_pylist() for key in keys]
    lanes_of_rows = [others] * batch.num_rows
    if lanes:
        lanes_of_rows = [lanes.get(root, others) for root in batch.column("root").to_pylist()]
    # Python's own hash is another one in each process.
    targets = [
        lane[zlib.crc32(repr(values).encode("utf-8", "surrogatepass")) % len(lane)]
        for lane, values in zip(lanes_of_rows, zip(*columns, strict=True), strict=True)
    ]
    return _dealt(batch, np.array(targets, np.int64))


def _dealt(
    batch: pa.RecordBatch, targets: "np.ndarray[Any, np.dtype[Any]]"
) -> Iterator[tuple[int, pa.RecordBatch]]:
    if len(targets) and (targets == targets[0]).all():
        yield int(targets[0]), batch
        return
    for target in np.unique(targets).tolist():
        yield target, batch.take(pa.array(np.flatnonzero(targets == target)))


def sorted_rows(names: Sequence[str]) -> ArrowWork:
    """Return work that sorts the rows of a task."""
    return partial(_sorted, names=tuple(names))


def _sorted(
    batches: Iterator[pa.RecordBatch], *, names: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Yield rows in order, as slices of the batches, without copying."""
    held = [batch for batch in batches if batch.num_rows]
    if not held:
        return
    keys = pa.Table.from_batches([batch.select(list(names)) for batch in held])
    by: list[str] = []
    for name in names:
        # Nulls come first, as they do in Spark.
        by += [f"has {name}", name]
        keys = keys.append_column(by[-2], pc.is_valid(keys[name]))
    order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in by]).to_numpy()
    starts = np.cumsum([0, *(batch.num_rows for batch in held)])
    # Rows that follow each other in both orders, of one batch, are one slice.
    batch_of = np.searchsorted(starts, order, side="right") - 1
    breaks = (np.diff(order) != 1) | (np.diff(batch_of) != 0)
    edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(order)]
    for first, end in pairwise(edges):
        number = int(batch_of[first])
        yield held[number].slice(int(order[first] - starts[number]), end - first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What the tasks of a stage have in common."""

    # Returns the rows of what a task is given: a unit, or pieces.
    begin: Callable[[Any], Iterator[pa.RecordBatch]]
    steps: tuple[ArrowWork, ...]
    schema: pa.Schema
    sink: Sink
    folder: str  # for rows that are too many to travel with the answer
    logs: TaskLogs

    def run(self, source: Any, task: int) -> list[Piece]:
        """Do a task in a worker; return what it made.

        Args:
            source: A unit, or pieces.
        """
        with _PieceWriter(self.folder) as writer:
            for target, rows in self._rows(source, task):
                writer.add(target, rows)
        return writer.pieces

    def run_here(self, source: Any, task: int) -> list[Piece]:
        """Do a task in the driver's process; return its rows in memory."""
        return [Piece(target, rows) for target, rows in self._rows(source, task)]

    def _rows(self, source: Any, task: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        self.logs.begin()
        batches = self.begin(source)
        for step in self.steps:
            batches = step(batches)
        for batch in batches:
            plain = batch.select(self.schema.names)
            if not plain.schema.equals(self.schema):
                plain = plain.cast(self.schema)
            if plain.num_rows:
                yield from self.sink(plain, task)


def read_pieces(schema: pa.Schema) -> Callable[[Sequence[Piece]], Iterator[pa.RecordBatch]]:
    """Return what reads pieces of these columns."""
    return partial(_read_pieces, schema=schema)


def _read_pieces(pieces: Sequence[Piece], *, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for piece in pieces:
        yield piece.read(schema)


class _PieceWriter:
    """Keeps a task's rows, in memory while few; a context manager."""

    def __init__(self, folder: str) -> None:
        self.pieces: list[Piece] = []
        self._folder = folder
        self._carried = 0
        self._file: BinaryIO | None = None
        self._path = ""

    def __enter__(self) -> "_PieceWriter":
        return self

    def __exit__(self, *_error: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, target: int, batch: pa.RecordBatch) -> None:
        """Keep rows for a task of the next stage."""
        content = batch.serialize()
        if self._file is None and self._carried + content.size <= _MOST_CARRIED_BYTES:
            self._carried += content.size
            self.pieces.append(Piece(target, content.to_pybytes()))
            return
        if self._file is None:
            path = Path(self._folder, f"rows-{uuid.uuid4().hex}")
            self._path, self._file = str(path), path.open("xb")
        offset = self._file.tell()
        self._file.write(content)
        self.pieces.append(Piece(target, None, self._path, offset, content.size))


# From Linux's prctl.h: which signal a process gets when its parent ends.
_SET_PARENT_DEATH_SIGNAL: Final = 1
_libc: Final = ctypes.CDLL(None, use_errno=True)


def serve_forks(descriptor: int) -> None:
    """Fork a worker per connection from the driver; end with the driver.

    Args:
        descriptor: Socket to the driver, which sends a descriptor a fork. Standard input has the
            names of modules to import.
    """
    _ignore_signals()
    hide_pandas()
    modules: list[str] = pickle.load(sys.stdin.buffer)  # noqa: S301  # the driver's own
    for name in modules:
        with suppress(ImportError):
            import_module(name)
    gc.collect()
    _fork_workers(descriptor)


def be_template(descriptor: int) -> Never:
    """Do in a fork of the driver what ``serve_forks`` does, without an import.

    Args:
        descriptor: As there.
    """
    try:
        os.setpgid(0, 0)
        _ignore_signals()
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        os.close(nothing)
        _fork_workers(descriptor)
    finally:
        # Nothing of the driver's may be ended here: neither its blocks nor what runs at its exit.
        os._exit(1)


def _ignore_signals() -> None:
    """Leave it to the driver what becomes of tasks: Ctrl-C, and what ends a service, reach it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def _fork_workers(descriptor: int) -> None:
    """Fork a worker per connection from the driver; end with the driver."""
    gc.freeze()
    template = os.getpid()
    with socket.socket(fileno=descriptor) as driver:
        while True:
            _, descriptors, _, _ = socket.recv_fds(driver, 1, 1)
            if not descriptors:
                # Everybody of this group: the forks, and this process.
                os.killpg(0, signal.SIGKILL)
            if os.fork() == 0:
                _end_with(template)
                driver.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _work(descriptors[0])
            os.close(descriptors[0])


def _end_with(parent: int) -> None:
    """Have the kernel kill this process at, or after, its parent's end."""
    if _libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)


def _work(descriptor: int) -> None:
    """Do task after task, until the driver closes the connection."""
    try:
        with Connection(descriptor) as driver:
            while True:
                driver.send_bytes(_answer(driver.recv_bytes()))
    except (EOFError, OSError):
        pass
    finally:
        os._exit(0)


def _answer(message: bytes) -> bytes:
    """Do a task; return what it made, or how it failed, and what it asked of S3."""
    before = REQUESTS.copy()
    result: Any = None
    failure = None
    try:
        file, source, task = pickle.loads(message)  # noqa: S301  # the driver's own
        with kept_shares():
            result = load(file).run(pickle.loads(source), task)  # noqa: S301  # as above
    except Exception as error:  # noqa: BLE001  # the driver raises it
        failure = (f"{type(error).__name__}: {error}", traceback.format_exc())
    return pickle.dumps((result, failure, REQUESTS.since(before)))
