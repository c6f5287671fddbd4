"""A file of options that is malformed, or made to fill the memory: a line that says where."""

import tracemalloc
from pathlib import Path

import pytest

from pylog_spark.options.load import read_config_file
from storage_core.errors import ConfigError

TEN = ", ".join
LAUGHS = "a0: &a0 [x]\n" + "".join(
    f"a{n}: &a{n} [{TEN([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 2_000))
MERGES = "a0: &a0 {k: v}\n" + "".join(
    f"a{n}: &a{n}\n  <<: [{TEN([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)


def complaint(folder: Path, content: str) -> str:
    path = folder / "options.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        read_config_file(path)
    said = str(caught.value)
    assert said.startswith(f"--config={path}: is no YAML: ")
    assert len(said) < 400
    return said.partition("is no YAML: ")[2]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param("a: 1\n" + "b: " + "[" * 100_000, "line 2, column 35: ", id="lists"),
        pytest.param("a: " + "{b: " * 100_000, "line 1, column 125: ", id="mappings"),
        pytest.param("- " * 100_000, "line 1, column 65: ", id="blocks"),
        pytest.param("? " * 100_000, "line 1, column 65: ", id="keys"),
        pytest.param(CHAIN, "line 32, column 6: ", id="aliases of aliases"),
    ],
)
def test_what_is_nested_beyond_reason_is_refused_where_it_is(tmp_path, content, expected):
    assert complaint(tmp_path, content).startswith(expected + "is nested more than 32 levels deep")


@pytest.mark.parametrize("content", [LAUGHS, MERGES], ids=["lists", "merges"])
def test_aliases_that_stand_for_more_than_memory_holds_are_refused_unexpanded(
    tmp_path, content, monkeypatch
):
    monkeypatch.setattr("pylog_spark.options.load._MAX_FILE_BYTES", 1 << 20)
    tracemalloc.start()
    said = complaint(tmp_path, content)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "stands for more than 4000000 values, with its aliases" in said
    assert peak < 8 << 20


@pytest.mark.parametrize("content", ["topics: &a\n  x: *a\n", "topics: &a\n  <<: *a\n", "&a [*a]"])
def test_what_contains_itself_is_refused(tmp_path, content):
    assert "an alias stands within what it is an alias of" in complaint(tmp_path, content)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("role: broker\nper_disk: !!int x", "line 2, column 11: expected a YAML int, found x"),
        ("per_disk: !!int ''", "line 1, column 11: expected a YAML int, found "),
        ("mark_clean: !!bool maybe", "line 1, column 13: expected a YAML bool, found maybe"),
        ("a: 2026-13-45", "line 1, column 4: expected a YAML timestamp, found 2026-13-45"),
        ("a: !!timestamp x", "line 1, column 4: expected a YAML timestamp, found x"),
        ("a: !!float x", "line 1, column 4: expected a YAML float, found x"),
        ("topics: !!map [a]", "line 1, column 9: expected a mapping node, but found sequence"),
        ("topics: !!map abc", "line 1, column 9: expected a mapping node, but found scalar"),
        ("role: 'x", "line 1, column 9: found unexpected end of stream"),
        ("a: " + "9" * 100_000, "line 1, column 4: a number or a time of 100000 characters"),
        ("a: 0x" + "f" * 100_000, "line 1, column 4: a number or a time of 100002 characters"),
        ("a: 1" + ":1" * 100_000, "line 1, column 4: a number or a time of 200001 characters"),
    ],
)
def test_malformed_values_are_named_with_their_place_and_what_was_expected(
    tmp_path, content, expected
):
    assert complaint(tmp_path, content) == expected


def test_aliases_as_people_use_them_are_taken(tmp_path):
    path = tmp_path / "options.yaml"
    path.write_text(
        "topics:\n"
        "  orders: &compacted {cleanup.policy: compact, segment.bytes: 1048576}\n"
        "  payments: *compacted\n"
        "  users:\n"
        "    <<: *compacted\n"
        "    segment.bytes: 2097152\n"
    )
    topics = read_config_file(path)["topics"]
    assert topics is not None
    assert topics["payments"] == {"cleanup.policy": "compact", "segment.bytes": "1048576"}
    assert topics["users"] == {"cleanup.policy": "compact", "segment.bytes": "2097152"}
