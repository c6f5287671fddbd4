"""A plan: an ordered list of operations on one partition, each with its reason."""

from collections.abc import Iterator
from dataclasses import dataclass

from storage_core.commit.operations import (
    CopyRange,
    KeepFile,
    Operation,
    PromoteFile,
    RestoreFile,
    WriteFile,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be done to one partition directory, in this order.

    Attributes:
        location: Path or URL of the partition directory.
        operations: The steps; a crash after any of them leaves a state that a log loader brings
            to the old or the new content.
    """

    location: str
    operations: tuple[Operation, ...]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.operations

    @property
    def peak_extra_bytes(self) -> int:
        """Upper bound of the disk space needed beside what the directory holds now."""
        return sum(
            len(operation.content) if isinstance(operation, WriteFile) else operation.size_bytes
            for operation in self.operations
            if isinstance(operation, PromoteFile | CopyRange | WriteFile)
            or (isinstance(operation, RestoreFile) and operation.is_copy)
        )

    @property
    def copied_away_bytes(self) -> int:
        """Bytes that are copied to another filesystem because a file has to be kept there."""
        return sum(
            max(0, operation.size_bytes)
            for operation in self.operations
            if isinstance(operation, KeepFile) and operation.is_copy
        )

    def describe(self) -> Iterator[dict[str, str | int]]:
        """Yield one flat dictionary a step: its kind, its fields (contents as their size)."""
        for operation in self.operations:
            row: dict[str, str | int] = {"operation": type(operation).__name__}
            for field in operation.__slots__:
                value = getattr(operation, field)
                if isinstance(value, bytes):
                    row["size_bytes"] = len(value)
                elif value is not None:
                    row[field] = value
            yield row
