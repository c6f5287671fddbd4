"""The key sidecar of a cleaned segment, for the next round. It says what the round has to know of
the segment, without its records.

    header (128 bytes)   magic, version, MAC, base offset, bytes of the segment, batches, keys,
                         CRC-32C of the hashes; little-endian, zeros behind
    table                int64[COLUMN_COUNT, batches], the headers as ``batch_scan`` has them
    flags                uint8[batches], as pass one notes them, to a multiple of 8 with zeros
    low, high            uint64[keys] each: SipHash of the keys of the batches with ordinals

A batch without flags has to be read by the next round. One with INDEXED and OPENED has a hash a
record. A control batch has INDEXED alone: its records stay as they are, as long as nothing is the
matter with its transaction. HAS_TOMBSTONE says that some records have no value, and that the batch
has its delete horizon.

The MAC (BLAKE2b under the secret of the folder) covers the header, which version of which file the
segment is, the table, the flags. So a sidecar of another segment, of one that somebody has cleaned
since, of another secret, or one that somebody has changed, is none.
"""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import crc32c
import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import HEADER_BYTES as BATCH_HEADER_BYTES
from storage_core.formats.batch_v2 import MAGIC_V2
from storage_core.kernels.batch_scan import (
    COLUMN_COUNT,
    DONE,
    POSITION,
    read_control_types,
    scan_batches,
)
from storage_core.kernels.batch_write import GONE
from storage_core.kernels.record_scan import HAS_TOMBSTONE, INDEXED, OPENED
from storage_core.kernels.survivors import NOWHERE, pick_hashes
from storage_core.records.batch_table import BatchTable
from storage_core.records.payload import Payload

MAGIC: Final = b"pylgkeys"
VERSION: Final = 1
HEADER_BYTES: Final = 128
# A larger one is neither written nor read: it is held in memory whole.
MAX_SIDECAR_BYTES: Final = 1 << 30
_HEADER: Final = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("hashes_crc", "<u4"),
        ("base_offset", "<i8"),
        ("segment_bytes", "<i8"),
        ("batches", "<u8"),
        ("keys", "<u8"),
        ("mac", "V16"),
    ]
)
_MAC_BYTES: Final = 16
_ALIGNMENT: Final = 8
_WORD_BYTES: Final = 8
_FLAGS: Final = (0, INDEXED, INDEXED | OPENED, INDEXED | OPENED | HAS_TOMBSTONE)

Halves = tuple[NDArray[np.uint64], NDArray[np.uint64]]

NO_KEYS: Final[Halves] = (np.empty(0, np.uint64), np.empty(0, np.uint64))


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentVersion:
    """Which version of which segment a sidecar is of."""

    base_offset: int
    size_bytes: int
    version: str  # what the store says of the file, as ``VersionedReader`` has it


@dataclass(frozen=True, kw_only=True)  # no slots: what is asked often is kept
class KeySidecar:
    """What a sidecar says."""

    batches: BatchTable  # of the segment, all of them; positions are those in its file
    flags: NDArray[np.uint8]  # uint8[batches]
    low: NDArray[np.uint64]  # uint64[keys]
    high: NDArray[np.uint64]  # uint64[keys]

    @cached_property
    def key_count(self) -> NDArray[np.int64]:
        """How many hashes each batch has, int64[batches]."""
        return np.where(self.flags & OPENED, self.batches.record_count, 0)

    @cached_property
    def first_key(self) -> NDArray[np.int64]:
        """First hash of each batch, and the end, int64[batches + 1]. The end is that of the last
        batch."""
        return np.concatenate([[0], np.cumsum(self.key_count)])

    def rows(self, first: int, end: int) -> "KeySidecar":
        """Return what it says of batches [first, end), without copying."""
        keys = slice(int(self.first_key[first]), int(self.first_key[end]))
        return KeySidecar(
            batches=self.batches.rows(first, end),
            flags=self.flags[first:end],
            low=self.low[keys],
            high=self.high[keys],
        )

    def body(self) -> list[NDArray[np.uint8]]:
        """Return what follows the header, in parts."""
        padding = np.zeros(-self.flags.size % _ALIGNMENT, np.uint8)
        columns = np.ascontiguousarray(self.batches.columns)
        return [
            columns.reshape(-1).view(np.uint8),
            self.flags,
            padding,
            self.low.view(np.uint8),
            self.high.view(np.uint8),
        ]

    def header(self, of: SegmentVersion, secret: bytes) -> bytes:
        """Return the header of a sidecar of this segment."""
        table, flags, _, low, high = self.body()
        header = np.zeros((), _HEADER)
        header["magic"], header["version"] = MAGIC, VERSION
        header["base_offset"], header["segment_bytes"] = of.base_offset, of.size_bytes
        header["batches"], header["keys"] = len(self.batches), self.low.size
        header["hashes_crc"] = crc32c.crc32c(high.data, crc32c.crc32c(low.data))
        header["mac"] = np.void(_mac(header, of, secret, table, flags))
        return header.tobytes().ljust(HEADER_BYTES, b"\0")


def _mac(
    header: NDArray[np.void],
    of: SegmentVersion,
    secret: bytes,
    table: NDArray[np.uint8],
    flags: NDArray[np.uint8],
) -> bytes:
    unsigned = header.copy()
    unsigned["mac"] = np.void(bytes(_MAC_BYTES))
    digest = hashlib.blake2b(unsigned.tobytes(), digest_size=_MAC_BYTES, key=secret)
    digest.update(of.version.encode())
    digest.update(table.data)
    digest.update(flags.data)
    return digest.digest()


class BadSidecarError(Exception):
    """A sidecar that is none of the segment; the text says why."""


def decode_sidecar(content: NDArray[np.uint8], of: SegmentVersion, secret: bytes) -> KeySidecar:
    """Return what a sidecar says.

    Args:
        content: The file, uint8[n]; the result refers to it.
    """
    if content.size < HEADER_BYTES:
        raise BadSidecarError(f"{content.size} bytes, fewer than a header's {HEADER_BYTES}")
    header = content[: _HEADER.itemsize].view(_HEADER)[0]
    if (header["magic"], header["version"]) != (MAGIC, VERSION):
        raise BadSidecarError(f"expected {MAGIC!r} of version {VERSION}")
    if (header["base_offset"], header["segment_bytes"]) != (of.base_offset, of.size_bytes):
        raise BadSidecarError("it is of another segment, or of another length of it")
    count, keys = int(header["batches"]), int(header["keys"])
    padded = count + -count % _ALIGNMENT
    expected = HEADER_BYTES + COLUMN_COUNT * _WORD_BYTES * count + padded + 2 * _WORD_BYTES * keys
    if content.size != expected:
        raise BadSidecarError(f"{content.size} bytes, expected {expected}")
    flags_at = HEADER_BYTES + COLUMN_COUNT * _WORD_BYTES * count
    table, flags = content[HEADER_BYTES:flags_at], content[flags_at : flags_at + count]
    mac = _mac(np.array(header, _HEADER), of, secret, table, flags)
    if bytes(header["mac"]) != mac:
        raise BadSidecarError("the segment is another one, or the secret, or it was changed")
    hashes = content[flags_at + padded :]
    if crc32c.crc32c(hashes.data) != int(header["hashes_crc"]):
        raise BadSidecarError("the CRC-32C of the hashes is wrong")
    low, high = hashes.view(np.uint64).reshape(2, keys)
    sidecar = KeySidecar(
        batches=BatchTable(table.view(np.int64).reshape(COLUMN_COUNT, count)),
        flags=flags,
        low=low,
        high=high,
    )
    _check(sidecar, of)
    return sidecar


def _check(sidecar: KeySidecar, of: SegmentVersion) -> None:
    """Refuse a sidecar with facts impossible in a segment. Even whoever knows the secret may
    have made a mistake."""
    batches = sidecar.batches
    ends = np.cumsum(batches.size)
    is_good = (
        (batches.position == ends - batches.size)
        & (batches.size >= BATCH_HEADER_BYTES)
        & (batches.size <= of.size_bytes)
        & (batches.magic == MAGIC_V2)
        & (batches.record_count >= 0)
        & (batches.record_count <= batches.last_offset - batches.base_offset + 1)
        & np.isin(sidecar.flags, _FLAGS)
        & (((sidecar.flags & OPENED) == 0) | ~batches.is_control)
    )
    end = int(ends[-1]) if ends.size else 0
    counts = sidecar.key_count
    is_counted = bool((counts <= sidecar.low.size).all()) and int(counts.sum()) == sidecar.low.size
    if not is_good.all() or end != of.size_bytes or not is_counted:
        raise BadSidecarError("what it says of the batches contradicts itself")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockKeys:
    """Hashes of the keys of a block with surviving records. Pass two keeps some records of each
    of its batches."""

    noted: Halves  # (low, high), uint64[] each: of pass one, or of the source segment's sidecar
    looked_up: Halves  # (low, high), uint64[] each: of the look-up in pass two


def sidecar_of_block(
    out: NDArray[np.uint8], payload: Payload, keep: NDArray[np.uint8], keys: BlockKeys
) -> KeySidecar:
    """Return a sidecar of a block's output batches. Positions are those in out.

    Args:
        out: uint8[n], their bytes.
        keep: uint8[], by record.
    """
    first_row, end_row = payload.first_row, payload.end_row
    batches, notes = (
        payload.batches.rows(first_row, end_row),
        payload.notes.rows(first_row, end_row),
    )
    is_written = notes.fate != GONE
    written = int(is_written.sum())
    table = np.empty((COLUMN_COUNT, written + 1), np.int64)
    count, _, status = scan_batches(out, 0, out.size, table)
    if (count, status) != (written, DONE):
        raise AssertionError(f"{written} batches were written, and {count} are there")
    read_control_types(out, table, count)
    low, high = np.empty((2, int(notes.survivors[notes.hashes != NOWHERE].sum())), np.uint64)
    picked = pick_hashes(
        batches.record_count, notes.columns, keep, *keys.noted, *keys.looked_up, low, high
    )
    return KeySidecar(
        batches=BatchTable(table[:, :count]),
        flags=notes.sidecar_flags[is_written].astype(np.uint8),
        low=low[:picked],
        high=high[:picked],
    )


class SidecarBuilder:
    """Gathers the sidecar of a segment while that is written."""

    def __init__(self) -> None:
        self._parts: list[KeySidecar] = []
        self._size_bytes = HEADER_BYTES

    def add(self, part: KeySidecar, position: int) -> None:
        """Add the next batches' part; they lie at position in the segment."""
        if not len(part.batches):
            return
        columns = part.batches.columns.copy()
        columns[POSITION] += position - columns[POSITION, 0]
        self._size_bytes += sum(piece.nbytes for piece in part.body())
        if self._size_bytes > MAX_SIDECAR_BYTES:
            self._parts.clear()
        else:
            self._parts.append(replace(part, batches=BatchTable(columns)))

    def finish(self) -> KeySidecar | None:
        """Return the sidecar; None if it is empty or too large."""
        if not self._parts:
            return None
        return KeySidecar(
            batches=BatchTable(np.concatenate([p.batches.columns for p in self._parts], axis=1)),
            flags=np.concatenate([part.flags for part in self._parts]),
            low=np.concatenate([part.low for part in self._parts]),
            high=np.concatenate([part.high for part in self._parts]),
        )
