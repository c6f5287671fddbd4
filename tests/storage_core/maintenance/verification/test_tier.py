"""A scrub of tiers: planted defects, each with the level that finds it, and tiers without any."""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage_core.checkpoint.checkpoints import EpochEntry
from storage_core.coordinators.coordinator_log import replay_partition
from storage_core.coordinators.remote_log import RemoteLog, RemoteSegment, SegmentState
from storage_core.filenames import REMOTE_LOG_TOPIC, TXN_INDEX_SUFFIX, TopicPartition
from storage_core.formats.batch_v2 import BATCH_HEADER, LENGTH_OVERHEAD
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from storage_core.maintenance.verification.findings import Code, Severity, VerifyOptions
from storage_core.maintenance.verification.tier import (
    Recorded,
    ScrubOptions,
    find_hidden,
    look_at_folder,
    read_segments,
)
from storage_core.store.local import LocalStore
from storage_core.store.tier_archive import ArchivePlace, TierSegment
from storage_core.store.tier_manifest import TierSegmentId
from tests.kit.tier_archives import CASES, TierCase, unpack_tier

NOW_MS = 2_000_000_000_000
OPTIONS = ScrubOptions(verify=VerifyOptions(now_ms=NOW_MS), is_deep=True, grace_ms=3_600_000)
OTHER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"

Found = set[tuple[Code, Severity]]
Place = tuple[str, TopicPartition]


@dataclass(frozen=True, kw_only=True)
class Scrubbed:
    """What each level found."""

    listing: Found
    deep: Found
    records: Found


def records_of(case: TierCase) -> dict[Place, list[RemoteSegment]]:
    log = RemoteLog()
    for folder in case.folder.glob(f"local/*/{REMOTE_LOG_TOPIC}-*"):
        log.replay(replay_partition(LocalStore(folder), REMOTE_LOG_TOPIC))
    found: dict[Place, list[RemoteSegment]] = {}
    for segment in log.segments():
        place = segment.identity.topic_id, segment.identity.partition
        found.setdefault(place, []).append(segment)
    return found


def ids_of(records: Iterable[RemoteSegment]) -> set[str]:
    return {each.identity.segment_id for each in records}


def scrub(case: TierCase, *, options: ScrubOptions = OPTIONS) -> Scrubbed:
    place = ArchivePlace(place=str(case.archive), decryption_key=str(case.key or "") or None)
    tier = place.open()
    records = records_of(case)
    found: dict[str, Found] = {"listing": set(), "deep": set(), "records": set()}
    folders = {(each.topic_id, each.partition): each for each in tier.listing[0]}
    for of in folders.keys() | records.keys():
        folder = folders.get(of)
        look = look_at_folder(tier, folder, None, options)
        read = read_segments(tier, look.chosen, options)
        assert read.error is None
        segments = {} if folder is None else folder.segments
        listed = {each: len(kinds) for (_, each), kinds in segments.items()}
        some = tuple(records.get(of, ()))
        recorded = Recorded(segments=some, listed=listed, uploaded=ids_of(some))
        known = look_at_folder(tier, folder, recorded, options)
        levels = {"listing": look.findings, "deep": read.findings, "records": known.findings}
        for level, findings in levels.items():
            found[level] |= {(each.code, each.severity) for each in findings}
    return Scrubbed(**found)


@pytest.fixture
def unpacked(tmp_path: Path) -> Callable[[str], TierCase]:
    return lambda name: unpack_tier(name, tmp_path)


WHOLE: Found = set()
HISTORY = {
    (Code.TIER_HISTORY_UNREAD, Severity.WARN),
}
OVERLAP = {(Code.TIER_SEGMENTS_OVERLAP, Severity.HARMLESS)}
TWIN = (Code.TIER_SEGMENT_TWIN, Severity.WARN)
INCOMPLETE = {(Code.TIER_SEGMENT_INCOMPLETE, Severity.WARN)}
COMPACTED = {(Code.TIER_OFFSETS_MISSING, Severity.HARMLESS)}
STOPPED = (Code.TIER_UPLOAD_STOPPED, Severity.WARN)
DELETING = {(Code.TIER_DELETION_STOPPED, Severity.WARN)}
# Situations of real brokers that are not whole: what the listing shows, and with the records.
SITUATIONS: dict[str, tuple[Found, Found]] = {
    "upload_killed": (INCOMPLETE, {STOPPED}),
    "copied_killed": ({TWIN}, {TWIN, STOPPED}),
    "deleting": (INCOMPLETE, DELETING),
    "topic_deleted": (INCOMPLETE, DELETING),
    "once_compacted": (COMPACTED, WHOLE),
    "elections": (HISTORY, HISTORY),
    "elections_rolls": (HISTORY | OVERLAP, HISTORY | OVERLAP),
}


@pytest.mark.parametrize("name", CASES)
def test_tiers_of_real_brokers_have_what_happened_to_them_and_nothing_else(name, unpacked):
    found = scrub(unpacked(name))
    assert (found.listing, found.records) == SITUATIONS.get(name, (WHOLE, WHOLE))
    assert found.deep == set()


# Planting: a defect changes the files of a tier.


@dataclass(frozen=True)
class Planter:
    """The partition of a tier with most segments, and its files."""

    case: TierCase
    folder: Path

    def files(self, number: int) -> list[Path]:
        """The objects of a segment, by base offset."""
        bases = sorted({path.name[:20] for path in self.folder.iterdir()})
        return sorted(self.folder.glob(f"{bases[number]}-*"))

    def file(self, kind: str, number: int = 1) -> Path:
        (path,) = (path for path in self.files(number) if path.suffix == f".{kind}")
        return path

    def patch(self, kind: str, position: int, content: bytes, number: int = 1) -> None:
        path = self.file(kind, number)
        data = bytearray(path.read_bytes())
        start = position % len(data)
        assert data[start : start + len(content)] != content
        data[start : start + len(content)] = content
        path.write_bytes(data)

    def flip(self, kind: str, position: int, number: int = 1) -> None:
        data = self.file(kind, number).read_bytes()
        self.patch(kind, position, bytes([data[position % len(data)] ^ 0x40]), number)

    def cut(self, kind: str, size_bytes: int, number: int = 1) -> None:
        path = self.file(kind, number)
        assert size_bytes < path.stat().st_size
        path.write_bytes(path.read_bytes()[:size_bytes])

    def batches(self, number: int = 1) -> Iterator[tuple[int, int]]:
        """Position and base offset of each batch of a log that is not transformed."""
        data = self.file("log", number).read_bytes()
        position = 0
        while position < len(data):
            header = np.frombuffer(data, BATCH_HEADER, 1, position)[0]
            yield position, int(header["base_offset"])
            position += LENGTH_OVERHEAD + int(header["batch_length"])

    def manifest(self, change: Callable[[dict[str, Any]], None], number: int = 1) -> None:
        path = self.file("rsm-manifest", number)
        values = json.loads(path.read_text())
        change(values)
        path.write_text(json.dumps(values))


def planter(case: TierCase) -> Planter:
    folders = {path.parent for path in case.archive.rglob("*.log")}
    return Planter(case, max(folders, key=lambda each: len(list(each.glob("*.log")))))


def delete_object(kind: str) -> Callable[[Planter], None]:
    return lambda tier: tier.file(kind).unlink()


def delete_segment(tier: Planter) -> None:
    for path in tier.files(1):
        path.unlink()


def delete_newest(tier: Planter) -> None:
    for path in tier.files(-1):
        path.unlink()


def cut_at_a_batch(number: int) -> Callable[[Planter], None]:
    def plant(tier: Planter) -> None:
        *_, (position, _) = tier.batches(number)
        tier.cut("log", position, number)

    return plant


def copy_segment(tier: Planter) -> None:
    for path in tier.files(1):
        copy = tier.folder / f"{path.name[:21]}{OTHER_ID}{path.suffix}"
        shutil.copyfile(path, copy)
        if path.suffix == ".rsm-manifest":
            values = json.loads(copy.read_text())
            values["remoteLogSegmentMetadata"]["remoteLogSegmentId"]["id"] = OTHER_ID
            copy.write_text(json.dumps(values))


def upload_from_the_second_batch(tier: Planter) -> None:
    _, (position, base_offset), *_ = tier.batches()
    for path in tier.files(1):
        copy = tier.folder / f"{base_offset:020}-{OTHER_ID}{path.suffix}"
        copy.write_bytes(path.read_bytes()[position if path.suffix == ".log" else 0 :])
    for kind in ("index", "timeindex"):
        (tier.folder / f"{base_offset:020}-{OTHER_ID}.{kind}").write_bytes(b"")


def lose_an_election(tier: Planter) -> None:
    """Make the newest segments of a later epoch than those before, though those go on there."""
    base = int(tier.files(-1)[0].name[:20])
    for path in tier.files(-1):
        if path.suffix == ".leader_epoch_checkpoint":
            path.write_text(f"0\n2\n0 0\n5 {base - 5}\n")


def another_manifest(tier: Planter) -> None:
    shutil.copyfile(tier.file("rsm-manifest", 0), tier.file("rsm-manifest", 1))


def wrong_entry(kind: str) -> Callable[[Planter], None]:
    entry = OFFSET_INDEX_ENTRY if kind == "index" else TIME_INDEX_ENTRY
    column = "position" if kind == "index" else "timestamp"

    def plant(tier: Planter) -> None:
        path = tier.file(kind)
        entries = np.frombuffer(path.read_bytes(), entry).copy()
        entries[column][1] += 1
        path.write_bytes(entries.tobytes())

    return plant


def drop_aborts(tier: Planter) -> None:
    (path, *_) = tier.folder.glob("*.txnindex")
    path.unlink()


def another_epoch(tier: Planter) -> None:
    (position, _), *_ = tier.batches()
    place = BATCH_HEADER.fields or {}
    tier.patch("log", position + place["partition_leader_epoch"][1], b"\0\0\0\7")


def one_offset_more(values: dict[str, Any]) -> None:
    values["remoteLogSegmentMetadata"]["endOffset"] += 1


def an_epoch_more(values: dict[str, Any]) -> None:
    metadata = values["remoteLogSegmentMetadata"]
    metadata["segmentLeaderEpochs"] = {"0": metadata["startOffset"], "1": metadata["endOffset"]}


ERROR, WARN, HARMLESS = Severity.ERROR, Severity.WARN, Severity.HARMLESS
KAFKA, TXN, ZSTD, AES = "plain", "txn", "aiven_zstd", "aiven_aes"
# Situation, what is planted, the level that finds it, and as what.
PLANTED: dict[str, tuple[str, Callable[[Planter], None], str, Code, Severity]] = {
    "a log is gone": (KAFKA, delete_object("log"), "listing", Code.TIER_SEGMENT_INCOMPLETE, WARN),
    "an index is gone": (
        *(KAFKA, delete_object("timeindex"), "listing"),
        *(Code.TIER_SEGMENT_INCOMPLETE, WARN),
    ),
    "small files are gone": (
        *(ZSTD, delete_object("indexes"), "listing"),
        *(Code.TIER_SEGMENT_INCOMPLETE, WARN),
    ),
    "a manifest is gone": (
        *(ZSTD, delete_object("rsm-manifest"), "listing"),
        *(Code.TIER_SEGMENT_INCOMPLETE, WARN),
    ),
    "a segment is gone": (KAFKA, delete_segment, "listing", Code.TIER_OFFSETS_MISSING, ERROR),
    "a segment with manifest is gone": (
        *(ZSTD, delete_segment, "listing"),
        *(Code.TIER_OFFSETS_MISSING, ERROR),
    ),
    "a log is cut between batches": (
        *(KAFKA, cut_at_a_batch(1), "listing"),
        *(Code.TIER_OFFSETS_MISSING, ERROR),
    ),
    "a log is cut in a batch": (
        *(KAFKA, lambda tier: tier.cut("log", 100_001), "listing"),
        *(Code.BATCH_LENGTH_IMPOSSIBLE, ERROR),
    ),
    "chunks are cut": (
        *(ZSTD, lambda tier: tier.cut("log", 30_000), "listing"),
        *(Code.TIER_OBJECT_SIZE_WRONG, ERROR),
    ),
    "small files are cut": (
        *(ZSTD, lambda tier: tier.cut("indexes", 600), "listing"),
        *(Code.TIER_OBJECT_SIZE_WRONG, ERROR),
    ),
    "a manifest is cut": (
        *(ZSTD, lambda tier: tier.cut("rsm-manifest", 300), "listing"),
        *(Code.TIER_MANIFEST_BROKEN, ERROR),
    ),
    "a manifest is another segment's": (
        *(ZSTD, another_manifest, "listing"),
        *(Code.TIER_MANIFEST_BROKEN, ERROR),
    ),
    "a segment was uploaded again": (KAFKA, copy_segment, "listing", Code.TIER_SEGMENT_TWIN, WARN),
    "a segment with manifest was uploaded again": (
        *(ZSTD, copy_segment, "listing"),
        *(Code.TIER_SEGMENT_TWIN, WARN),
    ),
    "a new leader had rolled elsewhere": (
        *(KAFKA, upload_from_the_second_batch, "listing"),
        *(Code.TIER_SEGMENTS_OVERLAP, HARMLESS),
    ),
    "an unclean election": (KAFKA, lose_an_election, "listing", Code.TIER_HISTORY_UNREAD, WARN),
    "epochs cannot be read": (
        *(KAFKA, lambda tier: tier.patch("leader_epoch_checkpoint", 0, b"x"), "listing"),
        *(Code.TIER_FILE_BROKEN, ERROR),
    ),
    "a batch has a wrong byte": (
        *(KAFKA, lambda tier: tier.flip("log", 5_000), "deep"),
        *(Code.BATCH_CRC_WRONG, ERROR),
    ),
    "a compressed chunk has a wrong byte": (
        *(ZSTD, lambda tier: tier.flip("log", 8), "deep"),
        *(Code.TIER_CHUNK_BROKEN, ERROR),
    ),
    "an encrypted chunk has a wrong byte": (
        *(AES, lambda tier: tier.flip("log", 20_000), "deep"),
        *(Code.TIER_CHUNK_BROKEN, ERROR),
    ),
    "encrypted small files have a wrong byte": (
        *(AES, lambda tier: tier.flip("indexes", 100, 0), "deep"),
        *(Code.TIER_CHUNK_BROKEN, ERROR),
    ),
    "an offset index points between batches": (
        *(KAFKA, wrong_entry("index"), "deep"),
        *(Code.OFFSET_INDEX_WRONG, ERROR),
    ),
    "a time index has another time": (
        *(KAFKA, wrong_entry("timeindex"), "deep"),
        *(Code.TIME_INDEX_WRONG, ERROR),
    ),
    "aborts are forgotten": (TXN, drop_aborts, "deep", Code.TXN_INDEX_MISSING, ERROR),
    "a batch has another epoch": (KAFKA, another_epoch, "deep", Code.EPOCH_DOUBTFUL, WARN),
    "a manifest has another epoch": (
        *(ZSTD, lambda tier: tier.manifest(an_epoch_more, -1), "deep"),
        *(Code.EPOCH_FILE_WRONG, ERROR),
    ),
    "a snapshot has a wrong byte": (
        *(KAFKA, lambda tier: tier.flip("snapshot", 3), "deep"),
        *(Code.TIER_FILE_BROKEN, ERROR),
    ),
    "a manifest promises more offsets": (
        *(ZSTD, lambda tier: tier.manifest(one_offset_more, -1), "deep"),
        *(Code.TIER_END_WRONG, ERROR),
    ),
    "no broker knows a segment": (
        *(KAFKA, copy_segment, "records"),
        *(Code.TIER_SEGMENT_UNRECORDED, WARN),
    ),
    "the newest segment is gone": (
        *(KAFKA, delete_newest, "records"),
        *(Code.TIER_SEGMENT_LOST, ERROR),
    ),
    "the newest segment with manifest is gone": (
        *(ZSTD, delete_newest, "records"),
        *(Code.TIER_SEGMENT_LOST, ERROR),
    ),
    "a known segment is incomplete": (
        *(KAFKA, delete_object("index"), "records"),
        *(Code.TIER_SEGMENT_LOST, ERROR),
    ),
    "the newest log is cut between batches": (
        *(KAFKA, cut_at_a_batch(-1), "records"),
        *(Code.TIER_OBJECT_SIZE_WRONG, ERROR),
    ),
}


@pytest.mark.parametrize("defect", PLANTED)
def test_a_planted_defect_is_found_by_its_level(defect, unpacked):
    name, plant, level, code, severity = PLANTED[defect]
    case = unpacked(name)
    plant(planter(case))
    found = scrub(case)
    assert (code, severity) in getattr(found, level)
    if level != "listing":
        assert code not in {each for each, _ in found.listing}
    severities = {each for _, each in found.listing | found.deep | found.records}
    assert Severity.FATAL not in severities


def test_what_is_young_may_be_under_way(unpacked):
    case = unpacked("upload_killed")
    (started,) = (
        segment.event_ms
        for segments in records_of(case).values()
        for segment in segments
        if segment.state is SegmentState.COPY_SEGMENT_STARTED
    )
    for path in case.archive.rglob("*.*"):
        os.utime(path, (started / 1000, started / 1000))
    young = replace(OPTIONS, verify=VerifyOptions(now_ms=started + 3_599_000))
    assert scrub(case, options=young).records == WHOLE
    old = replace(OPTIONS, verify=VerifyOptions(now_ms=started + 3_601_000))
    assert scrub(case, options=old).records == {STOPPED}


def test_without_the_key_the_listing_is_judged_and_the_deep_look_says_why_not(unpacked):
    case = unpacked(AES)
    tier = ArchivePlace(place=str(case.archive)).open()
    folder = tier.listing[0][0]
    look = look_at_folder(tier, folder, None, OPTIONS)
    assert (look.findings, len(look.chosen.pieces)) == ((), 2)
    read = read_segments(tier, look.chosen, OPTIONS)
    assert "is encrypted for the key 'k1'" in str(read.error)


def test_a_segment_that_is_deleted_while_it_is_read_is_no_finding(unpacked):
    case = unpacked(KAFKA)
    tier = ArchivePlace(place=str(case.archive)).open()
    folder = max(tier.listing[0], key=lambda each: len(each.segments))
    look = look_at_folder(tier, folder, None, OPTIONS)
    delete_segment(planter(case))
    read = read_segments(tier, look.chosen, OPTIONS)
    assert (read.findings, read.error) == ((), None)


def test_a_segment_that_is_deleted_before_its_aborted_transactions_are_compared_is_no_finding(
    unpacked, monkeypatch
):
    case = unpacked(TXN)
    tier = ArchivePlace(place=str(case.archive)).open()
    folder = max(tier.listing[0], key=lambda each: len(each.segments))
    look = look_at_folder(tier, folder, None, OPTIONS)
    read_small = tier.read_small
    asked = []

    def read_of_deleted(segment: TierSegment, suffix: str) -> bytes:
        if suffix == TXN_INDEX_SUFFIX:
            asked.append(segment)
            for stored in segment.objects.values():
                (case.archive / stored.key).unlink()
        return read_small(segment, suffix)

    monkeypatch.setattr(tier, "read_small", read_of_deleted)
    read = read_segments(tier, look.chosen, OPTIONS)
    assert asked
    assert (read.findings, read.error) == ((), None)


def test_a_segment_whose_last_object_was_being_written_when_it_was_listed_is_no_finding(unpacked):
    case = unpacked(KAFKA)
    last = max(case.archive.rglob("*.snapshot"))
    content = last.read_bytes()
    last.write_bytes(b"")
    tier = ArchivePlace(place=str(case.archive)).open()
    folder = next(each for each in tier.listing[0] if each.key == last.parent.name)
    look = look_at_folder(tier, folder, None, OPTIONS)
    last.write_bytes(content)
    read = read_segments(tier, look.chosen, OPTIONS)
    assert (read.findings, read.error) == ((), None)


def uploaded(
    name: str, start: int, end: int, *, at: int, epochs: tuple[int, ...] = (0,)
) -> RemoteSegment:
    identity = TierSegmentId(topic_id=OTHER_ID, partition=TopicPartition("t", 0), segment_id=name)
    return RemoteSegment(
        identity=identity,
        base_offset=start,
        end_offset=end,
        max_timestamp_ms=0,
        epochs=tuple(EpochEntry(epoch, start + 10 * n) for n, epoch in enumerate(epochs)),
        size_bytes=1,
        is_txn_index_empty=True,
        broker_id=1,
        event_ms=at,
        custom=None,
        state=SegmentState.COPY_SEGMENT_FINISHED,
    )


@pytest.mark.parametrize(
    ("segments", "hidden"),
    [
        pytest.param([("a", 0, 99, 1), ("b", 100, 199, 2)], set(), id="one behind the other"),
        pytest.param([("a", 0, 99, 1), ("b", 0, 99, 2)], set(), id="a twin stays listed"),
        pytest.param(
            [("a", 0, 99, 1), ("b", 100, 199, 2), ("c", 0, 99, 3)], {"a"}, id="hidden by a twin"
        ),
        pytest.param(
            [("a", 0, 99, 1), ("b", 100, 199, 2), ("c", 0, 199, 3)], set(), id="all replaced"
        ),
    ],
)
def test_a_later_upload_hides_an_earlier_one_if_the_epoch_had_gone_further(segments, hidden):
    given = [uploaded(name, start, end, at=at) for name, start, end, at in segments]
    assert find_hidden(reversed(given)) == hidden


def test_a_segment_that_another_epoch_lists_is_not_hidden():
    first = uploaded("a", 0, 99, at=1, epochs=(0, 1))
    later = uploaded("b", 100, 199, at=2, epochs=(1,))
    again = uploaded("c", 0, 9, at=3)
    assert find_hidden([first, later, again]) == set()


def test_a_leaked_segment_is_a_finding(unpacked):
    case = unpacked(KAFKA)
    copy_segment(planter(case))
    tier = ArchivePlace(place=str(case.archive)).open()
    folder = max(tier.listing[0], key=lambda each: len(each.segments))
    known = records_of(case)[folder.topic_id, folder.partition]
    again = replace(
        known[1],
        identity=replace(known[1].identity, segment_id=OTHER_ID),
        event_ms=known[-1].event_ms + 1,
    )
    recorded = Recorded(segments=(*known, again), listed={}, uploaded=set())
    found = look_at_folder(tier, folder, recorded, OPTIONS).findings
    assert {each.code for each in found} == {Code.TIER_SEGMENT_TWIN, Code.TIER_SEGMENT_LEAKED}
    (leaked,) = (each for each in found if each.code is Code.TIER_SEGMENT_LEAKED)
    assert known[1].identity.segment_id in leaked.file


@pytest.mark.parametrize(("before", "codes"), [(True, set()), (False, {Code.TIER_SEGMENT_LOST})])
def test_a_segment_that_loses_an_object_after_its_record_was_read_is_being_deleted(
    unpacked, before, codes
):
    case = unpacked(KAFKA)
    folder = max(
        ArchivePlace(place=str(case.archive)).open().listing[0],
        key=lambda each: len(each.segments),
    )
    (_, segment_id), objects = min(folder.segments.items())
    (case.archive / objects["log"].key).unlink()
    tier = ArchivePlace(place=str(case.archive)).open()
    now = next(each for each in tier.listing[0] if each.key == folder.key)
    seen = folder if before else now
    recorded = Recorded(
        segments=tuple(records_of(case)[folder.topic_id, folder.partition]),
        listed={each: len(kinds) for (_, each), kinds in seen.segments.items()},
        uploaded=set(),
    )
    found = look_at_folder(tier, now, recorded, OPTIONS).findings
    assert {each.code for each in found} == codes
    assert all(segment_id in each.file for each in found)


@pytest.mark.parametrize(("before", "codes"), [(True, [Code.TIER_SEGMENT_LOST]), (False, [])])
def test_a_segment_without_objects_is_lost_if_it_was_uploaded_before_the_first_listing(
    unpacked, before, codes
):
    case = unpacked(KAFKA)
    tier = ArchivePlace(place=str(case.archive)).open()
    folder = max(tier.listing[0], key=lambda each: len(each.segments))
    known = records_of(case)[folder.topic_id, folder.partition]
    # It was uploaded and deleted between two listings, or it is lost.
    other = replace(known[0], identity=replace(known[0].identity, segment_id=OTHER_ID))
    recorded = Recorded(
        segments=(*known, other),
        listed={each: len(kinds) for (_, each), kinds in folder.segments.items()},
        uploaded=ids_of([*known, *[other] * before]),
    )
    found = look_at_folder(tier, folder, recorded, OPTIONS).findings
    assert [each.code for each in found] == codes
