"""Tiers of real brokers, read alone and joined with a broker's log directory, and damaged ones."""

import base64
import hashlib
import json
import shutil
import struct
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from storage_core.errors import (
    BadBytesError,
    ChangedWhileReadError,
    ConfigError,
    InvalidNameError,
    ManifestError,
    MissingSegmentError,
    StorageError,
)
from storage_core.filenames import LEADER_EPOCH_FILE, TopicPartition
from storage_core.kafka_log import Logs, open_logs
from storage_core.reading.inspection import inspect_root, inspect_segments
from storage_core.roots.open_root import find_root, open_root
from storage_core.store import open_store
from storage_core.store.tier_archive import ArchivePlace, parse_archive
from storage_core.store.tier_chunks import (
    RUN_BYTES,
    ChunkReader,
    CorruptChunkError,
    Transformation,
)
from storage_core.store.tier_manifest import ChunkTable, parse_manifest
from tests.kit.compare import read_tree
from tests.kit.tier_archives import CASES, TierCase, unpack_tier
from tests.kit.tier_writer import UploadedSegment, new_id, write_aiven, write_local

Record = tuple[Any, ...]
ENDLESS = 1 << 62
ISOLATIONS = ("read_uncommitted", "read_committed")


@pytest.fixture(scope="module")
def case_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TierCase]:
    """Return a situation; it is only read."""
    cases: dict[str, TierCase] = {}

    def unpack(name: str) -> TierCase:
        if name not in cases:
            cases[name] = unpack_tier(name, tmp_path_factory.mktemp("tier"))
        return cases[name]

    return unpack


def digest(content: bytes | None) -> str | None:
    return None if content is None else hashlib.sha1(content).hexdigest()[:16]


def digest_headers(headers: Iterable[dict[str, Any]] | None) -> str:
    if not headers:
        return ""
    digest = hashlib.sha1()
    for header in headers:
        for content in (header["key"].encode(), header["value"]):
            size = -1 if content is None else len(content)
            digest.update(struct.pack(">i", size) + (content or b""))
    return digest.hexdigest()[:16]


def read(logs: Logs, topic: str, isolation: Any) -> list[Record]:
    return [
        (
            row["partition"],
            row["offset"],
            round(row["timestamp"].timestamp() * 1000),
            row["timestampType"],
            None if row["key"] is None else base64.b64encode(row["key"]).decode(),
            digest(row["value"]),
            digest_headers(row["headers"]),
        )
        for row in logs.read(topic, isolation=isolation).to_table().to_pylist()
    ]


def said(row: dict[str, Any]) -> Record:
    types = {"CreateTime": 0, "LogAppendTime": 1}
    return (
        row["partition"],
        row["offset"],
        row["timestamp"],
        types[row["timestamp_type"]],
        row["key"],
        row["value_sha1"],
        row["headers_sha1"],
    )


@pytest.mark.parametrize("name", CASES)
def test_every_segment_that_lies_there_is_listed(case_of, name):
    case = case_of(name)
    before = read_tree(case.folder)
    (location,) = open_logs(case.archive, decryption_key=case.key)._paths
    view = inspect_root(location)
    rows = {row["segment_id"]: row for entry in view.entries for row in inspect_segments(entry)}
    for wanted in case.truth["archive_segments"]:
        row = rows.pop(wanted["segment_id"])
        named = ("topic", "partition", "topic_id", "base_offset", "is_complete")
        assert {name: row[name] for name in named} == {name: wanted[name] for name in named}
        if wanted["is_complete"]:
            assert row["error"] is None
            assert row["size_bytes"] == wanted["size_bytes"]
            # Over the holes of a compaction the broker's word is the next segment's base offset.
            assert row["end_offset"] in {wanted["end_offset"], wanted.get("last_offset_in_log")}
        else:
            assert row["error"].startswith("has no object ")
    assert rows == {}
    assert read_tree(case.folder) == before


@pytest.mark.thorough
@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("name", CASES)
def test_a_tier_alone_gives_its_newest_history(case_of, name, isolation):
    case = case_of(name)
    for wanted in case.truth["alone"]:
        logs = open_logs(case.archive, decryption_key=case.key, topic_ids=[wanted["topic_id"]])
        found = read(logs, wanted["topic"], isolation)
        expected = newest_history(case, wanted, isolation)
        assert [row for row in found if row[0] == wanted["partition"]] == expected


def newest_history(case: TierCase, wanted: dict[str, Any], isolation: str) -> list[Record]:
    """Return what a tier alone gives of a partition."""
    inside = {
        (offset, epoch)
        for first, last, epoch in wanted["ranges"]
        for offset in range(first, last + 1)
    }
    is_committed = isolation == "read_committed"
    end = wanted["stable_end"] if is_committed else ENDLESS
    expected = {
        said(row)
        for row in case.records
        if (row["topic_id"], row["partition"]) == (wanted["topic_id"], wanted["partition"])
        and (row["offset"], row["epoch"]) in inside
        and row["offset"] < end
        and not (is_committed and row.get("aborted"))
    }
    return sorted(expected, key=lambda row: row[:2])


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A private key of our own."""
    rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    path = tmp_path_factory.mktemp("key") / "private.pem"
    path.write_bytes(
        rsa.generate_private_key(65537, 2048).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return path


def altered(case: TierCase, folder: Path, key_file: Path) -> tuple[Path, dict[str, str]]:
    """Upload the segments of a situation again: in the other layout, in chunks of another size,
    under other names and ids. Return the tier, and each topic id's new one."""
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    private = serialization.load_pem_private_key(key_file.read_bytes(), None)
    tier = ArchivePlace(place=str(case.archive), decryption_key=case.key and str(case.key)).open()
    ids: dict[str, str] = defaultdict(new_id)
    place = folder / "altered"
    for each in tier.listing[0]:
        partition = replace(each.partition, topic=f"x.{each.partition.topic}")
        for segment in tier.segments(each):
            if not segment.is_complete:
                # One of its objects is enough to know of it.
                stem = f"{segment.base_offset:020}-{new_id()}"
                path = place / f"{partition.topic}-{ids[each.topic_id]}" / str(partition.partition)
                path.mkdir(parents=True, exist_ok=True)
                (path / f"{stem}.indexes").write_bytes(b"")
                continue
            log = folder / "segment.log"
            content = np.empty(tier.log_bytes(segment), np.uint8)
            with closing(tier.open_log(segment, log.name)) as reader:
                assert reader.read_into(0, content) == content.size
            log.write_bytes(content.tobytes())
            suffixes = (".index", ".timeindex", ".snapshot", ".txnindex", LEADER_EPOCH_FILE)
            small = {suffix: tier.read_small(segment, suffix) for suffix in suffixes}
            if not small[".txnindex"]:
                del small[".txnindex"]
            again = UploadedSegment(
                partition=partition,
                topic_id=ids[each.topic_id],
                segment_id=new_id(),
                base_offset=segment.base_offset,
                end_offset=tier.end_offset(segment),
                log=log,
                epochs=tier.lineage(segment),
                small=small,
            )
            if each.has_manifests:
                write_local(place, [again])
            else:
                is_odd = bool(partition.partition % 2)
                write_aiven(
                    place,
                    [again],
                    chunk_bytes=13_331,
                    is_compressed=not is_odd,
                    public_key=private.public_key() if is_odd else None,
                )
    return place, ids


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [
        each if each in {"plain", "aiven_aes"} else pytest.param(each, marks=pytest.mark.thorough)
        for each in CASES
    ],
)
def test_the_same_segments_in_the_other_layout_give_the_same_records(
    case_of, key_file, tmp_path, name
):
    case = case_of(name)
    place, ids = altered(case, tmp_path, key_file)
    for wanted in case.truth["alone"]:
        logs = open_logs(place, topic_ids=[ids[wanted["topic_id"]]], decryption_key=key_file)
        for isolation in ISOLATIONS:
            found = read(logs, f"x.{wanted['topic']}", isolation)
            expected = newest_history(case, wanted, isolation)
            assert [row for row in found if row[0] == wanted["partition"]] == expected
    (location,) = open_logs(place, decryption_key=key_file)._paths
    view = inspect_root(location)
    rows = [row for entry in view.entries for row in inspect_segments(entry)]
    count = Counter(row["is_complete"] for row in case.truth["archive_segments"])
    assert Counter(row["is_complete"] for row in rows) == count


@pytest.mark.sampled(17)
@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("name", CASES)
def test_tier_and_disk_are_the_log_that_a_consumer_read(case_of, name, isolation):
    case = case_of(name)
    leaders = {(each["topic"], each["leader_root"]): set() for each in case.truth["partitions"]}
    for each in case.truth["partitions"]:
        leaders[each["topic"], each["leader_root"]].add(each["partition"])
    for (topic, root), partitions in leaders.items():
        logs = open_logs(case.archive, with_local=[case.folder / root], decryption_key=case.key)
        expected = sorted(
            (
                said(row)
                for row in case.records
                if row["topic"] == topic
                and row["partition"] in partitions
                and not row.get("earlier")
                and not row.get("beyond_lineage")
                and (isolation == "read_uncommitted" or row["committed"])
            ),
            key=lambda row: row[:2],
        )
        assert [row for row in read(logs, topic, isolation) if row[0] in partitions] == expected


def test_two_topics_of_one_name_are_refused_without_an_id(case_of):
    case = case_of("topic_deleted")
    logs = open_logs(case.archive)
    with pytest.raises(ConfigError, match="2 topics of the name page-views"):
        logs.read("page-views")
    assert logs.read("ledger").to_table().num_rows


def test_a_location_says_what_a_tier_is_read_with():
    place = ArchivePlace(
        place="s3://bucket/a b",
        with_local=("/disk (1)/x", "/disk+2"),
        decryption_key="/k&y.pem",
        topic_ids=("id=1",),
        folders=("t-id/0",),
    )
    assert parse_archive(str(place)) == place
    assert parse_archive("archive+/data/tier") == ArchivePlace(place="/data/tier")
    with pytest.raises(InvalidNameError, match="no option 'trust'"):
        parse_archive("archive(trust=me)+/data/tier")


def test_what_is_no_tier_takes_no_options_of_one(tmp_path):
    (tmp_path / "orders-0").mkdir()
    with pytest.raises(ConfigError, match="is no tier"):
        open_logs(tmp_path, topic_ids=["x"])


def test_a_partition_of_a_tier_is_found_by_its_own_location(case_of):
    case = case_of("plain")
    root = open_root(f"archive+{case.archive}")
    found, names = find_root(root.locate("stock_levels-1"))
    assert names == ["stock_levels-1"]
    assert found.location.startswith("archive")


def damaged(case: TierCase, tmp_path: Path, kind: str) -> tuple[TierCase, Path]:
    """Return a copy of a situation, and its first object of a kind."""
    copy = TierCase(case.name, tmp_path / "copy")
    shutil.copytree(case.folder, copy.folder)
    return copy, min(copy.archive.rglob(f"*.{kind}"))


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("aiven_aes", "authentication code"), ("aiven_zstd", "CRC"), ("plain", "CRC")],
)
def test_a_flipped_byte_is_named_by_object_and_position(case_of, tmp_path, name, reason):
    case, path = damaged(case_of(name), tmp_path, "log")
    flip(path, path.stat().st_size // 2)
    records = open_logs(case.archive, decryption_key=case.key).read()
    with pytest.raises(BadBytesError, match=reason) as caught:
        records.to_table()
    assert caught.value.position > 0


@pytest.mark.parametrize("name", ["aiven_aes", "aiven_zstd", "aiven_plain"])
def test_a_cut_object_of_chunks_is_not_taken_for_a_segment(case_of, tmp_path, name):
    case, path = damaged(case_of(name), tmp_path, "log")
    with path.open("r+b") as opened:
        opened.truncate(path.stat().st_size - 1)
    logs = open_logs(case.archive, decryption_key=case.key)
    view = inspect_root(logs._paths[0])
    rows = [row for entry in view.entries for row in inspect_segments(entry)]
    (broken,) = (row for row in rows if not row["is_complete"])
    assert "expected" in broken["error"]
    assert path.name in broken["error"]


def test_a_segment_that_is_missing_is_an_error_of_its_partition(case_of, tmp_path):
    case, _ = damaged(case_of("plain"), tmp_path, "log")
    (middle,) = case.archive.rglob("00000000000000000420-*.log")
    middle.unlink()
    logs = open_logs(case.archive)
    with pytest.raises(MissingSegmentError, match="420 to 822"):
        logs.read("stock_levels").to_table()
    (whole,) = [logs.read(partitions=[TopicPartition("stock_levels", 0)])]
    assert whole.to_table().num_rows == 832
    permitted = logs.read("stock_levels", fail_on_data_loss=False).to_table()
    assert permitted.num_rows == 832 + 1241 - 403


def test_without_the_key_an_encrypted_tier_says_which_it_wants(case_of):
    case = case_of("aiven_aes")
    with pytest.raises(ConfigError, match="encrypted for the key 'k1'"):
        open_logs(case.archive).read("ledger").to_table()


def test_another_key_is_refused(case_of, key_file, tmp_path):
    case = case_of("aiven_aes")
    with pytest.raises(ConfigError, match="this is another one"):
        open_logs(case.archive, decryption_key=key_file).read("ledger").to_table()
    other = tmp_path / "other.pem"
    other.write_text("no key")
    with pytest.raises(ConfigError, match="expected a private RSA key"):
        open_logs(case.archive, decryption_key=other).read("ledger").to_table()


def test_an_object_that_changes_after_its_listing_is_no_mixture(case_of, tmp_path):
    case, path = damaged(case_of("plain"), tmp_path, "log")
    records = open_logs(case.archive).read("stock_levels")
    path.write_bytes(path.read_bytes())
    with pytest.raises((ChangedWhileReadError, StorageError)):
        records.to_table()


# Manifests.

ZEROS = "A" * 21
TOPIC_ID, SEGMENT_ID = f"{ZEROS}Q", f"{ZEROS}g"


def manifest(**changes: Any) -> dict[str, Any]:
    return {
        "version": "1",
        "chunkIndex": {
            "type": "fixed",
            "originalChunkSize": 100,
            "originalFileSize": 250,
            "transformedChunkSize": 100,
            "finalTransformedChunkSize": 50,
        },
        "segmentIndexes": {
            "offset": {"position": 0, "size": 8},
            "timestamp": {"position": 8, "size": 12},
            "producerSnapshot": {"position": 20, "size": 10},
            "leaderEpoch": {"position": 30, "size": 8},
            "transaction": None,
        },
        "compression": False,
        "remoteLogSegmentMetadata": {
            "remoteLogSegmentId": {
                "topicIdPartition": {
                    "topicId": TOPIC_ID,
                    "topicPartition": {"topic": "orders", "partition": 3},
                },
                "id": SEGMENT_ID,
            },
            "startOffset": 10,
            "endOffset": 20,
            "maxTimestampMs": 5,
            "brokerId": 1,
            "segmentLeaderEpochs": {"0": 10, "2": 15},
        },
    } | changes


def parse(value: object):
    return parse_manifest(json.dumps(value).encode(), "m")


def test_a_manifest_says_whose_the_segment_is_and_where_its_chunks_are():
    parsed = parse(manifest() | {"somethingNew": 1})
    assert parsed.identity.partition == TopicPartition("orders", 3)
    assert (parsed.identity.topic_id, parsed.identity.segment_id) == (TOPIC_ID, SEGMENT_ID)
    assert parsed.chunks.ends.tolist() == [100, 200, 250]
    assert [(entry.epoch, entry.start_offset) for entry in parsed.epochs] == [(0, 10), (2, 15)]


def sizes_text(*numbers: int, frame: bytes | None = None) -> str:
    """Return sizes of chunks as the plugin encodes several of them, each in two bytes."""
    *others, last = numbers
    base = min(others)
    data = struct.pack(">iib", len(numbers), base, 2)
    data += b"".join(struct.pack(">H", number - base) for number in others)
    data += struct.pack(">i", last)
    return base64.b64encode(frame or zstandard.compress(data)).decode()


def variable(text: str, **changes: Any) -> dict[str, Any]:
    return {
        "type": "variable",
        "originalChunkSize": 100,
        "originalFileSize": 250,
        "transformedChunks": text,
    } | changes


def test_chunks_of_other_sizes_are_told_one_by_one():
    parsed = parse(manifest(chunkIndex=variable(sizes_text(70, 1070, 9), originalFileSize=250)))
    assert parsed.chunks.ends.tolist() == [70, 1140, 1149]
    one = base64.b64encode(zstandard.compress(struct.pack(">ii", 1, 77))).decode()
    parsed = parse(manifest(chunkIndex=variable(one, originalFileSize=60)))
    assert parsed.chunks.ends.tolist() == [77]
    none = base64.b64encode(zstandard.compress(struct.pack(">i", 0))).decode()
    assert parse(manifest(chunkIndex=variable(none, originalFileSize=0))).chunks.ends.size == 0


def nested(path: str, value: object) -> dict[str, Any]:
    changed = json.loads(json.dumps(manifest()))
    *steps, name = path.split(".")
    inner = changed
    for step in steps:
        inner = inner[step]
    inner[name] = value
    return changed


SEGMENT = "remoteLogSegmentMetadata"
BOMB = zstandard.compress(bytes(11 << 20))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("version", "2"),
        ("version", None),
        ("chunkIndex", None),
        ("chunkIndex.type", "spiral"),
        ("chunkIndex.originalChunkSize", 0),
        ("chunkIndex.originalFileSize", -1),
        ("chunkIndex.originalFileSize", 2**31),
        ("chunkIndex.transformedChunkSize", True),
        ("chunkIndex", variable(sizes_text(70, 80))),
        ("chunkIndex", variable("not base64!")),
        ("chunkIndex", variable(base64.b64encode(b"no frame").decode())),
        ("chunkIndex", variable(sizes_text(70, 80, 9, frame=BOMB))),
        ("chunkIndex", variable(sizes_text(70, 80, 9, frame=zstandard.compress(b"\0\0\0\3\0")))),
        ("segmentIndexes.offset", None),
        ("segmentIndexes.offset.position", -1),
        ("compression", "yes"),
        ("encryption", {"dataKey": "no colon", "aad": ""}),
        ("encryption", {"dataKey": "k1:###", "aad": ""}),
        (f"{SEGMENT}.startOffset", -1),
        (f"{SEGMENT}.endOffset", 9),
        (f"{SEGMENT}.segmentLeaderEpochs", {}),
        (f"{SEGMENT}.segmentLeaderEpochs", {"one": 10}),
        (f"{SEGMENT}.segmentLeaderEpochs", {"0": 11}),
        (f"{SEGMENT}.segmentLeaderEpochs", {"0": 10, "2": 21}),
        (f"{SEGMENT}.segmentLeaderEpochs", {"0": 15, "2": 10}),
        (f"{SEGMENT}.remoteLogSegmentId.id", "short"),
        (f"{SEGMENT}.remoteLogSegmentId.topicIdPartition.topicPartition.topic", "../etc"),
        (f"{SEGMENT}.remoteLogSegmentId.topicIdPartition.topicPartition.partition", -1),
    ],
)
def test_a_manifest_that_lies_is_refused(path, value):
    with pytest.raises(ManifestError):
        parse(nested(path, value))


def test_a_manifest_of_another_segment_makes_none_complete(case_of, tmp_path):
    case, path = damaged(case_of("aiven_plain"), tmp_path, "rsm-manifest")
    others = [each for each in case.archive.rglob("*.rsm-manifest") if each.parent == path.parent]
    shutil.copy(others[-1] if others[-1] != path else others[0], path)
    view = inspect_root(f"archive+{case.archive}")
    rows = [row for entry in view.entries for row in inspect_segments(entry)]
    broken = [row for row in rows if not row["is_complete"]]
    assert len(broken) <= 1
    for row in broken:
        assert "expected the segment that its name says" in row["error"]


# Chunks.


class Objects:
    """One object, which counts how often it is asked for."""

    url = "s3://bucket"

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.requests = 0

    def get_range(self, key: str, start: int, size_bytes: int, *, etag: str = "") -> bytes:
        self.requests += 1
        return self.content[start : start + size_bytes]


def chunked(data: bytes, chunk_bytes: int, *, is_compressed: bool) -> tuple[Any, ChunkReader]:
    chunks = [data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes)]
    stored = [zstandard.compress(chunk) if is_compressed else chunk for chunk in chunks]
    objects: Any = Objects(b"".join(stored))
    info: Any = type("Info", (), {"key": "k", "etag": "e", "size_bytes": len(objects.content)})
    table = ChunkTable(
        chunk_bytes=chunk_bytes,
        size_bytes=len(data),
        ends=np.cumsum([len(chunk) for chunk in stored], dtype=np.int64),
    )
    how = Transformation(is_compressed=is_compressed, key=b"", aad=b"")
    return objects, ChunkReader(objects, info, name="x.log", chunks=table, transformation=how)


def test_any_stretch_of_chunks_is_that_of_the_log():
    random = np.random.default_rng(7)
    data = random.integers(0, 4, 10_000, np.uint8).tobytes()
    _, reader = chunked(data, 256, is_compressed=True)
    for _ in range(200):
        position, size = (int(each) for each in random.integers(0, 11_000, 2))
        target = np.zeros(size, np.uint8)
        count = reader.read_into(position, target)
        assert target[:count].tobytes() == data[position : position + size]


def test_a_log_that_is_read_from_its_beginning_takes_few_requests():
    chunk_bytes = 1 << 20
    count = 40
    objects, reader = chunked(bytes(chunk_bytes * count), chunk_bytes, is_compressed=False)
    target = np.empty(chunk_bytes // 2, np.uint8)
    for position in range(0, reader.size_bytes, target.size):
        assert reader.read_into(position, target) == target.size
    # The first chunks by themselves, for whoever looks at a log's beginning alone.
    assert objects.requests <= 2 + count * chunk_bytes // RUN_BYTES + 1


def test_what_compresses_well_takes_no_more_memory():
    chunk_bytes = 1 << 20
    objects, reader = chunked(bytes(100 * chunk_bytes), chunk_bytes, is_compressed=True)
    assert len(objects.content) < chunk_bytes
    target = np.empty(chunk_bytes, np.uint8)
    tracemalloc.start()
    try:
        for position in range(0, reader.size_bytes, target.size):
            assert reader.read_into(position, target) == target.size
        assert tracemalloc.get_traced_memory()[1] < 8 * chunk_bytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [0, 100, 400])
def test_a_chunk_of_another_length_than_the_manifest_says_is_damage(size):
    objects, reader = chunked(bytes(1000), 256, is_compressed=True)
    first = len(zstandard.compress(bytes(256)))
    frame = zstandard.compress(bytes(size))
    objects.content = frame.ljust(first, b"\0")[:first] + objects.content[first:]
    with pytest.raises(CorruptChunkError, match="k: position 0"):
        reader.read_into(0, np.empty(10, np.uint8))


def test_an_object_that_ends_early_is_an_error_with_its_end():
    objects, reader = chunked(bytes(1000), 256, is_compressed=False)
    objects.content = objects.content[:900]
    with pytest.raises(StorageError, match="ends at 900"):
        reader.read_into(800, np.empty(200, np.uint8))


def test_a_store_of_a_tier_is_only_read(case_of):
    case = case_of("plain")
    store = open_store(open_root(f"archive+{case.archive}").locate("stock_levels-0"))
    with pytest.raises(Exception, match="only read"):
        store.delete("00000000000000000000.log")
    names = [file.name for file in store.list_files()]
    assert "leader-epoch-checkpoint" in names
    assert replace(store.list_files()[0]).size_bytes >= 0
