"""Whatever the bytes say, the commands that look end with a status and an explanation."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pylog_spark.exit_code import ExitCode
from pylog_spark.source.options import parse_options
from storage_core.errors import PylogError
from storage_core.reading.planning import plan_ranges
from storage_core.reading.ranges import read_range
from tests.kit.builders import segment_bytes, some_batches
from tests.kit.program import lines_of
from tests.kit.strategies import hostile_batches

LOG = "00000000000000000000.log"
GOOD = segment_bytes(some_batches(count=2, records=2))
FILES = [
    LOG,
    "00000000000000000000.index",
    "00000000000000000000.timeindex",
    "00000000000000000000.txnindex",
    "00000000000000000000.snapshot",
    "leader-epoch-checkpoint",
    "partition.metadata",
]
ENDS = {ExitCode.DONE, ExitCode.PARTLY_FAILED}


@pytest.mark.thorough
@given(
    batches=st.lists(hostile_batches(), min_size=1, max_size=3),
    isolation=st.sampled_from(["read_committed", "read_uncommitted"]),
)
def test_a_dump_of_hostile_batches_ends_with_lines_and_a_status(pylog, batches, isolation):
    with TemporaryDirectory() as folder:
        log = Path(folder) / LOG
        log.write_bytes(GOOD + b"".join(batches))
        result = pylog("dump", log, "--output", "json", "--isolation", isolation)
        table = pylog("dump", log)
    assert result.exit_code in ENDS
    assert table.exit_code in ENDS
    assert "Traceback" not in result.stderr + table.stderr
    if result.exit_code == ExitCode.DONE or isolation == "read_uncommitted":
        lines = lines_of(result)
        assert lines[0]["type"] == "batch"
        has_error = lines[-1]["type"] == "error"
        has_wrong_crc = any(line.get("crc_ok") is False for line in lines)
        assert (result.exit_code == ExitCode.PARTLY_FAILED) == (has_error or has_wrong_crc)


@pytest.mark.thorough
@given(batches=st.lists(hostile_batches(), min_size=1, max_size=3))
def test_reading_hostile_batches_yields_records_or_says_what_is_wrong(batches):
    with TemporaryDirectory() as folder:
        directory = Path(folder) / "t-0"
        directory.mkdir()
        (directory / LOG).write_bytes(GOOD + b"".join(batches))
        for options in ({}, {"kafka.isolation.level": "read_committed"}):
            try:
                wanted = plan_ranges(
                    parse_options({"path": str(directory), **options}).request, now_ms=1
                )
                for part in wanted:
                    for batch in read_range(part):
                        batch.validate(full=True)
            except PylogError as error:
                assert str(error)  # noqa: PT017  # any of them will do, but it has to say something


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FILES)
@settings(max_examples=20)
@given(content=st.binary(max_size=200))
def test_garbage_in_any_file_is_an_error_and_never_a_crash(pylog, name: str, content: bytes):
    with TemporaryDirectory() as folder:
        directory = Path(folder) / "t-0"
        directory.mkdir()
        (directory / LOG).write_bytes(GOOD)
        (directory / "00000000000000000000.index").touch()
        (directory / name).write_bytes(content)
        dumped = pylog("dump", directory / name, "--output", "json")
        inspected = pylog("inspect", directory, "--segments", "--output", "json")
    for result in (dumped, inspected):
        assert result.exit_code in ENDS
        assert "Traceback" not in result.stderr
        assert "unexpected" not in result.stdout
        for line in result.stdout.splitlines():
            json.loads(line)
