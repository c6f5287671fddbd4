"""JSON that somebody else may have written, bounded, then read; and what is written."""

import enum
import json
import re
import sys
import threading
import tracemalloc
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core import json_values
from storage_core.errors import ManifestError


class Kind(enum.StrEnum):
    ONE = "one"


@dataclass(frozen=True, kw_only=True)
class Inner:
    number: int
    kind: Kind = Kind.ONE


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    share: float
    is_it: bool
    inner: Inner | None
    several: tuple[Inner, ...] = ()
    by_name: Mapping[str, int]
    free: Any = None


WHOLE = Outer(
    name="é",
    share=0.5,
    is_it=True,
    inner=Inner(number=2**40),
    several=(Inner(number=2**63 - 1), Inner(number=-(2**63))),
    by_name={"a": 1},
    free=[{"x": None}],
)


def test_what_becomes_json_comes_back():
    assert json_values.from_json(Outer, json_values.to_json(WHOLE)) == WHOLE
    assert "\n" not in json_values.to_json(WHOLE)


def test_fields_with_defaults_may_be_missing():
    fields = {"name": "a", "share": 1, "is_it": False, "inner": None, "by_name": {}}
    assert json_values.read_value(Outer, fields, "x").several == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": 5}, "x.name: expected str, found 5"),
        ({"name": "\ud800"}, "x.name: expected text that is UTF-8"),
        ({"is_it": 1}, "x.is_it: expected bool, found 1"),
        ({"share": True}, "x.share: expected float, found True"),
        ({"share": float("nan")}, "x.share: expected float, found nan"),
        ({"inner": []}, "x.inner: expected an object, found list"),
        ({"inner": {"number": 2**63}}, "x.inner.number: expected a number of 64 bits"),
        ({"inner": {"number": -(2**63) - 1}}, "x.inner.number: expected a number of 64 bits"),
        ({"inner": {"number": True}}, "x.inner.number: expected int, found True"),
        ({"inner": {"number": 1, "kind": "two"}}, "x.inner.kind: expected one of one, found 'two'"),
        ({"inner": {}}, "x.inner.number: is missing"),
        ({"several": {}}, "x.several: expected a list, found dict"),
        ({"several": [{"number": 1}, {"number": ""}]}, "x.several[1].number: expected int"),
        ({"by_name": {"a": "b"}}, "x.by_name.a: expected int, found 'b'"),
        ({"more": 1}, "x.more: is a field that nobody knows"),
        ({"free": json.loads("[" * 60 + "]" * 60)}, "x.free: is nested beyond reason"),
    ],
)
def test_what_is_not_as_declared_is_refused_with_its_place(changes, message):
    fields = json.loads(json_values.to_json(WHOLE)) | changes
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        json_values.read_value(Outer, fields, "x")


@dataclass(frozen=True, kw_only=True)
class Proof:
    holder: json_values.Word
    token: Annotated[int, json_values.whole(1)]


@dataclass(frozen=True, kw_only=True)
class Stored:
    proof: Annotated[Proof, json_values.INLINE]
    size_bytes: Annotated[json_values.Count, json_values.Key("size")]
    times: Annotated[tuple[int, ...], json_values.OMITTED] = ()
    content: bytes = b""
    place: Path = Path("/")
    files: Mapping[json_values.FileName, json_values.Count | None] = field(default_factory=dict)


STORED = Stored(
    proof=Proof(holder="one", token=1),
    size_bytes=5,
    content=b"\0\xff",
    place=Path("/a/\udcff"),
    files={"b": 1, "a": None},
)
FORM = json_values.JsonFile(Stored, "stored", 2, layout=json_values.ONE_LINE)
TEXT = (
    b'{"format": "stored", "version": 2, "holder": "one", "token": 1, "size": 5, '
    b'"content": "AP8=", "place": "/a/\\udcff", "files": {"b": 1, "a": null}}'
)


def test_a_file_has_the_keys_of_its_declaration_in_their_order():
    assert FORM.encode(STORED) == TEXT
    assert FORM.parse(TEXT, "f") == STORED
    timed = replace(STORED, times=(1, -2))
    assert b'"size": 5, "times": [1, -2], "content"' in FORM.encode(timed)
    assert FORM.parse(FORM.encode(timed), "f") == timed


@pytest.mark.parametrize(
    ("layout", "content"),
    [
        (json_values.ONE_LINE, b'{"holder": "a", "token": 1}'),
        (json_values.COMPACT_LINE, b'{"holder":"a","token":1}\n'),
        (json_values.SPREAD, b'{\n "holder": "a",\n "token": 1\n}\n'),
        (json_values.SPREAD_WITHOUT_END, b'{\n "holder": "a",\n "token": 1\n}'),
    ],
)
def test_a_layout_says_every_byte(layout, content):
    assert json_values.JsonFile(Proof, layout=layout).encode(Proof(holder="a", token=1)) == content


def test_a_list_may_be_a_file():
    form: json_values.JsonFile[tuple[Proof, ...]] = json_values.JsonFile(
        tuple[Proof, ...], layout=json_values.ONE_LINE
    )
    several = (Proof(holder="a", token=1), Proof(holder="", token=2))
    assert form.parse(form.encode(several), "f") == several
    with pytest.raises(ManifestError, match=r"^f: \[1\]\.token: is missing$"):
        form.parse(b'[{"holder": "a", "token": 1}, {"holder": "b"}]', "f")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 1}, "f: format: expected stored of version 2, found 'stored' of version 1"),
        ({"version": 2.0}, "f: format: expected stored of version 2, found"),
        ({"more": 1}, "f: more: is a field that nobody knows"),
        ({"content": ...}, "f: content: is missing"),
        ({"token": 0}, "f: token: expected a whole number from 1 to 9223372036854775807, found 0"),
        ({"holder": "é"}, "f: holder: expected [\\x20-\\x7e]*, found 'é'"),
        ({"holder": "x" * 1025}, "f: holder: expected"),
        ({"content": "A"}, "f: content: expected base64"),
        ({"place": "a\0"}, "f: place: expected a text, found"),
        ({"place": "\ud800"}, "f: place: expected a text, found"),
        ({"files": {"a/b": 1}}, "f: files.a/b: expected the name of a file, found 'a/b'"),
        ({"files": {"..": 1}}, "f: files...: expected the name of a file, found '..'"),
        ({"files": {"a": -1}}, "f: files.a: expected a whole number from 0"),
    ],
)
def test_what_a_file_says_wrongly_is_told_with_file_and_field(changes, message):
    values = json.loads(TEXT) | changes
    content = json.dumps({name: each for name, each in values.items() if each is not ...})
    with pytest.raises(ManifestError) as caught:
        FORM.parse(content.encode(), "f")
    assert str(caught.value).startswith(message)


def test_an_open_file_may_say_more_than_anybody_knows():
    with_more = TEXT.replace(b'"size"', b'"more": [], "size"')
    assert replace(FORM, is_open=True).parse(with_more, "f") == STORED


LIMIT = 64 << 20
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='[]{}"\\,:ä\ud800'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='[{"\\'), inner),
)


def parse(content: bytes | str, **options):
    return json_values.parse_json(content, limit_bytes=LIMIT, **options)


@given(VALUES, st.booleans())
def test_what_python_writes_is_read_as_python_reads_it(value, is_ascii):
    text = json.dumps(value, ensure_ascii=is_ascii)
    assert parse(text) == value


@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"[{":', "}")])
def test_levels_are_counted_and_brackets_in_texts_are_none(begin, end):
    said = json.dumps('[{"\\[\\' * 100)
    deepest = begin * json_values.MAX_JSON_DEPTH + said + end * json_values.MAX_JSON_DEPTH
    parse(deepest)
    for text in (begin + deepest + end, begin * (json_values.MAX_JSON_DEPTH + 1)):
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
    wrapped = "[" * json_values.MAX_JSON_DEPTH + text
    if most:
        with pytest.raises(ValueError, match="levels deep"):
            json_values.require_shallow(wrapped.encode())


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
    assert len(number) > json_values.MAX_NUMBER_DIGITS
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
        json_values.parse_json(b"[1, 2, 3]", limit_bytes=8)
    assert json_values.parse_json("[1, 2, 3]", limit_bytes=9) == [1, 2, 3]


def test_looking_at_the_levels_takes_little_beside_the_text_itself():
    rows = b"[" + b'{"name": "00000000000000000000.log", "size": [1, 2, 3]},' * 100_000 + b"0]"
    tracemalloc.start()
    json_values.require_shallow(rows)
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
