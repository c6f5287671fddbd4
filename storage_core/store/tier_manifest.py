"""The manifest of a segment in a tier, as Aiven's plugin for KIP-405 writes it.

The format is that of ``tiered-storage-for-apache-kafka`` 1.0, manifest version "1"
(https://github.com/Aiven-Open/tiered-storage-for-apache-kafka). A segment is three objects with one
name: ``.log`` has the segment's bytes in chunks, each transformed by itself (Zstandard, then
AES-256-GCM); ``.indexes`` has the small files one behind the other, encrypted if the log is, never
compressed; ``.rsm-manifest`` comes last and says all of this in JSON.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import zstandard
from numpy.typing import NDArray

from storage_core.checkpoint.checkpoints import EpochEntry, parse_uuid
from storage_core.errors import InvalidNameError, ManifestError
from storage_core.filenames import (
    LEADER_EPOCH_FILE,
    MAX_OFFSET,
    MAX_PARTITION,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    TopicPartition,
    validate_topic,
)
from storage_core.json_values import parse_object

VERSION: Final = "1"
MAX_MANIFEST_BYTES: Final = 16 << 20
# The bound of the plugin itself on its table of chunk sizes.
_MAX_TABLE_BYTES: Final = 10 << 20
# A segment's length is an int in Kafka; so are those of its chunks.
_INT_MAX: Final = 2**31 - 1
_DATA_KEY_MARK: Final = ":"
# The names of small files in a manifest.
_SMALL_FILES: Final = {
    "offset": OFFSET_INDEX_SUFFIX,
    "timestamp": TIME_INDEX_SUFFIX,
    "producerSnapshot": SNAPSHOT_SUFFIX,
    "leaderEpoch": LEADER_EPOCH_FILE,
    "transaction": TXN_INDEX_SUFFIX,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSegmentId:
    """Whose a segment in a tier is."""

    topic_id: str
    partition: TopicPartition
    segment_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTable:
    """Where the chunks of a log are, in it and in its object."""

    chunk_bytes: int  # of each chunk of the log but the last
    size_bytes: int  # of the log
    ends: NDArray[np.int64]  # int64[chunks], where each ends in the object


@dataclass(frozen=True, slots=True, kw_only=True)
class Encryption:
    """How a segment is encrypted."""

    key_id: str  # name of the pair of keys
    data_key: bytes  # the segment's AES key, encrypted for that pair
    aad: bytes  # what each chunk is authenticated with


@dataclass(frozen=True, slots=True, kw_only=True)
class TierManifest:
    """What a manifest says."""

    identity: TierSegmentId
    base_offset: int
    end_offset: int  # the last one of the segment
    max_timestamp: int  # epoch milliseconds
    epochs: tuple[EpochEntry, ...]  # those inside of the segment
    chunks: ChunkTable
    # Position and length of each small file in the other object, by suffix or name.
    small_files: Mapping[str, tuple[int, int]]
    is_compressed: bool
    encryption: Encryption | None


def parse_manifest(content: bytes, file: str) -> TierManifest:
    """Parse a manifest.

    Args:
        file: URL or path of it, for messages.

    Raises:
        ManifestError: It is none, or of another version, or it contradicts itself.
    """
    top = _Fields(parse_object(content, file), file)
    version = top.text("version")
    if version != VERSION:
        raise ManifestError(file, "version", f"expected {VERSION!r}, found {version[:40]!r}")
    metadata = top.inner("remoteLogSegmentMetadata")
    base_offset = metadata.number("startOffset", MAX_OFFSET)
    end_offset = metadata.number("endOffset", MAX_OFFSET)
    if end_offset < base_offset:
        raise metadata.error("endOffset", f"at least {base_offset}", end_offset)
    return TierManifest(
        identity=_identity(metadata.inner("remoteLogSegmentId")),
        base_offset=base_offset,
        end_offset=end_offset,
        max_timestamp=metadata.number("maxTimestampMs", MAX_OFFSET, least=-1),
        epochs=_epochs(metadata.inner("segmentLeaderEpochs"), base_offset, end_offset),
        chunks=_chunks(top.inner("chunkIndex")),
        small_files=_small_files(top.inner("segmentIndexes")),
        is_compressed=top.flag("compression"),
        encryption=_encryption(top.inner("encryption")) if top.has("encryption") else None,
    )


class _Fields:
    """A JSON object of a manifest, read field by field. The format may grow: fields that nobody
    here knows are passed over."""

    def __init__(self, values: Mapping[str, Any], file: str, path: str = "") -> None:
        self.values = values
        self._file, self._path = file, path

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def inner(self, name: str) -> "_Fields":
        value = self.values.get(name)
        if not isinstance(value, dict):
            raise self.error(name, "a JSON object", value)
        return _Fields(value, self._file, f"{self._path}{name}.")

    def text(self, name: str) -> str:
        value = self.values.get(name)
        if not isinstance(value, str):
            raise self.error(name, "a text", value)
        return value

    def flag(self, name: str) -> bool:
        value = self.values.get(name)
        if not isinstance(value, bool):
            raise self.error(name, "true or false", value)
        return value

    def number(self, name: str, most: int, *, least: int = 0) -> int:
        value = self.values.get(name)
        if type(value) is not int or not least <= value <= most:
            raise self.error(name, f"a number from {least} to {most}", value)
        return value

    def data(self, name: str) -> bytes:
        text = self.text(name)
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise self.error(name, "Base64", text) from error

    def error(self, name: str, expected: str, found: object) -> ManifestError:
        shown = "nothing" if found is None else repr(found)[:80]
        return ManifestError(
            self._file, f"{self._path}{name}", f"expected {expected}, found {shown}"
        )


def _identity(segment: _Fields) -> TierSegmentId:
    place = segment.inner("topicIdPartition")
    partition = place.inner("topicPartition")
    topic = partition.text("topic")
    ids = []
    for fields, name in ((place, "topicId"), (segment, "id")):
        try:
            ids.append(parse_uuid(fields.text(name)))
        except ValueError as error:
            raise fields.error(name, "an id", fields.text(name)) from error
    try:
        validate_topic(topic)
    except InvalidNameError as error:
        raise partition.error("topic", "a topic's name", topic) from error
    return TierSegmentId(
        topic_id=ids[0],
        partition=TopicPartition(topic, partition.number("partition", MAX_PARTITION)),
        segment_id=ids[1],
    )


def _epochs(epochs: _Fields, base_offset: int, end_offset: int) -> tuple[EpochEntry, ...]:
    entries = []
    for name in epochs.values:
        if not name.isascii() or not name.isdecimal() or int(name) > _INT_MAX:
            raise epochs.error(name, "a leader epoch as its name", name)
        entries.append(EpochEntry(int(name), epochs.number(name, MAX_OFFSET)))
    entries.sort()
    rising = all(one.start_offset < other.start_offset for one, other in pairwise(entries))
    if not entries or not rising or not entries[0].start_offset <= base_offset:
        raise epochs.error("", f"rising epochs from offset {base_offset} on", epochs.values)
    if entries[-1].start_offset > end_offset:
        raise epochs.error("", f"epochs up to offset {end_offset}", epochs.values)
    return tuple(entries)


def _chunks(table: _Fields) -> ChunkTable:
    chunk_bytes = table.number("originalChunkSize", _INT_MAX, least=1)
    size_bytes = table.number("originalFileSize", _INT_MAX)
    count = -(-size_bytes // chunk_bytes)
    kind = table.text("type")
    if kind == "fixed":
        sizes = np.full(count, table.number("transformedChunkSize", _INT_MAX), np.int64)
        sizes[-1:] = table.number("finalTransformedChunkSize", _INT_MAX)
    elif kind == "variable":
        sizes = _decode_sizes(table)
    else:
        raise table.error("type", "fixed or variable", kind)
    if len(sizes) != count:
        raise table.error(
            "transformedChunks", f"{count} chunks of {size_bytes} bytes", f"{len(sizes)} of them"
        )
    return ChunkTable(chunk_bytes=chunk_bytes, size_bytes=size_bytes, ends=np.cumsum(sizes))


def _decode_sizes(table: _Fields) -> NDArray[np.int64]:
    """Return the sizes of the chunks of a log that was compressed.

    Big-endian: how many there are (int32); of one its size (int32); of several the smallest of all
    but the last (int32), the width of the numbers that follow (int8), of each but the last how much
    larger it is, and the last one itself (int32). All of it is one Zstandard frame.
    """
    name = "transformedChunks"
    compressed = table.data(name)
    try:
        stated = zstandard.frame_content_size(compressed)
        if not 0 <= stated <= _MAX_TABLE_BYTES:
            raise table.error(name, f"at most {_MAX_TABLE_BYTES} bytes", f"{stated} of them")
        data = zstandard.ZstdDecompressor().decompress(compressed, max_output_size=_MAX_TABLE_BYTES)
    except zstandard.ZstdError as error:
        raise table.error(name, "a Zstandard frame", str(error)) from error
    count = int.from_bytes(data[:4])
    several = 2
    width = data[8] if count >= several and len(data) > 8 else 0  # noqa: PLR2004
    expected = 4 + 4 * min(count, 1) + (5 + (count - 1) * width) * (count >= several)
    if len(data) != expected or not (0 < width <= 4 or count < several):  # noqa: PLR2004
        raise table.error(name, f"{expected} bytes for {count} chunks", f"{len(data)} of them")
    sizes = np.zeros(count, np.int64)
    sizes[-1:] = int.from_bytes(data[-4:]) if count else 0
    if count >= several:
        digits = np.frombuffer(data, np.uint8, (count - 1) * width, 9).reshape(count - 1, width)
        for place in range(width):
            sizes[:-1] = sizes[:-1] << 8 | digits[:, place]
        sizes[:-1] += int.from_bytes(data[4:8])
    if sizes.max(initial=0) > _INT_MAX:
        raise table.error(name, f"chunks of at most {_INT_MAX} bytes", int(sizes.max()))
    return sizes


def _small_files(indexes: _Fields) -> dict[str, tuple[int, int]]:
    places = {}
    for name, suffix in _SMALL_FILES.items():
        if name == "transaction" and not indexes.has(name):
            continue  # there were no aborted transactions
        place = indexes.inner(name)
        places[suffix] = (place.number("position", _INT_MAX), place.number("size", _INT_MAX))
    return places


def _encryption(fields: _Fields) -> Encryption:
    key_id, mark, wrapped = fields.text("dataKey").partition(_DATA_KEY_MARK)
    if not mark or not key_id:
        raise fields.error("dataKey", "the name of a key, a colon and Base64", key_id)
    try:
        data_key = base64.b64decode(wrapped, validate=True)
    except binascii.Error as error:
        raise fields.error("dataKey", "Base64 behind the colon", wrapped) from error
    return Encryption(key_id=key_id, data_key=data_key, aad=fields.data("aad"))
