"""Of a tiered topic nobody takes the local log for the whole one."""

import logging
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from storage_core import kafka_log
from storage_core.errors import OffsetsInTierError
from storage_core.filenames import LOG_START_FILE, TopicPartition
from storage_core.reading.key_history import find_history
from tests.kit.golden_data import GOLDEN, unpack_archive

NOW_MS = 1_795_902_000_000
# Local segments of each topic hold 1,251 to 1,499; the log of tiered-0 starts at 151.
LOCAL = [1_251, 1_499, 249]


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return unpack_archive(GOLDEN / "group-tiered" / "before.tar.gz", tmp_path) / "d1"


def extent(logs: kafka_log.Logs, topic: str, **more: object) -> list[int]:
    offsets = logs.read(topic, columns=["offset"], **more).to_table()["offset"].to_pylist()
    return [min(offsets), max(offsets), len(offsets)]


@pytest.mark.parametrize(
    ("topic", "words"), [("longer", "offsets 0 to 1250"), ("tiered", "offsets 151 to 1250")]
)
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_read_from_the_log_start_says_what_lies_in_the_tier(
    disk, topic, words, isolation, caplog
):
    logs = kafka_log.open_logs(disk)
    for start in (None, kafka_log.EARLIEST, 0, 1_250):
        with pytest.raises(OffsetsInTierError, match="to 1250") as raised:
            logs.read(topic, start=start, isolation=isolation)
        assert (words in str(raised.value)) == (start != 1_250)
    with caplog.at_level(logging.WARNING):
        assert extent(logs, topic, isolation=isolation, fail_on_data_loss=False) == LOCAL
    assert words in caplog.text


def test_a_start_in_the_local_log_asks_for_less(disk):
    logs = kafka_log.open_logs(disk)
    assert extent(logs, "longer", start=1_251) == LOCAL
    assert logs.read("longer", start=kafka_log.LATEST).to_table().num_rows == 0
    place = TopicPartition("longer", 0)
    assert extent(logs, "longer", start={place: 1_400}) == [1_400, 1_499, 100]
    times = logs.read("longer", start=1_251, columns=["timestamp"]).to_table()["timestamp"]
    newest, oldest = max(times.to_pylist()), min(times.to_pylist())
    if newest > oldest:
        assert logs.read("longer", start=newest).to_table().num_rows
    with pytest.raises(OffsetsInTierError):
        logs.read("longer", start=datetime(2020, 1, 1, tzinfo=UTC))


def test_a_topic_that_is_not_tiered_is_whole_from_where_it_begins(disk):
    logs = kafka_log.open_logs(disk)
    assert extent(logs, "plain") == LOCAL
    # A line older than the files, as beside a broker that deletes segments right now.
    file = disk / LOG_START_FILE
    lines = file.read_text().splitlines()
    file.write_text("\n".join(["0", "3", *lines[2:], "plain 0 700"]) + "\n")
    assert extent(logs, "plain") == LOCAL


def test_without_a_log_start_the_config_says_that_there_is_a_tier(disk):
    (disk / LOG_START_FILE).unlink()
    logs = kafka_log.open_logs(disk)
    with pytest.raises(OffsetsInTierError, match="offsets 0 to 1250"):
        logs.read("tiered")
    assert extent(logs, "plain") == LOCAL
    # Without the metadata nothing says it of any topic.
    shutil.rmtree(disk / "__cluster_metadata-0")
    assert extent(logs, "tiered") == LOCAL


def test_versions_of_a_key_may_lie_in_the_tier(disk):
    (history,) = find_history(str(disk), "longer", [b"none"], now_ms=NOW_MS)
    assert [error["error_class"] for error in history.errors] == ["OffsetsInTierError"]
    (plain,) = find_history(str(disk), "plain", [b"none"], now_ms=NOW_MS)
    assert plain.errors == ()


def test_partitions_have_the_log_start_of_the_checkpoint(disk):
    rows = {row["topic"]: row for row in kafka_log.open_logs(disk).partitions().to_pylist()}
    starts = {
        topic: (row["log_start_offset"], row["local_log_start_offset"])
        for topic, row in rows.items()
    }
    assert starts["longer"] == (0, 1_251)
    assert starts["tiered"] == (151, 1_251)
    assert starts["plain"] == (1_251, None)
