"""Codecs by their setting, and compaction's choice of batches to recompress."""

import enum
from dataclasses import dataclass
from typing import Final, cast

from storage_core.config.values import ValueType, int32, trim
from storage_core.errors import ConfigError


class BrokerCompressionType(enum.StrEnum):
    """How a broker stores batches; PRODUCER keeps what the producer chose."""

    UNCOMPRESSED = "uncompressed"
    ZSTD = "zstd"
    LZ4 = "lz4"
    SNAPPY = "snappy"
    GZIP = "gzip"
    PRODUCER = "producer"


# Those of Kafka's compression.*.level; the other codecs have none.
LEVELS: Final = {
    BrokerCompressionType.ZSTD: int32(at_least=-131_072, at_most=22),
    BrokerCompressionType.LZ4: int32(at_least=1, at_most=17),
    BrokerCompressionType.GZIP: int32(at_least=1, at_most=9),
}
_CODECS: Final = frozenset(BrokerCompressionType) - {BrokerCompressionType.PRODUCER}
_NAMES: Final = {
    "kafka": (BrokerCompressionType.PRODUCER, None),
    "fast": (BrokerCompressionType.LZ4, None),
    "dense": (BrokerCompressionType.ZSTD, 19),
}
_VALID: Final = "kafka, fast, dense or CODEC[:LEVEL]: uncompressed, gzip, snappy, lz4, zstd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompression:
    """The codec of the batches that compaction rebuilds."""

    # PRODUCER for each batch's own, as Kafka's cleaner.
    codec: BrokerCompressionType = BrokerCompressionType.PRODUCER
    # The level, as in Kafka's ``compression.*.level``; None for the codec's default.
    level: int | None = None

    def __str__(self) -> str:
        for name, meant in _NAMES.items():
            if meant == (self.codec, self.level):
                return name
        return self.codec if self.level is None else f"{self.codec}:{self.level}"


AS_KAFKA: Final = Recompression()


def recompression() -> ValueType:
    """A type for ``kafka``, ``fast``, ``dense``, or a codec with optional level."""
    return ValueType(kind="string", valid=_VALID, parse=_parse)


def _parse(key: str, text: str) -> Recompression:
    word = trim(text)
    if word in _NAMES:
        codec, level = _NAMES[word]
        return Recompression(codec=codec, level=level)
    name, colon, digits = word.partition(":")
    if name not in _CODECS:
        raise ConfigError(key, text, f"expected {_VALID}")
    codec = BrokerCompressionType(name)
    if not colon:
        return Recompression(codec=codec)
    if codec not in LEVELS:
        raise ConfigError(key, text, f"{codec} has no levels")
    try:
        number = LEVELS[codec].parse(key, digits)
    except ConfigError as error:
        raise ConfigError(key, text, f"level: {error.reason}") from None
    return Recompression(codec=codec, level=cast("int", number))
