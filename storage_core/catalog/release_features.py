"""Releases of Kafka by ``metadata.version``, with the features of each.

Kafka has a level for each release and for steps between releases, such as ``4.1-IV0``. The level
also decides in which version a record is written. Sources: ``MetadataVersion`` and ``Feature`` of
Kafka 4.4, and those of 3.9.1 to 4.3.0 for the levels that these start with.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

METADATA_VERSION: Final = "metadata.version"
_FIRST_LEVEL: Final = 7
# In the order of their levels, all that Kafka 4.4 begins a cluster with.
_VERSIONS: Final = (
    *("3.3-IV3", "3.4-IV0", "3.5-IV0", "3.5-IV1", "3.5-IV2", "3.6-IV0", "3.6-IV1", "3.6-IV2"),
    *("3.7-IV0", "3.7-IV1", "3.7-IV2", "3.7-IV3", "3.7-IV4", "3.8-IV0", "3.9-IV0"),
    *("4.0-IV0", "4.0-IV1", "4.0-IV2", "4.0-IV3", "4.1-IV0", "4.1-IV1", "4.2-IV0", "4.2-IV1"),
    *("4.3-IV0", "4.4-IV0", "4.4-IV1", "4.4-IV2"),
)
METADATA_LEVELS: Final = range(_FIRST_LEVEL, _FIRST_LEVEL + len(_VERSIONS))
# Levels of features, by the ``metadata.version`` from which on a cluster begins with them.
_FEATURES: Final[Mapping[str, Mapping[int, int]]] = {
    "eligible.leader.replicas.version": {26: 1},
    "group.version": {22: 1},
    "share.version": {28: 1, 31: 2},
    "streams.version": {29: 1},
    "transaction.version": {24: 2},
}
_PARTITION_RECORDS: Final = {17: 1, 23: 2}
_BROKER_RECORDS: Final = {7: 1, 8: 2, 17: 3, 30: 4}
_TRANSACTIONS_SINCE: Final = 13
_BOOTSTRAP_IN_LOG_SINCE: Final = 30


_LEVELS_OF_4_0: Final[Mapping[str, range]] = {
    METADATA_VERSION: range(_FIRST_LEVEL, 26),
    "kraft.version": range(2),
    "transaction.version": range(3),
    "group.version": range(2),
    "eligible.leader.replicas.version": range(2),
}
_LEVELS_OF_4_2: Final[Mapping[str, range]] = {
    **_LEVELS_OF_4_0,
    METADATA_VERSION: range(_FIRST_LEVEL, 30),
    "share.version": range(2),
    "streams.version": range(2),
}
# By release, the levels of each feature that its brokers start with.
FEATURE_LEVELS: Final[Mapping[str, Mapping[str, range]]] = {
    "3.9": {
        METADATA_VERSION: range(1, 22),
        "kraft.version": range(2),
        "transaction.version": range(1),
    },
    "4.0": _LEVELS_OF_4_0,
    "4.1": {
        **_LEVELS_OF_4_0,
        METADATA_VERSION: range(_FIRST_LEVEL, 28),
        "share.version": range(2),
        "streams.version": range(1),
    },
    "4.2": _LEVELS_OF_4_2,
    "4.3": {**_LEVELS_OF_4_2, METADATA_VERSION: range(_FIRST_LEVEL, 31)},
    "4.4": {**_LEVELS_OF_4_2, METADATA_VERSION: METADATA_LEVELS, "share.version": range(3)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A release of Kafka, or a step between two."""

    version: str  # as ``kafka-storage format --release-version`` takes it, with the step
    metadata_level: int

    @property
    def name(self) -> str:
        """The release without the step: ``4.1``."""
        return self.version.partition("-")[0]

    @property
    def feature_levels(self) -> dict[str, int]:
        """Levels above 0 of all features but ``kraft.version``, as a cluster begins."""
        levels = {name: self._newest(steps) for name, steps in _FEATURES.items()}
        present = {name: level for name, level in levels.items() if level}
        return {METADATA_VERSION: self.metadata_level, **present}

    @property
    def partition_record_version(self) -> int:
        """Version of a PARTITION_RECORD; from 1 on it has directories."""
        return self._newest(_PARTITION_RECORDS)

    @property
    def broker_record_version(self) -> int:
        """Version of a REGISTER_BROKER_RECORD."""
        return self._newest(_BROKER_RECORDS)

    @property
    def has_transactions(self) -> bool:
        """Whether the first leader may append the bootstrap records in several batches."""
        return self.metadata_level >= _TRANSACTIONS_SINCE

    @property
    def has_bootstrap_in_log(self) -> bool:
        """Whether its controllers start with a bootstrap snapshot in the log's folder that has
        more than voters."""
        return self.metadata_level >= _BOOTSTRAP_IN_LOG_SINCE

    def _newest(self, steps: Mapping[int, int]) -> int:
        """Return the newest step's value up to the release, else 0."""
        values = [value for level, value in steps.items() if level <= self.metadata_level]
        return values[-1] if values else 0


def find_release(text: str) -> Release:
    """Return a release by name. Without a step, as in ``4.4``, it is the last one of the
    release."""
    for level, version in reversed([*zip(METADATA_LEVELS, _VERSIONS, strict=True)]):
        release = Release(version=version, metadata_level=level)
        if text in {version, release.name}:
            return release
    first, last = _VERSIONS[0], _VERSIONS[-1]
    raise ValueError(f"expected a release from {first} to {last}, such as 4.4")
