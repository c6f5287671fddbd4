"""A tier (KIP-405) as a root of logs. It is only read."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from storage_core.checkpoint.checkpoints import (
    RECOVERY_FILES,
    UPKEEP_FILES,
    encode_offset_checkpoint,
    parse_offset_checkpoint,
)
from storage_core.filenames import TopicPartition
from storage_core.roots.broker import BrokerRoot
from storage_core.roots.root import ReadOnlyRoot
from storage_core.store.open_store import join_location
from storage_core.store.tier_archive import ArchivePlace

_CHECKPOINTS: Final = frozenset({*UPKEEP_FILES, *RECOVERY_FILES})


@dataclass(frozen=True)
class ArchiveRoot(ReadOnlyRoot):
    """The tier of a cluster, alone or joined with the log directories of a broker."""

    place: ArchivePlace

    @property
    def location(self) -> str:
        """As ``open_root`` takes it."""
        return str(self.place)

    def directories(self) -> list[str]:
        """Return the names of its partitions, and of what lies in the log directories, sorted."""
        names = {str(partition) for partition in self._folders}
        for disk in self._disks:
            names.update(disk.directories())
        return sorted(names)

    def read(self, name: str, *, limit_bytes: int) -> bytes | None:
        """Return a small file of the log directories, None if none has it. Checkpoints of several
        are put together."""
        contents = [
            (disk, content)
            for disk in self._disks
            if (content := disk.read(name, limit_bytes=limit_bytes)) is not None
        ]
        if len(contents) > 1 and name in _CHECKPOINTS:
            offsets: dict[TopicPartition, int] = {}
            for disk, content in contents:
                offsets |= parse_offset_checkpoint(content, file=f"{disk.location}/{name}")
            return encode_offset_checkpoint(offsets)
        return contents[0][1] if contents else None

    def locate(self, directory: str) -> str:
        """Return where a partition is, as ``open_store`` takes it."""
        folders = self._folders.get(directory, ())
        return join_location(str(replace(self.place, folders=tuple(folders))), directory)

    @property
    def refusal(self) -> str:
        """Brokers write it."""
        return f"{self.place.place} is a tier, which is only read: brokers own its objects"

    @cached_property
    def _folders(self) -> dict[str, list[str]]:
        """The folders of each partition in the tier, by its name."""
        return self.place.open().partition_folders()

    @property
    def _disks(self) -> list[BrokerRoot]:
        return [BrokerRoot(Path(disk)) for disk in self.place.with_local]
