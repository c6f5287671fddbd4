"""Tiers (KIP-405) made of a partition's directory, as LocalTieredStorage and Aiven's plugin would
write them: for sizes and situations that no fixture has."""

import base64
import hashlib
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import zstandard

from storage_core.checkpoint.checkpoints import (
    EpochEntry,
    encode_leader_epochs,
    parse_leader_epochs,
)
from storage_core.filenames import (
    LEADER_EPOCH_FILE,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    TopicPartition,
    segment_file,
)
from storage_core.index.segment_indexes import TimeIndex

KEY_ID: Final = "key-of-tests"
_AAD: Final = b"tests"
# The names of small files in a manifest, in the order in which they lie in the other object.
_INDEXES: Final = {
    "offset": OFFSET_INDEX_SUFFIX,
    "timestamp": TIME_INDEX_SUFFIX,
    "producerSnapshot": SNAPSHOT_SUFFIX,
    "leaderEpoch": LEADER_EPOCH_FILE,
    "transaction": TXN_INDEX_SUFFIX,
}
_LOCAL_KINDS: Final = {
    OFFSET_INDEX_SUFFIX: "index",
    TIME_INDEX_SUFFIX: "timeindex",
    SNAPSHOT_SUFFIX: "snapshot",
    LEADER_EPOCH_FILE: "leader_epoch_checkpoint",
    TXN_INDEX_SUFFIX: "txnindex",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadedSegment:
    """A closed segment as a broker hands it over."""

    partition: TopicPartition
    topic_id: str
    segment_id: str
    base_offset: int
    end_offset: int  # the last one
    log: Path
    epochs: tuple[EpochEntry, ...]  # up to its end
    small: dict[str, bytes]  # by suffix or name; without .txnindex where nothing was aborted

    @property
    def stem(self) -> str:
        """What its objects are called, without a kind."""
        return f"{self.base_offset:020}-{self.segment_id}"


def new_id() -> str:
    """Return an id as Kafka spells it."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def closed_segments(
    directory: Path, partition: TopicPartition, topic_id: str, *, log_end: int
) -> list[UploadedSegment]:
    """Return the segments of a partition's directory.

    Args:
        log_end: Just past the last offset; the last segment is uploaded, too.
    """
    bases = sorted(int(path.stem) for path in directory.glob("*.log") if path.stat().st_size)
    file = directory / LEADER_EPOCH_FILE
    epochs = parse_leader_epochs(file.read_bytes(), file=str(file)) if file.exists() else []
    segments = []
    for base, end in zip(bases, [*bases[1:], log_end], strict=True):
        mine = tuple(entry for entry in epochs if entry.start_offset < end) or (EpochEntry(0, 0),)
        small = {LEADER_EPOCH_FILE: encode_leader_epochs(mine)}
        for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
            path = directory / segment_file(base, suffix)
            if path.exists() or suffix != TXN_INDEX_SUFFIX:
                small[suffix] = path.read_bytes() if path.exists() else b""
        snapshot = directory / segment_file(end, SNAPSHOT_SUFFIX)
        small[SNAPSHOT_SUFFIX] = snapshot.read_bytes() if snapshot.exists() else b""
        segments.append(
            UploadedSegment(
                partition=partition,
                topic_id=topic_id,
                segment_id=new_id(),
                base_offset=base,
                end_offset=end - 1,
                log=directory / segment_file(base, ".log"),
                epochs=mine,
                small=small,
            )
        )
    return segments


def write_local(tier: Path, segments: Sequence[UploadedSegment]) -> None:
    """Write segments as LocalTieredStorage does."""
    for segment in segments:
        folder = tier / f"{segment.partition}-{segment.topic_id}"
        folder.mkdir(parents=True, exist_ok=True)
        with segment.log.open("rb") as log, (folder / f"{segment.stem}.log").open("wb") as target:
            while data := log.read(1 << 22):
                target.write(data)
        for suffix, content in segment.small.items():
            (folder / f"{segment.stem}.{_LOCAL_KINDS[suffix]}").write_bytes(content)


def write_aiven(
    tier: Path,
    segments: Sequence[UploadedSegment],
    *,
    chunk_bytes: int,
    is_compressed: bool = False,
    public_key: Any = None,
    prefix: str = "",
) -> None:
    """Write segments as Aiven's plugin does.

    Args:
        public_key: RSA, of ``cryptography``; None for no encryption.
        prefix: Glued on before the topic.
    """
    for segment in segments:
        topic = f"{prefix}{segment.partition.topic}-{segment.topic_id}"
        folder = tier / topic / str(segment.partition.partition)
        folder.mkdir(parents=True, exist_ok=True)
        encrypt = _Encryption(public_key)
        sizes: list[int] = []
        size_bytes = segment.log.stat().st_size
        with segment.log.open("rb") as log, (folder / f"{segment.stem}.log").open("wb") as target:
            while chunk := log.read(chunk_bytes):
                stored = zstandard.compress(chunk) if is_compressed else chunk
                sizes.append(target.write(encrypt(stored)))
        places: dict[str, dict[str, int] | None] = {}
        indexes = b""
        for name, suffix in _INDEXES.items():
            content = segment.small.get(suffix)
            if content is None:
                places[name] = None
                continue
            stored = encrypt(content) if content else b""
            places[name] = {"position": len(indexes), "size": len(stored)}
            indexes += stored
        (folder / f"{segment.stem}.indexes").write_bytes(indexes)
        times = TimeIndex.parse(segment.base_offset, segment.small[TIME_INDEX_SUFFIX])
        manifest = {
            "version": "1",
            "chunkIndex": _chunk_index(sizes, chunk_bytes, size_bytes, is_fixed=not is_compressed),
            "segmentIndexes": places,
            "compression": is_compressed,
            **encrypt.fields(),
            "remoteLogSegmentMetadata": {
                "remoteLogSegmentId": {
                    "topicIdPartition": {
                        "topicId": segment.topic_id,
                        "topicPartition": {
                            "topic": segment.partition.topic,
                            "partition": segment.partition.partition,
                        },
                    },
                    "id": segment.segment_id,
                },
                "startOffset": segment.base_offset,
                "endOffset": segment.end_offset,
                "maxTimestampMs": times.last_timestamp,
                "brokerId": 1,
                "eventTimestampMs": 0,
                "segmentLeaderEpochs": _epochs_inside(segment),
            },
        }
        (folder / f"{segment.stem}.rsm-manifest").write_text(json.dumps(manifest))


def _epochs_inside(segment: UploadedSegment) -> dict[str, int]:
    """Return the epochs of a segment's own offsets, the first one from its base offset on."""
    before = [entry for entry in segment.epochs if entry.start_offset <= segment.base_offset]
    inside = [entry for entry in segment.epochs if entry.start_offset > segment.base_offset]
    return {str(before[-1].epoch): segment.base_offset} | {
        str(entry.epoch): entry.start_offset for entry in inside
    }


def _chunk_index(
    sizes: Sequence[int], chunk_bytes: int, size_bytes: int, *, is_fixed: bool
) -> dict[str, Any]:
    common = {"originalChunkSize": chunk_bytes, "originalFileSize": size_bytes}
    if is_fixed:
        return common | {
            "type": "fixed",
            "transformedChunkSize": sizes[0],
            "finalTransformedChunkSize": sizes[-1],
        }
    parts = [len(sizes).to_bytes(4)]
    if len(sizes) > 1:
        least = min(sizes[:-1])
        width = max(1, -(-(max(sizes[:-1]) - least).bit_length() // 8))
        parts += [least.to_bytes(4), bytes([width])]
        parts += [(size - least).to_bytes(width) for size in sizes[:-1]]
    parts.append(sizes[-1].to_bytes(4))
    table = base64.b64encode(zstandard.compress(b"".join(parts))).decode()
    return common | {"type": "variable", "transformedChunks": table}


class _Encryption:
    """AES-256-GCM under a key of its own, which is wrapped for an RSA key; without one nothing."""

    def __init__(self, public_key: Any) -> None:
        self._public_key = public_key
        self._key = hashlib.sha256(uuid.uuid4().bytes).digest()

    def __call__(self, data: bytes) -> bytes:
        if self._public_key is None:
            return data
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415  # an extra

        nonce = uuid.uuid4().bytes[:12]
        return nonce + AESGCM(self._key).encrypt(nonce, data, _AAD)

    def fields(self) -> dict[str, Any]:
        """Return what a manifest says of it."""
        if self._public_key is None:
            return {}
        numbers = self._public_key.public_numbers()
        wrapped = base64.b64encode(_wrap(self._key, numbers.n, numbers.e)).decode()
        return {
            "encryption": {
                "dataKey": f"{KEY_ID}:{wrapped}",
                "aad": base64.b64encode(_AAD).decode(),
            }
        }


def _wrap(key: bytes, modulus: int, exponent: int) -> bytes:
    """Encrypt a key by RSA-OAEP with SHA3-512 for both hashes (RFC 8017, 7.1.1)."""
    size, hash_bytes = (modulus.bit_length() + 7) // 8, hashlib.sha3_512().digest_size
    padding = bytes(size - len(key) - 2 * hash_bytes - 2)
    data = hashlib.sha3_512().digest() + padding + b"\x01" + key
    seed = hashlib.sha3_512(uuid.uuid4().bytes).digest()
    masked = _masked(data, seed)
    block = b"\0" + _masked(seed, masked) + masked
    return pow(int.from_bytes(block), exponent, modulus).to_bytes(size)


def _masked(data: bytes, seed: bytes) -> bytes:
    count = -(-len(data) // hashlib.sha3_512().digest_size)
    mask = b"".join(hashlib.sha3_512(seed + n.to_bytes(4)).digest() for n in range(count))
    return bytes(one ^ other for one, other in zip(data, mask, strict=False))
