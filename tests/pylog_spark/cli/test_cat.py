"""``pylog cat``: records as kcat writes them, which ones, and as JSON lines."""

import json
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.cli import cat
from pylog_spark.exit_code import ExitCode
from tests.kit.builders import SOME_TIME_MS, BatchSpec, RecordSpec
from tests.kit.compare import read_tree
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.file_damage import flip
from tests.kit.program import lines_of
from tests.pylog_spark.source.test_ranges import consumed_from

PLACE = ("topic", "partition", "offset")
RECORDS = (
    RecordSpec(key=b"a", value=b"one", timestamp=SOME_TIME_MS),
    RecordSpec(key=None, value=None, timestamp=SOME_TIME_MS + 1000),
    RecordSpec(
        key=b"",
        value="h\u00e9\x1b[2J\xff".encode("latin-1"),
        timestamp=SOME_TIME_MS + 2000,
        headers=(("trace", b"\x01\x02"), ("empty", b""), ("none", None)),
    ),
    RecordSpec(key=b"d", value=b'{"n":\n 1.50}', timestamp=SOME_TIME_MS + 3000),
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Offsets 5 to 8 in partition 0 of ``orders``, one record at 0 in partition 1."""
    made = tmp_path_factory.mktemp("logs")
    batch = BatchSpec(base_offset=5, records=RECORDS)
    write_partition(made / "orders-0", [SegmentSpec(base_offset=5, batches=[batch])])
    other = BatchSpec(base_offset=0, records=(RecordSpec(key=b"z", value=b"last"),))
    write_partition(made / "orders-1", [SegmentSpec(base_offset=0, batches=[other])])
    return made


def bytes_of(pylog, root: Path, *words: object) -> bytes:
    result = pylog.done("cat", "orders", "--root", root, *words)
    return result.stdout_bytes


def json_of(pylog, root: Path, *words: object) -> list[dict[str, Any]]:
    lines = bytes_of(pylog, root, "--output", "json", *words).splitlines()
    return [json.loads(line) for line in lines]


def test_without_a_format_there_are_the_values_with_line_ends(pylog, root):
    before = read_tree(root)
    assert bytes_of(pylog, root) == b'one\n\nh\xe9\x1b[2J\xff\n{"n":\n 1.50}\nlast\n'
    assert read_tree(root) == before


def test_topic_and_root_are_written_as_for_every_other_command(pylog, root):
    result = pylog("cat", root, "--topic", "orders")
    assert (result.exit_code, result.stdout_bytes) == (0, bytes_of(pylog, root))


@pytest.mark.parametrize(
    "words",
    ["{root}", "orders", "{root} --root {root} --topic orders", "orders more --root {root}"],
)
def test_half_of_a_shape_is_wrong_usage(pylog, root, words: str):
    result = pylog("cat", *words.format(root=root).split())
    assert result.exit_code == ExitCode.USAGE
    assert "expected ROOT... --topic TOPIC" in result.stderr


@pytest.mark.parametrize(
    ("letters", "expected"),
    [
        (r"%t-%p@%o\n", b"orders-0@5\norders-0@6\norders-0@7\norders-0@8\n"),
        (r"%k=%s;", b'a=one;=;=h\xe9\x1b[2J\xff;d={"n":\n 1.50};'),
        (r"%K,%S\t", b"1,3\t-1,-1\t0,7\t1,12\t"),
        (r"%R", b"\0\0\0\3\xff\xff\xff\xff\0\0\0\7\0\0\0\x0c"),
        ("%T ", b" ".join(b"%d" % (SOME_TIME_MS + 1000 * n) for n in range(4)) + b" "),
        ("[%h]", b"[][][trace=\x01\x02,empty=,none=NULL][]"),
        (r"100%%\x41\xff\\\0", b"100%A\xff\\\0" * 4),
        ("-", b"----"),
        ("%o%o", b"55667788"),
    ],
    ids=str,
)
def test_each_letter_of_kcat_is_what_it_is_there(pylog, root, letters: str, expected: bytes):
    assert bytes_of(pylog, root, "-p", 0, "-f", letters) == expected


@pytest.mark.parametrize("wrong", ["%x", "%", r"\q", "%s\\", r"\x"])
def test_a_letter_that_there_is_not_is_wrong_usage(pylog, root, wrong: str):
    result = pylog("cat", "orders", "--root", root, "-f", wrong)
    assert result.exit_code == ExitCode.USAGE
    assert "--format" in result.stderr


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("text", b'one|-|h\\xe9\\x1b[2J\\xff|{"n":\\n 1.50}|'),
        ("hex", b"6f6e65|-|68e91b5b324aff|7b226e223a0a20312e35307d|"),
        ("base64", b"b25l|-|aOkbWzJK/w==|eyJuIjoKIDEuNTB9|"),
    ],
)
def test_values_come_as_they_are_asked_for(pylog, root, how: str, expected: bytes):
    words = ("-p", 0, "-f", "%s|", "--value-format", how, "--null", "-")
    assert bytes_of(pylog, root, *words) == expected


def test_values_that_are_no_ascii_but_text_stay_text(pylog, tmp_path):
    records = (RecordSpec(value="h\u00e9".encode()), RecordSpec(value=b"plain"))
    batch = BatchSpec(records=records)
    write_partition(tmp_path / "orders-0", [SegmentSpec(base_offset=0, batches=[batch])])
    shown = bytes_of(pylog, tmp_path, "--value-format", "text")
    assert shown.decode() == "h\u00e9\nplain\n"


def test_json_stays_as_it_is_on_one_line_and_what_is_none_is_named(pylog, root):
    words = ("-p", 0, "--from", 8, "--value-format", "json")
    assert bytes_of(pylog, root, *words) == b'{"n":  1.50}\n'
    result = pylog("cat", "orders", "--root", root, "--value-format", "json")
    assert result.exit_code == ExitCode.USAGE
    assert "offset 5 of orders-0" in result.stderr


@pytest.mark.parametrize("value", [b"NaN", b"\xff", b"[" * 100_000, b"", b'{"a":1} x'])
def test_what_is_no_json_is_refused(pylog, tmp_path, value: bytes):
    batch = BatchSpec(records=(RecordSpec(value=value),))
    write_partition(tmp_path / "orders-0", [SegmentSpec(base_offset=0, batches=[batch])])
    result = pylog("cat", "orders", "--root", tmp_path, "--value-format", "json")
    assert result.exit_code == ExitCode.USAGE
    assert "offset 0 of orders-0" in result.stderr


@pytest.mark.parametrize(
    ("words", "offsets"),
    [
        (("--from", 6, "--until", 8), [6, 7]),
        (("--from", "-2"), [7, 8]),
        (("--from", "-100", "--until", "-3"), [5]),
        (("--from", "2023-11-14T22:13:21Z"), [6, 7, 8]),
        (("--from", "2023-11-14T22:13:21.001"), [7, 8]),
        (("--from", "2023-11-14T23:13:22+01:00", "--until", "2023-11-14T22:13:23"), [7]),
        (("--max", 2), [5, 6]),
        (("--key", "a", "--key", "d"), [5, 8]),
        (("--key", "61", "--key-format", "hex"), [5]),
        (("--key", ""), [7]),
    ],
    ids=str,
)
def test_records_are_chosen_by_offset_time_number_and_key(pylog, root, words, offsets):
    told = bytes_of(pylog, root, "-p", 0, "-f", "%o ", *words)
    assert [int(word) for word in told.split()] == offsets


def test_the_last_records_of_each_partition_are_its_own(pylog, root):
    assert bytes_of(pylog, root, "--from", -1, "-f", "%p:%o ") == b"0:8 1:0 "


def test_no_more_than_so_many_records_in_all(pylog, root):
    assert bytes_of(pylog, root, "--max", 5, "-f", "%o ") == b"5 6 7 8 0 "
    assert bytes_of(pylog, root, "-c", 4, "-f", "%o ") == b"5 6 7 8 "


@pytest.mark.parametrize("place", ["tomorrow", "12x", "99999999999999999999", "2026-13-01", ""])
def test_a_place_that_is_none_is_wrong_usage(pylog, root, place: str):
    result = pylog("cat", "orders", "--root", root, "--from", place)
    assert result.exit_code == ExitCode.USAGE
    assert "--from" in result.stderr


def test_json_lines_have_everything_and_bytes_in_base64(pylog, root):
    rows = json_of(pylog, root, "-p", 0)
    assert [row["offset"] for row in rows] == [5, 6, 7, 8]
    assert rows[2] == {
        "type": "record",
        "topic": "orders",
        "partition": 0,
        "offset": 7,
        "timestamp": SOME_TIME_MS + 2000,
        "time": "2023-11-14T22:13:22.000Z",
        "timestamp_type": "CreateTime",
        "key": "",
        "value": "aOkbWzJK/w==",
        "headers": [["trace", "AQI="], ["empty", ""], ["none", None]],
    }
    assert (rows[1]["key"], rows[1]["value"]) == (None, None)


def test_json_lines_hold_values_as_text_hex_or_json(pylog, root):
    def values(how: str, *words: object) -> list[Any]:
        return [
            row["value"] for row in json_of(pylog, root, "-p", 0, "--value-format", how, *words)
        ]

    assert values("text") == ["one", None, "h\\xe9\x1b[2J\\xff", '{"n":\n 1.50}']
    assert values("hex")[0] == "6f6e65"
    assert values("json", "--from", 8) == [{"n": 1.5}]


def test_json_has_no_place_for_raw_bytes(pylog, root):
    words = ("cat", "orders", "--root", root, "--output", "json")
    for option in ("--key-format", "--value-format"):
        result = pylog(*words, option, "raw")
        assert result.exit_code == ExitCode.USAGE
        assert option in result.stderr


def test_on_a_terminal_nothing_steers_it(pylog, root, monkeypatch):
    monkeypatch.setattr(cat, "_is_terminal", lambda: True)
    assert b"\\x1b[2J" in bytes_of(pylog, root, "-p", 0)
    assert b"\x1b" not in bytes_of(pylog, root, "-p", 0)


def test_what_is_not_there_is_said(pylog, root, tmp_path):
    result = pylog("cat", "nothing", "--root", root)
    assert result.exit_code == ExitCode.USAGE
    assert "--topic=nothing: no such topic" in result.stderr
    result = pylog("cat", "orders", "--root", root, "-p", 9)
    assert result.exit_code == ExitCode.USAGE
    assert "--partition=orders-9: no such partition" in result.stderr
    result = pylog(
        *("export", root, "--topic", "orders", "--out", tmp_path / "out"),
        *("--to", "parquet", "--column", "size"),
    )
    assert result.exit_code == ExitCode.USAGE
    assert "--column=size: expected names from: key, value" in result.stderr
    assert pylog("cat", "orders", "--root", tmp_path / "no").exit_code == ExitCode.USAGE
    assert pylog("cat", "orders").exit_code == ExitCode.USAGE
    result = pylog("cat", "orders", "--root", root, "--from", 3, "-p", 0)
    assert result.exit_code == ExitCode.PARTLY_FAILED
    assert bytes_of(pylog, root, "-p", 0, "--from", 3, "--allow-data-loss", "-f", "%o") == b"5678"


def test_records_before_damage_are_written_and_the_place_is_named(pylog, tmp_path):
    batches = [BatchSpec(base_offset=n, records=(RecordSpec(value=b"v%d" % n),)) for n in range(3)]
    write_partition(tmp_path / "orders-0", [SegmentSpec(base_offset=0, batches=batches)])
    log = tmp_path / "orders-0" / "00000000000000000000.log"
    flip(log)
    result = pylog("cat", "orders", "--root", tmp_path)
    assert result.exit_code == ExitCode.PARTLY_FAILED
    assert result.stdout == "v0\nv1\n"
    assert f"pylog: {log}: position" in result.stderr


@pytest.mark.thorough
@pytest.mark.item("RD-07", "RD-08")
def test_what_a_consumer_of_the_broker_got_is_what_comes(pylog, broker_dir):
    consumed = consumed_from("broker-dir")
    told = []
    for topic in dict.fromkeys(row[0] for row in consumed):
        words = ("--isolation", "read_committed", "--output", "json")
        how = ("--key-format", "hex", "--value-format", "hex")
        result = pylog.done("cat", topic, "--root", broker_dir, *words, *how)
        told += [
            [row[name] for name in (*PLACE, "timestamp", "key", "value", "headers")]
            for row in lines_of(result)
        ]
    assert sorted(told, key=lambda row: row[:3]) == consumed


def test_a_time_that_no_calendar_has_is_null(pylog, tmp_path: Path):
    times_ms = (-1, 0, 253_402_300_799_999, 253_402_300_800_000)
    records = tuple(RecordSpec(key=None, value=b"", timestamp=each) for each in times_ms)
    batch = BatchSpec(base_offset=0, records=records)
    write_partition(tmp_path / "orders-0", [SegmentSpec(base_offset=0, batches=[batch])])
    times = [row["time"] for row in json_of(pylog, tmp_path)]
    assert times == [None, "1970-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999Z", None]


def test_times_as_people_say_them(pylog, root):
    assert bytes_of(pylog, root, "--from", "today 08:00 Europe/Berlin") == b""
    assert bytes_of(pylog, root, "--from", "-5000w", "--until", "2 h ago", "-p", 1) == b"last\n"


def test_a_pattern_stands_for_the_topics_that_it_matches(pylog, tmp_path: Path):
    for topic in ("orders-eu", "orders-us", "clicks", "__state"):
        batch = BatchSpec(base_offset=0, records=(RecordSpec(key=None, value=topic.encode()),))
        write_partition(tmp_path / f"{topic}-0", [SegmentSpec(base_offset=0, batches=[batch])])
    words = ("--topic", "orders-us", "--topic", "orders-*")
    values = pylog("cat", tmp_path, *words).stdout.split()
    assert sorted(values) == ["orders-eu", "orders-us"]
    assert "__state" not in pylog("cat", tmp_path, "--topic", "*").stdout
    assert pylog("cat", tmp_path, "--topic", "__*").stdout == "__state\n"
    result = pylog("cat", tmp_path, "--topic", "order?")
    assert (result.exit_code, "matches no topic" in result.stderr) == (ExitCode.USAGE, True)
    exported = pylog.rows(
        *("export", tmp_path, "--topic", "orders-*", "--to", "jsonl", "--engine", "local"),
        *("--out", tmp_path.with_name("out")),
    )
    assert exported[0]["topic"] == "orders-eu,orders-us"


def test_a_sample_lies_evenly_over_the_records(pylog, tmp_path: Path):
    records = tuple(RecordSpec(key=None, value=b'{"n":%d}' % n) for n in range(100))
    batch = BatchSpec(base_offset=0, records=records)
    write_partition(tmp_path / "t-0", [SegmentSpec(base_offset=0, batches=[batch])])
    words = ("cat", tmp_path, "--topic", "t", "--sample", 4)
    assert pylog(*words, "-f", "%o ").stdout == "12 37 62 87 "
    assert pylog(*words, "-f", "%s ", "--from", 90).stdout.split() == [
        '{"n":91}',
        '{"n":93}',
        '{"n":96}',
        '{"n":98}',
    ]
    rows = pylog.rows(*words, "--value-format", "json", "--isolation", "read_committed")
    assert [row["value"]["n"] for row in rows] == [12, 37, 62, 87]
    for more in (("--max", 3), ("--key", "k")):
        refused = pylog(*words, *more)
        assert (refused.exit_code, "--sample" in refused.stderr) == (ExitCode.USAGE, True)
