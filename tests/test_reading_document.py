"""``docs/reading.md``: its examples run, one after the other, on a directory that grows."""

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as sf

from pylog_spark.source.stream import HAS_LIMITS
from tests.kit.builders import BatchSpec, RecordSpec
from tests.kit.directories import SegmentSpec, plain_segment, sync_partition, write_partition

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "reading.md"
# What the document says to need PySpark 4.2.
LIMIT = '    .option("maxOffsetsPerTrigger", "1000000")\n'
TEXT = DOCUMENT.read_text()
EXAMPLES = re.findall(
    r"```python\n(.*?)```", TEXT if HAS_LIMITS else TEXT.replace(LIMIT, ""), re.DOTALL
)
AT_MS = 1_795_200_000_000  # what the first example starts at

HAS_FUNCTION = hasattr(sf, "arrow_udtf")
# Names of streams in the examples of Spark's guide.
GUIDE_STREAMS = ("one_stream", "with_headers", "several_streams", "matching_stream")

pytestmark = pytest.mark.spark


def write_logs(root: Path, values: list[tuple[bytes, bytes | None]]) -> None:
    """Write topics of the examples, each with a record for each of some keys and values."""
    batches = [
        BatchSpec(records=(RecordSpec(key=key, value=value, timestamp=AT_MS),), base_offset=offset)
        for offset, (key, value) in enumerate(values)
    ]
    for topic in ("orders", "payments", "compacted"):
        write_partition(root / f"{topic}-0", [SegmentSpec(base_offset=0, batches=batches)])


def write_guide_logs(root: Path, count: int) -> None:
    """Write the topics of Spark's guide, with so many records in each partition that it names."""
    for name in ("topic1-0", "topic1-1", "topic2-0"):
        spec = plain_segment(0, count)
        sync_partition(root / name, [spec])


def check_guide_streams(names: dict[str, Any], root: Path) -> None:
    """Streams begin at the end; each has what came then to its topics."""
    queries = []
    try:
        for name in GUIDE_STREAMS:
            writer = names[name].writeStream.format("memory").queryName(name)
            queries.append(writer.start())
        for query in queries:
            query.processAllAvailable()
        write_guide_logs(root, 65)
        for query in queries:
            query.processAllAvailable()
        counts = [names["spark"].table(name).count() for name in GUIDE_STREAMS]
    finally:
        for query in queries:
            query.stop()
    assert counts == [10, 10, 15, 15]
    assert "headers" in names["with_headers"].columns


@pytest.fixture
def tables(spark: Any) -> Any:
    yield spark
    spark.sql("DROP TABLE IF EXISTS latest")
    for view in ("orders", *GUIDE_STREAMS):
        spark.catalog.dropTempView(view)


@pytest.mark.thorough
def test_the_examples_run_and_the_stream_keeps_its_table_up(tables, tmp_path, capsys):
    root = tmp_path / "kafka"
    values: list[tuple[bytes, bytes | None]] = [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]
    write_logs(root, values)
    write_guide_logs(root, 60)
    names: dict[str, Any] = {}

    def run(example: str) -> None:
        code = example.replace("/var/lib/kafka", str(root)).replace("/data", str(tmp_path))
        exec(compile(code, DOCUMENT.name, "exec"), names)  # noqa: S102 - the example is ours

    def latest() -> dict[bytes, tuple[bytes, int]]:
        rows = tables.table("latest").collect()
        return {bytes(row.key): (bytes(row.value), row.offset) for row in rows}

    for example in EXAMPLES:
        if "kafka_log(" in example and not HAS_FUNCTION:
            with pytest.raises(Exception, match=r"needs pyspark 4\.1"):
                run(example)
            continue
        run(example)
    printed = capsys.readouterr().out
    assert "|  orders|        0|    3|" in printed
    assert "|payments|        0|    3|" in printed
    assert "|        0|       3|          2|" in printed
    assert latest() == {b"a": (b"3", 2), b"b": (b"2", 1)}
    counts = {name: names[name].count() for name in ("one", "several", "matching")}
    assert counts == {"one": 120, "several": 27 + 60 + 60, "matching": 180}
    check_guide_streams(names, root)
    values += [(b"b", None), (b"c", b"4"), (b"a", b"5")]
    write_logs(root, values)
    (stream,) = (example for example in EXAMPLES if "keep_latest" in example)
    for _ in range(2):  # the second time there is nothing new
        run(stream)
        assert latest() == {b"a": (b"5", 5), b"c": (b"4", 4)}
