"""Manifests: what is written is read, and nothing that somebody else wrote is believed."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.errors import InvalidNameError, ManifestError
from storage_core.filenames import TopicPartition
from storage_core.store.generations import (
    MOST_SPREAD_FILES,
    FileEntry,
    Manifest,
    data_key,
    encode_manifest,
    history_key,
    manifest_key,
    parse_manifest,
    split_adopted,
)

PARTITION = TopicPartition("topic", 3)
NAME = "00000000000000000042.log"
MANIFEST = Manifest(
    partition=PARTITION,
    topic_id="AAAAAAAAAAAAAAAAAAAAAQ",
    generation=7,
    run_id="run-1",
    attempt_id="a1",
    fencing_token=3,
    committed_ms=1_800_000_000_000,
    files={
        NAME: FileEntry(
            key="topic-3/data/a1/00000000000000000042.log",
            start=10,
            size_bytes=90,
            etag="d41d8cd98f00b204e9800998ecf8427e-3",
            modified_ms=1_700_000_000_000,
            largest_timestamp=-1,
        ),
        "partition.metadata": FileEntry(key="", start=0, size_bytes=0, etag="", modified_ms=5),
        "adopted.log": FileEntry(
            key="s3://other/mirror/topic-3/1.log", start=0, size_bytes=1, etag="e", modified_ms=0
        ),
    },
    checkpoints=PartitionCheckpoints(log_start_offset=42, cleaner_offset=50),
    result={"status": "done", "counts": [1, 2]},
)


def parse(content: bytes, root: str = "s3://bucket/root") -> Manifest:
    return parse_manifest(content, PARTITION, root=root, file="s3://bucket/root/topic-3/manifest")


def test_a_manifest_is_read_as_it_was_written():
    content = encode_manifest(MANIFEST)
    assert parse(content) == MANIFEST
    assert encode_manifest(parse(content)) == content


def test_a_manifest_of_many_files_takes_less_room():
    entry = MANIFEST.files[NAME]
    many = {f"{number:020d}.log": entry for number in range(MOST_SPREAD_FILES)}
    spread = encode_manifest(replace(MANIFEST, files=many))
    packed = encode_manifest(replace(MANIFEST, files=many | {NAME: entry, "one.log": entry}))
    assert (spread.count(b"\n") > len(many), packed.count(b"\n")) == (True, 1)
    assert len(packed) < 0.9 * len(spread)
    for content in (spread, packed):
        assert encode_manifest(parse(content)) == content


def test_equal_manifests_have_equal_bytes_whatever_their_order():
    reverse = replace(MANIFEST, files=dict(reversed(MANIFEST.files.items())))
    assert encode_manifest(reverse) == encode_manifest(MANIFEST)


def test_keys_say_what_they_hold():
    assert manifest_key(PARTITION) == "topic-3/manifest.json"
    assert history_key(PARTITION, 7) == "topic-3/history/00000000000000000007.json"
    assert data_key(PARTITION, "a1", NAME) == f"topic-3/data/a1/{NAME}"
    for attempt, name in (("..", NAME), ("a/b", NAME), ("a1", ".."), ("a1", "x/y"), ("a1", "")):
        with pytest.raises(InvalidNameError):
            data_key(PARTITION, attempt, name)


def test_an_adopted_object_is_in_the_same_kind_of_store():
    assert split_adopted("s3://b/m/t-0/1.log", "s3://a/root") == ("s3://b", "m/t-0/1.log")
    assert split_adopted("file:///m/1.log", "/root") == ("file:///", "m/1.log")
    for url, root in (
        ("file:///etc/passwd", "s3://bucket/root"),
        ("s3://b/1.log", "/root"),
        ("http://host/1.log", "s3://bucket/root"),
    ):
        with pytest.raises(InvalidNameError):
            split_adopted(url, root)


def changed(path: str, value: Any) -> bytes:
    fields = copy.deepcopy(json.loads(encode_manifest(MANIFEST)))
    *parents, last = path.split("/")
    where = fields
    for parent in parents:
        where = where[parent]
    if value is ...:
        del where[last]
    else:
        where[last] = value
    return json.dumps(fields).encode()


FILE = f"files/{NAME}"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("format", "pylog-lease"),
        ("version", 2),
        ("version", True),
        ("version", ...),
        ("topic", "other"),
        ("topic", None),
        ("partition", 4),
        ("topic_id", "short"),
        ("topic_id", "../../../../../../etc/"),
        ("generation", 0),
        ("generation", 2**63 - 1),
        ("generation", 7.0),
        ("generation", "7"),
        ("run_id", "a\nb"),
        ("run_id", "x" * 200),
        ("attempt_id", None),
        ("fencing_token", -1),
        ("committed_ms", 10**30),
        ("checkpoints", []),
        ("checkpoints/log_start_offset", -1),
        ("checkpoints/unknown", 1),
        ("checkpoints/recovery_point", ...),
        ("result", "text"),
        ("files", []),
        ("files", ...),
        ("unknown", 1),
        ("files/..", {}),
        ("files/a b", {}),
        ("files/" + "x" * 256, {}),
        (FILE, None),
        (FILE + "/key", "topic-4/data/a1/x"),
        (FILE + "/key", "topic-3/manifest.json"),
        (FILE + "/key", "topic-3/data/../../lease.json"),
        (FILE + "/key", "/etc/passwd"),
        (FILE + "/key", "topic-3/data/a\\b"),
        (FILE + "/key", "file:///etc/passwd"),
        (FILE + "/key", "http://169.254.169.254/latest/meta-data"),
        (FILE + "/key", "s3://bucket/../x"),
        (FILE + "/key", "s3://bucket/"),
        (FILE + "/key", "s3://bucket/others/1.log"),
        (FILE + "/key", "s3://bucket/mirror/topic-4/1.log"),
        (FILE + "/key", "s3://topic-3/1.log"),
        (FILE + "/key", json.loads("[" * 60 + "]" * 60)),
        (FILE + "/key", ""),
        (FILE + "/start", -1),
        (FILE + "/start", 2**63 - 90),
        (FILE + "/size", 2**63),
        (FILE + "/size", True),
        (FILE + "/etag", 'a"b'),
        (FILE + "/etag", "a\r\nb"),
        (FILE + "/modified_ms", -1),
        (FILE + "/largest_timestamp", -2),
        (FILE + "/largest_timestamp", "now"),
    ],
)
def test_every_field_is_checked(path: str, value: Any):
    with pytest.raises(ManifestError) as caught:
        parse(changed(path, value))
    assert caught.value.file == "s3://bucket/root/topic-3/manifest"
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"format": NaN}',
        b'{"format": 1, "format": 2}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"generation": ' + b"9" * 10_000 + b"}",
    ],
    ids=lambda content: repr(content[:12]),
)
def test_what_is_no_json_object_is_told(content: bytes):
    with pytest.raises(ManifestError):
        parse(content)


@given(st.integers(0, 4000), st.binary(min_size=1, max_size=4))
def test_damage_is_told_or_harmless(position: int, patch: bytes):
    content = bytearray(encode_manifest(MANIFEST))
    position %= len(content)
    content[position : position + len(patch)] = patch
    try:
        manifest = parse(bytes(content))
    except ManifestError:
        return
    assert manifest.partition == PARTITION
    for entry in manifest.files.values():
        assert ".." not in entry.key.split("/")


def test_what_could_not_be_read_back_is_never_written():
    for broken in (
        replace(MANIFEST, run_id="a b"),
        replace(MANIFEST, fencing_token=-1),
        replace(MANIFEST, files={"a/b": MANIFEST.files[NAME]}),
    ):
        with pytest.raises(ManifestError):
            parse(encode_manifest(broken))
