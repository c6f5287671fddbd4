"""JSON that somebody else may have written: bounded in length, depth and digits, then read."""

import json
import sys
import threading
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.json_values import (
    MAX_JSON_DEPTH,
    MAX_NUMBER_DIGITS,
    parse_json,
    require_shallow,
)

LIMIT = 64 << 20
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='[]{}"\\,:ä\ud800'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='[{"\\'), inner),
)


def parse(content: bytes | str, **options):
    return parse_json(content, limit_bytes=LIMIT, **options)


@given(VALUES, st.booleans())
def test_what_python_writes_is_read_as_python_reads_it(value, is_ascii):
    text = json.dumps(value, ensure_ascii=is_ascii)
    assert parse(text) == value


@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"[{":', "}")])
def test_levels_are_counted_and_brackets_in_texts_are_none(begin, end):
    said = json.dumps('[{"\\[\\' * 100)
    deepest = begin * MAX_JSON_DEPTH + said + end * MAX_JSON_DEPTH
    parse(deepest)
    for text in (begin + deepest + end, begin * (MAX_JSON_DEPTH + 1)):
        with pytest.raises(ValueError, match="more than 64 levels deep"):
            parse(text)


@given(st.text(alphabet='[]{}"\\,1x', max_size=300))
def test_no_text_hides_its_levels(text):
    """Counted as a parser does that stops at nothing; ours may count more, but never less."""
    levels, most, is_inside, is_escaped = 0, 0, False, False
    for letter in text:
        if is_inside:
            is_inside = is_escaped or letter != '"'
            is_escaped = not is_escaped and letter == "\\"
        elif letter == "\\":
            break  # where a parser stops
        elif letter == '"':
            is_inside = True
        elif letter in "[{":
            levels += 1
            most = max(most, levels)
        elif letter in "]}":
            if not levels:
                break
            levels -= 1
    wrapped = "[" * MAX_JSON_DEPTH + text
    if most:
        with pytest.raises(ValueError, match="levels deep"):
            require_shallow(wrapped.encode())


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"[" * 100_000 + b"]" * 100_000, id="lists"),
        pytest.param(b'{"a":' * 100_000 + b"1" + b"}" * 100_000, id="objects"),
        pytest.param(b'[{"a":' * 100_000, id="never closed"),
        pytest.param(b'["\\\\",' + b"[" * 100_000, id="after a text that ends in a backslash"),
        pytest.param(b"[" + b"[]," * 100_000 + b"[" * 100_000, id="after many that are shallow"),
    ],
)
def test_a_hundred_thousand_levels_are_refused_whatever_the_stack(content):
    found = []

    def read() -> None:
        try:
            parse(content)
        except ValueError as error:
            found.append(str(error))

    before = threading.stack_size(128 * 1024)
    try:
        thread = threading.Thread(target=read)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    assert found == ["is nested more than 64 levels deep"]


@pytest.mark.parametrize("number", ["9" * 401, "-" + "9" * 400, "0." + "1" * 400, "1e" + "0" * 400])
def test_a_number_has_as_many_digits_as_numbers_have(number):
    assert len(number) > MAX_NUMBER_DIGITS
    with pytest.raises(ValueError, match=r"a number of 40[12] digits"):
        parse(f"[{number}]")
    assert parse(f'["{number}"]') == [number]


def test_digits_by_the_million_are_refused_where_python_was_told_to_take_any():
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        with pytest.raises(ValueError, match="a number of 3000000 digits"):
            parse(b"9" * 3_000_000)
    finally:
        sys.set_int_max_str_digits(before)


def test_what_is_too_long_is_not_looked_at():
    with pytest.raises(ValueError, match="has 9 bytes, more than the 8 it may have"):
        parse_json(b"[1, 2, 3]", limit_bytes=8)
    assert parse_json("[1, 2, 3]", limit_bytes=9) == [1, 2, 3]


def test_looking_at_the_levels_takes_little_beside_the_text_itself():
    rows = b"[" + b'{"name": "00000000000000000000.log", "size": [1, 2, 3]},' * 100_000 + b"0]"
    tracemalloc.start()
    require_shallow(rows)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * len(rows)


@pytest.mark.parametrize("text", ["NaN", "[-Infinity]", '{"a": 1, "a": 2}'])
def test_only_the_strict_refuse_what_is_python_alone(text):
    parse(text)
    with pytest.raises(ValueError, match=r"no JSON number|occurs twice"):
        parse(text, is_strict=True)


@pytest.mark.parametrize("content", [b"", b"[", b"\xff", b"[1] 2", b'"\\', b'"' + b'\\"' * 9])
def test_what_is_no_json_is_an_error_of_value(content):
    with pytest.raises(ValueError):  # noqa: PT011 - Python's own words
        parse(content)
