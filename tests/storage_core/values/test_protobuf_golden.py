"""Values that the official serializer has written, and what the official deserializer gives."""

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pytest

from storage_core.values.protobuf_columns import ProtobufDecoder, protobuf_decoder
from tests.kit.golden_data import GOLDEN

WRITTEN: Final = json.loads((GOLDEN / "registry" / "protobuf.json").read_text())
VERSIONS: Final = (1, 2, 3)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def by_text(version: int, message: str) -> ProtobufDecoder:
    texts = {"order.proto": WRITTEN["texts"][str(version)], **WRITTEN["references"]}
    return protobuf_decoder(texts, "order.proto", message)


def by_descriptor(version: int, message: str) -> ProtobufDecoder:
    """The same by what the serializer itself has registered, descriptors in Base64."""
    number = next(
        int.from_bytes(base64.b64decode(row["value"])[1:5], "big")
        for row in WRITTEN["orders"]
        if row["value"] and row["version"] == version
    )
    (schema,) = (each for each in WRITTEN["registered"] if each["id"] == number)
    texts = {"order.proto": schema["schema"]}
    for each in WRITTEN["registered"]:
        for reference in schema["references"]:
            if each["subject"] == reference["subject"]:
                texts[reference["name"]] = each["schema"]
    return protobuf_decoder(texts, "order.proto", message)


@pytest.mark.parametrize("decoder_of", [by_text, by_descriptor])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("message", ["shop.Order", "shop.Refund", "shop.Order.Line"])
def test_each_value_is_what_the_official_deserializer_gives(decoder_of, version, message):
    rows = [
        row for row in WRITTEN["orders"] if (row["version"], row["message"]) == (version, message)
    ]
    if not rows:
        return
    decoder = decoder_of(version, message)
    values = [row["value"] and base64.b64decode(row["value"])[5:] for row in rows]
    decoded = decoder.decode(pa.array(values, pa.large_binary()))
    assert decoded.reasons == ()
    assert [as_json(each) for each in decoded.column.to_pylist()] == [row["is"] for row in rows]
    texts = [None if each is None else json.loads(decoder.to_json(each)) for each in values]
    assert texts == [row["json"] for row in rows]


def test_a_reader_of_one_message_says_which_one_another_is():
    values = [
        base64.b64decode(row["value"])[5:]
        for row in WRITTEN["orders"]
        if row["version"] == 3 and row["value"]
    ]
    decoded = by_text(3, "shop.Order").decode(pa.array(values, pa.large_binary()))
    assert decoded.failed.tolist() == [2, 3]
    assert decoded.reasons[0].endswith("found [1], those of shop.Refund")
    assert decoded.reasons[1].endswith("found [0, 0], those of shop.Order.Line")


def as_json(value: Any) -> Any:  # noqa: PLR0911  # a kind of value each
    """Return a value of a column as the golden file has it."""
    match value:
        case dict():
            return {name: as_json(each) for name, each in value.items()}
        case [(_, _), *_]:
            return sorted([key, as_json(each)] for key, each in value)
        case list():
            return [as_json(each) for each in value]
        case bytes():
            return base64.b64encode(value).decode()
        case datetime():
            return (value - _EPOCH) // _MICROSECOND
        case timedelta():
            return value // _MICROSECOND
        case str() if value.startswith("{"):
            return json.loads(value)
    return value
