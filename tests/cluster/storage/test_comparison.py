"""Logs compared in pieces tell what a plain comparison of all their records tells."""

from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.cluster import log_batches
from storage_core.cluster.audit import ComparedLogs, compare_logs
from storage_core.cluster.places import ANY_INDEX_BYTES
from storage_core.cluster.replica import OpenedLog, open_log
from storage_core.store import LocalStore
from tests.kit.builders import SOME_TIME_MS, BatchSpec, RecordSpec
from tests.kit.directories import SegmentSpec, write_partition

# Of a log: epoch and content by offset.
Records = dict[int, tuple[int, RecordSpec]]
END = 24
CONTENTS = [
    RecordSpec(key=b"k", value=b"a"),
    RecordSpec(key=b"k", value=b"b"),
    RecordSpec(key=b"k", value=None),
    RecordSpec(key=None, value=b""),
    RecordSpec(key=b"k", value=b"a", headers=(("h", None),)),
    RecordSpec(key=b"k", value=b"a", headers=(("h", b""),)),
    RecordSpec(key=b"k", value=b"a", headers=(("h", None), ("h", None))),
    RecordSpec(key=b"k", value=b"a", timestamp=SOME_TIME_MS + 1),
]


@st.composite
def records(draw: st.DrawFn, base: Records | None = None) -> Records:
    """Return the records of a log; where a base is given, what somebody made of it."""
    chosen: Records = {}
    epoch = 0
    for offset in range(draw(st.integers(0, END))):
        epoch += draw(st.sampled_from([0, 0, 0, 1]))
        if base is not None and offset in base and draw(st.integers(0, 4)):
            chosen[offset] = (max(epoch, base[offset][0]), base[offset][1])
            epoch = chosen[offset][0]
        elif draw(st.integers(0, 3)):
            chosen[offset] = (epoch, draw(st.sampled_from(CONTENTS)))
    return chosen


def open_records(folder: Path, kept: Records, cuts: set[int], segments: set[int]) -> OpenedLog:
    """Write a log with borders of batches and segments where they are asked for; open it."""
    batches: list[BatchSpec] = []

    def group_of(offset: int) -> tuple[int, int, int]:
        before = [cut for cut in cuts | segments if cut <= offset]
        return kept[offset][0], max(before, default=0), 0

    for (epoch, _, _), group in groupby(sorted(kept), key=group_of):
        offsets = list(group)
        specs = tuple(
            RecordSpec(
                key=kept[at][1].key,
                value=kept[at][1].value,
                timestamp=kept[at][1].timestamp,
                headers=kept[at][1].headers,
                offset_delta=at - offsets[0],
            )
            for at in offsets
        )
        batches.append(BatchSpec(records=specs, base_offset=offsets[0], leader_epoch=epoch))
    parts: dict[int, list[BatchSpec]] = {0: []}
    for batch in batches:
        home = max((at for at in segments if at <= batch.base_offset), default=0)
        parts.setdefault(home, []).append(batch)
    written = [SegmentSpec(base_offset=at, batches=own) for at, own in sorted(parts.items())]
    directory = write_partition(folder, written)
    return open_log(
        LocalStore(directory),
        checkpoints=PartitionCheckpoints(),
        is_clean=True,
        now_ms=0,
        most_index_bytes=ANY_INDEX_BYTES,
    )


def compare_plainly(logs: list[Records]) -> tuple[dict, dict]:
    """Return first differences and what is missing, record by record."""
    differences, missing = {}, {}
    for one in range(len(logs)):
        for two in range(len(logs)):
            mine, theirs = logs[one], logs[two]
            if one < two:
                unlike = [at for at in mine.keys() & theirs.keys() if mine[at] != theirs[at]]
                differences[one, two] = min(unlike, default=None)
            if one != two:
                missing[one, two] = {
                    (at, epoch)
                    for at, (epoch, content) in theirs.items()
                    if at not in mine or mine[at][1] != content
                }
    return differences, missing


def members(compared: ComparedLogs) -> dict:
    return {
        pair: {(at, epoch) for first, last, epoch in rows for at in range(first, last + 1)}
        for pair, rows in compared.missing.items()
    }


@pytest.mark.thorough
@pytest.mark.item("REP-12")
@given(data=st.data())
def test_pieces_tell_what_all_records_tell(data: st.DataObject):
    first = data.draw(records())
    logs = [first, data.draw(records(first)), data.draw(records(first))]
    borders = st.sets(st.integers(1, END), max_size=6)
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_batches, "MOST_BYTES", data.draw(st.sampled_from([1, 200, 1 << 20])))
        opened = [
            open_records(
                Path(folder, f"{number}/t-0"), kept, data.draw(borders), data.draw(borders)
            )
            for number, kept in enumerate(logs)
        ]
        compared = compare_logs(opened)
    differences, missing = compare_plainly(logs)
    assert compared.differences == differences
    assert members(compared) == missing
    assert all(not damage for damage in compared.damage)


@pytest.mark.item("REP-12")
def test_damage_is_named_and_its_records_are_missing(tmp_path: Path):
    kept = dict.fromkeys(range(9), (0, CONTENTS[0]))
    good = open_records(tmp_path / "good" / "t-0", kept, {3, 6}, set())
    bad = open_records(tmp_path / "bad" / "t-0", kept, {3, 6}, set())
    log = tmp_path / "bad" / "t-0" / "00000000000000000000.log"
    content = bytearray(log.read_bytes())
    position = len(content) // 3 + 70
    content[position] ^= 1
    log.write_bytes(content)
    compared = compare_logs([good, bad])
    (damage,) = compared.damage[1]
    assert (damage.file, damage.position) == (log.name, len(content) // 3)
    assert compared.missing[1, 0].tolist() == [[3, 5, 0]]
    assert compared.missing[0, 1].tolist() == []
    assert compared.differences == {(0, 1): None}


def test_a_log_without_records_lacks_all_of_them(tmp_path: Path):
    kept = dict.fromkeys((0, 1, 2, 7), (0, CONTENTS[0]))
    log = open_records(tmp_path / "t-0", kept, set(), set())
    compared = compare_logs([None, log])
    assert compared.missing[0, 1].tolist() == [[0, 2, 0], [7, 7, 0]]
    assert compared.missing[1, 0].tolist() == []
