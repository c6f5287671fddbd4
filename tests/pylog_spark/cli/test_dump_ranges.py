"""``pylog dump`` of a part of a log, and how it writes keys and values."""

import json
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.exit_code import ExitCode
from storage_core.formats.batch_v2 import Codec
from tests.kit.builders import SOME_TIME_MS, BatchSpec, RecordSpec, end_txn_marker
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.golden_data import Golden
from tests.kit.legacy import LegacyMessage, LegacySet
from tests.kit.program import lines_of

LOG = "00000000000000000000.log"


def at(offset: int) -> int:
    """Return the timestamp of an offset: that of 12 is older than its neighbours'."""
    return SOME_TIME_MS + (0 if offset == 12 else offset * 1000)


def batch(base: int, count: int = 3, **fields: Any) -> BatchSpec:
    records = tuple(
        RecordSpec(key=b"k%d" % n, value=b'{"n": %d}' % n, timestamp=at(n))
        for n in range(base, base + count)
    )
    return BatchSpec(base_offset=base, records=records, **fields)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Offsets 0 to 17: two segments of three batches, some of them compressed."""
    made = tmp_path_factory.mktemp("logs") / "orders-0"
    codecs = {6: Codec.LZ4, 12: Codec.GZIP}
    batches = [batch(base, codec=codecs.get(base, Codec.NONE)) for base in range(0, 18, 3)]
    write_partition(
        made,
        [
            SegmentSpec(base_offset=0, batches=batches[:3]),
            SegmentSpec(base_offset=9, batches=batches[3:]),
        ],
    )
    return made


def dumped(pylog, path: Path, *words: object) -> tuple[list[int], list[int]]:
    """Return the base offsets of the batches, and the offsets of the records, that are shown."""
    result = pylog.done("dump", path, "--output", "json", *words)
    rows = lines_of(result)
    shown = {row["type"] for row in rows} - {"batch", "record"}
    assert not shown
    return (
        [row["base_offset"] for row in rows if row["type"] == "batch"],
        [row["offset"] for row in rows if row["type"] == "record"],
    )


@pytest.mark.parametrize(
    ("words", "batches", "records"),
    [
        (("--from", 4), [3, 6, 9, 12, 15], range(4, 18)),
        (("--until", 4), [0, 3], range(4)),
        (("--from", 7, "--until", 11), [6, 9], range(7, 11)),
        (("--from", 9, "--until", 9), [], []),
        (("--from", 17), [15], [17]),
        (("--from", 18), [], []),
        (("--from", -2), [15], [16, 17]),
        (("--from", -4, "--until", -1), [12, 15], [14, 15, 16]),
        (("--max", 4), [0, 3], range(4)),
        (("--max", 3), [0], range(3)),
        (("--from", 8, "--max", 2), [6, 9], [8, 9]),
        (("--max", 1000), range(0, 18, 3), range(18)),
    ],
    ids=str,
)
def test_a_part_is_shown_by_offsets_and_number(pylog, directory, words, batches, records):
    assert dumped(pylog, directory, *words) == (list(batches), list(records))


@pytest.mark.parametrize(
    ("start", "end", "batches", "records"),
    [
        (5, None, [3, 6, 9, 12, 15], range(5, 18)),
        (None, 5, [0, 3], range(5)),
        (4, 8, [3, 6], range(4, 8)),
        # From the first record at or after a time on: the older ones behind it are shown, too.
        (10, None, [9, 12, 15], range(10, 18)),
        (12, None, [12, 15], range(13, 18)),
        (99, None, [], []),
        (None, 0, [], []),
    ],
    ids=str,
)
def test_a_time_stands_for_the_first_record_at_or_after_it(
    pylog, directory, start, end, batches, records
):
    words = []
    for option, offset in (("--from", start), ("--until", end)):
        if offset is not None:
            seconds = SOME_TIME_MS // 1000 + offset - 1_699_999_200
            words += [option, f"2023-11-14T22:{seconds // 60:02d}:{seconds % 60:02d}"]
    assert dumped(pylog, directory, *words) == (list(batches), list(records))


def test_what_is_older_behind_the_first_record_of_a_time_is_shown_too(pylog, tmp_path):
    batches = [
        BatchSpec(base_offset=n, records=(RecordSpec(timestamp=SOME_TIME_MS + 1000 * seconds),))
        for n, seconds in enumerate([0, 30, 10, 40, 5])
    ]
    write_partition(tmp_path / "t-0", [SegmentSpec(base_offset=0, batches=batches)])
    log = tmp_path / "t-0" / LOG
    assert dumped(pylog, log, "--from", "2023-11-14T22:13:40")[1] == [1, 2, 3, 4]
    assert dumped(pylog, log, "--from", "2023-11-14T22:13:55")[1] == [3, 4]
    assert dumped(pylog, log, "--until", "2023-11-14T22:13:30") == ([0], [0])


def test_a_single_file_is_cut_too_and_a_segment_out_of_range_is_not_read(pylog, directory):
    assert dumped(pylog, directory / LOG, "--from", 7) == ([6], [7, 8])
    assert dumped(pylog, directory / LOG, "--from", -1) == ([6], [8])
    assert dumped(pylog, directory / LOG, "--from", 100) == ([], [])


def test_damage_outside_of_the_part_is_not_come_to(pylog, directory, tmp_path):
    copy = tmp_path / "orders-0"
    copy.mkdir()
    for log in directory.glob("*.log"):
        content = bytearray(log.read_bytes())
        if log.name == LOG:
            content[:12] = b"\xff" * 12
        (copy / log.name).write_bytes(content)
    assert dumped(pylog, copy, "--from", 9)[1] == list(range(9, 18))
    assert pylog("dump", copy, "--until", 2).exit_code == ExitCode.PARTLY_FAILED


def test_old_formats_are_cut_by_their_own_offsets(pylog, tmp_path):
    messages = [LegacyMessage(offset=offset, key=b"k", value=b"v") for offset in range(12)]
    batches = [
        *messages[:4],
        LegacySet(messages=tuple(messages[4:8])),
        LegacySet(messages=tuple(messages[8:])),
    ]
    write_partition(tmp_path / "orders-0", [SegmentSpec(base_offset=0, batches=batches)])
    log = tmp_path / "orders-0" / LOG
    assert dumped(pylog, log, "--from", 2, "--until", 6)[1] == [2, 3, 4, 5]
    assert dumped(pylog, log, "--from", 6, "--until", 7)[1] == [6]
    assert dumped(pylog, log, "--from", 7, "--max", 3)[1] == [7, 8, 9]


def test_entries_of_another_file_are_counted_and_have_no_part(pylog, broker_dir):
    file = broker_dir / "recovery-point-offset-checkpoint"
    result = pylog.done("dump", file, "--max", 2, "--output", "json")
    whole = pylog("dump", file, "--output", "json").stdout.splitlines()
    assert result.stdout.splitlines() == whole[:2]
    assert len(whole) > 2
    result = pylog("dump", file, "--from", 5)
    assert result.exit_code == ExitCode.USAGE
    assert "holds no records" in result.stderr


@pytest.mark.thorough
def test_whole_values_and_other_formats_are_written(pylog, tmp_path):
    marker = end_txn_marker(base_offset=1, producer_id=4, producer_epoch=0)
    long = b'{"a":"' + b"x" * 300 + b'"}'
    record = RecordSpec(key=b"\x01\x02", value=long, headers=(("h", b"\xff"),))
    data = BatchSpec(records=(record,), producer_id=4, producer_epoch=0, is_transactional=True)
    write_partition(tmp_path / "t-0", [SegmentSpec(base_offset=0, batches=[data, marker])])
    log = tmp_path / "t-0" / LOG

    def text(*words: object) -> str:
        result = pylog.done("dump", log, *words)
        return result.stdout

    assert "..." in text()
    assert f'"{long.decode()}"' in text("--full")
    assert " 0102 = " in text("--key-format", "hex")
    assert f" = {long.decode()}" in text("--value-format", "json", "--full")
    assert "..." in text("--value-format", "hex")
    assert long.hex() in text("--value-format", "hex", "--full")

    def rows(*words: object) -> list[dict[str, Any]]:
        lines = map(json.loads, text("--output", "json", *words).splitlines())
        return [line for line in lines if line["type"] == "record"]

    (row, control) = rows("--key-format", "hex", "--value-format", "json")
    assert (row["key"], row["value"], row["headers"]) == (
        "0102",
        {"a": "x" * 300},
        [["h", "\\xff"]],
    )
    # What Kafka itself has written stays as it is.
    assert control == rows()[1]
    result = pylog("dump", log, "--key-format", "json")
    assert result.exit_code == ExitCode.USAGE
    assert "offset 0" in result.stderr
    for option in ("--key-format", "--value-format"):
        assert pylog("dump", log, option, "raw").exit_code == ExitCode.USAGE


@pytest.mark.thorough
def test_a_golden_log_is_cut_as_it_is_read_whole(pylog, tmp_path):
    directory = Golden("dump-mixed-s555").unpack(tmp_path)
    logs = sorted(directory.rglob("*.log"))
    whole = [dumped(pylog, log)[1] for log in logs]
    offsets = [offset for of_log in whole for offset in of_log]
    middle = offsets[len(offsets) // 2]
    for words, expected in (
        (("--from", middle), [o for o in offsets if o >= middle]),
        (("--until", middle), [o for o in offsets if o < middle]),
        (("--max", 7), offsets[:7]),
    ):
        assert dumped(pylog, logs[0].parent, *words)[1] == expected
