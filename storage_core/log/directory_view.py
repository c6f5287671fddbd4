"""A partition directory as its planned operations will leave it.

Loading a log reads what it has itself just changed: an index that it has rebuilt, a segment that
it has cut. Nothing is written for that. The view knows for every name where its bytes are now: a
stretch of a file on the store, or bytes in memory that wait to be written.
"""

import enum
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, overload

from storage_core.commit import (
    CopyRange,
    CreateEmptyFile,
    DeleteFile,
    Operation,
    RenameFile,
    SyncDirectory,
    TruncateFile,
    WriteFile,
)
from storage_core.errors import StorageError
from storage_core.filenames import (
    LEADER_EPOCH_FILE,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    kind_of,
    offset_of,
)
from storage_core.store.base import FileInfo, FileReader, LogStore, SliceReader
from storage_core.store.object_files import BytesReader


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualFile:
    """Where the bytes of a name are."""

    # Name of the file on the store that holds the bytes, the length that this name will have, and
    # its modification time.
    info: FileInfo
    start: int = 0
    content: bytes | None = None  # the bytes themselves where they wait to be written, else None


class DirectoryView:
    """The files of a partition, seen through the planned operations.

    Changes of two kinds are noted. Those that ``rename``, ``copy`` and ``delete_now`` make stand in
    ``operations`` in the order of the calls. The others (``write``, ``truncate``, ``delete``) only
    say how a file ends: the last word on a name counts, and they are put into an order in which a
    crash between any two of them leaves a log that recovery brings to the same result. After
    ``cut_last`` it is one in which the same cut, made again, does.
    """

    def __init__(self, store: LogStore) -> None:
        self.store = store
        self._emitted: list[Operation] = []
        # The directory after the emitted operations, and at the end.
        # What was listed stands for itself: a directory may have thousands of files.
        self._settled: dict[str, VirtualFile | FileInfo] = {
            file.name: file for file in store.list_files()
        }
        self._files = dict(self._settled)
        # Names that may differ between the two: a directory has far more than one step changes.
        self._touched: set[str] = set()
        self._reasons: dict[str, str] = {}
        self._stages = _STAGES
        # By offset the number of snapshot names with it, and these offsets, sorted.
        snapshots = (offset_of(name) for name in self._files if name.endswith(SNAPSHOT_SUFFIX))
        self._snapshots = Counter(offset for offset in snapshots if offset is not None)
        self._snapshot_offsets = sorted(self._snapshots)

    @property
    def names(self) -> list[str]:
        """Names that the directory will have, sorted."""
        return sorted(self._files)

    def snapshot_offsets(self) -> list[int]:
        """Return the offsets of all producer snapshots to come, ascending."""
        return self._snapshot_offsets.copy()

    @property
    def operations(self) -> list[Operation]:
        """All planned operations, in the order in which they must happen."""
        return [*self._emitted, *self._pending()]

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def source(self, name: str) -> FileInfo:
        """Return the listing of the file that now holds a name's content."""
        file = self._files[name]
        return file if isinstance(file, FileInfo) else file.info

    def place(self, name: str) -> tuple[str, int]:
        """Return file and position that now hold a name's content."""
        file = self._at(name)
        return file.info.name, file.start

    def read(self, name: str, *, limit_bytes: int) -> bytes:
        """Return the bytes of a small file."""
        file = self._at(name)
        if file.content is None:
            return self.store.read_file(file.info.name, limit_bytes=limit_bytes)
        if len(file.content) > limit_bytes:
            raise StorageError(name, f"is longer than the {limit_bytes} bytes it may have")
        return file.content

    def open(self, name: str) -> FileReader:
        """Open a file for ranged reads, as long as it will be."""
        file = self._at(name)
        if file.content is not None:
            return BytesReader(name, file.content)
        reader = self.store.open_file(file.info.name)
        if file.start == 0 and file.info.size_bytes == reader.size_bytes:
            return reader
        return SliceReader(reader, file.start, file.info.size_bytes)

    def delete(self, name: str, reason: str) -> None:
        """Plan that a file is gone in the end."""
        self._take(name)
        self._reasons[name] = reason

    def write(self, name: str, content: bytes, reason: str) -> None:
        """Plan that a small file has this content in the end."""
        self._put(name, VirtualFile(info=FileInfo(name, len(content), 0), content=content))
        self._reasons[name] = reason

    def truncate(self, name: str, size_bytes: int, reason: str) -> None:
        """Plan that a file is cut."""
        file = self._at(name)
        content = None if file.content is None else file.content[:size_bytes]
        info = FileInfo(file.info.name, size_bytes, file.info.modified_ms)
        self._put(name, VirtualFile(info=info, start=file.start, content=content))
        self._reasons[name] = reason

    def cut_last(self) -> None:
        """Order the changes to come as those of a requested cut.

        A second attempt sees by the segments alone that something is left to be done. So whatever
        follows from the cut (indexes, snapshots) is changed before the first segment goes, and all
        removals are durable before the segment that becomes the last one is cut.
        """
        self._settle()
        self._stages = _STAGES_OF_A_CUT

    def delete_now(self, name: str, reason: str) -> None:
        """Plan to delete a file between the former and the later changes."""
        self._settle()
        self._take(name)
        self._emit(DeleteFile(name=name, reason=reason))

    def rename(self, name: str, target: str, reason: str) -> None:
        """Plan to rename a file, over the target if there is one."""
        self._settle()
        self._put(target, self._take(name))
        self._emit(RenameFile(source=name, target=target, reason=reason))

    def copy(self, name: str, start: int, size_bytes: int, target: str, reason: str) -> None:
        """Plan to copy a stretch of a file, with its time."""
        self._settle()
        file = self._at(name)
        info = FileInfo(file.info.name, size_bytes, file.info.modified_ms)
        self._put(target, VirtualFile(info=info, start=file.start + start))
        self._emit(
            CopyRange(
                source=name,
                start=start,
                size_bytes=size_bytes,
                target=target,
                modified_ms=file.info.modified_ms,
                reason=reason,
            )
        )

    def write_now(self, name: str, content: bytes, modified_ms: int, reason: str) -> None:
        """Plan to write a small file with a time, in call order."""
        self._settle()
        info = FileInfo(name, len(content), modified_ms)
        self._put(name, VirtualFile(info=info, content=content))
        self._emit(WriteFile(name=name, content=content, modified_ms=modified_ms, reason=reason))

    def sync(self, reason: str) -> None:
        """Plan to make the directory's entries durable before what comes."""
        self._settle()
        self._emit(SyncDirectory(reason=reason))

    def _at(self, name: str) -> VirtualFile:
        return _virtual(self._files[name])

    def _put(self, name: str, file: VirtualFile | FileInfo) -> None:
        offset = _snapshot_offset(name)
        if offset is not None and name not in self._files:
            self._snapshots[offset] += 1
            if self._snapshots[offset] == 1:
                insort(self._snapshot_offsets, offset)
        self._files[name] = file
        self._touched.add(name)

    def _take(self, name: str) -> VirtualFile | FileInfo:
        file = self._files.pop(name)
        self._touched.add(name)
        offset = _snapshot_offset(name)
        if offset is not None:
            self._snapshots[offset] -= 1
            if not self._snapshots[offset]:
                del self._snapshot_offsets[bisect_left(self._snapshot_offsets, offset)]
        return file

    def _emit(self, operation: Operation) -> None:
        self._emitted.append(operation)
        self._take_over()

    def _settle(self) -> None:
        self._emitted += self._pending()
        self._take_over()

    def _take_over(self) -> None:
        for name in self._touched:
            if name in self._files:
                self._settled[name] = self._files[name]
            else:
                self._settled.pop(name, None)
        self._touched.clear()

    def _pending(self) -> list[Operation]:
        changed = [
            name
            for name in self._touched
            if _virtual(self._settled.get(name)) != _virtual(self._files.get(name))
        ]
        names = sorted(changed, key=self._rank)
        steps = [step for step in map(self._step, names) if step is not None]
        first_cut = next((n for n, step in enumerate(steps) if _is_cut(step)), 0)
        if any(isinstance(step, DeleteFile) for step in steps[:first_cut]):
            # Removals are durable only with the directory; a cut is at once.
            sync = SyncDirectory(reason="what is removed does not come back behind a cut")
            steps.insert(first_cut, sync)
        created = next((n for n, step in enumerate(steps) if _is_new_log(step)), len(steps))
        following = enumerate(steps[created:], created)
        first_removal = next((n for n, step in following if _is_of_old_segment(step)), None)
        if first_removal is not None:
            # A filesystem may persist names in any order.
            sync = SyncDirectory(reason="the new segment is there, whatever of the old ones goes")
            steps.insert(first_removal, sync)
        return steps

    def _step(self, name: str) -> Operation | None:
        old, new = _virtual(self._settled.get(name)), _virtual(self._files.get(name))
        reason = self._reasons[name]
        if new is None:
            return DeleteFile(name=name, reason=reason)
        if new.content is None:
            return TruncateFile(name=name, size_bytes=new.info.size_bytes, reason=reason)
        if old is None and not new.content:
            return CreateEmptyFile(name=name, reason=reason)
        if old is not None and self._has_content(old, new.content):
            return None
        return WriteFile(name=name, content=new.content, reason=reason)

    def _has_content(self, file: VirtualFile, content: bytes) -> bool:
        if file.info.size_bytes != len(content):
            return False
        if file.content is not None:
            return file.content == content
        return self.store.read_file(file.info.name, limit_bytes=len(content)) == content

    def _rank(self, name: str) -> tuple[int, int, int, str]:
        """Return the rank of a name's change among the pending changes.

        Epochs come first: what they lose is lost again by a second recovery, but once the segments
        are gone nothing shows that their epochs have to go too.
        Segments go from the newest to the oldest and before any is cut: a cut segment followed by
        its old successor would be a hole that nothing shows any more. An offset index that was
        missing comes back last, a transaction index that was bad is replaced last: each is the
        sign by which a loader knows that the segment is still to be recovered.
        """
        offset, kind = offset_of(name), kind_of(name)
        base = 0 if offset is None else offset
        if name not in self._files:
            is_record_file = kind == LOG_SUFFIX
            stage = (
                _ChangeStage.REMOVAL if kind != SNAPSHOT_SUFFIX else _ChangeStage.SNAPSHOT_REMOVAL
            )
            return self._stages.index(stage), -base, 0 if is_record_file else 1, name
        is_new = name not in self._settled
        if kind == LOG_SUFFIX:
            # Where a cut lets the log start over, the new segment is created before the old ones
            # are removed. Without any segment the log would begin and end at its checkpoint, and a
            # second attempt would find nothing to cut. A recovery creates it afterwards: it starts
            # over at that checkpoint, as would the next one.
            stage = _ChangeStage.CREATION if is_new else _ChangeStage.CUT
            return self._stages.index(stage), -base, 0, name
        if name == LEADER_EPOCH_FILE:
            return self._stages.index(_ChangeStage.EPOCHS), 0, 0, name
        order = _WRITE_ORDER.get(kind or "", 0)
        if kind == OFFSET_INDEX_SUFFIX and is_new:
            order = _LAST_INDEX
        return self._stages.index(_ChangeStage.WRITE), base, order, name


def _snapshot_offset(name: str) -> int | None:
    return offset_of(name) if name.endswith(SNAPSHOT_SUFFIX) else None


@overload
def _virtual(file: VirtualFile | FileInfo) -> VirtualFile: ...
@overload
def _virtual(file: VirtualFile | FileInfo | None) -> VirtualFile | None: ...
def _virtual(file: VirtualFile | FileInfo | None) -> VirtualFile | None:
    return VirtualFile(info=file) if isinstance(file, FileInfo) else file


class _ChangeStage(enum.Enum):
    """Of changes that belong together."""

    EPOCHS = enum.auto()
    REMOVAL = enum.auto()
    CREATION = enum.auto()
    CUT = enum.auto()
    SNAPSHOT_REMOVAL = enum.auto()
    WRITE = enum.auto()


_STAGES: Final = tuple(_ChangeStage)
_STAGES_OF_A_CUT: Final = (
    _ChangeStage.EPOCHS,
    _ChangeStage.WRITE,
    _ChangeStage.CREATION,
    _ChangeStage.SNAPSHOT_REMOVAL,
    _ChangeStage.REMOVAL,
    _ChangeStage.CUT,
)
_WRITE_ORDER = {
    TIME_INDEX_SUFFIX: 1,
    OFFSET_INDEX_SUFFIX: 2,
    TXN_INDEX_SUFFIX: 3,
    SNAPSHOT_SUFFIX: 5,
}
_LAST_INDEX = 4


def has_unsynced_names(operations: Sequence[Operation]) -> bool:
    """Whether names change after the last sync of the directory."""
    others = (step for step in reversed(operations) if not isinstance(step, TruncateFile))
    last = next(others, None)
    return last is not None and not isinstance(last, SyncDirectory | WriteFile)


def _is_cut(step: Operation) -> bool:
    return isinstance(step, TruncateFile) and kind_of(step.name) == LOG_SUFFIX


def _is_new_log(step: Operation) -> bool:
    return isinstance(step, CreateEmptyFile) and kind_of(step.name) == LOG_SUFFIX


def _is_of_old_segment(step: Operation) -> bool:
    return isinstance(step, DeleteFile) and kind_of(step.name) in SEGMENT_SUFFIXES
