"""``kafka_log.write``: records of any Arrow stream become a directory, all of them or none."""

import polars as pl
import pyarrow as pa
import pytest

from storage_core import kafka_log
from storage_core.errors import GuardRefusedError, InvalidColumnError, RecordValidationError
from tests.kit.compare import read_tree

PLACE = ["key", "value", "topic", "partition", "offset"]
ORDERS = pa.table(
    {"key": ["a", "b", None, "a"], "value": [b"1", None, b"", b"4"], "topic": ["orders"] * 4}
)


def rows(directory) -> list[tuple]:
    table = kafka_log.open_logs(directory).read().to_table().select(PLACE)
    return [tuple(row.values()) for row in table.to_pylist()]


def test_a_second_write_goes_behind_the_first(tmp_path):
    assert kafka_log.write(tmp_path / "logs", ORDERS, partitions=1, compression="lz4") == 4
    frame = pl.DataFrame({"key": ["c"], "value": ["5"]})
    assert kafka_log.write(tmp_path / "logs", frame, topic="orders") == 1
    assert rows(tmp_path / "logs") == [
        (b"a", b"1", "orders", 0, 0),
        (b"b", None, "orders", 0, 1),
        (None, b"", "orders", 0, 2),
        (b"a", b"4", "orders", 0, 3),
        (b"c", b"5", "orders", 0, 4),
    ]


@pytest.mark.thorough
def test_what_was_read_is_written_back_as_it_was(tmp_path):
    kafka_log.write(tmp_path / "a", ORDERS, partitions=3)
    records = kafka_log.open_logs(tmp_path / "a").read()
    assert kafka_log.write(tmp_path / "b", records, partitions=3, mode="overwrite") == 4
    assert rows(tmp_path / "b") == rows(tmp_path / "a")


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.mark.thorough
def test_a_frame_of_polars_with_headers_is_written_back_as_it_was(tmp_path):
    headers = pa.array([[("h", b"1"), ("h", None)], None, [("long" * 9, b"x" * 40)], []], HEADERS)
    kafka_log.write(tmp_path / "a", ORDERS.append_column("headers", headers), partitions=1)
    records = kafka_log.open_logs(tmp_path / "a").read()
    assert records.to_table()["headers"][0].as_py() == [
        {"key": "h", "value": b"1"},
        {"key": "h", "value": None},
    ]
    assert kafka_log.write(tmp_path / "b", records.to_polars(), partitions=1) == 4
    assert kafka_log.open_logs(tmp_path / "b").read().to_table() == records.to_table()


@pytest.mark.parametrize("name", ["key", "value", "headers"])
def test_a_column_of_another_type_is_named(tmp_path, name):
    wrong = pa.array([1, 2, 3, 4], pa.int32())
    table = ORDERS.drop([name] if name in ORDERS.column_names else []).append_column(name, wrong)
    with pytest.raises(InvalidColumnError, match=f"^{name}: expected .*, found int32"):
        kafka_log.write(tmp_path / "logs", table, partitions=1)
    assert not list(tmp_path.rglob("*.log"))


@pytest.mark.thorough
def test_a_transaction_is_written_once(tmp_path):
    for version, written in ((1, 4), (1, 0), (0, 0), (2, 4)):
        count = kafka_log.write(tmp_path / "t", ORDERS, partitions=1, transaction=("me", version))
        assert count == written
    assert len(rows(tmp_path / "t")) == 8


def test_a_write_that_is_refused_leaves_the_directory_as_it_was(tmp_path):
    kafka_log.write(tmp_path / "t", ORDERS, partitions=1)
    before = read_tree(tmp_path)
    with pytest.raises(RecordValidationError):
        kafka_log.write(tmp_path / "t", ORDERS, config={"cleanup.policy": "compact"})
    assert read_tree(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "error", "reason"),
    [
        ({"records": [1]}, kafka_log.ConfigError, "Arrow's stream interface"),
        ({"records": pa.table({"body": [b""]})}, InvalidColumnError, "no column of a record"),
        ({"records": pa.table({"key": [b""]})}, InvalidColumnError, "value"),
        ({"mode": "replace"}, kafka_log.ConfigError, "append, overwrite"),
        ({"compression": "brotli"}, kafka_log.ConfigError, "zstd"),
        ({"partitions": 0}, kafka_log.ConfigError, "expected 1"),
        ({"partitions": None}, kafka_log.ConfigError, "how many partitions"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_there(tmp_path, arguments, error, reason):
    wanted = {"records": ORDERS.drop("topic"), "topic": "orders", "partitions": 1} | arguments
    with pytest.raises(error, match=reason):
        kafka_log.write(tmp_path / "logs", **wanted)
    assert not list(tmp_path.rglob("*.log"))


def test_a_broker_s_directory_is_refused(tmp_path):
    (tmp_path / "meta.properties").write_text("version=1\n")
    with pytest.raises(GuardRefusedError, match="broker's log directory"):
        kafka_log.write(tmp_path, ORDERS, partitions=1)
