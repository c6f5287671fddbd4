"""How many records segments hold, told by headers where those tell it."""

from pathlib import Path

import pytest

from pylog_spark.operations.compact import task as measure
from pylog_spark.operations.compact.task import count_records
from storage_core.errors import InvalidRecordError
from storage_core.formats.batch_v2 import Codec
from storage_core.records import payload
from storage_core.store import LocalStore
from tests.kit.builders import log_with
from tests.kit.legacy import LegacyMessage, LegacySet, encode_entry

LOG = "00000000000000000000.log"
MESSAGES = tuple(LegacyMessage(offset=offset) for offset in range(5))
SET = encode_entry(LegacySet(messages=MESSAGES, codec=Codec.GZIP))
PLAIN = b"".join(map(encode_entry, MESSAGES))


def counted(directory: Path, data: bytes) -> int:
    (directory / LOG).write_bytes(data)
    return count_records(LocalStore(directory), [LOG])


@pytest.mark.parametrize("window_bytes", [1, 1 << 20])
def test_all_formats_are_counted_up_to_the_last_whole_batch(
    tmp_path: Path, monkeypatch, window_bytes: int
):
    monkeypatch.setattr(measure, "_WINDOW_BYTES", window_bytes)
    new = log_with(batches=3, records=4, codec=Codec.LZ4)
    assert counted(tmp_path, new) == 12
    assert counted(tmp_path, PLAIN) == 5
    assert counted(tmp_path, SET * 3 + PLAIN + new + SET + new[:70]) == 15 + 5 + 12 + 5
    assert counted(tmp_path, b"") == 0


def test_sets_are_opened_as_many_at_a_time_as_memory_allows(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(payload, "ARENA_BUDGET_BYTES", 1)
    assert counted(tmp_path, SET * 3 + PLAIN + SET) == 25


def test_nothing_is_opened_that_counts_its_records(tmp_path: Path, monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("a batch was opened")

    monkeypatch.setattr(payload, "open_batches", refuse)
    assert counted(tmp_path, log_with(batches=2, codec=Codec.GZIP) + PLAIN) == 7


def test_a_set_that_cannot_be_opened_is_told_with_its_place(tmp_path: Path):
    bad = encode_entry(LegacySet(messages=MESSAGES, payload=None))
    with pytest.raises(InvalidRecordError) as caught:
        counted(tmp_path, PLAIN + bad)
    assert (caught.value.file, caught.value.position) == (LOG, len(PLAIN))
