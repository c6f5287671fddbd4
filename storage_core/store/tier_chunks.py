"""Read what lies transformed in a tier: chunks that are compressed, encrypted, or both.

Each chunk was transformed by itself, so a read of some bytes takes the chunks that they are in.
Chunks that follow each other come by one ranged request. Nothing is believed that was not checked:
a chunk has its authentication code, and once decompressed the length that the manifest says.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import zstandard
from numpy.typing import NDArray

from storage_core.errors import BadBytesError, ConfigError, MissingDriverError, StorageError
from storage_core.local_files import read_limited
from storage_core.store.object_store import ObjectInfo, ObjectStore
from storage_core.store.tier_manifest import ChunkTable, Encryption

# Transformed bytes that one request asks for, unless one chunk is more.
RUN_BYTES: Final = 16 << 20
# Restored bytes that are kept, and at least of two chunks: a batch may begin in one before.
_KEPT_BYTES: Final = 1 << 20
_MAX_KEY_FILE_BYTES: Final = 1 << 20
# AES-GCM: what stands before the bytes of a chunk, and behind them.
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_AES_KEY_BYTES: Final = 32
_Bytes: TypeAlias = bytes | memoryview


class CorruptChunkError(BadBytesError):
    """A chunk of an object in a tier is damaged, or the key is another one."""


@dataclass(frozen=True)
class KeyFile:
    """The file with the private key of a tier.

    Attributes:
        path: An RSA key in PEM, without a password.
    """

    path: str

    def unwrap(self, encryption: Encryption, file: str) -> bytes:
        """Return the AES key of a segment.

        It was encrypted by RSA-OAEP, where both hashes are SHA3-512 (RFC 8017, 7.1.2); libraries
        for Python refuse that mask.

        Args:
            file: The manifest that says it, for messages.

        Raises:
            ConfigError: It was not encrypted for this key.
        """
        modulus, exponent = self._numbers
        size = (modulus.bit_length() + 7) // 8
        hash_bytes = hashlib.sha3_512().digest_size
        wrapped = int.from_bytes(encryption.data_key)
        if len(encryption.data_key) == size and wrapped < modulus:
            block = pow(wrapped, exponent, modulus).to_bytes(size)
            masked_seed, masked = block[1 : 1 + hash_bytes], block[1 + hash_bytes :]
            seed = _xor(masked_seed, _mask(masked, hash_bytes))
            data = _xor(masked, _mask(seed, len(masked)))
            padding, mark, key = data[hash_bytes:].partition(b"\x01")
            is_ours = not block[0] and data[:hash_bytes] == hashlib.sha3_512().digest()
            if is_ours and mark and not any(padding) and len(key) == _AES_KEY_BYTES:
                return key
        reason = (
            f"{file} was encrypted for the key {encryption.key_id!r}, and this is another one "
            f"({8 * size} bits)"
        )
        raise ConfigError("--decryption-key", self.path, reason)

    @cached_property
    def _numbers(self) -> tuple[int, int]:
        """The modulus and the private exponent."""
        try:
            from cryptography.hazmat.primitives.asymmetric import rsa  # noqa: PLC0415  # an extra
            from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
                load_pem_private_key,
            )
        except ImportError as error:
            raise MissingDriverError(self.path, "cryptography", "tier") from error
        try:
            with Path(self.path).open("rb") as opened:
                content = read_limited(opened.fileno(), _MAX_KEY_FILE_BYTES)
            key: Any = load_pem_private_key(content, password=None)
        except OSError as error:
            raise ConfigError("--decryption-key", self.path, str(error.strerror)) from error
        except (TypeError, ValueError) as error:
            reason = "expected a private RSA key in PEM, without a password"
            raise ConfigError("--decryption-key", self.path, reason) from error
        if not isinstance(key, rsa.RSAPrivateKey):
            reason = f"expected an RSA key, found {type(key).__name__.lstrip('_')}"
            raise ConfigError("--decryption-key", self.path, reason)
        numbers = key.private_numbers()
        return numbers.public_numbers.n, numbers.d


def _mask(seed: bytes, size: int) -> bytes:
    """Return MGF1's mask (RFC 8017, appendix B.2.1)."""
    count = -(-size // hashlib.sha3_512().digest_size)
    parts = (hashlib.sha3_512(seed + number.to_bytes(4)).digest() for number in range(count))
    return b"".join(parts)[:size]


def _xor(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one) ^ int.from_bytes(other)).to_bytes(len(one))


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformation:
    """How the bytes of one segment were transformed.

    Attributes:
        key: Its AES key; empty where it is not encrypted.
        aad: What each chunk is authenticated with.
    """

    is_compressed: bool
    key: bytes
    aad: bytes

    @property
    def is_none(self) -> bool:
        """Whether the bytes lie there as they were."""
        return not self.is_compressed and not self.key

    def plain_bytes(self, size_bytes: int) -> int:
        """Return the length of a small file before it was encrypted."""
        return max(0, size_bytes - _NONCE_BYTES - _TAG_BYTES) if self.key else size_bytes

    def decrypt(self, data: _Bytes, file: str, position: int) -> _Bytes:
        """Return what was encrypted: bytes of a chunk, or of a small file.

        Args:
            file: The object, for messages; position is where the bytes begin in it.

        Raises:
            CorruptChunkError: They were changed, or the key is another one.
        """
        if not self.key:
            return data
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415  # an extra
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        if len(data) < _NONCE_BYTES + _TAG_BYTES:
            reason = f"expected {_NONCE_BYTES + _TAG_BYTES} bytes or more, found {len(data)}"
            raise CorruptChunkError(file, position, reason)
        try:
            return AESGCM(self.key).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], self.aad)
        except InvalidTag as error:
            reason = f"the authentication code of {len(data)} encrypted bytes is wrong"
            raise CorruptChunkError(file, position, reason) from error

    def restore(self, data: _Bytes, size_bytes: int, file: str, position: int) -> _Bytes:
        """Return the bytes of a chunk.

        Args:
            size_bytes: How many there are.
            file: The object, for messages; position is where the chunk begins in it.

        Raises:
            CorruptChunkError: It is damaged.
        """
        plain = self.decrypt(data, file, position)
        if self.is_compressed:
            try:
                if not 0 <= zstandard.frame_content_size(plain) <= size_bytes:
                    stated = zstandard.frame_content_size(plain)
                    reason = f"expected a frame of {size_bytes} bytes, found one of {stated}"
                    raise CorruptChunkError(file, position, reason)
                plain = zstandard.ZstdDecompressor().decompress(plain, max_output_size=size_bytes)
            except zstandard.ZstdError as error:
                raise CorruptChunkError(file, position, f"no Zstandard frame: {error}") from error
        if len(plain) != size_bytes:
            reason = f"expected a chunk of {size_bytes} bytes, found {len(plain)}"
            raise CorruptChunkError(file, position, reason)
        return plain


class ChunkReader:
    """The log of a segment whose bytes are transformed.

    The run of chunks that one request brought is kept as it came, and of the chunks read last what
    is in them: who reads on begins a little before the place where the last read ended.

    Args:
        name: What the log is called where it is read.
        stored: Its object, as it was listed.
    """

    def __init__(
        self,
        objects: ObjectStore,
        stored: ObjectInfo,
        *,
        name: str,
        chunks: ChunkTable,
        transformation: Transformation,
    ) -> None:
        self.name = name
        self.size_bytes = chunks.size_bytes
        self._objects, self._stored = objects, stored
        self._chunks, self._transformation = chunks, transformation
        self._path = f"{objects.url}/{stored.key}"
        self._run = memoryview(b"")
        self._first = self._end = 0  # the chunks of the run
        self._plain: dict[int, NDArray[np.uint8]] = {}
        end = int(chunks.ends[-1]) if len(chunks.ends) else 0
        if stored.size_bytes != end:
            reason = f"expected {end} bytes, as its manifest says, found {stored.size_bytes}"
            raise StorageError(self._path, reason)

    def read_into(self, position: int, target: NDArray[np.uint8]) -> int:
        """Fill target from position on and return how many bytes there were."""
        wanted = max(0, min(target.size, self.size_bytes - position))
        filled = 0
        while filled < wanted:
            number, skipped = divmod(position + filled, self._chunks.chunk_bytes)
            if number not in self._plain:
                self._keep(number, position + wanted)
            part = self._plain[number][skipped : skipped + wanted - filled]
            target[filled : filled + part.size] = part
            filled += part.size
        return filled

    def close(self) -> None:
        """Drop what was kept."""
        self._run = memoryview(b"")
        self._first = self._end = 0
        self._plain.clear()

    def _keep(self, number: int, end: int) -> None:
        """Restore a chunk.

        Args:
            end: Up to which position of the log chunks are wanted now.
        """
        if not self._first <= number < self._end:
            self._load(number, end)
        chunk_bytes = self._chunks.chunk_bytes
        while len(self._plain) >= max(2, _KEPT_BYTES // chunk_bytes):
            del self._plain[next(iter(self._plain))]
        start = self._place(number) - self._place(self._first)
        size = self._place(number + 1) - self._place(number)
        plain = self._transformation.restore(
            self._run[start : start + size],
            min(chunk_bytes, self.size_bytes - number * chunk_bytes),
            self._path,
            self._place(number),
        )
        self._plain[number] = np.frombuffer(plain, np.uint8)

    def _load(self, first: int, end: int) -> None:
        """Request chunks from one on: those up to a position of the log; where the chunks before
        them were requested last, as many as one request has."""
        start = self._place(first)
        in_one = int(np.searchsorted(self._chunks.ends, start + RUN_BYTES, "right"))
        last = max(in_one, first + 1)
        if first != self._end:
            last = min(last, -(-end // self._chunks.chunk_bytes))
        size = self._place(last) - start
        self._run = memoryview(b"")  # before there are two
        data = self._objects.get_range(self._stored.key, start, size, etag=self._stored.etag)
        if len(data) != size:
            raise StorageError(
                self._path, f"ends at {start + len(data)}; expected {size} bytes more"
            )
        self._run, self._first, self._end = memoryview(data), first, last

    def _place(self, number: int) -> int:
        """Return where a chunk begins in the object."""
        return int(self._chunks.ends[number - 1]) if number else 0
