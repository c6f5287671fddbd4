"""Columns of bytes as somebody wants them, whole or a piece of a larger one."""

import pyarrow as pa
import pytest

from pylog_spark.options.choices import AVRO_FORMATS, BytesFormat
from pylog_spark.record_columns import format_column, text_column
from pylog_spark.record_text import NotInFormatError, format_value

READ_BY_VALUE = (BytesFormat.JSON, BytesFormat.REGISTRY, *AVRO_FORMATS)
VALUES = [b"ab", None, b"", b"\xff\n", "h\u00e9".encode(), b'{"a":1}']


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()], ids=str)
@pytest.mark.parametrize("first", [0, 1, 3])
@pytest.mark.parametrize("how", [how for how in BytesFormat if how not in READ_BY_VALUE])
def test_a_piece_of_a_column_is_written_as_its_values_are(kind, first: int, how: BytesFormat):
    expected = {
        BytesFormat.RAW: VALUES,
        BytesFormat.TEXT: [b"ab", None, b"", b"\\xff\\n", VALUES[4], VALUES[5]],
        BytesFormat.HEX: [None if v is None else v.hex().encode() for v in VALUES],
        BytesFormat.BASE64: [b"YWI=", None, b"", b"/wo=", b"aMOp", b"eyJhIjoxfQ=="],
    }[how]
    column = pa.array(VALUES, kind).slice(first)
    assert format_column(column, how).to_pylist() == expected[first:]


def test_text_keeps_its_characters_and_json_its_digits():
    assert text_column(pa.array([b"a\nb", None]), BytesFormat.TEXT).to_pylist() == ["a\nb", None]
    column = text_column(pa.array([b"a\nb", b"\xff"]), BytesFormat.TEXT)
    assert column.to_pylist() == ["a\nb", "\\xff"]
    column = text_column(pa.array([b'{"n":\r\n1.50}', b" 7 "]), BytesFormat.JSON)
    assert column.to_pylist() == ['{"n":  1.50}', "7"]
    assert format_value(b"\x00", BytesFormat.TEXT) == '"\\u0000"'


def test_what_is_no_json_is_named_by_its_row():
    with pytest.raises(NotInFormatError) as caught:
        format_column(pa.array([b"1", None, b"x"]), BytesFormat.JSON)
    assert caught.value.row == 2
