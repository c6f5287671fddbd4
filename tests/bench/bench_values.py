"""Avro values to Arrow columns, beside fastavro and Polars: values a second.

    python -m tests.bench.bench_values [--rounds 7] [--values 200000]

The values are orders of about 66 bytes: numbers, texts, an enum, a time, nulls, a list and a record
inside. fastavro reads value by value, as its users write the loop, and Arrow makes columns of the
dictionaries. Polars has no reader of single values: it gets the same records in a container file
that is in memory. All are one thread each, in turns, warm; what counts are processor seconds.
"""

import io
import json
import random
from collections.abc import Iterator
from typing import Any, Final

import fastavro
import polars as pl
import pyarrow as pa

from storage_core.values.avro_columns import avro_decoder
from tests.bench.figures import Figure
from tests.bench.shared import processor_rates, run_with_options

OURS: Final = "ours"
FASTAVRO: Final = "fastavro"
POLARS: Final = "Polars"
_FEW: Final = 10  # of so many values fastavro reads one: it takes long
_SYMBOLS: Final = ("NEW", "PAID", "SENT")

ORDER: Final = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": ["null", "string"]},
        {"name": "sku", "type": "string"},
        {"name": "quantity", "type": "int"},
        {"name": "price", "type": "double"},
        {"name": "is_paid", "type": "boolean"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": list(_SYMBOLS)}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {
            "name": "to",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Address",
                    "fields": [
                        {"name": "city", "type": "string"},
                        {"name": "zip", "type": "string"},
                    ],
                },
            ],
        },
    ],
}


def measure(*, values: int = 200_000, rounds: int = 7) -> Figure:
    """Decode generated orders by all, in turns."""
    schema = fastavro.parse_schema(ORDER)
    some = list(orders(values))
    column = pa.array([_written(schema, each) for each in some], pa.large_binary())
    container = io.BytesIO()
    fastavro.writer(container, schema, some)
    decoder = avro_decoder([json.dumps(ORDER)])
    few = column[: values // _FEW]
    # Arrow makes no dictionary of what is in dictionaries.
    plain = pa.struct([("state", pa.string()) if at.name == "state" else at for at in decoder.type])

    def by_fastavro() -> None:
        rows = [fastavro.schemaless_reader(io.BytesIO(each), schema) for each in few.to_pylist()]
        pa.array(rows, plain)

    if decoder.decode(column[-1:]).column.to_pylist() != [
        fastavro.schemaless_reader(io.BytesIO(column[-1].as_py()), schema)
    ]:
        raise AssertionError("the sides read different values")
    rates = processor_rates(
        {
            OURS: (values / 1e6, lambda: decoder.decode(column)),
            FASTAVRO: (len(few) / 1e6, by_fastavro),
            POLARS: (values / 1e6, lambda: pl.read_avro(io.BytesIO(container.getvalue()))),
        },
        rounds=rounds,
    )
    return Figure(
        work="Avro values to columns, a core",
        unit="M values/s",
        ours=rates.pop(OURS),
        theirs=rates,
        targets={FASTAVRO: 10, POLARS: 0.5},
    )


def orders(count: int) -> Iterator[dict[str, Any]]:
    """Yield generated orders."""
    chance = random.Random(1)
    for number in range(count):
        address = {"city": "Z\u00fcrich", "zip": "8001"}
        yield {
            "id": number,
            "customer": f"customer-{chance.randrange(10**6)}" if number % 7 else None,
            "sku": f"SKU{chance.randrange(10**8):08}",
            "quantity": chance.randrange(100),
            "price": chance.random() * 1000,
            "is_paid": bool(number & 1),
            "at": 1_700_000_000_000_000 + number,
            "state": _SYMBOLS[number % 3],
            "tags": ["new", "a long word"][: number % 3],
            "to": address if number % 5 else None,
        }


def _written(schema: Any, value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


if __name__ == "__main__":
    run_with_options(measure)
