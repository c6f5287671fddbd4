"""The small files of a log directory and of a partition: bytes to values and back, and the lock."""

from storage_core.checkpoint.clean_shutdown import (
    UNKNOWN_BROKER_EPOCH,
    CleanShutdown,
    encode_clean_shutdown,
    parse_clean_shutdown,
)
from storage_core.checkpoint.leader_epoch_file import (
    EpochEntry,
    encode_leader_epochs,
    parse_leader_epochs,
)
from storage_core.checkpoint.lock import LockProof, LogDirectoryLock, validate_on_holder_host
from storage_core.checkpoint.meta_properties import (
    MetaProperties,
    parse_meta_properties,
    validate_one_broker,
)
from storage_core.checkpoint.offset_checkpoint import (
    MAX_OFFSET_CHECKPOINT_BYTES,
    encode_offset_checkpoint,
    parse_offset_checkpoint,
)
from storage_core.checkpoint.partition_metadata import (
    PartitionMetadata,
    encode_partition_metadata,
    parse_partition_metadata,
)

__all__ = [
    "MAX_OFFSET_CHECKPOINT_BYTES",
    "UNKNOWN_BROKER_EPOCH",
    "CleanShutdown",
    "EpochEntry",
    "LockProof",
    "LogDirectoryLock",
    "MetaProperties",
    "PartitionMetadata",
    "encode_clean_shutdown",
    "encode_leader_epochs",
    "encode_offset_checkpoint",
    "encode_partition_metadata",
    "parse_clean_shutdown",
    "parse_leader_epochs",
    "parse_meta_properties",
    "parse_offset_checkpoint",
    "parse_partition_metadata",
    "validate_on_holder_host",
    "validate_one_broker",
]
