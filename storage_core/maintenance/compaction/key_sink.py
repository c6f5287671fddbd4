"""Where pass one puts the keys of a segment: into memory, or into scratch files.

Keys are gathered in a small map, so that of the records of one key that lie near each other only
the newest goes on; a full map is emptied. What comes out may hold a key several times, once a
map: the merge keeps the largest rank.
"""

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from storage_core.maintenance.compaction.key_files import StreamWriter, read_stream
from storage_core.maintenance.compaction.offset_map import KeyBlock as Hashed
from storage_core.maintenance.compaction.offset_map import OffsetMap

# Keys of the small map: 24 MiB of entries, and a table of 48 MiB.
CHUNK_KEYS: Final = 1 << 20
KEY_WORDS: Final = 3
SUSPECT_WORDS: Final = 4

# (low, high, rank), and with the row of the batch of each.
KeyBlock = tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]
SuspectBlock = tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]


class KeySink(Protocol):
    """Takes the keys of one segment."""

    def put(self, block: KeyBlock) -> None:
        """Take keys that count in any case."""
        ...

    def put_suspects(self, block: SuspectBlock) -> None:
        """Take keys of batches that may turn out to be aborted."""
        ...


class MemorySink:
    """Keeps the keys in memory."""

    def __init__(self) -> None:
        self._chunks: list[KeyBlock] = []
        self._suspects: list[SuspectBlock] = []

    def put(self, block: KeyBlock) -> None:
        """Take keys that count in any case."""
        self._chunks.append(block)

    def put_suspects(self, block: SuspectBlock) -> None:
        """Take keys of batches that may turn out to be aborted."""
        self._suspects.append(block)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all columns by the names that a partial index gives them."""
        kinds = (np.uint64, np.uint64, np.int64, np.int64)
        keys = ("low", "high", "rank")
        suspects = ("suspect_low", "suspect_high", "suspect_rank", "suspect_row")
        found = {name: _join(self._chunks, n, kinds[n]) for n, name in enumerate(keys)}
        return found | {name: _join(self._suspects, n, kinds[n]) for n, name in enumerate(suspects)}


class FileSink:
    """Writes the keys to two streams; a context manager that closes them.

    Args:
        prefix: Path of the streams but for their endings.
    """

    def __init__(self, prefix: Path) -> None:
        self._keys = StreamWriter(keys_file(prefix), KEY_WORDS)
        self._suspects = StreamWriter(suspects_file(prefix), SUSPECT_WORDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._keys.__exit__(kind, error, trace)
        self._suspects.__exit__(kind, error, trace)

    def put(self, block: KeyBlock) -> None:
        """Take keys that count in any case."""
        self._keys.append(*block)

    def put_suspects(self, block: SuspectBlock) -> None:
        """Take keys of batches that may turn out to be aborted."""
        self._suspects.append(*block)


class ChunkedKeys:
    """A small map in front of a sink."""

    def __init__(self, sink: KeySink) -> None:
        self._sink = sink
        self._map = OffsetMap()

    def put(
        self, low: NDArray[np.uint64], high: NDArray[np.uint64], rank: NDArray[np.int64]
    ) -> None:
        """Take keys; of those of one key that are in the map together the newest goes on."""
        self._map.put(low, high, rank, len(rank))
        if len(self._map) >= CHUNK_KEYS:
            self.flush()

    def take(
        self, block: Hashed, is_suspect: NDArray[np.bool_], number_of_row: NDArray[np.int64]
    ) -> None:
        """Take the keys of a block of batches; those of batches that may be aborted go apart.

        Args:
            block: The keys.
            is_suspect: Of each batch of the block, whether it may turn out to be aborted.
            number_of_row: Of each of them, its row among those that a transaction tracker sees.
        """
        count = block.count
        low, high, ranks = block.low[:count], block.high[:count], block.rank[:count]
        batch = block.batch[:count]
        apart = is_suspect[batch]
        if apart.any():
            rows = number_of_row[batch[apart]]
            self._sink.put_suspects((low[apart], high[apart], ranks[apart], rows))
            low, high, ranks = low[~apart], high[~apart], ranks[~apart]
        self.put(low, high, ranks)

    def flush(self) -> None:
        """Hand on what is in the map."""
        if len(self._map):
            self._sink.put(self._map.entries())
            self._map = OffsetMap()


def keys_file(prefix: Path) -> Path:
    """Return the stream of a file sink's keys."""
    return prefix.with_name(prefix.name + ".keys")


def suspects_file(prefix: Path) -> Path:
    """Return the stream of a file sink's suspects."""
    return prefix.with_name(prefix.name + ".suspects")


def read_keys(prefix: Path) -> Iterator[KeyBlock]:
    """Yield the keys that a file sink took."""
    for low, high, rank in read_stream(keys_file(prefix), KEY_WORDS):
        yield low, high, rank.view(np.int64)


def read_suspects(prefix: Path) -> Iterator[SuspectBlock]:
    """Yield the suspects that a file sink took."""
    for low, high, rank, row in read_stream(suspects_file(prefix), SUSPECT_WORDS):
        yield low, high, rank.view(np.int64), row.view(np.int64)


def _join(blocks: list[Any], column: int, kind: Any) -> NDArray[Any]:
    return np.concatenate([np.empty(0, kind), *(block[column] for block in blocks)])
