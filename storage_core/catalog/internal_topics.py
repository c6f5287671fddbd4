"""The configs of Kafka's own topics, as Kafka 4.4 creates them.

Nobody says them of a copy: a glob that assumes defaults would give the consumers' offsets, the
states of transactions and the share groups' progress seven days to live.
Sources: ``GroupCoordinatorService.groupMetadataTopicConfigs``, ``TransactionCoordinator``,
``ShareCoordinatorService.shareGroupStateTopicConfigs``, ``TopicBasedRemoteLogMetadataManager``.
Sizes and minimums are the defaults of broker keys.
"""

from collections.abc import Mapping
from typing import Final

_SEGMENT_BYTES: Final = "104857600"

INTERNAL_TOPICS: Final[Mapping[str, Mapping[str, str]]] = {
    "__consumer_offsets": {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": _SEGMENT_BYTES,
    },
    "__transaction_state": {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "2",
        "segment.bytes": _SEGMENT_BYTES,
        "unclean.leader.election.enable": "false",
    },
    # Kafka trims this one itself, by raising its log start.
    "__share_group_state": {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "min.insync.replicas": "2",
        "retention.ms": "-1",
        "segment.bytes": _SEGMENT_BYTES,
    },
    "__remote_log_metadata": {
        "cleanup.policy": "delete",
        "remote.storage.enable": "false",
        "retention.ms": "-1",
    },
}

# What decides whether records go: of an internal topic only its own name may say these.
_DELETING_KEYS: Final = frozenset({"cleanup.policy", "retention.ms", "retention.bytes"})


def without_deleting_keys(settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings that were said of many topics as far as an internal one hears of them."""
    return {key: text for key, text in settings.items() if key not in _DELETING_KEYS}
