"""Keys and values that are Avro, in the commands that show records."""

import csv
import io
import json
from pathlib import Path
from typing import Any, Final

import fastavro
import pyarrow.parquet as pq
import pytest

from pylog_spark.exit_code import ExitCode
from tests.kit.builders import SOME_TIME_MS, BatchSpec, RecordSpec
from tests.kit.directories import SegmentSpec, write_partition

ORDER: Final = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": ["null", "string"]},
    ],
}
ORDERS: Final = [{"id": 1, "customer": "Ada"}, {"id": 2, "customer": None}]
HEADER: Final = b"\0\0\0\0\x07"


def encoded(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def write_topic(root: Path, topic: str, *values: bytes | None, header: bytes = b"") -> None:
    records = tuple(
        RecordSpec(
            key=header + encoded("long", number),
            value=value if value is None else header + value,
            timestamp=SOME_TIME_MS,
            headers=(("trace", b"\x01"),),
        )
        for number, value in enumerate(values)
    )
    batch = BatchSpec(base_offset=0, records=records)
    write_partition(root / f"{topic}-0", [SegmentSpec(base_offset=0, batches=[batch])])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``orders`` as Avro, ``registered`` behind a registry's header, ``mixed`` with others."""
    made = tmp_path_factory.mktemp("avro")
    whole = [encoded(ORDER, order) for order in ORDERS]
    write_topic(made, "orders", *whole, None)
    write_topic(made, "registered", *whole, header=HEADER)
    write_topic(made, "mixed", whole[0], b"\xff" * 20)
    (made / "order.avsc").write_text(json.dumps(ORDER))
    (made / "key.avsc").write_text('"long"')
    return made


def schemas(root: Path, how: str = "avro") -> tuple[object, ...]:
    keys = ("--key-format", how, "--key-schema", root / "key.avsc")
    return (*keys, "--value-format", how, "--value-schema", root / "order.avsc")


@pytest.mark.parametrize(("topic", "how"), [("orders", "avro"), ("registered", "avro-registry")])
def test_cat_shows_avro_as_json(pylog, root, topic: str, how: str):
    words = ("cat", topic, "--root", root, *schemas(root, how), "--max", 2)
    rows = pylog.rows(*words)
    assert [(row["key"], row["value"]) for row in rows] == list(enumerate(ORDERS))
    assert rows[0]["headers"] == [["trace", "\x01"]]
    text = pylog(*words, "-f", "%k %s %h\\n").stdout
    assert text.splitlines()[0] == '0 {"id":1,"customer":"Ada"} trace=\\x01'


def test_a_null_is_no_avro(pylog, root):
    words = ("cat", "orders", "--root", root, *schemas(root), "--null", "(null)")
    assert pylog(*words).stdout.splitlines()[2] == "(null)"


def test_dump_shows_avro_as_json(pylog, root):
    words = ("dump", root / "orders-0", *schemas(root))
    rows = pylog.rows(*words)
    values = [(row["key"], row["value"]) for row in rows if row["type"] == "record"]
    assert values == [*enumerate(ORDERS), (2, None)]
    text = pylog(*words).stdout
    assert '1 = {"id":2,"customer":null}  [trace="\\x01"]' in text
    assert "2 = null" in text


def test_find_shows_avro_as_json(pylog, root):
    key = ("--key", encoded("long", 1).hex(), "--key-format", "hex")
    words = ("find", root, "--topic", "orders", *key, "--value-format", "avro")
    words = (*words, "--value-schema", root / "order.avsc")
    rows = pylog.rows(*words)
    assert [row["value"] for row in rows if row["type"] == "version"] == [ORDERS[1]]
    assert '{"id":2,"customer":null}' in pylog(*words, "--wide").stdout
    (row,) = csv.DictReader(io.StringIO(pylog(*words, "--output", "csv").stdout))
    assert json.loads(row["value"]) == ORDERS[1]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("to", ["parquet", "csv", "jsonl"])
def test_export_writes_avro_as_json(pylog, root, tmp_path, to: str):
    out = tmp_path / "out"
    pylog.done("export", "orders", out, "--root", root, "--to", to, *schemas(root))
    (file,) = out.iterdir()
    if to == "parquet":
        rows = pq.read_table(file).to_pylist()
    elif to == "csv":
        rows = list(csv.DictReader(io.StringIO(file.read_text())))
    else:
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        assert rows[0]["value"] == ORDERS[0]
        return
    assert [(json.loads(row["key"]), json.loads(row["value"])) for row in rows[:2]] == list(
        enumerate(ORDERS)
    )


@pytest.mark.parametrize(
    "command",
    [
        "cat mixed --root {}",
        "cat mixed --root {} --output json",
        "dump {}/mixed-0",
        "dump {}/mixed-0 --output json",
        "find {} --topic mixed --key 02 --key-format hex",
        "find {} --topic mixed --key 02 --key-format hex --output csv",
    ],
)
@pytest.mark.parametrize("how", ["avro", "json"])
def test_a_record_that_is_not_in_its_format_is_named(pylog, root, command: str, how: str):
    schema = ("--value-schema", root / "order.avsc") if how == "avro" else ()
    result = pylog(*command.replace("{}", str(root)).split(), "--value-format", how, *schema)
    assert result.exit_code == ExitCode.USAGE
    said = " ".join(result.stderr.split())
    assert f"--value-format={how}: the record at offset" in said
    if how == "avro":
        assert "offset 1" in said
        assert "is not: position 0: expected a number of 64 bits; text shows it as it is" in said


def test_an_export_of_a_record_that_is_not_avro_writes_nothing(pylog, root, tmp_path):
    words = ("--value-format", "avro", "--value-schema", root / "order.avsc")
    result = pylog("export", "mixed", tmp_path / "out", "--root", root, "--to", "csv", *words)
    assert result.exit_code == ExitCode.PARTLY_FAILED
    assert "the record at offset 1 of mixed-0 is not: position 0" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--value-format avro", "needs --value-schema FILE"),
        ("--key-format avro-registry", "needs --key-schema FILE"),
        ("--value-schema {}/order.avsc", "is for --value-format avro or avro-registry"),
        ("--value-format json --value-schema {}/order.avsc", "is for --value-format avro"),
        ("--value-format avro --value-schema {}/nowhere", "No such file"),
        ("--value-format avro --value-schema {}/orders-0", "Is a directory"),
        ("--key 7 --key-format avro --key-schema {}/key.avsc", "text, hex or base64"),
    ],
)
def test_what_cannot_be_is_said(pylog, root, words: str, said: str):
    result = pylog("cat", "orders", "--root", root, *words.replace("{}", str(root)).split())
    assert (result.exit_code, result.stdout) == (ExitCode.USAGE, "")
    assert said in " ".join(result.stderr.split())
