"""``docs/reading.md``: its examples run, one after the other, on a directory that grows."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.kit.builders import BatchSpec, RecordSpec
from tests.kit.directories import SegmentSpec, write_partition

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "reading.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
AT_MS = 1_795_200_000_000  # what the first example starts at

pytestmark = pytest.mark.spark


def write_logs(root: Path, values: list[tuple[bytes, bytes | None]]) -> None:
    """Write topics of the examples, each with a record for each of some keys and values."""
    batches = [
        BatchSpec(records=(RecordSpec(key=key, value=value, timestamp=AT_MS),), base_offset=offset)
        for offset, (key, value) in enumerate(values)
    ]
    for topic in ("orders", "payments", "compacted"):
        write_partition(root / f"{topic}-0", [SegmentSpec(base_offset=0, batches=batches)])


@pytest.fixture
def tables(spark: Any) -> Any:
    yield spark
    spark.sql("DROP TABLE IF EXISTS latest")
    spark.catalog.dropTempView("orders")


def test_the_examples_run_and_the_stream_keeps_its_table_up(tables, tmp_path, capsys):
    root = tmp_path / "kafka"
    values: list[tuple[bytes, bytes | None]] = [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]
    write_logs(root, values)
    names: dict[str, Any] = {}

    def run(example: str) -> None:
        code = example.replace("/var/lib/kafka", str(root)).replace("/data", str(tmp_path))
        exec(compile(code, DOCUMENT.name, "exec"), names)  # noqa: S102 - the example is ours

    def latest() -> dict[bytes, tuple[bytes, int]]:
        rows = tables.table("latest").collect()
        return {bytes(row.key): (bytes(row.value), row.offset) for row in rows}

    for example in EXAMPLES:
        run(example)
    printed = capsys.readouterr().out
    assert "|  orders|        0|    3|" in printed
    assert "|payments|        0|    3|" in printed
    assert "|        0|       3|          2|" in printed
    assert latest() == {b"a": (b"3", 2), b"b": (b"2", 1)}
    values += [(b"b", None), (b"c", b"4"), (b"a", b"5")]
    write_logs(root, values)
    (stream,) = (example for example in EXAMPLES if "keep_latest" in example)
    for _ in range(2):  # the second time there is nothing new
        run(stream)
        assert latest() == {b"a": (b"5", 5), b"c": (b"4", 4)}
