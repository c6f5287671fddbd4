"""Protobuf values to Arrow columns, beside the library protobuf and ptars: values a second.

    python -m tests.bench.bench_protobuf [--rounds 7] [--values 200000]

The values are orders of about 120 bytes: numbers, texts, an enum, a time, an optional text, a
choice, a map, a list of numbers and one of messages. The library reads value by value, as its users
write the loop (``FromString`` and ``MessageToDict``), and Arrow makes columns of the dictionaries.
ptars is a reader in Rust; it is beside this where it is installed, and ends at the first value that
does not fit. All are one thread each, in turns, warm; what counts are processor seconds.
"""

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import pyarrow as pa
from google.protobuf import json_format, message_factory

from storage_core.values.protobuf_columns import ProtobufDecoder, protobuf_decoder
from tests.bench.figures import Figure
from tests.bench.shared import processor_rates, run_with_options

OURS: Final = "ours"
LIBRARY: Final = "protobuf in a loop"
PTARS: Final = "ptars"
_FEW: Final = 20  # of so many values the library reads one: it takes long
_STATES: Final = 3

ORDER: Final = """
    syntax = "proto3";
    package shop;
    import "google/protobuf/timestamp.proto";
    enum State { NEW = 0; PAID = 1; SENT = 2; }
    message Line { string sku = 1; int32 quantity = 2; double price = 3; }
    message Order {
      int64 id = 1;
      string customer = 2;
      double amount = 3;
      State state = 4;
      google.protobuf.Timestamp placed = 5;
      repeated Line lines = 6;
      map<string, string> labels = 7;
      repeated int32 codes = 8;
      optional string note = 9;
      bytes signature = 10;
      oneof payment { string card = 11; int64 voucher = 12; }
    }
    """


def measure(*, values: int = 200_000, rounds: int = 7) -> Figure:
    """Decode generated orders by all, in turns."""
    decoder = protobuf_decoder({"order.proto": ORDER}, "order.proto", "shop.Order")
    kind = message_factory.GetMessageClass(decoder.messages.descriptor)
    bare = [order.SerializeToString() for order in _orders(kind, values)]
    indexes = b"\x02\x02"  # of the second message
    column = pa.array([indexes + each for each in bare], pa.large_binary())
    few = bare[::_FEW]

    def by_library() -> None:
        rows = [
            json_format.MessageToDict(kind.FromString(each), preserving_proto_field_name=True)
            for each in few
        ]
        pa.array(rows)

    _check(decoder, kind, bare[-1], column[-1:])
    ways = {
        OURS: (values / 1e6, lambda: decoder.decode(column)),
        LIBRARY: (len(few) / 1e6, by_library),
    }
    if find_spec(PTARS) is not None:
        ptars = import_module(PTARS)
        handler = ptars.HandlerPool([kind.DESCRIPTOR.file]).get_for_message(kind.DESCRIPTOR)
        plain = pa.array(bare, pa.binary())
        ways[PTARS] = (values / 1e6, lambda: handler.array_to_record_batch(plain))
    rates = processor_rates(ways, rounds=rounds)
    return Figure(
        work="Protobuf values to columns, a core",
        unit="M values/s",
        ours=rates.pop(OURS),
        theirs=rates,
        targets={LIBRARY: 5},
    )


def _check(decoder: ProtobufDecoder, kind: Any, data: bytes, column: pa.Array) -> None:
    (row,) = decoder.decode(column).column.to_pylist()
    order = kind.FromString(data)
    skus = [line.sku for line in order.lines]
    if (row["id"], row["customer"], [line["sku"] for line in row["lines"]]) != (
        order.id,
        order.customer,
        skus,
    ):
        raise AssertionError("the sides read different values")


def _orders(kind: Any, count: int) -> Iterator[Any]:
    for number in range(count):
        order = kind(
            id=number * 1_000_003,
            customer=f"customer-{number % 977}",
            amount=number * 1.25,
            state=number % _STATES,
            codes=range(number % 5),
            signature=b"abc",
            labels={"region": "eu", "shop": str(number % 10)},
        )
        order.placed.seconds = 1_700_000_000 + number
        order.placed.nanos = number * 1000 % 10**9
        for line in range(number % 4):
            order.lines.add(sku=f"sku-{line}-{number % 100}", quantity=line + 1, price=line * 9.5)
        if number & 1:
            order.note, order.card = "a note", "visa"
        else:
            order.voucher = number
        yield order


if __name__ == "__main__":
    run_with_options(measure)
