"""Directories of other systems that look like Kafka's at first sight, told by their names."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignFormat:
    """A system whose files are not Kafka's, although a log directory of it may look alike.

    Attributes:
        product: Its name.
        evidence: The entry of the directory that only it has.
    """

    product: str
    evidence: str


# Entries that no log directory of Kafka's has: names of files and folders, and beginnings of names.
_NAMES: Final = {
    "redpanda": "Redpanda",
    "kafka_internal": "Redpanda",
    "commitlog": "Apache RocketMQ",
    "consumequeue": "Apache RocketMQ",
    "current": "Apache BookKeeper (Pulsar)",
}
_PREFIXES: Final = {"_confluent-tier-state-": "Confluent Server with Tiered Storage"}


def find_foreign_format(entries: Collection[str]) -> ForeignFormat | None:
    """Return whose directory this is if it is another system's, None if nothing speaks for that.

    Args:
        entries: Names of the directory's entries.
    """
    for name in sorted(entries):
        if name in _NAMES:
            return ForeignFormat(product=_NAMES[name], evidence=name)
        for prefix, product in _PREFIXES.items():
            if name.startswith(prefix):
                return ForeignFormat(product=product, evidence=name)
    return None
