"""Two partition directories: what was expected, and what somebody else made of the same input.

Without recompression every byte counts, with two exceptions: zero padding at the end of the active
segment's offset and time index, and the order of a producer snapshot's entries. Where batches were
recompressed (another build of a compressor gives other bytes) the logs are compared batch for batch
and record for record, CRCs are checked, and offset and time indexes have to fit their own log.
"""

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import crc32c
import numpy as np

from storage_core.filenames import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
)
from storage_core.formats.batch_v2 import BATCH_HEADER, HEADER_BYTES
from storage_core.formats.fields import field_at
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from storage_core.formats.producer_snapshot import CRC_START, SNAPSHOT_ENTRY, SNAPSHOT_HEADER
from tests.kit.decode import DecodedBatch, UndecodableError, decode_segment

EXCERPT_BYTES = 16
# Fields that another build of a compressor changes.
FIELDS_OF_THE_BYTES = frozenset({"batch_length", "crc"})


class Exactness(enum.Enum):
    """How alike two directories have to be."""

    BYTES = "bytes"
    RECORDS = "records"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing in one file that is not as expected."""

    file: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"


def read_tree(directory: Path) -> dict[str, bytes]:
    """Return the bytes of every file below a directory, by its path relative to it."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def compare_partitions(
    expected: Mapping[str, bytes], actual: Mapping[str, bytes], exactness: Exactness
) -> list[Difference]:
    """Compare the files of two partition directories (``read_tree``).

    Returns:
        Every file's first difference, and files on one side only; empty if there is none.
    """
    differences = [
        Difference(file=file, what=f"is missing, expected {len(expected[file])} bytes")
        for file in sorted(expected.keys() - actual.keys())
    ]
    differences += [
        Difference(file=file, what=f"should not be there, has {len(actual[file])} bytes")
        for file in sorted(actual.keys() - expected.keys())
    ]
    for file in sorted(expected.keys() & actual.keys()):
        what = _first_difference(file, expected, actual, exactness)
        if what:
            differences.append(Difference(file=file, what=what))
    return differences


def _first_difference(
    file: str, expected: Mapping[str, bytes], actual: Mapping[str, bytes], exactness: Exactness
) -> str | None:
    wanted, found = expected[file], actual[file]
    if wanted == found:
        # Equal bytes of an index may still not fit a log that was compressed otherwise.
        return _misfit(file, expected, actual) if exactness is Exactness.RECORDS else None
    if file.endswith(SNAPSHOT_SUFFIX):
        return _snapshot_difference(wanted, found)
    if file.endswith(LOG_SUFFIX):
        return _log_difference(wanted, found, exactness)
    if file.endswith((OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)):
        return _index_difference(file, expected, actual, exactness)
    return _byte_difference(wanted, found)


def _index_difference(
    file: str, expected: Mapping[str, bytes], actual: Mapping[str, bytes], exactness: Exactness
) -> str | None:
    wanted, found, log = expected[file], actual[file], _log_of(file)
    if _is_of_active_segment(file, expected) and _differ_by_padding(file, wanted, found):
        return None
    if exactness is Exactness.RECORDS and expected.get(log) != actual.get(log):
        return _misfit(file, expected, actual)
    return _byte_difference(wanted, found)


def _log_of(index: str) -> str:
    return index.rpartition(".")[0] + LOG_SUFFIX


def _is_of_active_segment(file: str, files: Mapping[str, bytes]) -> bool:
    return _log_of(file) == max((f for f in files if f.endswith(LOG_SUFFIX)), default=None)


def _differ_by_padding(file: str, wanted: bytes, found: bytes) -> bool:
    entry = OFFSET_INDEX_ENTRY if file.endswith(OFFSET_INDEX_SUFFIX) else TIME_INDEX_ENTRY
    shorter, longer = sorted((wanted, found), key=len)
    padding = longer[len(shorter) :]
    return longer.startswith(shorter) and len(padding) % entry.itemsize == 0 and not any(padding)


def _byte_difference(wanted: bytes, found: bytes) -> str:
    where = _first_other_byte(wanted, found)
    return (
        f"{len(wanted)} bytes expected, {len(found)} found; the first difference is at {where}: "
        f"expected {wanted[where : where + EXCERPT_BYTES].hex() or 'the end'}, "
        f"found {found[where : where + EXCERPT_BYTES].hex() or 'the end'}"
    )


def _first_other_byte(wanted: bytes, found: bytes) -> int:
    pairs = enumerate(zip(wanted, found, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(wanted), len(found)))


def _batch_note(wanted: bytes, found: bytes) -> str:
    """Name the batch, and the header field or the record, in which the first difference lies."""
    where = _first_other_byte(wanted, found)
    for number, batch in enumerate(_decoded(wanted)):
        inside = where - batch.position
        if 0 <= inside < batch.size:
            return f", in {_field_at(inside)} of batch {number} (base offset {batch.base_offset})"
    return ", after the last batch expected"


def _field_at(inside: int) -> str:
    if inside >= HEADER_BYTES:
        return f"the records ({inside - HEADER_BYTES} bytes into them)"
    return [n for n in BATCH_HEADER.names or () if field_at(BATCH_HEADER, n) <= inside][-1]


def _decoded(log: bytes) -> list[DecodedBatch]:
    try:
        return decode_segment(log)[0]
    except UndecodableError:
        return []


def _log_difference(wanted: bytes, found: bytes, exactness: Exactness) -> str | None:
    if exactness is Exactness.BYTES:
        return f"{_byte_difference(wanted, found)}{_batch_note(wanted, found)}"
    try:
        batches, end = decode_segment(wanted)
        others, other_end = decode_segment(found)
    except UndecodableError as error:
        return str(error)
    for number, (batch, other) in enumerate(zip(batches, others, strict=False)):
        what = next(_batch_differences(batch, other), None)
        if what:
            return f"batch {number} (base offset {batch.base_offset}): {what}"
    if len(batches) != len(others):
        return f"{len(batches)} batches expected, {len(others)} found"
    if wanted[end:] != found[other_end:]:
        return f"after the last whole batch: {_byte_difference(wanted[end:], found[other_end:])}"
    return None


def _batch_differences(batch: DecodedBatch, other: DecodedBatch) -> Iterator[str]:
    if batch.crc_ok != other.crc_ok:
        yield f"its CRC is {'wrong' if batch.crc_ok else 'right, expected a wrong one'}"
    for field, value in batch.header.items():
        if field not in FIELDS_OF_THE_BYTES and other.header[field] != value:
            yield f"{field} {value} expected, {other.header[field]} found"
    for record, found in zip(batch.records, other.records, strict=False):
        if record != found:
            yield f"expected {record}, found {found}"


def _snapshot_difference(wanted: bytes, found: bytes) -> str | None:
    for side, data in (("expected", wanted), ("found", found)):
        problem = _snapshot_problem(data)
        if problem:
            return f"{side}: {problem}"
    ours, theirs = _snapshot_entries(found), _snapshot_entries(wanted)
    if ours == theirs:
        return None
    return f"entries expected {theirs - ours}, found {ours - theirs}"


def _snapshot_problem(data: bytes) -> str | None:
    if len(data) < SNAPSHOT_HEADER.itemsize:
        return f"only {len(data)} bytes"
    header = np.frombuffer(data, SNAPSHOT_HEADER, 1)[0]
    size = SNAPSHOT_HEADER.itemsize + int(header["entry_count"]) * SNAPSHOT_ENTRY.itemsize
    if size != len(data):
        return f"{header['entry_count']} entries take {size} bytes, not {len(data)}"
    if crc32c.crc32c(data[CRC_START:]) != int(header["crc"]):
        return "its CRC is wrong"
    return None


def _snapshot_entries(data: bytes) -> set[tuple[int, ...]]:
    rows = np.frombuffer(data, SNAPSHOT_ENTRY, offset=SNAPSHOT_HEADER.itemsize)
    return {tuple(int(field) for field in row) for row in rows}


def _misfit(file: str, expected: Mapping[str, bytes], actual: Mapping[str, bytes]) -> str | None:
    """Say why an offset or time index does not fit the log that lies beside it."""
    if not file.endswith((OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)):
        return None
    log = _log_of(file)
    if expected.get(log) == actual.get(log) or log not in actual:
        return None
    check = _offset_misfit if file.endswith(OFFSET_INDEX_SUFFIX) else _time_misfit
    return check(actual[file], _decoded(actual[log]), int(Path(file).name.partition(".")[0]))


def _offset_misfit(index: bytes, batches: list[DecodedBatch], base_offset: int) -> str | None:
    if len(index) % OFFSET_INDEX_ENTRY.itemsize:
        return f"{len(index)} bytes are no whole entries"
    starts = {batch.position: batch for batch in batches}
    previous = -1, -1
    for number, row in enumerate(np.frombuffer(index, OFFSET_INDEX_ENTRY).tolist()):
        relative, position = row
        if number and row == (0, 0):  # padding of an active segment
            break
        batch = starts.get(position)
        grows = relative > previous[0] and position > previous[1]
        if not grows or batch is None or base_offset + relative != batch.last_offset:
            return f"entry {number} ({base_offset + relative} at {position}) does not fit the log"
        previous = row
    return None


def _time_misfit(index: bytes, batches: list[DecodedBatch], base_offset: int) -> str | None:
    if len(index) % TIME_INDEX_ENTRY.itemsize:
        return f"{len(index)} bytes are no whole entries"
    previous = -2, -1
    for number, row in enumerate(np.frombuffer(index, TIME_INDEX_ENTRY).tolist()):
        timestamp, relative = row
        if number and row == (0, 0):
            break
        fits = any(
            batch.base_offset <= base_offset + relative <= batch.last_offset
            and batch.header["max_timestamp"] == timestamp
            for batch in batches
        )
        if timestamp <= previous[0] or relative < previous[1] or not fits:
            return f"entry {number} ({timestamp} at {base_offset + relative}) does not fit the log"
        previous = row
    return None
