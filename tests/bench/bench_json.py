"""Values of a JSON schema to Arrow columns, beside a loop, Arrow's own reader and Polars: values a
second.

    python -m tests.bench.bench_json [--rounds 7] [--values 200000]

The values are the orders of ``bench_values`` as JSON of about 190 bytes; once more with an object
of any names, which stays JSON text. The loop reads value by value with ``json.loads``, as users
write it, and Arrow makes columns of the dictionaries. Arrow's reader and Polars have none of single
values, and trust them: they get the same values as lines in memory. All are one thread each, in
turns, warm; what counts are processor seconds.
"""

import io
import json
import os
from collections.abc import Iterator
from typing import Any, Final

os.environ.setdefault("POLARS_MAX_THREADS", "1")

import polars as pl
import pyarrow as pa
import pyarrow.json as pa_json

from storage_core.values.json_columns import json_decoder
from tests.bench.bench_values import orders
from tests.bench.figures import Figure
from tests.bench.shared import processor_rates, run_with_options

OURS: Final = "ours"
LOOP: Final = "json.loads in a loop"
ARROW: Final = "pyarrow.json"
POLARS: Final = "Polars"
_FEW: Final = 10  # of so many values the loop reads one: it takes long
_STRING: Final = {"type": "string"}
_MORE: Final = "attributes"

ORDER: Final = {
    "id": {"type": "integer"},
    "customer": {"type": ["null", "string"]},
    "sku": _STRING,
    "quantity": {"type": "integer"},
    "price": {"type": "number"},
    "is_paid": {"type": "boolean"},
    "at": {"type": "integer"},
    "state": {"enum": ["NEW", "PAID", "SENT"]},
    "tags": {"type": "array", "items": _STRING},
    "to": {"type": ["null", "object"], "properties": {"city": _STRING, "zip": _STRING}},
}


def measure(*, values: int = 200_000, rounds: int = 7) -> Iterator[Figure]:
    """Decode generated orders by all, in turns."""
    yield _measure("JSON values to columns, a core", {}, values, rounds)
    text = {_MORE: {"type": "object", "additionalProperties": _STRING}}
    yield _measure("JSON values to columns and text, a core", text, values, rounds)


def _measure(work: str, more: dict[str, Any], values: int, rounds: int) -> Figure:
    content = [_written(each, is_more=bool(more)) for each in orders(values)]
    column = pa.array(content, pa.large_binary())
    few = column[: values // _FEW]
    lines = b"\n".join(content)
    decoder = json_decoder(json.dumps({"type": "object", "properties": ORDER | more}))
    # Arrow's reader has no text of an object; it makes a struct of the names that it meets.
    known = None if more else pa.schema(list(decoder.type))

    def by_loop() -> None:
        pa.array(_rows(few), decoder.type)

    def by_arrow() -> None:
        pa_json.read_json(
            pa.BufferReader(lines),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=len(lines)),
            parse_options=pa_json.ParseOptions(explicit_schema=known),
        )

    if decoder.decode(few).column.to_pylist() != pa.array(_rows(few), decoder.type).to_pylist():
        raise AssertionError("the sides read different values")
    rates = processor_rates(
        {
            OURS: (values / 1e6, lambda: decoder.decode(column)),
            LOOP: (len(few) / 1e6, by_loop),
            ARROW: (values / 1e6, by_arrow),
            POLARS: (values / 1e6, lambda: pl.read_ndjson(io.BytesIO(lines))),
        },
        rounds=rounds,
    )
    return Figure(
        work=work,
        unit="M values/s",
        ours=rates.pop(OURS),
        theirs=rates,
        targets={LOOP: 3, ARROW: 0.5},
    )


def _rows(values: pa.Array) -> list[Any]:
    rows = [json.loads(each) for each in values.to_pylist()]
    for row in rows:
        if _MORE in row:
            row[_MORE] = _text(row[_MORE])
    return rows


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _written(order: dict[str, Any], *, is_more: bool) -> bytes:
    more = {_MORE: {"region": "eu", "campaign": f"c{order['id'] % 10}"}} if is_more else {}
    return _text(order | more).encode()


if __name__ == "__main__":
    run_with_options(measure)
