"""Partitions of Kafka's with bytes changed here and there, mostly under a CRC that is right."""

import random
import struct
from pathlib import Path
from typing import Final

from storage_core.filenames import LOG_SUFFIX
from storage_core.formats.batch_v2 import (
    ATTRIBUTES_AT,
    BASE_OFFSET_AT,
    BASE_SEQUENCE_AT,
    BASE_TIMESTAMP_AT,
    BATCH_LENGTH_AT,
    CODEC_MASK,
    HEADER_BYTES,
    LAST_OFFSET_DELTA_AT,
    LENGTH_OVERHEAD,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
    Codec,
)
from storage_core.records.codecs import compress, decompress
from tests.kit.builders import encode_varint, with_valid_crc

FIELDS_OF_4: Final = (BATCH_LENGTH_AT, LAST_OFFSET_DELTA_AT, BASE_SEQUENCE_AT, RECORD_COUNT_AT)
FIELDS_OF_8: Final = (BASE_OFFSET_AT, BASE_TIMESTAMP_AT, MAX_TIMESTAMP_AT, PRODUCER_ID_AT)
FIELDS_OF_2: Final = (ATTRIBUTES_AT, PRODUCER_EPOCH_AT)
BYTES: Final = (0, 1, 2, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF)
MOST_DECOMPRESSED_BYTES: Final = 1 << 20


class Mutator:
    """Changes files; every choice comes from the seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def mutate(self, directory: Path) -> None:
        """Change one to three batches, and sometimes another file."""
        logs = [path for path in sorted(directory.glob(f"*{LOG_SUFFIX}")) if path.stat().st_size]
        for _ in range(self._random.randint(1, 3)):
            self._mutate_log(self._random.choice(logs))
        if self._random.random() < 0.2:
            others = [path for path in sorted(directory.iterdir()) if path.suffix != LOG_SUFFIX]
            if others:
                path = self._random.choice(others)
                path.write_bytes(self._mutate_bytes(path.read_bytes()))

    def change_bytes(self, data: bytes) -> bytes:
        """Change a few bytes of a small file."""
        return self._mutate_bytes(data)

    def _mutate_log(self, path: Path) -> None:
        batches = self._split(path.read_bytes())
        if not batches:
            return
        number = self._random.randrange(len(batches))
        change = self._random.choice(
            [
                *[self._change_payload] * 6,
                *[self._change_header] * 6,
                self._change_any,
                self._grow,
                self._cut,
            ]
        )
        batches[number] = change(batches[number])
        where = self._random.random()
        if where < 0.05:
            batches.insert(self._random.randrange(len(batches)), batches[number])
        elif where < 0.1:
            self._random.shuffle(batches)
        path.write_bytes(b"".join(batches))

    @staticmethod
    def _split(log: bytes) -> list[bytes]:
        """Cut a log at its lengths, as far as they make sense."""
        batches, position = [], 0
        while position + HEADER_BYTES <= len(log):
            (length,) = struct.unpack_from(">i", log, position + BATCH_LENGTH_AT)
            size = length + LENGTH_OVERHEAD
            if size < HEADER_BYTES or position + size > len(log):
                break
            batches.append(log[position : position + size])
            position += size
        rest = log[position:]
        return [*batches, rest] if rest else batches

    def _change_payload(self, batch: bytes) -> bytes:
        """Change the records, beneath the compression if there is one."""
        if len(batch) <= HEADER_BYTES:
            return self._change_any(batch)
        codec = batch[ATTRIBUTES_AT + 1] & CODEC_MASK
        payload = batch[HEADER_BYTES:]
        if codec in set(Codec) and self._random.random() < 0.7:
            try:
                payload = bytes(
                    decompress(Codec(codec), payload, limit_bytes=MOST_DECOMPRESSED_BYTES)
                )
            except Exception:  # noqa: BLE001  # changed before: then it is changed as it is
                return self._framed(batch, self._mutate_bytes(payload))
            return self._framed(batch, compress(Codec(codec), self._mutate_bytes(payload)))
        return self._framed(batch, self._mutate_bytes(payload))

    def _framed(self, batch: bytes, payload: bytes) -> bytes:
        """Return a batch with another payload, its length and most often its CRC made right."""
        length = struct.pack(">i", HEADER_BYTES - LENGTH_OVERHEAD + len(payload))
        framed = batch[:BATCH_LENGTH_AT] + length + batch[LENGTH_OVERHEAD:HEADER_BYTES] + payload
        return framed if self._random.random() < 0.02 else with_valid_crc(framed)

    def _change_header(self, batch: bytes) -> bytes:
        if len(batch) < HEADER_BYTES:
            return self._change_any(batch)
        header = bytearray(batch)
        for at, form, bits in self._random.sample(
            [
                *((at, ">i", 31) for at in FIELDS_OF_4),
                *((at, ">q", 63) for at in FIELDS_OF_8),
                *((at, ">h", 15) for at in FIELDS_OF_2 * 2),
            ],
            self._random.randint(1, 2),
        ):
            (before,) = struct.unpack_from(form, header, at)
            struct.pack_into(form, header, at, self._number(before, bits))
        if self._random.random() < 0.05:
            header[MAGIC_AT] = self._random.choice([0, 1, 3, 255])
        return with_valid_crc(bytes(header))

    def _number(self, before: int, bits: int) -> int:
        number = self._random.choice(
            [
                0,
                -1,
                1,
                before + 1,
                before - 1,
                before ^ (1 << self._random.randrange(bits)),
                2**bits - 1,
                -(2**bits),
                self._random.randrange(-(2**bits), 2**bits),
            ]
        )
        return max(-(2**bits), min(2**bits - 1, number))

    def _change_any(self, batch: bytes) -> bytes:
        return self._mutate_bytes(batch)

    def _grow(self, batch: bytes) -> bytes:
        return batch + self._random.randbytes(self._random.randint(1, 100))

    def _cut(self, batch: bytes) -> bytes:
        return batch[: self._random.randrange(len(batch) + 1)]

    def _mutate_bytes(self, data: bytes) -> bytes:
        """Overwrite, insert or remove a few bytes, varints at their limits among them."""
        changed = bytearray(data)
        for _ in range(self._random.choice([1, 1, 1, 2, 5])):
            at = self._random.randrange(len(changed) + 1)
            kind = self._random.randrange(6)
            if kind < 3 and at < len(changed):
                changed[at] = self._random.choice([*BYTES, self._random.randrange(256)])
            elif kind == 3:
                extremes = [-1, 2**31 - 1, -(2**31), 2**63 - 1, self._random.randrange(2**20)]
                changed[at : at + 1] = encode_varint(self._random.choice(extremes))
            elif kind == 4:
                del changed[at : at + self._random.randint(1, 9)]
            else:
                changed[at:at] = self._random.randbytes(self._random.randint(1, 20))
        return bytes(changed)
