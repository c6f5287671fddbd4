"""Settings of compaction: Kafka's cleaner keys and this project's own."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from storage_core.config.compression import AS_KAFKA, Recompression, recompression
from storage_core.config.values import (
    DOUBLE_MAX,
    INT_MAX,
    ConfigKey,
    Scope,
    ValueType,
    boolean,
    choice,
    double,
    folder,
    int32,
    int64,
    keys_of,
    parse_settings,
    setting,
)
from storage_core.errors import ConfigError

# The default size of the offset map of Kafka's cleaner.
KAFKA_DEDUPE_BUFFER_BYTES: Final = 134_217_728
DEDUPE_BUFFER_KEY: Final = "log.cleaner.dedupe.buffer.size"
# One slot of Kafka's offset map: a hash of 16 bytes and an offset of 8.
OFFSET_MAP_SLOT_BYTES: Final = 24
# A broker does not start unless each thread's share of the map is larger.
_SMALLEST_SHARE_BYTES: Final = 1_048_576


class OffsetMapHash(enum.StrEnum):
    """The hash by which the offset map knows a key. SIPHASH is keyed, so nobody can make two
    keys collide; MD5 is Kafka's, to the letter."""

    SIPHASH = "siphash"
    MD5 = "md5"


def _cleaner(
    name: str,
    value_type: ValueType,
    doc: str,
    *,
    default: object,
    unit: str = "",
    scope: Scope = Scope.CLEANER,
) -> Any:
    return setting(name, value_type, default, doc=doc, scope=scope, unit=unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerConfig:
    """Settings of compaction that do not belong to a topic.

    ``dedupe_buffer_bytes`` is None where nothing bounds the offset map: unlike in Kafka, no
    number of keys then makes a log uncleanable or needs several rounds.
    """

    threads: int = _cleaner(
        "log.cleaner.threads",
        int32(at_least=0),
        "cleaner threads that share the buffers; Spark decides what runs in parallel",
        default=1,
        unit="threads",
    )
    dedupe_buffer_bytes: int | None = _cleaner(
        DEDUPE_BUFFER_KEY,
        int64(),
        "memory of the offset map, all threads together; not set: no limit (Kafka: 134217728)",
        default=None,
        unit="bytes",
    )
    load_factor: float = _cleaner(
        "log.cleaner.io.buffer.load.factor",
        double(),
        "share of the offset map's slots that may be used",
        default=0.9,
        unit="ratio",
    )
    io_buffer_bytes: int = _cleaner(
        "log.cleaner.io.buffer.size",
        int32(at_least=0),
        "Kafka's read and write buffers; only decides which batch is too large",
        default=524_288,
        unit="bytes",
    )
    max_io_buffer_bytes: int = _cleaner(
        "io.buffer.max.bytes",
        int32(at_least=0),
        "a buffer may grow to this, or to max.message.bytes if that is more",
        default=67_108_864,
        unit="bytes",
        scope=Scope.PYLOG,
    )
    io_max_bytes_per_second: float = _cleaner(
        "log.cleaner.io.max.bytes.per.second",
        double(),
        "reads and writes of compaction together stay below this",
        default=DOUBLE_MAX,
        unit="bytes/s",
    )
    enabled: bool = _cleaner(
        "log.cleaner.enable",
        boolean(),
        "false: nothing is compacted, with a warning; deprecated in Kafka",
        default=True,
    )
    offset_map_hash: OffsetMapHash = _cleaner(  # noqa: RUF009 - makes a dataclass field
        "offset-map.hash",
        choice(OffsetMapHash),
        "siphash: keyed, safe against made-up collisions; md5: as Kafka",
        default=OffsetMapHash.SIPHASH,
        scope=Scope.PYLOG,
    )
    producer_id_expiration_ms: int = _cleaner(
        "producer.id.expiration.ms",
        int32(at_least=1),
        "a producer without an open transaction is forgotten after this",
        default=86_400_000,
        unit="ms",
    )
    verify_crc: bool = _cleaner(
        "verify.crc",
        boolean(),
        "check every batch before it is compacted; false: as Kafka, which does not",
        default=True,
        scope=Scope.PYLOG,
    )
    recompression: Recompression = _cleaner(  # noqa: RUF009 - makes a dataclass field
        "recompress",
        recompression(),
        "codec of the batches that compaction rebuilds; kafka: each its own, as Kafka",
        default=AS_KAFKA,
        scope=Scope.PYLOG,
    )
    recompresses_all: bool = _cleaner(
        "recompress.all",
        boolean(),
        "rebuild every batch with records of what is compacted, those that lose none too",
        default=False,
        scope=Scope.PYLOG,
    )
    keeps_negative_timestamps: bool = _cleaner(
        "keep.negative.timestamps",
        boolean(),
        "rebuild batches with timestamps below -1, too; false: as Kafka, which gives up such a log",
        default=False,
        scope=Scope.PYLOG,
    )
    key_sidecars: str = _cleaner(
        "key.sidecars",
        folder(),
        "folder for key sidecars: what cleaned segments hold, so that a round reads what changed",
        default="",
        scope=Scope.PYLOG,
    )
    max_decompressed_batch_bytes: int = _cleaner(
        "max.decompressed.batch.bytes",
        int32(at_least=1),
        "a batch that expands beyond this is refused",
        default=536_870_912,
        unit="bytes",
        scope=Scope.PYLOG,
    )
    window_bytes: int = _cleaner(
        "window.bytes",
        int32(at_least=1),
        "bytes of a segment in memory at a time; a larger batch gets a larger window",
        default=8_388_608,
        unit="bytes",
        scope=Scope.PYLOG,
    )

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> Self:
        """Build the config from texts by key."""
        values: dict[str, Any] = parse_settings(settings, CLEANER_KEYS)
        config = cls(**values)
        config._validate_offset_map()
        return config

    def _validate_offset_map(self) -> None:
        if self.threads == 0:
            # Kafka's own validator lets 0 pass; then the broker divides by it and does not start.
            raise ConfigError("log.cleaner.threads", 0, "a broker does not start with 0")
        size = self.dedupe_buffer_bytes
        share = (KAFKA_DEDUPE_BUFFER_BYTES if size is None else size) // self.threads
        if size is not None and share <= _SMALLEST_SHARE_BYTES:
            raise ConfigError(
                DEDUPE_BUFFER_KEY,
                size,
                f"must give each thread more than {_SMALLEST_SHARE_BYTES} bytes",
            )
        key = "log.cleaner.io.buffer.load.factor"
        if self.load_factor > 1:
            raise ConfigError(key, self.load_factor, "an offset map has no more places than slots")
        slots = min(share, INT_MAX) // OFFSET_MAP_SLOT_BYTES
        if not slots * self.load_factor > 1:
            reason = f"the offset map of {slots} slots would hold no key"
            raise ConfigError(key, self.load_factor, reason)


CLEANER_KEYS: Final[Mapping[str, ConfigKey]] = keys_of(CleanerConfig)
