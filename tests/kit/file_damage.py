"""What accidents do to the files of a partition: torn, changed, missing, stale, left over.

Every accident is drawn from a seed, so that the same damage can be done to two copies of the same
directory. One that finds nothing to work on does nothing.
"""

import enum
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from storage_core.filenames import (
    CHECKPOINT_DELETED_SUFFIX,
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LEADER_EPOCH_FILE,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    PARTITION_METADATA_FILE,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TEMPORARY_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    offset_of,
    segment_file,
    snapshot_file,
)
from storage_core.formats.batch_v2 import (
    BATCH_HEADER,
    BATCH_LENGTH_AT,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC_AT,
    MAGIC_V2,
)
from storage_core.formats.fields import field_at
from storage_core.formats.index_entries import (
    OFFSET_INDEX_ENTRY,
    TIME_INDEX_ENTRY,
    TXN_INDEX_ENTRY,
)
from storage_core.formats.legacy import ENTRY_ATTRIBUTES_AT, ENTRY_CRC_AT
from storage_core.formats.producer_snapshot import SNAPSHOT_HEADER
from tests.kit.builders import with_valid_crc

EPOCH_FILES: Final = (
    "",
    "0\n",
    "0\n0\n",
    "0\n1\n0 0\n",
    "0\n2\n0 0\n1 20\n",
    "0\n3\n5 100\n3 50\n4 200\n",
    "0\n2\n0 0\n7 1000000\n",
    "0\n1\n9 0\n",
    "0\n2\n3 10\n3 40\n",
    "0\n2\n0 5\n",
    "0\n1\n0 0\n1 20\n",
    "1\n0\n",
    "x\n0\n",
    "0\nx\n",
    "0\n1\n0\n",
    "0\n1\n0 0 0\n",
    "0\n1\n 0 0\n",
    "0\n1\n0  0\n",
    "0\n1\n-1 0\n",
    "0\n1\n0 -5\n",
    "0\n1\nx 0\n",
    "0\n1\n0 0",
    "0\n1\n\n",
    "0\n1\n0 0\n\n",
)
METADATA_FILES: Final = (
    "",
    "version: 0\n",
    "version: 0\ntopic_id: 3BBfqQbWRHy_3kC4SIuLMw",
    "version: 0\ntopic_id: 3BBfqQbWRHy_3kC4SIuLMw\n",
    "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
    "version: 0\ntopic_id: not-an-id",
    "version: 7\ntopic_id: 3BBfqQbWRHy_3kC4SIuLMw",
    "version: -1\ntopic_id: 3BBfqQbWRHy_3kC4SIuLMw",
    "version 0\ntopic_id 3BBfqQbWRHy_3kC4SIuLMw",
)
_ENTRY_BYTES: Final = {
    OFFSET_INDEX_SUFFIX: OFFSET_INDEX_ENTRY.itemsize,
    TIME_INDEX_SUFFIX: TIME_INDEX_ENTRY.itemsize,
    TXN_INDEX_SUFFIX: TXN_INDEX_ENTRY.itemsize,
}
_SMALL_CHANGES: Final = (-(2**31), -1, 0, 1, 2, 5, 61, 2**31 - 1)
_MAX_GARBAGE_BYTES: Final = 300
_FILES_OF_SIDE: Final = (*INDEX_SUFFIXES, SNAPSHOT_SUFFIX)
_LEFTOVERS: Final = (
    CLEANED_SUFFIX,
    SWAP_SUFFIX,
    DELETED_SUFFIX,
    TEMPORARY_SUFFIX,
    CHECKPOINT_DELETED_SUFFIX,
)


class Accident(enum.Enum):
    """Something that happens to one partition directory; the value tells it in words."""

    TORN_LOG = "a .log ends anywhere"
    TORN_LAST_LOG = "the last .log ends anywhere"
    TORN_FILE = "any file ends anywhere"
    BYTE_IN_LOG = "a byte of a .log is another"
    BYTE_IN_FILE = "a byte of any file is another"
    FIELD = "a header field is another, the CRC as it was"
    FIELD_AND_CRC = "a header field is another, the CRC right"
    LEGACY_FIELD = "a field of a v0 or v1 entry is another"
    OFFSETS_SWAPPED = "two batches have each other's base offset"
    ZEROS_AFTER_LOG = "zeros after a .log"
    GARBAGE_AFTER_LOG = "garbage after a .log"
    HALF_BATCH_AFTER_LOG = "the start of another batch after a .log"
    BATCH_TWICE = "a batch stands twice"
    BATCH_GONE = "a batch is missing from the middle"
    BATCHES_SWAPPED = "two neighbouring batches changed places"
    FILE_GONE = "any file is missing"
    SIDE_FILE_GONE = "a side file is missing"
    ALL_OF_A_KIND_GONE = "all files of one kind are missing"
    INDEXES_GONE = "all indexes are missing"
    SIDE_FILE_EMPTY = "a side file is empty"
    SIDE_FILE_ODD = "a side file has a few bytes more or less"
    SIDE_FILE_PADDED = "an index ends in zeros"
    INDEX_BACKWARDS = "an index begins with its last entry"
    INDEX_ENTRY_BAD = "an index entry is all ones, or begins with other bytes"
    INDEX_LONGER = "the last entry of an index stands there many times"
    SIDE_FILE_GARBAGE = "a side file holds garbage"
    SIDE_FILE_STALE = "a side file is that of another segment"
    SNAPSHOT_STRAY = "a snapshot at an offset of no segment"
    SNAPSHOT_HEADER_CHANGED = "a snapshot of another version, count or CRC"
    EPOCHS_CHANGED = "another leader epoch file"
    METADATA_CHANGED = "another partition.metadata"
    LEFTOVER = "a file under a name that says it is left over"
    LEFTOVER_COPY = "a copy of a file, left over"
    SEGMENT_LEFTOVER = "all files of a segment, left over"
    SEGMENTS_LEFTOVER = "copies of some segments, cleaned, swapped or mixed"
    ORPHAN_INDEX = "an index without a .log"
    SEGMENTS_MERGED = "two segments in one .log"
    SEGMENT_RENAMED = "a segment under another base offset"
    SEGMENT_EMPTY = "a .log of no bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """One accident."""

    accident: Accident
    seed: int  # to whom, where and how much


def damage(directory: Path, what: Damage) -> None:
    """Let an accident happen to a partition directory."""
    dice = random.Random(what.seed)
    _ACCIDENTS[what.accident](directory, dice)


def flip(path: Path, at: int = -1) -> None:
    """Turn all bits of one byte round, by default of the last one."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def batch_positions(log: bytes) -> list[tuple[int, int]]:
    """Return (position, size) of the whole batches of a .log, by nothing but their lengths."""
    found = []
    position = 0
    while position + LENGTH_OVERHEAD <= len(log):
        (length,) = struct.unpack_from(">i", log, position + BATCH_LENGTH_AT)
        size = LENGTH_OVERHEAD + length
        if length < 0 or position + size > len(log):
            break
        found.append((position, size))
        position += size
    return found


def _files(directory: Path, *suffixes: str) -> list[Path]:
    return sorted(p for p in directory.iterdir() if p.is_file() and p.name.endswith(suffixes))


def _logs(directory: Path) -> list[Path]:
    return _files(directory, LOG_SUFFIX)


def _side_files(directory: Path) -> list[Path]:
    return _files(directory, *_FILES_OF_SIDE, LEADER_EPOCH_FILE)


def _tear(path: Path, dice: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: dice.randrange(len(data) + 1)])


def _flip(path: Path, dice: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        path.write_bytes(bytes(data))


def _append(path: Path, data: bytes) -> None:
    path.write_bytes(path.read_bytes() + data)


def _garbage(dice: random.Random) -> bytes:
    return dice.randbytes(dice.randrange(1, _MAX_GARBAGE_BYTES))


def _to_one(
    files: Callable[[Path], list[Path]], change: Callable[[Path, random.Random], object]
) -> Callable[[Path, random.Random], None]:
    """Return the accident that changes one of some files."""

    def happen(directory: Path, dice: random.Random) -> None:
        candidates = files(directory)
        if candidates:
            change(dice.choice(candidates), dice)

    return happen


def _change_field(*, with_crc: bool) -> Callable[[Path, random.Random], None]:
    def change(path: Path, dice: random.Random) -> None:
        data = path.read_bytes()
        batches = [
            (position, size)
            for position, size in batch_positions(data)
            if size >= HEADER_BYTES and data[position + MAGIC_AT] == MAGIC_V2
        ]
        if not batches:
            return
        position, size = dice.choice(batches)
        name = dice.choice(BATCH_HEADER.names or ())
        batch = _with_field(data[position : position + size], name, dice)
        if with_crc and name != "crc":
            batch = with_valid_crc(batch)
        path.write_bytes(data[:position] + batch + data[position + size :])

    return change


def _with_field(batch: bytes, name: str, dice: random.Random) -> bytes:
    at = field_at(BATCH_HEADER, name)
    size = BATCH_HEADER[name].itemsize
    old = int.from_bytes(batch[at : at + size], "big", signed=True)
    new = dice.choice([*_SMALL_CHANGES, old + 1, old - 1, old + 1000, dice.randrange(2**16)])
    raw = (new % (1 << 8 * size)).to_bytes(size, "big")
    return batch[:at] + raw + batch[at + size :]


def _change_legacy_field(path: Path, dice: random.Random) -> None:
    data = path.read_bytes()
    entries = [
        position
        for position, size in batch_positions(data)
        if size >= ENTRY_ATTRIBUTES_AT + 1 and data[position + MAGIC_AT] < MAGIC_V2
    ]
    if entries:
        at = dice.choice(entries) + dice.choice(
            (BATCH_LENGTH_AT + 3, ENTRY_CRC_AT, MAGIC_AT, ENTRY_ATTRIBUTES_AT, 0, 7)
        )
        changed = data[at] ^ dice.choice((1, 2, 4, 8, 64, 128))
        path.write_bytes(data[:at] + bytes([changed]) + data[at + 1 :])


def _swap_offsets(path: Path, dice: random.Random) -> None:
    data = path.read_bytes()
    places = [position for position, _ in batch_positions(data)]
    if places[1:]:
        one, other = sorted(dice.sample(places, 2))
        first, second = (data[at : at + BATCH_LENGTH_AT] for at in (one, other))
        data = data[:one] + second + data[one + len(first) :]
        path.write_bytes(data[:other] + first + data[other + len(second) :])


def _entries(path: Path) -> list[bytes]:
    size, data = _ENTRY_BYTES[path.suffix], path.read_bytes()
    return [data[at : at + size] for at in range(0, len(data) - size + 1, size)]


def _turn_round(path: Path, _dice: random.Random) -> None:
    path.write_bytes(b"".join(reversed(_entries(path))))


def _spoil_entry(path: Path, dice: random.Random) -> None:
    entries = _entries(path)
    if entries:
        at, size = dice.randrange(len(entries)), _ENTRY_BYTES[path.suffix]
        other = dice.choice((b"\xff" * size, b"\x00\x01", b"\x00\x07", b"\xff\xff"))
        entries[at] = other + entries[at][len(other) :]
        path.write_bytes(b"".join(entries))


def _repeat_last_entry(path: Path, dice: random.Random) -> None:
    _append(path, b"".join(_entries(path)[-1:]) * dice.randrange(1, 100))


def _edit_batches(
    edit: Callable[[list[bytes], random.Random], list[bytes]],
) -> Callable[[Path, random.Random], None]:
    def change(path: Path, dice: random.Random) -> None:
        data = path.read_bytes()
        places = batch_positions(data)
        if places:
            end = sum(places[-1])
            batches = edit([data[at : at + size] for at, size in places], dice)
            path.write_bytes(b"".join(batches) + data[end:])

    return change


def _repeat_batch(batches: list[bytes], dice: random.Random) -> list[bytes]:
    number = dice.randrange(len(batches))
    at = dice.choice((number + 1, len(batches)))
    return [*batches[:at], batches[number], *batches[at:]]


def _drop_batch(batches: list[bytes], dice: random.Random) -> list[bytes]:
    number = dice.randrange(len(batches))
    return batches[:number] + batches[number + 1 :]


def _swap_batches(batches: list[bytes], dice: random.Random) -> list[bytes]:
    number = dice.randrange(len(batches))
    return [*batches[:number], *reversed(batches[number : number + 2]), *batches[number + 2 :]]


def _half_batch(path: Path, dice: random.Random) -> None:
    data = path.read_bytes()
    places = batch_positions(data)
    if places:
        position, size = dice.choice(places)
        _append(path, data[position : position + dice.randrange(1, size)])


def _all_of_a_kind(directory: Path, dice: random.Random) -> None:
    for path in _files(directory, dice.choice(_FILES_OF_SIDE)):
        path.unlink()


def _drop_indexes(directory: Path, _dice: random.Random) -> None:
    for path in _indexes(directory):
        path.unlink()


def _make_odd(path: Path, dice: random.Random) -> None:
    if dice.choice((True, False)):
        _append(path, bytes(dice.randrange(1, 34)))
    else:
        data = path.read_bytes()
        path.write_bytes(data[: max(0, len(data) - dice.randrange(1, 34))])


def _pad(path: Path, dice: random.Random) -> None:
    _append(path, bytes(_ENTRY_BYTES[path.suffix] * dice.randrange(1, 5)))


def _make_stale(path: Path, dice: random.Random) -> None:
    others = [p for p in _files(path.parent, path.suffix or path.name) if p != path]
    if others:
        path.write_bytes(dice.choice(others).read_bytes())


def _stray_snapshot(path: Path, dice: random.Random) -> None:
    offsets = [offset_of(p.name) or 0 for p in _files(path.parent, SNAPSHOT_SUFFIX, LOG_SUFFIX)]
    offset = max(0, dice.choice(offsets) + dice.choice((-7, -1, 1, 3, 1_000_000)))
    (path.parent / snapshot_file(offset)).write_bytes(path.read_bytes())


def _change_snapshot_header(path: Path, dice: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if len(data) >= SNAPSHOT_HEADER.itemsize:
        data[dice.randrange(SNAPSHOT_HEADER.itemsize)] ^= 1 << dice.randrange(8)
        path.write_bytes(bytes(data))


def _one_of(file: str, texts: Sequence[str]) -> Callable[[Path, random.Random], None]:
    def happen(directory: Path, dice: random.Random) -> None:
        (directory / file).write_text(dice.choice(texts))

    return happen


def _leave_over(path: Path, dice: random.Random) -> None:
    path.rename(path.with_name(path.name + dice.choice(_LEFTOVERS)))


def _leave_copy_over(path: Path, dice: random.Random) -> None:
    copy = path.with_name(path.name + dice.choice(_LEFTOVERS))
    copy.write_bytes(path.read_bytes())


def _leave_segment_over(path: Path, dice: random.Random) -> None:
    suffix = dice.choice(_LEFTOVERS)
    for kind in SEGMENT_SUFFIXES:
        file = path.with_suffix(kind)
        if file.exists():
            file.rename(file.with_name(file.name + suffix))


def _leave_segments_over(directory: Path, dice: random.Random) -> None:
    """Stop a swap of some neighbouring segments for copies of themselves, anywhere."""
    logs = _logs(directory)
    if not logs:
        return
    first = dice.randrange(len(logs))
    group = logs[first : first + dice.randrange(1, 4)]
    cleaned_share, swap_share = dice.choice(((1, 0), (0.5, 0.5), (0, 1), (0, 0.7)))
    for log in group:
        for kind in SEGMENT_SUFFIXES:
            file = log.with_suffix(kind)
            draw = dice.random()
            if not file.exists() or draw >= cleaned_share + swap_share:
                continue
            suffix = CLEANED_SUFFIX if draw < cleaned_share else SWAP_SUFFIX
            file.with_name(file.name + suffix).write_bytes(file.read_bytes())
            if dice.choice((True, False, False)):
                file.unlink()


def _orphan_index(directory: Path, dice: random.Random) -> None:
    indexes = _files(directory, *INDEX_SUFFIXES)
    if indexes:
        source = dice.choice(indexes)
        offset = (offset_of(source.name) or 0) + dice.choice((1, 5, 100_000))
        (directory / segment_file(offset, source.suffix)).write_bytes(source.read_bytes())


def _merge_segments(directory: Path, dice: random.Random) -> None:
    logs = _logs(directory)
    if not logs[1:]:
        return
    first = dice.randrange(len(logs) - 1)
    group = logs[first : first + dice.choice((2, 2, 3))]
    group[0].write_bytes(b"".join(log.read_bytes() for log in group))
    for log in group[1:]:
        for kind in SEGMENT_SUFFIXES:
            log.with_suffix(kind).unlink(missing_ok=True)
    if dice.choice((True, False)):
        group[0].with_suffix(OFFSET_INDEX_SUFFIX).unlink(missing_ok=True)


def _rename_segment(path: Path, dice: random.Random) -> None:
    offset = max(0, (offset_of(path.name) or 0) + dice.choice((-3, -1, 1, 4, 100, -(2**31))))
    for kind in SEGMENT_SUFFIXES:
        file = path.with_suffix(kind)
        if file.exists():
            file.rename(path.with_name(segment_file(offset, kind)))


def _everything(directory: Path) -> list[Path]:
    return _files(directory, "")


def _indexes(directory: Path) -> list[Path]:
    return _files(directory, *INDEX_SUFFIXES)


def _snapshots(directory: Path) -> list[Path]:
    return _files(directory, SNAPSHOT_SUFFIX)


def _last_log(directory: Path) -> list[Path]:
    return _logs(directory)[-1:]


_ACCIDENTS: Final[dict[Accident, Callable[[Path, random.Random], None]]] = {
    Accident.TORN_LOG: _to_one(_logs, _tear),
    Accident.TORN_LAST_LOG: _to_one(_last_log, _tear),
    Accident.TORN_FILE: _to_one(_everything, _tear),
    Accident.BYTE_IN_LOG: _to_one(_logs, _flip),
    Accident.BYTE_IN_FILE: _to_one(_everything, _flip),
    Accident.FIELD: _to_one(_logs, _change_field(with_crc=False)),
    Accident.FIELD_AND_CRC: _to_one(_logs, _change_field(with_crc=True)),
    Accident.LEGACY_FIELD: _to_one(_logs, _change_legacy_field),
    Accident.OFFSETS_SWAPPED: _to_one(_logs, _swap_offsets),
    Accident.ZEROS_AFTER_LOG: _to_one(
        _logs, lambda path, dice: _append(path, bytes(dice.choice((1, 12, 17, 61, 100, 4096))))
    ),
    Accident.GARBAGE_AFTER_LOG: _to_one(_logs, lambda path, dice: _append(path, _garbage(dice))),
    Accident.HALF_BATCH_AFTER_LOG: _to_one(_logs, _half_batch),
    Accident.BATCH_TWICE: _to_one(_logs, _edit_batches(_repeat_batch)),
    Accident.BATCH_GONE: _to_one(_logs, _edit_batches(_drop_batch)),
    Accident.BATCHES_SWAPPED: _to_one(_logs, _edit_batches(_swap_batches)),
    Accident.FILE_GONE: _to_one(_everything, lambda path, _dice: path.unlink()),
    Accident.SIDE_FILE_GONE: _to_one(_side_files, lambda path, _dice: path.unlink()),
    Accident.ALL_OF_A_KIND_GONE: _all_of_a_kind,
    Accident.INDEXES_GONE: _drop_indexes,
    Accident.SIDE_FILE_EMPTY: _to_one(_side_files, lambda path, _dice: path.write_bytes(b"")),
    Accident.SIDE_FILE_ODD: _to_one(_side_files, _make_odd),
    Accident.SIDE_FILE_PADDED: _to_one(_indexes, _pad),
    Accident.INDEX_BACKWARDS: _to_one(_indexes, _turn_round),
    Accident.INDEX_ENTRY_BAD: _to_one(_indexes, _spoil_entry),
    Accident.INDEX_LONGER: _to_one(_indexes, _repeat_last_entry),
    Accident.SIDE_FILE_GARBAGE: _to_one(
        _side_files, lambda path, dice: path.write_bytes(_garbage(dice))
    ),
    Accident.SIDE_FILE_STALE: _to_one(_side_files, _make_stale),
    Accident.SNAPSHOT_STRAY: _to_one(_snapshots, _stray_snapshot),
    Accident.SNAPSHOT_HEADER_CHANGED: _to_one(_snapshots, _change_snapshot_header),
    Accident.EPOCHS_CHANGED: _one_of(LEADER_EPOCH_FILE, EPOCH_FILES),
    Accident.METADATA_CHANGED: _one_of(PARTITION_METADATA_FILE, METADATA_FILES),
    Accident.LEFTOVER: _to_one(_everything, _leave_over),
    Accident.LEFTOVER_COPY: _to_one(_everything, _leave_copy_over),
    Accident.SEGMENT_LEFTOVER: _to_one(_logs, _leave_segment_over),
    Accident.SEGMENTS_LEFTOVER: _leave_segments_over,
    Accident.ORPHAN_INDEX: _orphan_index,
    Accident.SEGMENTS_MERGED: _merge_segments,
    Accident.SEGMENT_RENAMED: _to_one(_logs, _rename_segment),
    Accident.SEGMENT_EMPTY: _to_one(_logs, lambda path, _dice: path.write_bytes(b"")),
}
