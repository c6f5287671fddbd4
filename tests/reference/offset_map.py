"""The offset map of the cleaner, as a dictionary."""

from collections.abc import Hashable


class OffsetMap:
    """Newest offset of each key.

    Attributes:
        capacity: How many keys it takes; None for any number.
        offsets: What is in it.
        latest_offset: Up to where the log is mapped, -1 for nothing.
    """

    def __init__(self, *, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.offsets: dict[Hashable, int] = {}
        self.latest_offset = -1

    @property
    def is_full(self) -> bool:
        """Whether no further put is made, be its key known or not."""
        return self.capacity is not None and len(self.offsets) >= self.capacity

    def put(self, key: Hashable, offset: int) -> None:
        """Note a key's offset, which is newer than any before."""
        self.offsets[key] = offset
        self.latest_offset = offset

    def get(self, key: Hashable) -> int:
        """Return a key's offset, -1 if it is not mapped."""
        return self.offsets.get(key, -1)
