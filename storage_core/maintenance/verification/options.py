"""Options of a verification, and the context for severities."""

import os
from dataclasses import dataclass

from storage_core.catalog.roles import Role
from storage_core.local_files import ROOT_USER
from storage_core.log.open_transactions import MAX_TRANSACTION_TIMEOUT_MS
from storage_core.maintenance.verification.findings import Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """Depth, clock and limits of a verification."""

    now_ms: int
    is_deep: bool = False  # also open every batch: its records, and snapshots against a replay
    is_live: bool = False  # somebody may be writing meanwhile: files may vanish or grow
    window_bytes: int = 8 << 20  # bytes of a segment that are held at a time, by each thread
    threads: int = 1  # how many threads check the batches of a segment, in a look that is not deep
    max_record_bytes: int = 2**31 - 1  # largest record that a batch may expand to, in a deep look
    max_batch_bytes: int = 1 << 30  # largest batch, decompressed, in a deep look
    # Longest time that a transaction may be open (``transaction.max.timeout.ms``).
    transaction_timeout_ms: int = MAX_TRANSACTION_TIMEOUT_MS


@dataclass(frozen=True, slots=True)
class BrokerUser:
    """The user that owns most of a log directory."""

    number: int  # the system's number of it

    def may(self, facts: os.stat_result, access: int) -> bool:
        """Whether the user has these rights, for a group's any group.

        Args:
            access: The bits of one digit of a file's mode.
        """
        if self.number == ROOT_USER:
            return True
        of_others = facts.st_mode | facts.st_mode >> 3
        mode = facts.st_mode >> 6 if facts.st_uid == self.number else of_others
        return mode & access == access


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryContext:
    """The role and state of a log directory, which decide some severities."""

    role: Role
    is_clean: bool  # whether it has the marker of a clean shutdown
    # The user to whom a broker's files must be open; None to check nobody.
    user: BrokerUser | None = None
    # Whether the cluster's metadata say that the topic has segments in remote storage.
    is_tiered: bool = False

    @property
    def is_copy(self) -> bool:
        """Whether a foreign sync writes here, so files may differ in age."""
        return self.role.facts.is_synced

    def tail_severity(self, unclosed: Severity) -> Severity:
        """Return the severity of bytes behind the last batch of a log.

        Args:
            unclosed: In a broker's directory that was not closed, where recovery cuts them.
        """
        if self.is_copy:
            return Severity.HARMLESS
        return Severity.ERROR if self.is_clean else unclosed

    def copy_severity(self, of_broker: Severity) -> Severity:
        """Return the severity of a checkpoint that is ahead of its log."""
        return Severity.WARN if self.is_copy else of_broker
