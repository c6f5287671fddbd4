"""The marker of a clean shutdown."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.checkpoint import CleanShutdown, encode_clean_shutdown, parse_clean_shutdown
from storage_core.filenames import CLEAN_SHUTDOWN_FILE
from tests.kit.golden_data import Golden


@pytest.mark.item("CKP-16")
def test_the_bytes_are_kafkas():
    assert encode_clean_shutdown(11) == b'{"version":0,"brokerEpoch":11}'
    assert encode_clean_shutdown() == b'{"version":0,"brokerEpoch":-1}'


@pytest.mark.item("CKP-16")
def test_a_brokers_own_marker_is_written_back_byte_for_byte(tmp_path: Path):
    data = (Golden("broker-dir").unpack(tmp_path) / CLEAN_SHUTDOWN_FILE).read_bytes()
    marker = parse_clean_shutdown(data)
    assert marker == CleanShutdown(broker_epoch=11)
    assert encode_clean_shutdown(marker.broker_epoch) == data


@pytest.mark.item("CKP-16")
def test_keys_that_are_not_known_do_not_matter():
    data = b'{"brokerEpoch": 7, "version": 3, "more": [1]}'
    assert parse_clean_shutdown(data) == CleanShutdown(broker_epoch=7)


@pytest.mark.item("CKP-16")
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="no JSON"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b'{"version":0}', id="no epoch"),
        pytest.param(b'{"version":0,"brokerEpoch":null}', id="null"),
        pytest.param(b'{"version":0,"brokerEpoch":true}', id="a boolean"),
        pytest.param(b'{"version":0,"brokerEpoch":9223372036854775808}', id="65 bits"),
        pytest.param(b'{"brokerEpoch":' + b"9" * 5_000 + b"}", id="endless number"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(b"[" * 60_000, id="deep nesting"),
        pytest.param(b" " * 100_000 + b'{"brokerEpoch":7}', id="far too long"),
    ],
)
def test_what_cannot_be_read_means_that_no_epoch_is_known(data: bytes):
    assert parse_clean_shutdown(data) == CleanShutdown(broker_epoch=-1)


@given(st.binary(max_size=100))
def test_no_bytes_raise(data: bytes):
    assert isinstance(parse_clean_shutdown(data), CleanShutdown)
