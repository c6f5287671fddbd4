"""Zeros at the end of every active segment, as a broker that preallocates leaves them."""

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import kafka_log
from storage_core.filenames import sorted_logs
from tests.kit.golden_data import Golden

NOW_MS = int(Golden("broker-dir").case["clock_ms"])
TOPICS = ("events", "__consumer_offsets", "__transaction_state")
# Of the directory and of its files.
NOT_COMPARED = {"root", "path", "size_bytes", "bytes"}


@pytest.fixture(scope="module")
def with_zeros(broker_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same directory; the active segment of each log and its indexes are preallocated."""
    made = tmp_path_factory.mktemp("zeros") / broker_dir.name
    shutil.copytree(broker_dir, made)
    for folder in made.iterdir():
        if folder.is_dir():
            newest = folder / sorted_logs(path.name for path in folder.iterdir())[-1]
            os.truncate(newest, 1 << 30)
            index = newest.with_suffix(".index")
            os.truncate(index, index.stat().st_size // 8 * 8 + 8000)
    return made


def compared(rows: list[dict]) -> list[dict]:
    return [{key: row[key] for key in row.keys() - NOT_COMPARED} for row in rows]


@pytest.mark.thorough
@pytest.mark.parametrize("verb", ["groups", "transactions"])
def test_coordinators_say_the_same(pylog, broker_dir, with_zeros, verb):
    here, there = (
        compared(pylog.rows(verb, root, "--now-ms", NOW_MS)) for root in (with_zeros, broker_dir)
    )
    assert here == there


@pytest.mark.sampled(1)
@pytest.mark.parametrize("more", [[], ["--isolation", "read_committed"]], ids=["all", "committed"])
@pytest.mark.parametrize("topic", TOPICS)
def test_cat_has_the_same_records(pylog, broker_dir, with_zeros, topic, more):
    there = compared(pylog.rows("cat", topic, "--root", with_zeros, *more))
    assert there == compared(pylog.rows("cat", topic, "--root", broker_dir, *more))
    assert there or topic.startswith("__transaction")


def test_python_reads_the_same_records(broker_dir, with_zeros):
    def table_of(root: Path) -> pa.Table:
        table = kafka_log.open_logs(root).read("events").to_table()
        return table.sort_by([("partition", "ascending"), ("offset", "ascending")])

    assert table_of(with_zeros).num_rows
    assert table_of(with_zeros) == table_of(broker_dir)
