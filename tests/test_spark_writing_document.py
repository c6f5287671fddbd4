"""``docs/spark-writing.md``: its examples run, and its tables name what there is."""

import re
from pathlib import Path

import pytest

from pylog_spark.source.data_source import COLUMNS, NAMES, READERS_OWN
from storage_core.config.log_config import TOPIC_KEYS
from tests.storage_core.writing.writes import records_of

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "spark-writing.md"
TEXT = DOCUMENT.read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def first_cells(heading: str) -> set[str]:
    """Return the names in the first column of the table of a section."""
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_every_option_is_in_the_table():
    assert first_cells("Options") == {*NAMES} - {*TOPIC_KEYS} - {"path"}


def test_every_column_is_in_the_table():
    assert first_cells("Columns") == {*COLUMNS, *READERS_OWN}


@pytest.mark.thorough
@pytest.mark.spark
def test_the_examples_run(spark, tmp_path, capsys):
    names: dict = {}
    for example in EXAMPLES:
        code = example.replace("/data/", f"{tmp_path}/")
        exec(compile(code, DOCUMENT.name, "exec"), names)  # noqa: S102 - the example is ours
    printed = capsys.readouterr().out
    counts = re.findall(r"\|\s+(\d)\|\s+(\d+)\|", printed)
    assert {number for number, _ in counts} <= {"0", "1", "2"}
    assert sum(int(count) for _, count in counts) == 1000
    sent = spark.read.format("kafka-log").load(f"{tmp_path}/sent")
    assert {(row.topic, row["count"]) for row in sent.groupBy("topic").count().collect()} == {
        ("topic1", 3),  # both rows by the option, and its own by the column
        ("topic2", 1),
    }
    frame = spark.createDataFrame(
        [(row["topic"], row["value"]) for row in records_of(range(9)).to_pylist()],
        "topic string, value binary",
    )
    for batch in (0, 0, 1):
        names["backfill"](frame, batch)
    assert spark.read.format("kafka-log").load(f"{tmp_path}/backfilled").count() == 18
