"""Small files of a log directory and a partition, and the lock. This package decodes and encodes
them."""

from storage_core.checkpoint.broker_files import (
    UNKNOWN_BROKER_EPOCH,
    CleanShutdown,
    MetaProperties,
    encode_clean_shutdown,
    parse_clean_shutdown,
    parse_meta_properties,
    validate_one_broker,
)
from storage_core.checkpoint.checkpoints import (
    MAX_OFFSET_CHECKPOINT_BYTES,
    EpochEntry,
    PartitionMetadata,
    encode_leader_epochs,
    encode_offset_checkpoint,
    encode_partition_metadata,
    parse_leader_epochs,
    parse_offset_checkpoint,
    parse_partition_metadata,
)
from storage_core.checkpoint.lock import LockProof, LockShare, LogDirectoryLock, share_lock

__all__ = [
    "MAX_OFFSET_CHECKPOINT_BYTES",
    "UNKNOWN_BROKER_EPOCH",
    "CleanShutdown",
    "EpochEntry",
    "LockProof",
    "LockShare",
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
    "share_lock",
    "validate_one_broker",
]
