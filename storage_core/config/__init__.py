"""Configuration: Kafka's keys by their own names, and ours, as frozen objects."""

from storage_core.config.broker_config import BrokerConfig
from storage_core.config.cleaner_config import (
    KAFKA_DEDUPE_BUFFER_BYTES,
    OFFSET_MAP_SLOT_BYTES,
    CleanerConfig,
    OffsetMapHash,
)
from storage_core.config.compression import BrokerCompressionType, Recompression
from storage_core.config.log_config import (
    CleanupPolicy,
    LogConfig,
    MessageTimestampType,
)
from storage_core.config.settings import (
    DynamicSettings,
    EffectiveSetting,
    ServerProperties,
    SettingGroups,
    classify_settings,
    effective_settings,
    known_keys,
    merge_broker_layers,
    merge_dynamic_configs,
    newest_release_of,
    parse_java_properties,
    parse_server_properties,
    refused_file_settings,
    refused_topic_settings,
    split_settings,
    without_unknown_keys,
)
from storage_core.config.values import NEWEST_RELEASE, BrokerName, ConfigKey, Origin, Scope

__all__ = [
    "KAFKA_DEDUPE_BUFFER_BYTES",
    "NEWEST_RELEASE",
    "OFFSET_MAP_SLOT_BYTES",
    "BrokerCompressionType",
    "BrokerConfig",
    "BrokerName",
    "CleanerConfig",
    "CleanupPolicy",
    "ConfigKey",
    "DynamicSettings",
    "EffectiveSetting",
    "LogConfig",
    "MessageTimestampType",
    "OffsetMapHash",
    "Origin",
    "Recompression",
    "Scope",
    "ServerProperties",
    "SettingGroups",
    "classify_settings",
    "effective_settings",
    "known_keys",
    "merge_broker_layers",
    "merge_dynamic_configs",
    "newest_release_of",
    "parse_java_properties",
    "parse_server_properties",
    "refused_file_settings",
    "refused_topic_settings",
    "split_settings",
    "without_unknown_keys",
]
