"""Rounds with key sidecars: the same bytes and answers, and less that is read.

``PYLOG_MODEL_EXAMPLES`` says how many random partitions.
"""

import logging
import os
import shutil
import stat
import tempfile
from contextlib import closing
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.config import CleanerConfig, OffsetMapHash
from storage_core.errors import ChangedWhileReadError, UnsupportedFormatError
from storage_core.filenames import log_file
from storage_core.formats.batch_v2 import Codec
from storage_core.kernels.batch_scan import COLUMN_COUNT
from storage_core.kernels.record_scan import HAS_TOMBSTONE, INDEXED, OPENED
from storage_core.maintenance.compaction import index as kept_hashes
from storage_core.maintenance.compaction import key_sidecar, pass_one, rewrite
from storage_core.maintenance.compaction import key_sidecar as known_segment
from storage_core.maintenance.compaction.index import rank_of
from storage_core.maintenance.compaction.key_exchange import KeyBucket, MessageKind, unpack_columns
from storage_core.maintenance.compaction.offset_map import KeyBlock
from storage_core.maintenance.compaction.pass_one import Choice, HashedBatches
from storage_core.records.batch_table import BatchTable
from storage_core.records.payload import DEFAULT_LIMITS, open_batches
from storage_core.records.reader import scan_windows
from storage_core.store.local import LocalStore
from tests.kit.builders import RecordSpec, segment_bytes
from tests.kit.compare import compare_partitions, read_tree
from tests.kit.golden_cleaning import Cleaning, cleaning_of, exactness_of, expected_numbers
from tests.kit.golden_data import Golden, Side, goldens
from tests.storage_core.maintenance.compaction import test_against_model
from tests.storage_core.maintenance.compaction.hand_made import (
    NOW,
    RETENTION_MS,
    bases_in,
    batch,
    cleaning,
    record,
    write_log,
)
from tests.storage_core.maintenance.compaction.random_partitions import KEYS, KINDS, random_logs
from tests.storage_core.maintenance.compaction.states import plan_of, segment
from tests.storage_core.records.memory_file import only_window_of

CLEANED = [g for g in goldens("clean-*") if not g.case["expected"].get("nothing_to_clean")]
WITH_CLEAN_PART = [g for g in CLEANED if g.case["expected"]["first_dirty"] > 0]
RECORDS = 8
MORE_KEYS = tuple(b"%d" % number for number in range(60))


@dataclass
class Uses:
    """What became of the segments that were asked for: how many had a sidecar, and stayed."""

    known: int = 0
    copied: int = 0
    stayed: int = 0


@pytest.fixture
def uses(monkeypatch) -> Uses:
    """Count uses of sidecars; a stretch of any length is copied."""
    return count_uses(monkeypatch)


def count_uses(monkeypatch: pytest.MonkeyPatch) -> Uses:
    counted = Uses()
    monkeypatch.setattr(known_segment, "LEAST_RUN_BYTES", 1)
    reading, writer = rewrite._PassTwo, rewrite._GroupWriter
    known, copy, leave = reading._known_segment, writer.copy, writer.leave

    def noted(self, *arguments):
        found = known(self, *arguments)
        counted.known += found is not None
        return found

    def copied(self, *arguments):
        counted.copied += 1
        copy(self, *arguments)

    def stayed(self):
        counted.stayed += 1
        return leave(self)

    monkeypatch.setattr(reading, "_known_segment", noted)
    monkeypatch.setattr(writer, "copy", copied)
    monkeypatch.setattr(writer, "leave", stayed)
    return counted


def play(  # what a round is like
    log,
    plans: list[test_against_model.RoundPlan],
    interval: int,
    recompresses: list[bool],
    segment_bytes: int,
    window_bytes: int,
    threads: int,
) -> None:
    """Clean a log round after round, each some segments further, beside one without sidecars."""
    with tempfile.TemporaryDirectory(prefix="sidecars-") as scratch:
        place = Path(scratch)
        ours = log.write(place / "with" / "t-0", index_interval_bytes=interval)
        theirs = log.write(place / "without" / "t-0", index_interval_bytes=interval)
        folder = key_sidecar.SidecarFolder(place / "keys")
        now_ms, cleaned_to = NOW, 0
        for number, plan in enumerate(plans, start=1):
            now_ms += plan.wait_ms
            round_ = test_against_model.as_cleaning(plan, now_ms, log.next_offset)
            round_ = round_.with_cleaner(
                recompresses_all=recompresses[number - 1], window_bytes=window_bytes
            )
            config = replace(round_.config, segment_bytes=segment_bytes)
            round_ = replace(round_, config=config)
            reached = log.next_offset * number // len(plans)
            end = max([cleaned_to, *(base for base in log.bases if base <= reached)])
            round_ = round_.with_request(
                first_dirty_offset=cleaned_to, first_uncleanable_offset=end
            )
            try:
                expected = round_.clean(theirs)
            except UnsupportedFormatError:
                with pytest.raises(UnsupportedFormatError):
                    round_.clean(ours, sidecars=folder, threads=threads)
                return
            assert round_.clean(ours, sidecars=folder, threads=threads) == expected
            assert read_tree(ours) == read_tree(theirs)
            cleaned_to = max(cleaned_to, expected.next_offset or 0)


@pytest.mark.thorough
@pytest.mark.parametrize("has_old_formats", [False, True])
def test_random_rounds_leave_the_same_bytes(uses, has_old_formats):
    @test_against_model.against_model
    @given(
        log=random_logs(
            st.sampled_from(Codec),
            has_old_formats=has_old_formats,
            keys=(*KEYS, *MORE_KEYS),
            kinds=(*KINDS, "plain", "txn", "roll", "roll", "roll"),
            least=15,
        ),
        plans=test_against_model.rounds.filter(lambda plans: len(plans) > 1),
        interval=st.sampled_from([0, 150, 4096]),
        recompresses=st.lists(st.sampled_from([False, False, True]), min_size=4, max_size=4),
        segment_bytes=st.sampled_from([100, 300, 700]),
        window_bytes=st.sampled_from([300, 1 << 20]),
        threads=st.integers(1, 3),
    )
    def holds(log, plans, interval, recompresses, segment_bytes, window_bytes, threads):
        plans = [replace(plan, kind=OffsetMapHash.SIPHASH) for plan in plans]
        play(log, plans, interval, recompresses, segment_bytes, window_bytes, threads)

    holds()
    assert min(uses.known, uses.copied, uses.stayed) > 0


def sidecar_of(directory: Path, name: str, secret: bytes) -> key_sidecar.KeySidecar:
    """Return the sidecar of a segment that a round has cleaned, whoever did."""
    tables, flags, lows, highs = [], [], [], []
    with closing(LocalStore(directory).open_file(name)) as reader:
        for window in scan_windows(reader):
            batches = window.batches
            keys = KeyBlock(OffsetMapHash.SIPHASH, secret)
            payload = open_batches(window, np.ones(len(batches), bool), 0, DEFAULT_LIMITS)
            assert payload.end_row == len(batches)
            keys.read(payload, ~batches.is_control, DEFAULT_LIMITS, first_offset=-1)
            said = keys.flags & (INDEXED | OPENED | HAS_TOMBSTONE)
            said[((keys.flags & HAS_TOMBSTONE) != 0) & ~batches.has_delete_horizon] = 0
            said[batches.is_control & (batches.record_count > 0)] = INDEXED
            said[~batches.is_control & (batches.record_count == 0)] = 0
            chosen = (said[keys.batch[: keys.count]] & OPENED) != 0
            table = batches.columns.copy()
            table[0] += window.file_position
            table[14] = -1
            tables.append(table)
            flags.append(said)
            lows.append(keys.low[: keys.count][chosen])
            highs.append(keys.high[: keys.count][chosen])
    return key_sidecar.KeySidecar(
        batches=BatchTable(
            np.concatenate([np.empty((COLUMN_COUNT, 0), np.int64), *tables], axis=1)
        ),
        flags=np.concatenate([np.empty(0, np.uint8), *flags]),
        low=np.concatenate([np.empty(0, np.uint64), *lows]),
        high=np.concatenate([np.empty(0, np.uint64), *highs]),
    )


def encoded(
    sidecar: key_sidecar.KeySidecar, of: key_sidecar.SegmentVersion, secret: bytes
) -> bytes:
    """Return the file of a sidecar."""
    body = BytesIO()
    outline = key_sidecar.write_body([sidecar], body)
    return outline.header(of, secret) + body.getvalue()


def give_sidecars(directory: Path, round_: Cleaning, folder: key_sidecar.SidecarFolder) -> None:
    """Write sidecars of all segments below the dirty part that have no keyless records."""
    store = LocalStore(directory)
    log = round_.load(store)
    cleanable = round_.choose(log)
    sidecars = folder.of(str(directory))
    clean = [s for s in log.segments if s.base_offset < cleanable.first_dirty_offset]
    for part in clean:
        with closing(store.open_file(part.log_file)) as reader:
            if not reader.size_bytes or any(
                w.batches.is_legacy.any() for w in scan_windows(reader)
            ):
                continue
        made = sidecar_of(directory, part.log_file, sidecars.secret)
        sidecars.stage(part.base_offset, [made])
    sidecars.publish(store, [part.base_offset for part in log.segments])


@pytest.mark.parametrize("golden", WITH_CLEAN_PART, ids=lambda golden: golden.name)
def test_a_golden_round_with_sidecars_leaves_what_kafka_left(golden: Golden, tmp_path, uses):
    directory = golden.unpack(tmp_path / "before")
    round_ = cleaning_of(golden).with_cleaner(offset_map_hash=OffsetMapHash.SIPHASH)
    folder = key_sidecar.SidecarFolder(tmp_path / "keys")
    give_sidecars(directory, round_, folder)
    result = round_.clean(directory, sidecars=folder)
    expected = golden.unpack(tmp_path / "after", Side.AFTER)
    assert compare_partitions(read_tree(expected), read_tree(directory), exactness_of(golden)) == []
    numbers = expected_numbers(golden)
    assert {name: getattr(result, name) for name in numbers} == numbers


def hundred_keys(first: int, keys: range, value: bytes = b"v" * 50, **fields) -> list:
    """Batches of RECORDS records each, one of each key."""
    names = [b"%05d" % key for key in keys]
    return [
        batch(
            first + at,
            *[record(name, value) for name in names[at : at + RECORDS]],
            **fields,
        )
        for at in range(0, len(names), RECORDS)
    ]


@pytest.fixture
def log(tmp_path) -> Path:
    """Three segments of other keys each, and one that has some of the last one's again."""
    parts = [hundred_keys(80 * n, range(80 * n, 80 * n + 80)) for n in range(3)]
    return write_log(
        tmp_path / "log" / "t-0", *parts, hundred_keys(240, range(160, 172), b"new" * 17)
    )


@pytest.fixture
def folder(tmp_path) -> key_sidecar.SidecarFolder:
    return key_sidecar.SidecarFolder(tmp_path / "keys")


ONE_EACH = {"internal.segment.bytes": 6000, "index.interval.bytes": 150}


def first_round(**settings) -> Cleaning:
    return cleaning(
        overrides=ONE_EACH, first_dirty_offset=0, first_uncleanable_offset=240, **settings
    )


def second_round(**settings) -> Cleaning:
    return cleaning(overrides=ONE_EACH, first_dirty_offset=240, **settings)


def sidecar_files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "keys").glob("t-0.*/*"))


def inode(path: Path) -> int:
    return path.stat().st_ino


def test_segments_to_which_nothing_happens_are_left_alone(tmp_path, log, folder, uses):
    first_round().clean(log, sidecars=folder)
    other = shutil.copytree(log, tmp_path / "other" / "t-0")
    before = {base: inode(log / log_file(base)) for base in bases_in(log)}
    assert len(before) == 5
    result = second_round().clean(log, sidecars=folder)
    assert result == second_round().clean(other)
    assert read_tree(log) == read_tree(other)
    is_new = [base for base in bases_in(log) if inode(log / log_file(base)) != before.get(base)]
    assert is_new == [160, 240]
    assert (uses.known, uses.stayed) == (3, 2)
    assert [path.name[-8:] for path in sidecar_files(tmp_path)] == [
        f"{base:03}.keys" for base in (0, 80, 160, 240)
    ]


def test_of_a_segment_with_a_sidecar_only_what_changes_is_read(log, folder, uses, monkeypatch):
    first_round().clean(log, sidecars=folder)
    read: list[tuple[int, int]] = []
    scan = rewrite.scan_windows

    def noted(reader, *, start=0, end=None, **arguments):
        read.append((start, reader.size_bytes if end is None else end))
        return scan(reader, start=start, end=end, **arguments)

    monkeypatch.setattr(rewrite, "scan_windows", noted)
    monkeypatch.setattr(pass_one, "scan_windows", scan)
    batch_bytes = (log / log_file(160)).stat().st_size // 10
    dirty_bytes = (log / log_file(240)).stat().st_size
    second_round().clean(log, sidecars=folder)
    # Of the first batch of the last clean segment nothing stays, and the rest of it is copied.
    assert read == [(batch_bytes, 2 * batch_bytes), (0, dirty_bytes)]


def test_keys_that_pass_one_could_not_keep_are_known_a_round_later(
    tmp_path, log, folder, uses, monkeypatch
):
    monkeypatch.setattr(pass_one, "KEPT_HASHES", 80)
    first_round().clean(log, sidecars=folder)
    monkeypatch.undo()
    counted = count_uses(monkeypatch)
    second_round().clean(log, sidecars=folder)
    assert (counted.known, counted.stayed) == (3, 1)
    third = second_round(now_ms=NOW + 1)
    other = shutil.copytree(log, tmp_path / "other" / "t-0")
    assert third.clean(log, sidecars=folder) == third.clean(other)
    assert read_tree(log) == read_tree(other)
    # The last clean one and the new one are small enough to become one by now.
    assert counted.stayed == 1 + 2


def test_a_segment_that_changed_since_is_read(log, folder, uses):
    first_round().clean(log, sidecars=folder)
    file = log / log_file(0)
    content = file.read_bytes()
    facts = file.stat()
    file.write_bytes(content)  # the same size
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    second_round().clean(log, sidecars=folder)
    assert uses.known == 2


def test_another_secret_makes_all_sidecars_worthless(tmp_path, log, folder, uses):
    first_round().clean(log, sidecars=folder)
    secret = tmp_path / "keys" / "secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert len(secret.read_bytes()) == 16
    secret.unlink()
    second_round().clean(log, sidecars=folder)
    assert uses.known == 0


def test_keys_known_by_md5_have_no_sidecars(tmp_path, log, folder):
    first_round(cleaner=CleanerConfig(offset_map_hash=OffsetMapHash.MD5)).clean(
        log, sidecars=folder
    )
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize("kind", ["file", "secret"])
def test_a_folder_that_cannot_be_used_is_told_and_the_round_goes_on(
    tmp_path, log, folder, uses, caplog, kind
):
    caplog.set_level(logging.INFO)
    if kind == "file":
        (tmp_path / "keys").write_text("")
    else:
        (tmp_path / "keys" / "secret").mkdir(parents=True)
    first_round().clean(log, sidecars=folder)
    assert "no key sidecars in" in caplog.text
    assert uses.known == 0


OTHER_USER = 12345


def replace_by_link(path: Path) -> None:
    """Let a name lead to what had it."""
    path.rename(path.with_name(f"moved-{path.name}"))
    path.symlink_to(f"moved-{path.name}")


@pytest.mark.parametrize("of", ["folder", "secret", "partition", "sidecar"])
@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(
            lambda path: os.chown(path, OTHER_USER, -1, follow_symlinks=False),
            id="belongs to another user",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="files are given away by root"),
        ),
        pytest.param(lambda path: path.chmod(path.stat().st_mode | 0o020), id="a group may write"),
        pytest.param(lambda path: path.chmod(path.stat().st_mode | 0o002), id="anybody may write"),
        pytest.param(replace_by_link, id="is a link"),
    ],
)
def test_sidecars_that_somebody_else_may_have_forged_are_not_believed(
    tmp_path, log, folder, uses, caplog, of, spoil
):
    caplog.set_level(logging.INFO)
    first_round().clean(log, sidecars=folder)
    other = shutil.copytree(log, tmp_path / "other" / "t-0")
    keys = tmp_path / "keys"
    (partition,) = keys.glob("t-0.*")
    chosen = {
        "folder": [keys],
        "secret": [keys / "secret"],
        "partition": [partition],
        "sidecar": sorted(partition.iterdir()),
    }[of]
    for path in chosen:
        spoil(path)
    assert second_round().clean(log, sidecars=folder) == second_round().clean(other)
    assert read_tree(log) == read_tree(other)
    assert uses.known == 0
    assert "key sidecar" in caplog.text


def test_every_byte_of_a_sidecar_counts(tmp_path, log, folder, uses, caplog):
    caplog.set_level(logging.INFO)
    first_round().clean(log, sidecars=folder)
    file = sidecar_files(tmp_path)[0]
    content = np.frombuffer(file.read_bytes(), np.uint8)
    with closing(LocalStore(log).open_file(log_file(0))) as reader:
        of = key_sidecar.SegmentVersion(
            base_offset=0, size_bytes=reader.size_bytes, version=reader.version
        )
    secret = (tmp_path / "keys" / "secret").read_bytes()
    whole = key_sidecar.decode_sidecar(content.copy(), of, secret)
    for position in range(content.size):
        changed = content.copy()
        changed[position] ^= 0x41
        try:
            found = key_sidecar.decode_sidecar(changed, of, secret)
        except key_sidecar.BadSidecarError:
            continue
        # Only what has no meaning can change.
        assert encoded(found, of, secret) == encoded(whole, of, secret)
        assert 64 <= position < key_sidecar.HEADER_BYTES or whole.flags.size % 8
    for size in (0, 1, key_sidecar.HEADER_BYTES - 1, key_sidecar.HEADER_BYTES, content.size - 1):
        with pytest.raises(key_sidecar.BadSidecarError):
            key_sidecar.decode_sidecar(content[:size].copy(), of, secret)
    file.write_bytes(content[:-1].tobytes())
    second_round().clean(log, sidecars=folder)
    assert uses.known == 2
    assert "is read as if it had no key sidecar" in caplog.text


def test_numbers_that_contradict_each_other_are_refused_even_under_the_right_secret(
    tmp_path, log, folder
):
    first_round().clean(log, sidecars=folder)
    content = np.frombuffer(sidecar_files(tmp_path)[0].read_bytes(), np.uint8)
    with closing(LocalStore(log).open_file(log_file(0))) as reader:
        of = key_sidecar.SegmentVersion(
            base_offset=0, size_bytes=reader.size_bytes, version=reader.version
        )
    secret = (tmp_path / "keys" / "secret").read_bytes()
    whole = key_sidecar.decode_sidecar(content.copy(), of, secret)
    dice = np.random.default_rng(3)
    refused = 0
    for column in range(COLUMN_COUNT):
        for value in (-(2**63), -1, 0, 1, 2**31, 2**63 - 1, int(dice.integers(2**62))):
            columns = whole.batches.columns.copy()
            columns[column, dice.integers(columns.shape[1])] = value
            liar = replace(whole, batches=BatchTable(columns))
            signed = encoded(liar, of, secret)
            try:
                key_sidecar.decode_sidecar(np.frombuffer(bytearray(signed), np.uint8), of, secret)
            except key_sidecar.BadSidecarError:
                refused += 1
    assert refused > 4 * 7  # positions, sizes, magics, counts


def test_a_sidecar_that_tells_of_other_batches_is_an_error_of_the_partition(
    tmp_path, log, folder, monkeypatch
):
    """Only who knows the secret can make one, or a disk that changed the segment since."""
    first_round().clean(log, sidecars=folder)
    before = read_tree(log)
    of_partition = folder.of(str(log))
    store = LocalStore(log)
    made = sidecar_of(log, log_file(160), of_partition.secret)
    columns = made.batches.columns.copy()
    columns[13] += 1  # the CRC of each batch
    of_partition.stage(160, [replace(made, batches=BatchTable(columns))])
    of_partition.publish(store, bases_in(log))
    with pytest.raises(ChangedWhileReadError, match="key sidecar"):
        second_round().clean(log, sidecars=folder)
    assert read_tree(log) == before


def test_a_segment_that_is_another_one_when_it_is_copied_stops_the_round(
    log, folder, monkeypatch, tmp_path
):
    first_round().clean(log, sidecars=folder)
    known = rewrite._PassTwo._known_segment

    def replaced(self, reader, segment):
        found = known(self, reader, segment)
        if found is not None:
            copy = shutil.copy2(log / segment.log_file, tmp_path / "copy")
            Path(copy).rename(log / segment.log_file)
        return found

    monkeypatch.setattr(rewrite._PassTwo, "_known_segment", replaced)
    with pytest.raises(ChangedWhileReadError, match="key sidecar"):
        second_round().clean(log, sidecars=folder)


def test_tombstones_go_when_their_time_has_come(tmp_path, folder, uses):
    """What the sidecar says of a delete horizon counts in the round that passes it."""
    gone = [batch(0, record(b"a", None), record(b"b"), record(b"c"))]
    log = write_log(
        tmp_path / "log" / "t-0", gone, [batch(3, record(b"x"))], [batch(4, record(b"y"))]
    )
    other = shutil.copytree(log, tmp_path / "other" / "t-0")
    sizes = []
    for now_ms, first, end in (
        (NOW, 0, 3),
        (NOW + 1, 3, 4),
        (NOW + RETENTION_MS, 4, 5),
        (NOW + 10 * RETENTION_MS, 5, 5),
    ):
        round_ = cleaning(
            now_ms=now_ms,
            overrides={"internal.segment.bytes": 100, "index.interval.bytes": 150},
            first_dirty_offset=first,
            first_uncleanable_offset=end,
        )
        assert round_.clean(log, sidecars=folder) == round_.clean(other)
        assert read_tree(log) == read_tree(other)
        sizes.append((log / log_file(0)).stat().st_size)
    assert sizes[0] == sizes[1] > sizes[2]
    assert uses.known >= 2


def test_hashes_are_kept_up_to_a_limit():
    keys = KeyBlock(OffsetMapHash.SIPHASH, bytes(16))
    keys.count, keys.rank = 2, np.array([5, 7], np.int64)
    keys.low = keys.high = np.array([1, 2], np.uint64)
    kept = kept_hashes.KeptHashes(4)
    kept.put(0, keys, 5)
    low, high = kept.take(0, 4)
    assert low.tolist() == high.tolist() == [1, 0, 2, 0]
    assert kept.take(0, 4) is None
    for base in (1, 2, 3):
        kept.put(base, keys, 5)
    assert kept.take(1, 4) is not None
    assert kept.take(3, 4) is None


SEGMENTS = [segment(0), segment(10), segment(20), segment(30)]


def message(*rows: tuple[int, int]) -> bytes:
    """Return keys, each the number of its hash and its rank."""
    hashes = np.array([key for key, _ in rows], np.uint64)
    ranks = np.array([rank for _, rank in rows], np.int64)
    return np.stack([hashes, hashes, ranks.view(np.uint64)]).tobytes()


def survivors(bucket: KeyBucket) -> dict[int, list[int]]:
    return {number: ordinals.tolist() for number, ordinals in bucket.survivors()}


def test_the_newest_record_of_each_key_survives_whatever_came_first():
    bucket = KeyBucket(plan_of(SEGMENTS))
    bucket.hear(MessageKind.KEYS, 1, message((5, rank_of(1, 0)), (6, rank_of(1, 3))))
    bucket.hear(MessageKind.KEYS, 0, message((5, rank_of(0, 9)), (7, rank_of(0, 2))))
    assert bucket.key_count == 3
    assert survivors(bucket) == {0: [2], 1: [0, 3]}


def test_a_record_that_asks_survives_unless_its_key_is_newer_elsewhere():
    bucket = KeyBucket(plan_of(SEGMENTS))
    bucket.hear(MessageKind.KEYS, 2, message((5, rank_of(2, 1))))
    bucket.hear(MessageKind.QUERIES, 0, message((5, rank_of(0, 0)), (8, rank_of(0, 1))))
    bucket.hear(MessageKind.QUERIES, 1, message((8, rank_of(1, 4))))
    # Of two clean records of one key both stay: only the dirty section takes records away.
    assert survivors(bucket) == {0: [1], 1: [4], 2: [1]}


def test_an_empty_bucket_has_no_survivors():
    assert survivors(KeyBucket(plan_of(SEGMENTS))) == {}


def test_a_question_before_the_keys_is_a_mistake():
    bucket = KeyBucket(plan_of(SEGMENTS))
    bucket.hear(MessageKind.QUERIES, 0, message((1, 0)))
    with pytest.raises(ValueError, match="KEYS after one of QUERIES"):
        bucket.hear(MessageKind.KEYS, 0, message((1, 0)))


def test_columns_of_a_message_can_be_written():
    assert unpack_columns(message((1, 2)), 3).flags.writeable


@pytest.mark.parametrize("first_rank", [0, 5, rank_of(1, 0), rank_of(3, 7), rank_of(2**31 - 1, 2)])
def test_ranks_count_from_that_of_the_first_record_each_time_keys_are_hashed(first_rank):
    a, b, keyless = RecordSpec(key=b"a"), RecordSpec(key=b"b"), RecordSpec()
    window = only_window_of(segment_bytes([batch(0, a, keyless, b), batch(3, b), batch(4, a, b)]))
    wanted = np.array([True, False, True])
    payload = open_batches(window, wanted, 0, DEFAULT_LIMITS)
    keys = KeyBlock(OffsetMapHash.SIPHASH, bytes(16))
    batches = HashedBatches(payload, Choice(wanted), plan_of([segment(0), segment(10)]), keys)

    def places() -> list[tuple[int, int, int]]:
        ranks = keys.rank[: keys.count].tolist()
        return [
            (rank - first_rank, batches.row_of(i), batches.place_of(i))
            for i, rank in enumerate(ranks)
        ]

    batches.hash_from(4)
    batches.count_from(first_rank)
    assert places() == [(3, 2, 0), (4, 2, 1)]
    batches.hash_from(0)
    assert places() == [(0, 0, 0), (2, 0, 2), (3, 2, 0), (4, 2, 1)]
