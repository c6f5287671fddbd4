"""Every version of a key that is left anywhere, and what is said of those that are not."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from storage_core.checkpoint.checkpoints import encode_offset_checkpoint
from storage_core.commit.trash import RUN_FILE
from storage_core.filenames import CLEANER_FILE, LOG_START_FILE, TopicPartition
from storage_core.formats.control import ControlType
from storage_core.reading import key_history, ranges
from storage_core.reading.key_history import (
    ABORTED,
    DELETED,
    DIRECTORY,
    LOG,
    UNDECIDED,
    PartitionHistory,
    find_history,
)
from tests.kit.builders import SOME_TIME_MS, BatchSpec, RecordSpec, end_txn_marker
from tests.kit.compare import read_tree
from tests.kit.directories import SegmentSpec, write_partition

ORDERS = TopicPartition("orders", 0)
LOG_OF_ZERO = "00000000000000000000.log"


def record(key: bytes, value: bytes | None, delta: int | None = None) -> RecordSpec:
    return RecordSpec(key=key, value=value, offset_delta=delta)


def batch(base: int, *records: RecordSpec, **fields: object) -> BatchSpec:
    return BatchSpec(base_offset=base, records=records, **fields)


def write(root: Path, *batches: BatchSpec, name: str = "orders-0", base: int = 0) -> Path:
    write_partition(root / name, [SegmentSpec(base_offset=base, batches=list(batches))])
    return root


def history(root: Path, key: bytes = b"k", **words: object) -> PartitionHistory:
    (only,) = find_history(str(root), "orders", [key], now_ms=SOME_TIME_MS, **words)
    return only


def told(found: PartitionHistory) -> list[tuple[int, bytes | None, int | None]]:
    return [(one.offset, one.value, one.superseded_by) for one in found.versions]


def kinds(found: PartitionHistory) -> dict[int, list[str]]:
    return {one.offset: [copy.kind for copy in one.copies] for one in found.versions}


def test_each_version_names_the_one_that_superseded_it(tmp_path):
    root = write(
        tmp_path,
        batch(0, record(b"k", b"a"), record(b"other", b"x"), record(b"k", None)),
        batch(3, record(b"k", b"b")),
    )
    before = read_tree(root)
    found = history(root)
    assert told(found) == [(0, b"a", 2), (2, None, 3), (3, b"b", None)]
    assert all(version.is_visible for version in found.versions)
    assert found.versions[0].copies[0].path == str(root / "orders-0" / LOG_OF_ZERO)
    assert (found.erased_offsets, found.erased_from_offset) == (0, None)
    assert "no version is missing" in found.sentence
    assert read_tree(root) == before


def test_what_compaction_erased_is_counted_up_to_the_newest_version(tmp_path):
    root = write(
        tmp_path,
        batch(0, record(b"a", b"1"), record(b"b", b"1", 3)),  # 1 and 2 are gone
        batch(10, record(b"k", b"v"), last_offset_delta=4),  # 4 to 9 before it, 11 to 14 in it
        batch(20, record(b"z", b"v")),  # behind the newest version: no matter
    )
    found = history(root)
    assert told(found) == [(10, b"v", None)]
    assert (found.erased_offsets, found.erased_from_offset) == (12, 0)
    assert found.end_offset == 11
    assert "have no record any more (compaction, a cut or damage: pylog verify)" in found.sentence
    (root / CLEANER_FILE).write_bytes(encode_offset_checkpoint({ORDERS: 21}))
    assert "compaction or a cut has taken them" in history(root).sentence
    nothing = history(root, b"never")
    assert nothing.versions == ()
    assert (nothing.erased_offsets, nothing.end_offset) == (17, 21)


def test_a_log_that_starts_later_says_so(tmp_path):
    root = write(tmp_path, batch(7, record(b"k", b"v"), record(b"k", b"w")), base=7)
    found = history(root)
    assert found.log_start_offset == 7
    assert "starts at offset 7: what lay below was deleted" in found.sentence
    assert "no version is missing" not in found.sentence
    start = encode_offset_checkpoint({ORDERS: 8})
    (root / LOG_START_FILE).write_bytes(start)
    (root / CLEANER_FILE).write_bytes(encode_offset_checkpoint({ORDERS: 8}))
    found = history(root)
    assert [version.is_visible for version in found.versions] == [False, True]
    assert (found.log_start_offset, found.cleaner_offset) == (8, 8)


def test_an_aborted_record_is_none_that_supersedes(tmp_path):
    root = write(
        tmp_path,
        batch(0, record(b"k", b"good")),
        batch(1, record(b"k", b"bad"), producer_id=9, producer_epoch=0, is_transactional=True),
        end_txn_marker(
            base_offset=2, producer_id=9, producer_epoch=0, control_type=ControlType.ABORT
        ),
        batch(3, record(b"k", b"last")),
        batch(4, record(b"k", b"open"), producer_id=8, producer_epoch=0, is_transactional=True),
    )
    found = history(root)
    assert told(found) == [
        (0, b"good", 3),
        (1, b"bad", None),
        (3, b"last", None),
        (4, b"open", None),
    ]
    assert [version.transaction for version in found.versions] == [None, ABORTED, None, UNDECIDED]
    assert [version.is_visible for version in found.versions] == [True, False, True, True]


def test_files_and_directories_that_kafka_renamed_are_looked_into(tmp_path):
    root = write(tmp_path, batch(5, record(b"k", b"new")), base=5)
    old = write(tmp_path / "old", batch(0, record(b"k", b"old")))
    shutil.copy(old / "orders-0" / LOG_OF_ZERO, root / "orders-0" / f"{LOG_OF_ZERO}.deleted")
    name = f"orders-0.{'0' * 32}-delete"
    write(root, batch(2, record(b"k", b"older topic")), name=name)
    shutil.rmtree(tmp_path / "old")
    found = history(root)
    assert told(found) == [(0, b"old", 2), (2, b"older topic", 5), (5, b"new", None)]
    assert kinds(found) == {0: [DELETED], 2: [DIRECTORY], 5: [LOG]}
    assert [version.is_visible for version in found.versions] == [False, False, True]
    assert found.versions[0].copies[0].path.endswith(".log.deleted")
    assert found.versions[1].copies[0].name == name


def test_a_damaged_place_is_an_error_and_hides_no_other(tmp_path):
    root = write(tmp_path, batch(5, record(b"k", b"new")), base=5)
    old = write(tmp_path / "old", batch(0, record(b"k", b"old")))
    bad = root / "orders-0" / f"{LOG_OF_ZERO}.deleted"
    content = bytearray((old / "orders-0" / LOG_OF_ZERO).read_bytes())
    content[-1] ^= 1
    bad.write_bytes(content)
    shutil.rmtree(tmp_path / "old")
    found = history(root)
    assert told(found) == [(5, b"new", None)]
    assert [error["error_class"] for error in found.errors] == ["CorruptRecordError"]
    assert found.is_whole


def test_of_a_log_that_was_not_read_to_its_end_nothing_is_said_of_the_rest(tmp_path):
    batches = [batch(n, record(b"k", b"%d" % n)) for n in range(4)]
    root = write(tmp_path, *batches)
    log = root / "orders-0" / LOG_OF_ZERO
    content = bytearray(log.read_bytes())
    content[len(content) // 4 * 3 - 1] ^= 1  # of the third batch
    log.write_bytes(content)
    found = history(root)
    assert told(found) == [(0, b"0", 1), (1, b"1", None)]
    assert (found.is_whole, found.end_offset) == (False, 2)
    assert "not read to its end: newer versions may be there" in found.sentence
    assert "no version is missing" not in found.sentence
    nothing = history(root, b"never")
    assert (nothing.is_whole, nothing.end_offset, nothing.erased_offsets) == (False, None, 0)
    assert "erased" not in nothing.sentence


def test_offsets_that_a_damaged_header_hides_are_not_called_compacted(tmp_path):
    root = write(tmp_path, batch(0, record(b"k", b"a")), batch(9, record(b"k", b"b")))
    found = history(root)
    assert (found.erased_offsets, found.is_compacted) == (8, False)
    assert "(compaction, a cut or damage: pylog verify)" in found.sentence


def test_only_the_partitions_that_are_asked_for_are_read(tmp_path):
    root = write(tmp_path, batch(0, record(b"k", b"0")))
    write(root, batch(0, record(b"k", b"1")), name="orders-1")
    write(root, batch(0, record(b"k", b"x")), name="other-0")

    def numbers(asked: Sequence[int]) -> list[int]:
        found = find_history(str(root), "orders", [b"k"], now_ms=SOME_TIME_MS, numbers=asked)
        return [one.partition.partition for one in found]

    assert (numbers(()), numbers((1,)), numbers((7,))) == ([0, 1], [1], [])


def test_several_keys_are_told_one_after_the_other(tmp_path):
    root = write(
        tmp_path,
        batch(0, RecordSpec(key=None, value=b"n"), record(b"b", b"1"), record(b"a", b"2")),
        batch(3, record(b"a", b"3")),
    )
    (found,) = find_history(str(root), "orders", [b"a", b"b", None], now_ms=SOME_TIME_MS)
    keyed = [(one.key, one.offset, one.superseded_by) for one in found.versions]
    assert keyed == [(None, 0, None), (b"a", 2, 3), (b"a", 3, None), (b"b", 1, None)]


@pytest.mark.parametrize("most", [1, 2, 3, 4, 100])
def test_of_many_versions_the_newest_are_told_whatever_place_they_are_in(tmp_path, most: int):
    """Six versions of k: some in the log alone, some in a renamed directory, some in both."""
    both = [batch(base, record(b"k", b"%d" % base)) for base in (2, 3)]
    root = write(
        tmp_path,
        *both,
        batch(4, record(b"k", b"4"), record(b"a", b"x")),
        batch(6, record(b"k", b"6")),
    )
    first = [batch(base, record(b"k", b"%d" % base)) for base in (0, 1)]
    write(root, *first, *both, name=f"orders-0.{'0' * 32}-delete")
    (found,) = find_history(str(root), "orders", [b"a", b"k"], now_ms=SOME_TIME_MS, most=most)
    offsets = [0, 1, 2, 3, 4, 6][-most:]
    of_key = [one for one in found.versions if one.key == b"k"]
    assert [one.offset for one in of_key] == offsets
    assert [one.superseded_by for one in of_key] == [*offsets[1:], None]
    assert [len(one.copies) for one in of_key] == [2 if n in {2, 3} else 1 for n in offsets]
    assert found.left_out == 8 - sum(len(one.copies) for one in of_key)
    assert [one.offset for one in found.versions if one.key == b"a"] == [5]
    assert found.end_offset == 7


def test_of_long_values_fewer_versions_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(key_history, "_MOST_BYTES", 2_500)
    root = write(tmp_path, *(batch(n, record(b"k", b"%d" % n * 1000)) for n in range(9)))
    found = history(root)
    assert [one.offset for one in found.versions] == [7, 8]
    assert found.left_out == 7


def test_what_is_kept_of_many_versions_has_a_bound_while_they_are_read(tmp_path, monkeypatch):
    """Windows of the file come one by one: no more than two of them are held for one version."""
    monkeypatch.setattr(ranges, "_WINDOW_BYTES", 4_096)
    root = write(tmp_path, *(batch(n, record(b"k", b"v" * 1000)) for n in range(400)))
    held = []
    add = key_history._NewestRecords.add

    def watched(tail, piece):
        add(tail, piece)
        held.append(sum(each.num_rows for each in tail.batches))

    monkeypatch.setattr(key_history._NewestRecords, "add", watched)
    found = history(root, most=1)
    assert told(found) == [(399, b"v" * 1000, None)]
    assert found.left_out == 399
    assert len(held) > 100
    assert max(held) <= 4


def test_no_version_is_told_that_is_older_than_one_that_was_let_go(tmp_path, monkeypatch):
    monkeypatch.setattr(ranges, "_WINDOW_BYTES", 4_096)
    monkeypatch.setattr(key_history, "_MOST_BYTES", 300)
    some = [batch(n, record(b"k", b"v"), record(b"x", b"x" * 1000)) for n in range(2, 82, 2)]
    root = write(tmp_path, *some, base=2)
    write(root, batch(0, record(b"k", b"old")), name=f"orders-0.{'0' * 32}-delete")
    offsets = [one.offset for one in history(root).versions]
    assert offsets == list(range(offsets[0], 82, 2))
    assert 2 < offsets[0] < 80


def test_an_aborted_one_among_the_newest_is_told_as_such(tmp_path):
    data = {"producer_id": 9, "producer_epoch": 0}
    root = write(
        tmp_path,
        batch(0, record(b"k", b"old")),
        batch(1, record(b"k", b"bad"), **data, is_transactional=True),
        end_txn_marker(base_offset=2, **data, control_type=ControlType.ABORT),
        batch(3, record(b"k", b"new")),
    )
    found = history(root, most=2)
    assert [(one.offset, one.transaction) for one in found.versions] == [(1, ABORTED), (3, None)]
    assert found.left_out == 1


def test_an_empty_trash_adds_nothing(tmp_path):
    root = write(tmp_path / "logs", batch(0, record(b"k", b"v")))
    (tmp_path / "trash" / "strange").mkdir(parents=True)
    assert not list((tmp_path / "trash").glob(f"*/{RUN_FILE}"))
    assert told(history(root, trash=tmp_path / "trash")) == [(0, b"v", None)]


@pytest.mark.parametrize("last", [2**62, 2**63 - 2])
def test_offsets_at_the_end_of_their_range_are_counted(tmp_path, last: int):
    segments = [
        SegmentSpec(base_offset=base, batches=[batch(base, record(key, b"v"))])
        for base, key in ((0, b"a"), (last, b"k"))
    ]
    write_partition(tmp_path / "orders-0", segments)
    found = history(tmp_path)
    assert [version.offset for version in found.versions] == [last]
    assert found.erased_offsets == last - 1


@pytest.mark.parametrize("name", ["7.log", "0.log"])
def test_a_segment_whose_name_kafka_would_not_write_is_an_error_and_hides_no_other(tmp_path, name):
    root = write(tmp_path, batch(0, record(b"k", b"a")))
    write(tmp_path, batch(0, record(b"k", b"a")), name="orders-1")
    shutil.copy(root / "orders-0" / LOG_OF_ZERO, root / "orders-0" / name)
    if name == "0.log":
        (root / "orders-0" / LOG_OF_ZERO).unlink()
    broken, whole = find_history(str(root), "orders", [b"k"], now_ms=SOME_TIME_MS)
    assert {error["error_class"] for error in broken.errors} == {"StorageError"}
    assert not broken.is_whole
    assert "not read to its end" in broken.sentence
    assert (whole.errors, told(whole)) == ((), [(0, b"a", None)])


def test_who_waits_is_told_how_much_was_read(tmp_path):
    root = write(tmp_path, batch(0, record(b"k", b"a")))
    write(tmp_path, batch(0, record(b"k", b"a" * 100)), name="orders-1")
    deleted = tmp_path / "orders-1" / f"{LOG_OF_ZERO}.deleted"
    shutil.copy(tmp_path / "orders-1" / LOG_OF_ZERO, deleted)
    steps: list[tuple[int, int]] = []
    found = find_history(
        str(root), "orders", [b"k"], now_ms=SOME_TIME_MS, on_read=lambda *step: steps.append(step)
    )
    assert len(list(found)) == 2
    first = (tmp_path / "orders-0" / LOG_OF_ZERO).stat().st_size
    total = first + 2 * deleted.stat().st_size
    assert steps == [(0, total), (first, total), (total, total)]
