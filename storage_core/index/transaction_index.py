"""A segment's transaction index: transactions aborted by markers in that segment."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import CorruptIndexError, IndexVersionError
from storage_core.formats.index_entries import TXN_INDEX_ENTRY, TXN_INDEX_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTxn:
    """One aborted transaction."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int  # the last stable offset when the marker was written


def parse_transaction_index(file: str, base_offset: int, data: bytes) -> tuple[AbortedTxn, ...]:
    """Read a ``.txnindex`` file, without a ragged tail."""
    count = len(data) // TXN_INDEX_ENTRY.itemsize
    if not count:  # as of nearly every segment
        return ()
    entries = np.frombuffer(data, TXN_INDEX_ENTRY, count)
    return read_transactions(file, base_offset, entries, start=0)


def read_transactions(
    file: str, base_offset: int, entries: NDArray[np.void], *, start: int
) -> tuple[AbortedTxn, ...]:
    """Read some entries of a ``.txnindex`` file.

    Args:
        entries: TXN_INDEX_ENTRY[n].
    """
    is_unknown = entries["version"] != TXN_INDEX_VERSION
    for row in np.flatnonzero(is_unknown | (entries["last_offset"] < base_offset)).tolist():
        position = start + row * TXN_INDEX_ENTRY.itemsize
        if is_unknown[row]:
            raise IndexVersionError(
                file,
                position,
                f"expected version {TXN_INDEX_VERSION}, found {entries['version'][row]}; "
                "Kafka does not load such a log either: move the file away, so that recovery "
                "rebuilds it",
            )
        raise CorruptIndexError(
            file,
            position,
            f"expected a last offset of at least {base_offset}, "
            f"found {entries['last_offset'][row]}",
        )
    names = ("producer_id", "first_offset", "last_offset", "last_stable_offset")
    columns = [entries[name].tolist() for name in names]
    return tuple(
        AbortedTxn(
            producer_id=producer_id,
            first_offset=first_offset,
            last_offset=last_offset,
            last_stable_offset=last_stable_offset,
        )
        for producer_id, first_offset, last_offset, last_stable_offset in zip(*columns, strict=True)
    )


def encode_transaction_index(transactions: Sequence[AbortedTxn]) -> bytes:
    """Return the bytes of a file with these entries."""
    entries = np.empty(len(transactions), TXN_INDEX_ENTRY)
    entries["version"] = TXN_INDEX_VERSION
    for name in ("producer_id", "first_offset", "last_offset", "last_stable_offset"):
        entries[name] = [getattr(transaction, name) for transaction in transactions]
    return entries.tobytes()


def collect_aborted(
    indexes: Iterable[Sequence[AbortedTxn]], *, fetch_offset: int, upper_bound_offset: int
) -> list[AbortedTxn]:
    """Collect the aborted transactions that reach into [fetch_offset, upper_bound_offset).

    Args:
        indexes: Transaction indexes of consecutive segments, from the one that holds the first
            offset of interest on.
        fetch_offset: Transactions that ended before it do not count.
        upper_bound_offset: Transactions that began at or above it do not count; the search ends
            with the first whose last stable offset has reached it.
    """
    aborted = []
    for index in indexes:
        for transaction in index:
            if (
                transaction.last_offset >= fetch_offset
                and transaction.first_offset < upper_bound_offset
            ):
                aborted.append(transaction)
            if transaction.last_stable_offset >= upper_bound_offset:
                return aborted
    return aborted


def truncate_aborted(aborted: Sequence[AbortedTxn], offset: int) -> tuple[AbortedTxn, ...]:
    """Return the entries before the first with a last offset >= offset."""
    count = next(
        (row for row, entry in enumerate(aborted) if entry.last_offset >= offset), len(aborted)
    )
    return tuple(aborted[:count])
