"""Records as JSON lines by a kernel: the text that Python's own JSON writes."""

import json
from base64 import b64encode

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.kernels import json_lines, record_scan
from storage_core.kernels.json_lines import (
    NO_WORD,
    HeadLines,
    write_batch_lines,
    write_record_lines,
)
from tests.kit.builders import BatchSpec, RecordSpec, encode_batch
from tests.storage_core.kernels.arguments import Opened, opened
from tests.storage_core.kernels.test_record_scan import decoded
from tests.storage_core.kernels.twins import in_both_ways

NUMBERS = [0, 7, 10, -1, -10, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 10**18, -(10**17) - 5]
ROOM = 1 << 16


def columns_of(window: Opened, numbers: list[int]) -> list[np.ndarray]:
    """Return what the kernel takes of records, their offsets, times and sequences these numbers."""
    records, count, *_ = decoded(record_scan.decode_records, window)
    repeated = np.resize(np.array(numbers, np.int64), count)
    return [
        np.ascontiguousarray(records),
        repeated,
        np.ascontiguousarray(repeated[::-1]),
        repeated,
    ]


def written(
    kernel, records: list[RecordSpec], *, room: int = ROOM, numbers: list[int] | None = None
) -> tuple[int, str]:
    """Return how many records were written, and the text."""
    window = opened(encode_batch(BatchSpec(records=records)))
    out = np.full(room + 8, 0x7F, np.uint8)
    columns = columns_of(window, numbers or NUMBERS)
    data, arena, in_arena = window.sources
    row, size = kernel(data, arena, 0, len(records), out[:room], 0, in_arena, *columns)
    assert (out[room:] == 0x7F).all()
    return row, out[:size].tobytes().decode("ascii")


def expected(records: list[RecordSpec], numbers: list[int] | None = None) -> str:
    """Return the same by Python."""
    chosen = np.resize(np.array(numbers or NUMBERS, np.int64), len(records)).tolist()
    lines = []
    for record, number, opposite in zip(records, chosen, reversed(chosen), strict=True):
        headers = [[name, text_of(value)] for name, value in record.headers]
        line = {
            "type": "record",
            "offset": number,
            "timestamp": opposite,
            "sequence": number,
            "key": text_of(record.key),
            "value": text_of(record.value),
            "headers": headers,
        }
        lines.append(json.dumps(line, separators=(",", ":")) + "\n")
    return "".join(lines)


def text_of(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def some_records(count: int, *, name: str = "trace-id", size: int = 10) -> list[RecordSpec]:
    return [
        RecordSpec(
            key=None if number % 4 == 0 else bytes(range(number % 7)),
            value=None if number % 5 == 0 else bytes(range(250 - number, 250)) * (size // 10),
            headers=[(name, None), ("", b"\xff\xfe")] if number % 3 == 0 else [],
        )
        for number in range(count)
    ]


@in_both_ways(kernel=write_record_lines)
def test_records_are_written_as_python_writes_them(kernel):
    records = some_records(len(NUMBERS))
    assert written(kernel, records) == (len(records), expected(records))


@given(
    keys=st.lists(st.none() | st.binary(max_size=12), min_size=1, max_size=5),
    value=st.none() | st.binary(max_size=40),
    name=st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=9),
    number=st.integers(-(2**63), 2**63 - 1),
)
def test_any_records_are_written_as_python_writes_them(keys, value, name, number):
    records = [RecordSpec(key=key, value=value, headers=[(name, value)]) for key in keys]
    row, text = written(write_record_lines, records, numbers=[number])
    if set(name) & set('"\\'):
        assert (row, text) == (0, "")
    else:
        assert (row, text) == (len(records), expected(records, [number]))


@in_both_ways(kernel=write_record_lines)
@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "\x00", "\x7f", "ä", "\u2028"])
def test_a_header_name_that_needs_an_escape_is_left_to_python(kernel, name):
    records = some_records(3)
    escaped = RecordSpec(key=b"k", value=b"v", headers=[("plain", b"1"), (name, b"2")])
    row, text = written(kernel, [*records, escaped], numbers=[1])
    assert (row, text) == (3, expected(records, [1]))


@in_both_ways(kernel=write_record_lines)
def test_no_more_is_written_than_there_is_room_for(kernel):
    records = some_records(9)
    lines = expected(records).splitlines(keepends=True)
    for room in range(0, 2500, 37):
        row, text = written(kernel, records, room=room)
        assert text == "".join(lines[:row])
    assert row > 5


@in_both_ways(kernel=write_record_lines)
@pytest.mark.parametrize(
    "large",
    [
        RecordSpec(key=bytes(3000), value=None),
        RecordSpec(key=None, value=bytes(3000)),
        RecordSpec(key=None, value=None, headers=[("n" * 3000, b"")]),
        RecordSpec(key=None, value=None, headers=[("n", bytes(3000))]),
        RecordSpec(key=None, value=None, headers=[("n", b"")] * 500),
    ],
    ids=["key", "value", "header name", "header value", "many headers"],
)
def test_a_record_that_is_too_large_is_left_to_python(kernel, large):
    assert written(kernel, [large], room=3000) == (0, "")
    assert written(kernel, [large], numbers=[5]) == (1, expected([large], [5]))


def test_a_line_has_the_room_that_it_is_said_to_need():
    smallest = [RecordSpec(key=None, value=None)]
    longest = [-(2**63)]
    row, text = written(write_record_lines, smallest, room=json_lines.LINE_BYTES, numbers=longest)
    assert (row, len(text)) == (1, json_lines.LINE_BYTES)


def texts_of(*texts: str) -> tuple[np.ndarray, np.ndarray]:
    """Return texts end to end, and where each ends."""
    data = "".join(texts).encode("ascii")
    return np.frombuffer(data, np.uint8).copy(), np.cumsum([len(text) for text in texts])


def batch_lines(kernel, counts: list[int], *, room: int, batches: slice = slice(None)) -> list[str]:
    """Return the lines of batches of so many records, written in pieces of some bytes."""
    count = len(counts)
    records = some_records(sum(counts))
    window = opened(encode_batch(BatchSpec(records=records)))
    number = np.resize(np.array(NUMBERS), (2, count))
    word = np.array([[NO_WORD, 0, 1] * count, [NO_WORD] * 3 * count])[:, :count]
    heads = HeadLines(
        *texts_of('{"a":', ',"b":', "}\n"), *texts_of('"word"', ""), word.copy(), number
    )
    ends = np.cumsum(counts)
    first, end, _ = batches.indices(count)
    row, end_row = (int(ends[each - 1]) if each else 0 for each in (first, end))
    out = np.full(room + 8, 0x7F, np.uint8)
    data, arena, in_arena = window.sources
    text = ""
    while first < end or row < end_row:
        before = first, row
        first, row, size = kernel(
            *(data, arena, heads, ends, first, end, row, end_row, out[:room], in_arena),
            *columns_of(window, [3]),
        )
        assert (out[room:] == 0x7F).all()
        assert size, before
        text += out[:size].tobytes().decode("ascii")
    return text.splitlines(keepends=True)


def expected_batches(counts: list[int]) -> list[str]:
    """Return the same by Python, all of them."""
    records = expected(some_records(sum(counts)), [3]).splitlines(keepends=True)
    number = np.resize(np.array(NUMBERS), (2, len(counts))).tolist()
    lines = []
    for batch, count in enumerate(counts):
        first = (number[0][batch], '"word"', "")[batch % 3]
        lines.append(f'{{"a":{first},"b":{number[1][batch]}}}\n')
        lines += records[:count]
        del records[:count]
    return lines


@in_both_ways(kernel=write_batch_lines)
@pytest.mark.parametrize("room", [1 << 16, 700])
def test_each_batch_is_written_before_its_records(kernel, room):
    counts = [1, 0, 3, 1, 1, 0, 0, 2, 0]
    lines = expected_batches(counts)
    assert batch_lines(kernel, counts, room=room) == lines
    assert batch_lines(kernel, counts, room=room, batches=slice(1, 4)) == lines[2:9]
    assert batch_lines(kernel, [], room=room) == []
