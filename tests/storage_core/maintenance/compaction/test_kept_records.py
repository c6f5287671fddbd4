"""What pass one decompressed, and pass two finds again or not."""

from pathlib import Path

import numpy as np
import pytest

from storage_core.config import CleanerConfig
from storage_core.errors import InvalidRecordError
from storage_core.formats.batch_v2 import Codec
from storage_core.maintenance.compaction import pass_one
from storage_core.maintenance.compaction.index import KeptRecords
from storage_core.records import payload as payload_module
from storage_core.records.batch_table import BatchNotes
from storage_core.records.payload import DEFAULT_LIMITS, Payload, open_batches
from storage_core.records.reader import Window
from tests.kit.builders import encode_records, segment_bytes, some_batches
from tests.kit.compare import read_tree
from tests.kit.damage import with_lying_count
from tests.kit.legacy import LegacyMessage, LegacySet, encode_entry
from tests.storage_core.maintenance.compaction.hand_made import (
    batch,
    clean,
    cleaning,
    record,
    write_log,
)
from tests.storage_core.records.memory_file import only_window_of, windows_of

ROOM = 1 << 20
SPECS = some_batches(count=4, records=3, codec=Codec.ZSTD)
SIZE = sum(len(encode_records(spec)) for spec in SPECS)


def opened(window: Window, wanted: list[bool] | None = None) -> Payload:
    chosen = np.ones(len(window.batches), bool) if wanted is None else np.array(wanted)
    return open_batches(window, chosen, 0, DEFAULT_LIMITS)


def taken(kept: KeptRecords, window: Window, wanted: list[bool] | None = None) -> Payload | None:
    chosen = np.ones(len(window.batches), bool) if wanted is None else np.array(wanted)
    return kept.take(window, chosen, BatchNotes.empty(len(window.batches)))


def test_a_window_that_was_kept_is_taken_with_its_records():
    data = segment_bytes(SPECS)
    kept = KeptRecords(ROOM)
    assert kept.put(opened(only_window_of(data)))
    window = only_window_of(data)
    payload = taken(kept, window)
    assert payload is not None
    assert payload.window is window
    assert (payload.first_row, payload.end_row) == (0, 4)
    starts, ends = payload.notes.records_start, payload.notes.records_end
    records = [payload.arena[starts[row] : ends[row]].tobytes() for row in range(4)]
    assert records == [encode_records(spec) for spec in SPECS]
    assert taken(kept, window) is None


def test_a_batch_that_was_not_opened_is_missing_and_one_without_a_codec_is_not():
    plain = some_batches(count=1)[0]
    data = segment_bytes([*SPECS, plain])
    kept = KeptRecords(ROOM)
    assert kept.put(opened(only_window_of(data), [True, True, False, True, False]))
    window = only_window_of(data)
    assert taken(kept, window) is None
    assert taken(kept, window, [True, False, False, True, True]) is not None


def test_another_window_is_not_taken_for_it():
    kept = KeptRecords(ROOM)
    assert kept.put(opened(only_window_of(segment_bytes(SPECS))))
    assert taken(kept, only_window_of(segment_bytes(SPECS[:3]))) is None
    *_, second = windows_of(segment_bytes(SPECS), window_bytes=len(segment_bytes(SPECS[:2])))
    assert taken(kept, second) is None
    bigger = some_batches(count=4, records=5, codec=Codec.ZSTD)
    assert taken(kept, only_window_of(segment_bytes(bigger))) is None


def test_the_first_ones_go_where_there_is_no_room_for_all():
    data = segment_bytes(SPECS * 2)
    half = len(data) // 2
    kept = KeptRecords(2 * SIZE - 1)
    for window in windows_of(data, window_bytes=half):
        assert kept.put(opened(window))
    results = [taken(kept, window) is not None for window in windows_of(data, window_bytes=half)]
    assert results == [False, True]
    assert not KeptRecords(SIZE - 1).put(opened(only_window_of(segment_bytes(SPECS))))
    assert not KeptRecords().put(opened(only_window_of(segment_bytes(SPECS))))


def test_only_whole_windows_of_format_v2_are_kept(monkeypatch):
    old = encode_entry(LegacySet(messages=(LegacyMessage(offset=0, key=b"k"),)))
    assert not KeptRecords(ROOM).put(opened(only_window_of(old + segment_bytes(SPECS))))
    assert not KeptRecords(ROOM).put(opened(only_window_of(segment_bytes(some_batches(count=2)))))
    monkeypatch.setattr(payload_module, "ARENA_BUDGET_BYTES", SIZE // 2)
    assert not KeptRecords(ROOM).put(opened(only_window_of(segment_bytes(SPECS))))


def test_a_count_that_cannot_be_true_is_refused_here_too():
    plain = segment_bytes(some_batches(count=1))
    data = segment_bytes(SPECS) + with_lying_count(plain, 100)
    kept = KeptRecords(ROOM)
    assert kept.put(opened(only_window_of(data), [True] * 4 + [False]))
    with pytest.raises(InvalidRecordError, match="counts 100 records"):
        taken(kept, only_window_of(data))


@pytest.mark.parametrize("room", [0, 150, ROOM], ids=["nothing", "a part", "all"])
def test_a_round_gives_the_same_whatever_was_kept(tmp_path: Path, monkeypatch, room: int):
    results = []
    for name, limit in (("one", 0), ("other", room)):
        monkeypatch.setattr(pass_one, "KEPT_BYTES", limit)
        directory = write_log(
            tmp_path / name / "t-0",
            [
                batch(0, record(b"a"), record(b"b"), codec=Codec.ZSTD),
                batch(2, record(b"b"), record(b"c"), codec=Codec.LZ4),
            ],
            [batch(4, record(b"c"), record(b"d"), codec=Codec.GZIP)],
            [batch(6, record(b"e"))],
        )
        clean(directory)
        results.append(read_tree(directory))
    assert results[0] == results[1]


def test_pass_two_decompresses_nothing_again(tmp_path: Path, monkeypatch):
    opened_rows: list[int] = []
    original = payload_module.decompress_blocks

    def counted(codec: Codec, blocks, *rest, **limits: int) -> int:
        opened_rows.append(len(blocks.start))
        return original(codec, blocks, *rest, **limits)

    monkeypatch.setattr(payload_module, "decompress_blocks", counted)
    directory = write_log(
        tmp_path / "t-0",
        [batch(0, record(b"a"), record(b"b"), codec=Codec.LZ4)],
        [batch(2, record(b"b"))],
        [batch(3, record(b"c"))],
    )
    result = clean(directory)
    assert result.messages_written == 3
    assert opened_rows == [1]


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_pass_two_finds_the_windows_of_pass_one_with_any_number_of_threads(
    tmp_path: Path, monkeypatch, threads: int
):
    asked: list[bool] = []
    original = KeptRecords.take

    def told(self: KeptRecords, *arguments) -> Payload | None:
        payload = original(self, *arguments)
        asked.append(payload is not None)
        return payload

    monkeypatch.setattr(KeptRecords, "take", told)
    batches = [
        batch(3 * n, *[record(b"%d" % (n % 9), b"%d" % i) for i in range(3)], codec=Codec.ZSTD)
        for n in range(60)
    ]
    directory = write_log(tmp_path / "t-0", batches, [batch(180, record(b"x"), codec=Codec.ZSTD)])
    cleaning(cleaner=CleanerConfig(window_bytes=600)).clean(directory, threads=threads)
    assert len(asked) > 5
    assert all(asked)
