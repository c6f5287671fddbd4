"""What of its metadata a rebuilt cluster lacks, by name alone."""

import enum


class UnknownPart(enum.StrEnum):
    """What a rebuilt cluster lacks, or may have otherwise than before."""

    ACCESS_CONTROL = "ACCESS_CONTROL"
    CREDENTIALS = "CREDENTIALS"
    QUOTAS = "QUOTAS"
    BROKER_CONFIG = "BROKER_CONFIG"
    GROUP_CONFIG = "GROUP_CONFIG"
    CLIENT_METRICS = "CLIENT_METRICS"
    TOPIC = "TOPIC"
    TOPIC_CONFIG = "TOPIC_CONFIG"
    TOPIC_ID = "TOPIC_ID"
    REPLICA = "REPLICA"
    REPLICA_ORDER = "REPLICA_ORDER"
    ISR = "ISR"
    EPOCH = "EPOCH"
    STRAY = "STRAY"
