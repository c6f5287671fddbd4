"""Plan the operations that put the segments of a healing into place.

The log is loaded as it will be: what a broker's start would then repair, indexes above all, is part
of the plan. Each segment is swapped whole, with its indexes, as compaction does it: a crash leaves
the old one or the new one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from storage_core.checkpoint.checkpoints import encode_leader_epochs
from storage_core.cluster.healing import Healing
from storage_core.commit import (
    CreateEmptyFile,
    DeleteFile,
    Operation,
    PromoteFile,
    RenameFile,
    SyncDirectory,
    WriteFile,
)
from storage_core.filenames import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LEADER_EPOCH_FILE,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    kind_of,
    log_file,
    offset_of,
    segment_file,
)
from storage_core.json_values import from_json
from storage_core.log.directory_view import DirectoryView
from storage_core.log.leader_epoch_cache import LeaderEpochCache, read_epoch_runs
from storage_core.log.loading_log import parse_epochs, read_epochs
from storage_core.log.settled_store import (
    PiecedSegment,
    PiecedStore,
    PlannedStore,
    segment_names,
    settle_leftovers,
    write_segment,
)
from storage_core.store import LogStore, open_store
from storage_core.store.log_identity import read_identity

_HEALED: Final = "healed from other replicas"
_REPLACED: Final = "replaced by the healed segment"


def open_healing(store: LogStore, healing: str) -> "HealedPartition":
    """Return a partition with the new segments of a healing.

    Args:
        healing: ``Healing`` as JSON. Its donors have to be replicas of this very log.
    """
    planned = from_json(Healing, healing)
    own = read_identity(store)
    for donor in {piece.directory for each in planned.segments for piece in each.pieces} - {""}:
        read_identity(open_store(donor)).require(own, donor)
    return HealedPartition(store, planned.segments, planned.wrong_epochs)


class HealedPartition:
    """A partition about to get the segments of a healing.

    Attributes:
        store: The partition as it will be; the segments have no indexes there yet.
    """

    def __init__(
        self, store: LogStore, segments: Sequence[PiecedSegment], wrong_epochs: Sequence[int] = ()
    ) -> None:
        self._view = DirectoryView(store)
        settle_leftovers(self._view)
        self._settled = PlannedStore(self._view)
        self._segments = segments
        self._wrong_epochs = frozenset(wrong_epochs)
        self.store = PiecedStore(self._settled, segments)

    def plan(self, operations: Sequence[Operation]) -> tuple[Operation, ...]:
        """Return the operations of the swap, then those of a load. The scratch files are named by
        the files that they become.

        Args:
            operations: Those of a load of ``store``. The indexes that it builds for the segments
                are swapped with them.
        """
        names = {
            segment_file(segment.base_offset, suffix)
            for segment in self._segments
            for suffix in INDEX_SUFFIXES
        }
        indexes: dict[str, bytes] = {}
        others: list[Operation] = []
        for step in operations:
            if isinstance(step, WriteFile) and step.name in names:
                indexes[step.name] = step.content
            elif isinstance(step, CreateEmptyFile) and step.name in names:
                indexes[step.name] = b""
            else:
                others.append(step)
        content = self._epoch_file(others) if self._wrong_epochs else None
        if content is not None:
            others = [step for step in others if getattr(step, "name", "") != LEADER_EPOCH_FILE]
        swap = list(self._view.operations)
        if swap:
            swap.append(SyncDirectory(reason="the log as it was found"))
        if content is not None:
            # First: once the batch is healed, nothing shows that its epoch has to go.
            reason = "epochs that no leader had"
            swap.append(WriteFile(name=LEADER_EPOCH_FILE, content=content, reason=reason))
        for segment in self._segments:
            swap += self._appear(segment, indexes)
        swap.append(SyncDirectory(reason="the healed segments are complete"))
        for segment in self._segments:
            swap += self._swap(segment, indexes)
        return (*swap, *others)

    def _epoch_file(self, steps: Sequence[Operation]) -> bytes:
        """Return the epoch file with the healed batches' epochs alone. A wrong one has removed
        the true ones behind it."""
        entries = read_epochs(self.store).entries
        for step in steps:
            if isinstance(step, WriteFile) and step.name == LEADER_EPOCH_FILE:
                entries = parse_epochs(step.content).entries
        bases = sorted(
            offset
            for file in self.store.list_files()
            if kind_of(file.name) == LOG_SUFFIX and (offset := offset_of(file.name)) is not None
        )
        runs = read_epoch_runs(self.store.open_file, bases)
        lowest = min((entry.start_offset for entry in entries), default=0)
        pairs = [
            (max(run.first_offset, lowest), run.epoch) for run in runs if run.last_offset >= lowest
        ]
        pairs += [(entry.start_offset, entry.epoch) for entry in entries]
        cache = LeaderEpochCache()
        for start_offset, epoch in sorted(pairs):
            if epoch > cache.latest_epoch and epoch not in self._wrong_epochs:
                cache.assign(epoch, start_offset)
        return encode_leader_epochs(cache.entries)

    def write(self, operations: Sequence[Operation], scratch: Path) -> tuple[Operation, ...]:
        """Write the logs to scratch files; return the final operations.

        Args:
            scratch: Path, but for their endings, of the files.
        """
        paths = {}
        for segment in self._segments:
            if segment.pieces:
                name = log_file(segment.base_offset)
                paths[name] = scratch.with_name(f"{scratch.name}-{name}")
                write_segment(self._settled, segment, paths[name])
        return tuple(
            replace(step, scratch_path=str(paths[step.scratch_path]))
            if isinstance(step, PromoteFile)
            else step
            for step in operations
        )

    def _appear(self, segment: PiecedSegment, indexes: Mapping[str, bytes]) -> Iterator[Operation]:
        """Yield what brings a segment's files into the directory."""
        for name in _names(segment, indexes):
            if name in indexes:
                content = indexes[name]
                yield WriteFile(name=name + CLEANED_SUFFIX, content=content, reason=_HEALED)
            else:
                yield PromoteFile(
                    scratch_path=name,
                    name=name + CLEANED_SUFFIX,
                    size_bytes=segment.size_bytes,
                    reason=_HEALED,
                )

    def _swap(self, segment: PiecedSegment, indexes: Mapping[str, bytes]) -> Iterator[Operation]:
        """Yield what lets a segment count, and its old files go."""
        names = _names(segment, indexes)
        old = [name for name in segment_names(segment.base_offset) if name in self._view]
        for name in names:
            yield RenameFile(
                source=name + CLEANED_SUFFIX, target=name + SWAP_SUFFIX, reason=_HEALED
            )
        if names:
            yield SyncDirectory(reason="from here on it counts")
        for name in old:
            yield RenameFile(source=name, target=name + DELETED_SUFFIX, reason=_REPLACED)
        if old:
            yield SyncDirectory(reason=_REPLACED)
        for name in names:
            yield RenameFile(source=name + SWAP_SUFFIX, target=name, reason=_HEALED)
        if names:
            yield SyncDirectory(reason="the swap is complete")
        for name in old:
            yield DeleteFile(name=name + DELETED_SUFFIX, reason=_REPLACED)


def _names(segment: PiecedSegment, indexes: Mapping[str, bytes]) -> list[str]:
    """Return the names of a segment's files, none for one that goes."""
    if not segment.pieces:
        return []
    names = segment_names(segment.base_offset)
    return [name for name in names if name in indexes or name == log_file(segment.base_offset)]
